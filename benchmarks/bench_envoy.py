"""Through a real Envoy: what the picker adds to a request, beside an echo that does not think.

One Envoy has four listeners: without a picker, with the bare ngh2 echo, with the picker, and with
the picker over TLS.  Rounds of each alternate; the lowest median of each counts.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks import load, messages, servers
from benchmarks.report import Row, at_least, at_most

ROUNDS = 5
LARGE = 220 * 1024
AT_ONCE = 20


def run() -> list[Row]:
    """Return the added medians at one request at a time, and the rates of large prompts."""
    with ExitStack() as stack:
        enter = stack.enter_context
        upstream = enter(servers.module("upstream", "10", core=servers.CLIENT_CORE))
        manifests = enter(servers.world(endpoints=tuple(upstream.ports.values())))
        endpoint = f"127.0.0.1:{upstream.port}"
        echo = enter(servers.module("echo", "http2", "--endpoint", endpoint))
        picker = enter(servers.picker(manifests))
        over_tls = enter(servers.picker(manifests, secure_serving="true"))
        config = _config(
            upstream.port, {"echo": echo.port, "picker": picker.port}, {"tls": over_tls.port}
        )
        envoy = enter(servers.envoy(config, manifests.parent))
        return _small(envoy.ports) + _large(envoy.ports)


def _config(upstream: int, plain: Mapping[str, int], tls: Mapping[str, int]) -> dict[str, Any]:
    parts = [servers.listener(port, name) for name, port in plain.items()]
    parts += [servers.listener(port, name, tls=True) for name, port in tls.items()]
    whole = parts[0]
    resources = whole["static_resources"]
    for part in parts[1:]:
        resources["listeners"] += part["static_resources"]["listeners"]
        resources["clusters"] += part["static_resources"]["clusters"]
    resources["listeners"].append(servers.direct_listener(resources["listeners"][0]))
    resources["clusters"].append(servers.direct_cluster([upstream]))
    return whole


def _small(ports: Mapping[str, int]) -> list[Row]:
    body = messages.chat_body("model-42", 1024)
    medians = dict.fromkeys(ports, float("inf"))
    for _ in range(ROUNDS):
        for name, port in ports.items():
            got = _checked(load.requests(port, body, seconds=1))
            medians[name] = min(medians[name], got.p50_s)
    added = {name: (median - medians["direct"]) * 1e6 for name, median in medians.items()}
    return [
        at_most(
            "concurrency 1: added p50 versus the bare ngh2 echo",
            added["picker"] / added["echo"],
            1.4,
            note=f"{medians['direct'] * 1e6:.0f} us without ext_proc",
        ),
        Row("  added by the echo", added["echo"], "us"),
        Row("  added by the picker", added["picker"], "us"),
        Row("  added by the picker over TLS", added["tls"], "us"),
    ]


def _large(ports: Mapping[str, int]) -> list[Row]:
    body = messages.chat_body("model-42", LARGE)
    rates = dict.fromkeys(ports, 0.0)
    for _ in range(ROUNDS):
        for name, port in ports.items():
            got = _checked(load.requests(port, body, seconds=1, connections=AT_ONCE))
            rates[name] = max(rates[name], got.per_s)
    return [
        at_least(
            f"220 KB prompts, concurrency {AT_ONCE}, versus the bare ngh2 echo",
            rates["picker"] / rates["echo"] * 100,
            70,
            "%",
        ),
        Row("  through the echo", rates["echo"], "/s"),
        Row("  through the picker", rates["picker"], "/s"),
        Row("  through the picker over TLS", rates["tls"], "/s"),
        Row("  without ext_proc", rates["direct"], "/s"),
    ]


def _checked(got: load.Requests) -> load.Requests:
    if got.failed:
        raise RuntimeError(f"{got.failed} of {got.count} requests failed")
    return got
