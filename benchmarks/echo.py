"""What the picker is compared with: servers that answer ext_proc streams without thinking.

`python -m benchmarks.echo grpc` sends each message back over grpc.aio's read/write API on uvloop:
what a picker in Python costs before it does anything.  `python -m benchmarks.echo http2` is the
least that can be written on libnghttp2; with `--endpoint` it sends every request there and its body
back, so that Envoy can stand in front of it.
"""

import argparse
import asyncio
from typing import cast

import grpc
import ngh2
import uvloop

from epp.extproc import codec
from epp.extproc.calls import OK
from epp.extproc.events import (
    AnswerRequestHeaders,
    RequestBody,
    RequestChunk,
    RequestHeaders,
    Route,
)
from epp.extproc.transports.framing import RESPONSE_HEADERS, Deframer, frames, trailers
from epp.extproc.transports.limits import MIB, Limits


class _GrpcEcho(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(_echo)


async def _echo(_: object, context: grpc.aio.ServicerContext) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


async def _serve_grpc() -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((_GrpcEcho(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


class Http2Echo(asyncio.Protocol):
    """One connection: no limits, no timeouts, no metrics, nothing looked up."""

    def __init__(self, endpoint: str) -> None:
        configuration = ngh2.Configuration(
            auto_window_update=True, stream_reset_rate_limit=Limits().resets
        )
        self._h2 = ngh2.Connection(ngh2.Role.SERVER, configuration)
        self._deframers: dict[int, Deframer] = {}
        self._endpoint = endpoint
        self._picked = codec.encode(AnswerRequestHeaders(Route(endpoint, "default/pool", "model")))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self._transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: 1 * MIB})
        self._h2.set_local_window_size(256 * MIB)
        self._transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        """Answer what came with one write."""
        h2 = self._h2
        h2.receive_data(data)
        for event in h2.events():
            if isinstance(event, ngh2.RequestReceived):
                self._deframers[event.stream_id] = Deframer(64 * MIB)
                h2.send_response(event.stream_id, RESPONSE_HEADERS)
            elif isinstance(event, ngh2.DataReceived):
                self._answer(event)
            elif isinstance(event, ngh2.StreamClosed):
                self._deframers.pop(event.stream_id, None)
        self._transport.write(h2.data_to_send())

    def _answer(self, event: ngh2.DataReceived) -> None:
        deframer = self._deframers.get(event.stream_id)
        if deframer is None:
            return
        over = False
        messages = deframer.feed(event.data)
        if self._endpoint:
            answers = []
            for message in messages:
                asked = codec.decode(message)
                if type(asked) is RequestHeaders:
                    answers.append(self._picked)
                    over = asked.end
                elif type(asked) is RequestBody:
                    answers.append(codec.encode(RequestChunk(asked.data, asked.end)))
                    over = asked.end
            messages = answers
        if messages:
            self._h2.send_data(event.stream_id, frames(tuple(messages)))
        if over or event.end_stream:
            del self._deframers[event.stream_id]
            self._h2.send_trailers(event.stream_id, trailers(OK))


async def _serve_http2(endpoint: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http2Echo(endpoint), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("grpc", "http2"))
    parser.add_argument("--endpoint", default="", help="where the http2 echo sends every request")
    given = parser.parse_args()
    served = _serve_grpc() if given.kind == "grpc" else _serve_http2(given.endpoint)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(served)


if __name__ == "__main__":
    main()
