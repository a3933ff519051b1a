"""ext_proc streams per second on one core, under h2load: the whole picker against bare echoes.

What is compared is CPU time per stream: it hardly depends on what else the machine does.  Rounds of
each server alternate, and the best of each counts.
"""

from contextlib import ExitStack

from benchmarks import load, messages, servers
from benchmarks.report import Row, at_least

ROUNDS = 3
CHUNKS = 100


def run() -> list[Row]:
    """Return the rates, and what they are as multiples of the bare echo's."""
    body = messages.chat_body("model-42", 1024)
    asked = [messages.request_headers(), messages.request_body(body)]
    short = messages.framed(asked)
    long = messages.framed([*asked, *messages.response(CHUNKS)])
    with ExitStack() as stack:
        enter = stack.enter_context
        upstream = enter(servers.module("upstream", "10", core=servers.CLIENT_CORE))
        manifests = enter(servers.world(endpoints=tuple(upstream.ports.values())))
        http2 = enter(servers.picker(manifests, transport="http2"))
        passing = enter(servers.picker(manifests, transport="http2", response_mode="pass"))
        grpcio = enter(servers.picker(manifests, transport="grpcio"))
        bare_grpc = enter(servers.module("echo", "grpc"))
        bare_http2 = enter(servers.module("echo", "http2"))
        one = {"picker": http2, "grpc echo": bare_grpc, "ngh2 echo": bare_http2, "grpcio": grpcio}
        many = {"picker": passing, "grpc echo": bare_grpc, "ngh2 echo": bare_http2}
        rows = _rows("streams", _measured(one, short), 5.0)
        rows += _rows(f"with {CHUNKS} response chunks passed", _measured(many, long), 5.0)
    return rows


def _measured(of: dict[str, servers.Child], request: bytes) -> dict[str, load.Streams]:
    best: dict[str, load.Streams] = {}
    idle = {name: load.idle_share(server) for name, server in of.items()}
    for _ in range(ROUNDS):
        for name, server in of.items():
            got = load.streams(server, request, seconds=2, idle=idle[name])
            if name not in best or got.cpu_us < best[name].cpu_us:
                best[name] = got
    return best


def _rows(what: str, got: dict[str, load.Streams], least: float) -> list[Row]:
    rate = {name: streams.per_core_s for name, streams in got.items()}
    notes = {
        name: f"{streams.cpu_us:.1f} us CPU each, {streams.idle:.1%} of the core when idle;"
        f" {streams.per_s:,.0f}/s by the clock"
        for name, streams in got.items()
    }
    rows = [
        at_least(f"{what}, http2 versus grpc.aio echo", rate["picker"] / rate["grpc echo"], least),
        Row("  the picker, http2", rate["picker"], "/s per core", note=notes["picker"]),
        Row("  bare grpc.aio echo", rate["grpc echo"], "/s per core", note=notes["grpc echo"]),
        Row("  bare ngh2 echo", rate["ngh2 echo"], "/s per core", note=notes["ngh2 echo"]),
    ]
    if "grpcio" in got:
        rows.append(
            Row("  the picker, grpcio", rate["grpcio"], "/s per core", note=notes["grpcio"])
        )
    return rows
