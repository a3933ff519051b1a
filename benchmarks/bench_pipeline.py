"""What our own code costs per request, without sockets, and each part's share of it.

decode → session → route → encode → log, for a 1 KB chat request, 100 models, 10 endpoints.
"""

import gc
import os
import time
from collections.abc import Callable

from benchmarks import messages, world
from benchmarks.report import Row, at_most
from epp.accesslog import AccessLog
from epp.extproc import codec
from epp.extproc.calls import Reply
from epp.extproc.events import AnswerRequestHeaders, RequestChunk, Route
from epp.extproc.service import ExtProc
from epp.extproc.session import Session
from epp.metrics import PickerMetrics
from epp.observer import RequestObserver
from epp.outcome import Outcome
from epp.routing.body import read_model
from epp.routing.request import Request

_ROUNDS = 2_000
_TIMES = 20
"""Short rounds: the best of them was not interrupted."""
_SECONDS = 4.0
_METADATA = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", codec.METHOD.encode()),
    (b":authority", b"epp.default.svc:9002"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


_LINE = "encoding the log line, on its own thread"


def _no_push(_reply: Reply) -> None:
    """Nothing is pushed in a benchmark."""


def measure_us(action: Callable[[], object], times: int = _TIMES) -> float:
    """Return the microseconds of one call: the best of many rounds."""
    best = float("inf")
    stop = time.perf_counter() + _SECONDS
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(times):
            action()
        end = time.perf_counter()
        best = min(best, end - start)
        if end > stop:
            break
    return best / times * 1e6


def run() -> list[Row]:
    """Return the cost of a request and of its parts."""
    sink = os.open(os.devnull, os.O_WRONLY)
    log = AccessLog(sink)
    metrics = PickerMetrics(version="bench", process=False)
    observer = RequestObserver(metrics, log)
    service = world.service(world.store(), observer)
    body = messages.chat_body("model-42", 1024)
    headers, chunk = messages.request_headers(), messages.request_body(body)

    def whole() -> None:
        stream = service.open(codec.METHOD, _METADATA, _no_push)
        assert stream is not None
        stream.receive(headers)
        stream.receive(chunk)

    gc.collect()
    gc.freeze()
    parts = _parts(service, observer, log, headers, chunk, body)
    total = measure_us(whole) + dict(parts)[_LINE]
    log.close()
    os.close(sink)
    rows = [at_most("whole request", total, 40.0, "us", "decode to log, no sockets")]
    rows += [Row(f"  {name}", cost, "us", note=f"{cost / total:.0%} of it") for name, cost in parts]
    return rows


def _parts(
    service: ExtProc,
    observer: RequestObserver,
    log: AccessLog,
    headers: bytes,
    chunk: bytes,
    body: bytes,
) -> list[tuple[str, float]]:
    begun, ended = codec.decode(headers), codec.decode(chunk)
    route = Route("10.0.0.1:8000", "default/pool", "model-42")
    binding = service._binding(_METADATA)
    request = Request({":method": b"POST"}, body)

    def session() -> None:
        one = Session(max_body_bytes=1 << 24, pass_response=False)
        one.receive(begun)
        one.receive(ended)
        one.route(route)

    def routed() -> None:
        scope = service.router.scope(binding, service.knowledge)
        service.router.route(request, scope, service.knowledge, 1.0)

    answer, echo = AnswerRequestHeaders(route), RequestChunk(body, True)
    outcome = Outcome(
        request_id="3f1c0e6e", namespace="default", model="model-42", target="model-42",
        pool="default/pool", endpoint="10.0.0.1:8000", picker_s=2e-5, body_bytes=1024,
    )  # fmt: skip
    return [
        ("open", measure_us(lambda: service.open(codec.METHOD, _METADATA, _no_push))),
        ("decode", measure_us(lambda: (codec.decode(headers), codec.decode(chunk)))),
        ("session", measure_us(session)),
        ("route", measure_us(routed)),
        ("  of which reading the body", measure_us(lambda: read_model(body))),
        ("encode", measure_us(lambda: (codec.encode(answer), codec.encode(echo)))),
        ("metrics, and handing on the log line", measure_us(lambda: observer.picked(outcome))),
        (_LINE, measure_us(lambda: AccessLog._encode(log, (1.8e9, outcome)))),
    ]
