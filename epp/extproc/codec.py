"""Wire messages to events, actions to wire messages.  The only module that knows protobuf.

Every name that travels stands here once: the headers and metadata of the endpoint-picker
protocol (Gateway API Inference Extension, proposal 004) and of Envoy's ext_proc.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct, Value

from epp.extproc import wire
from epp.extproc.events import (
    FULL_DUPLEX,
    Action,
    Answer,
    AnswerRequestBody,
    AnswerRequestHeaders,
    AnswerRequestTrailers,
    AnswerResponseBody,
    AnswerResponseHeaders,
    AnswerResponseTrailers,
    BodyMode,
    Event,
    Modes,
    RequestBody,
    RequestChunk,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseChunk,
    ResponseHeaders,
    ResponseTrailers,
    Route,
)
from protos.gen import ext_proc_pb2 as pb

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

DESTINATION = "x-gateway-destination-endpoint"
DESTINATION_NAMESPACE = "envoy.lb"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
MODEL = "x-gateway-model-name"
POOL = "x-gateway-inference-pool"

_SPOOFABLE = (SUBSET, SERVED, "x-gateway-model-name-rewrite")
"""Control headers that only a gateway may set; a client's are removed."""

_OVERWRITE = pb.OVERWRITE_IF_EXISTS_OR_ADD
_ROUTE_CACHE_ENTRIES = 4096
_MODE_ENTRIES = 256
_HEAD_ENTRIES = 4096
_REST_ENTRIES = 256
_REST_BYTES = 64


class MalformedMessage(Exception):
    """The bytes are not a message of the protocol."""


# --- from Envoy -------------------------------------------------------------------------------


def decode(message: bytes) -> Event:
    """Return the event that a ProcessingRequest tells.

    Raises MalformedMessage for bytes that are none, or that tell nothing we know.
    """
    tag = message[0] if message else 0
    if tag == wire.REQUEST_BODY or tag == wire.RESPONSE_BODY:
        piece = wire.read_body(message)
        if piece is not None:
            data, end = piece
            return RequestBody(data, end) if tag == wire.REQUEST_BODY else ResponseBody(data, end)
    elif tag == wire.REQUEST_HEADERS:
        parts = wire.read_headers(message)
        if parts is not None:
            block, end, rest = parts
            known = _rests.get(rest) or _read_rest(rest)
            return RequestHeaders(wire.Headers(block), end, *known)
    return _decode(message)


def _read_rest(rest: bytes) -> tuple[Modes, tuple[str, ...] | None]:
    """Return what a first message says after the headers: the filter's modes and the subset."""
    request = _parse(rest)
    said = _modes_of(request), _subset(request)
    if len(rest) <= _REST_BYTES:
        if len(_rests) >= _REST_ENTRIES:
            _rests.clear()
        _rests[rest] = said
    return said


_rests: dict[bytes, tuple[Modes, tuple[str, ...] | None]] = {}
"""Without a subset, it is the filter's configuration, which comes with each of its streams."""


def _parse(message: bytes) -> pb.ProcessingRequest:
    try:
        return pb.ProcessingRequest.FromString(message)
    except DecodeError as error:
        raise MalformedMessage("not a ProcessingRequest") from error


def _decode(message: bytes) -> Event:
    """Return what any message tells, by the generated code."""
    request = _parse(message)
    match request.WhichOneof("phase"):
        case "request_body":
            body = request.request_body
            return RequestBody(body.body, body.end_of_stream)
        case "request_headers":
            headers = request.request_headers
            modes, subset = _modes_of(request), _subset(request)
            return RequestHeaders(
                wire.joined(headers.headers), headers.end_of_stream, modes, subset
            )
        case "response_body":
            body = request.response_body
            return ResponseBody(body.body, body.end_of_stream)
        case "response_headers":
            headers = request.response_headers
            fields = wire.joined(headers.headers)
            return ResponseHeaders(fields, headers.end_of_stream, _served(request))
        case "request_trailers":
            return RequestTrailers()
        case "response_trailers":
            return ResponseTrailers()
        case _:
            raise MalformedMessage("a ProcessingRequest of no known phase")


def _modes_of(request: pb.ProcessingRequest) -> Modes:
    return _modes(request.protocol_config) if request.HasField("protocol_config") else FULL_DUPLEX


def _modes(config: pb.ProtocolConfiguration) -> Modes:
    key = (
        config.request_body_mode,
        config.response_body_mode,
        config.send_body_without_waiting_for_header_response,
    )
    modes = _known_modes.get(key)
    if modes is None:
        request, response, early_body = key
        modes = Modes(_body_mode(request), _body_mode(response), early_body)
        if len(_known_modes) < _MODE_ENTRIES:
            _known_modes[key] = modes
    return modes


_known_modes: dict[tuple[int, int, bool], Modes] = {}
"""A filter's configuration comes with each of its streams; there are a handful."""


def _body_mode(number: int) -> BodyMode:
    return BodyMode(number) if 0 <= number <= BodyMode.GRPC.value else BodyMode.UNKNOWN


def _subset(request: pb.ProcessingRequest) -> tuple[str, ...] | None:
    """Return the subset hint: a list of endpoints, or one string with commas; None if absent."""
    if not request.HasField("metadata_context"):
        return None
    value = _metadata_value(request, SUBSET_NAMESPACE, SUBSET)
    if value is None:
        return None
    if value.WhichOneof("kind") == "list_value":
        texts = [item.string_value for item in value.list_value.values]
    else:
        texts = value.string_value.split(",")
    return tuple(text for text in map(str.strip, texts) if text)


def _served(request: pb.ProcessingRequest) -> str | None:
    if not request.HasField("metadata_context"):
        return None
    value = _metadata_value(request, DESTINATION_NAMESPACE, SERVED)
    return value.string_value if value is not None else None


def _metadata_value(request: pb.ProcessingRequest, namespace: str, key: str) -> Value | None:
    metadata = request.metadata_context.filter_metadata
    if namespace not in metadata:  # reading a missing key of a map would create it
        return None
    fields = metadata[namespace].fields
    return fields.get(key)


# --- to Envoy ---------------------------------------------------------------------------------


def encode(action: Action) -> bytes:
    """Return the ProcessingResponse that carries an action (`Close` is none: it has no message)."""
    return _ENCODERS[type(action)](action)


def _request_chunk(action: RequestChunk) -> bytes:
    return _streamed(_REQUEST_BODY, action.data, action.end)


def _response_chunk(action: ResponseChunk) -> bytes:
    return _streamed(_RESPONSE_BODY, action.data, action.end)


def _streamed(answer: int, data: bytes, end: bool) -> bytes:
    """Return a ProcessingResponse of one StreamedBodyResponse.

    Written by hand: a reply to Envoy is mostly these, and building five nested messages to hold
    one field costs more than the rest of a pick.  Tests hold it equal to the generated code.
    """
    size = len(data)
    key = (answer, size, end)
    head = _heads.get(key)
    if head is None:
        if len(_heads) >= _HEAD_ENTRIES:
            _heads.clear()
        head = _heads[key] = _streamed_head(answer, size, end)
    return b"".join((head, data, _END_OF_STREAM)) if end else head + data


_heads: dict[tuple[int, int, bool], bytes] = {}
"""What stands before a body of this length; the chunks of a streamed response repeat theirs."""


def _streamed_head(answer: int, size: int, end: bool) -> bytes:
    head = b"\x0a" + _varint(size) if size else b""  # StreamedBodyResponse.body
    size += len(head) + (len(_END_OF_STREAM) if end else 0)
    for tag in (0x1A, 0x1A, 0x0A, answer):  # streamed_response, body_mutation, response, answer
        part = _varint(size)
        head = b"%c%b%b" % (tag, part, head)
        size += 1 + len(part)
    return head


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))


_REQUEST_BODY = 0x1A
"""Tag of ProcessingResponse.request_body."""
_RESPONSE_BODY = 0x22
"""Tag of ProcessingResponse.response_body."""
_END_OF_STREAM = b"\x10\x01"
"""StreamedBodyResponse.end_of_stream = true."""
_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))


def _request_headers_answer(action: AnswerRequestHeaders) -> bytes:
    route = action.route
    if route is None:
        return _PASS_REQUEST_HEADERS
    key = (route.destination, route.pool, route.model, route.body is None, route.drop_encoding)
    known = _routes.get(key)
    if known is None:
        if len(_routes) >= _ROUTE_CACHE_ENTRIES:
            _routes.clear()
        known = _routes[key] = _encode_route_headers(route)
    return known


_routes: dict[tuple[str, str, str, bool, bool], bytes] = {}
"""The same few answers go out again and again: one for each endpoint, pool and model."""


def _encode_route_headers(route: Route) -> bytes:
    response = _routed(route)
    if route.body is not None:  # its length is no longer the client's, and the mode streams it
        response.header_mutation.remove_headers.append("content-length")
    return pb.ProcessingResponse(
        request_headers=pb.HeadersResponse(response=response),
        dynamic_metadata=_destination_metadata(route),
    ).SerializeToString()


def _request_body_answer(action: AnswerRequestBody) -> bytes:
    response = pb.CommonResponse() if action.route is None else _routed(action.route)
    if action.data is not None:
        response.body_mutation.CopyFrom(
            pb.BodyMutation(body=action.data) if action.data else pb.BodyMutation(clear_body=True)
        )
    if action.content_length is not None:
        _set_header(response, "content-length", str(action.content_length))
    message = pb.ProcessingResponse(request_body=pb.BodyResponse(response=response))
    if action.route is not None:
        message.dynamic_metadata.CopyFrom(_destination_metadata(action.route))
    return message.SerializeToString()


def _routed(route: Route) -> pb.CommonResponse:
    response = pb.CommonResponse(clear_route_cache=True)
    _set_header(response, DESTINATION, route.destination)
    _set_header(response, POOL, route.pool)
    if route.model:
        _set_header(response, MODEL, route.model)
    else:
        response.header_mutation.remove_headers.append(MODEL)
    response.header_mutation.remove_headers.extend(_SPOOFABLE)
    if route.drop_encoding:
        response.header_mutation.remove_headers.append("content-encoding")
    return response


def _set_header(response: pb.CommonResponse, key: str, value: str) -> None:
    header = pb.HeaderValue(key=key, raw_value=value.encode())
    option = pb.HeaderValueOption(header=header, append_action=_OVERWRITE)
    response.header_mutation.set_headers.append(option)


def _destination_metadata(route: Route) -> Struct:
    struct = Struct()
    struct.update({DESTINATION_NAMESPACE: {DESTINATION: route.destination}})
    return struct


def _immediate(action: Answer) -> bytes:
    content_type = pb.HeaderValue(key="content-type", raw_value=b"application/json")
    option = pb.HeaderValueOption(header=content_type, append_action=_OVERWRITE)
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=pb.HttpStatus(code=action.status),
            headers=pb.HeaderMutation(set_headers=[option]),
            body=action.body,
            details=action.reason,
        )
    ).SerializeToString()


_EMPTY_HEADERS = pb.HeadersResponse(response=pb.CommonResponse())
_EMPTY_BODY = pb.BodyResponse(response=pb.CommonResponse())
_PASS_REQUEST_HEADERS = pb.ProcessingResponse(request_headers=_EMPTY_HEADERS).SerializeToString()
_PASS_REQUEST_TRAILERS = pb.ProcessingResponse(
    request_trailers=pb.TrailersResponse()
).SerializeToString()
_PASS_RESPONSE_HEADERS = pb.ProcessingResponse(response_headers=_EMPTY_HEADERS).SerializeToString()
_PASS_RESPONSE_BODY = pb.ProcessingResponse(response_body=_EMPTY_BODY).SerializeToString()
_PASS_RESPONSE_TRAILERS = pb.ProcessingResponse(
    response_trailers=pb.TrailersResponse()
).SerializeToString()

_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    RequestChunk: _request_chunk,
    ResponseChunk: _response_chunk,
    AnswerRequestHeaders: _request_headers_answer,
    AnswerRequestBody: _request_body_answer,
    AnswerRequestTrailers: lambda _: _PASS_REQUEST_TRAILERS,
    AnswerResponseHeaders: lambda _: _PASS_RESPONSE_HEADERS,
    AnswerResponseBody: lambda _: _PASS_RESPONSE_BODY,
    AnswerResponseTrailers: lambda _: _PASS_RESPONSE_TRAILERS,
    Answer: _immediate,
}
