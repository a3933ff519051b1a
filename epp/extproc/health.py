"""gRPC's health service over one mutable value: is the picker ready?

Kubernetes and gateways ask with names.  `liveness` is served while the process runs at all; every
other known name follows readiness.
"""

from collections.abc import Callable

from google.protobuf.message import DecodeError

from epp.extproc.calls import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    OK,
    RESOURCE_EXHAUSTED,
    Call,
    Metadata,
    Push,
    Reply,
    Status,
)
from protos.gen.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)

SERVICE = "grpc.health.v1.Health"
LIVENESS = "liveness"
FOLLOWERS = (
    "",
    "readiness",
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "inference-extension",
)
"""Names that follow readiness; the last is what some charts probe."""

_SERVING = HealthCheckResponse.SERVING
_NOT_SERVING = HealthCheckResponse.NOT_SERVING
_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN
_MAX_WATCHERS = 1024
_ONE_MESSAGE = Status(INVALID_ARGUMENT, "the call takes exactly one message")
_UNREADABLE = Status(INVALID_ARGUMENT, "the message cannot be read")


class Health:
    """Whether requests can be served.  Written by `set_ready`, which tells all watchers."""

    def __init__(self, *, ready: bool = False) -> None:
        self.ready = ready
        self.watchers: set[_Watch] = set()

    def set_ready(self, ready: bool) -> None:
        """Become ready, or cease to be."""
        if ready != self.ready:
            self.ready = ready
            for watcher in tuple(self.watchers):
                watcher.tell()

    def status(self, service: str) -> HealthCheckResponse.ServingStatus | None:
        """The status under this name; None for a name that is not known."""
        if service == LIVENESS:
            return _SERVING
        if service not in FOLLOWERS:
            return None
        return _SERVING if self.ready else _NOT_SERVING


class HealthService:
    """The application."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def open(self, path: str, metadata: Metadata, push: Push) -> Call | None:
        """Begin a call of one of the three methods."""
        match path.removeprefix(f"/{SERVICE}/"):
            case "Check":
                return _Unary(self._check)
            case "List":
                return _Unary(self._list)
            case "Watch":
                return _Watch(self._health, push)
            case _:
                return None

    def _check(self, message: bytes) -> Reply:
        service = HealthCheckRequest.FromString(message).service
        status = self._health.status(service)
        if status is None:
            return Reply(status=Status(NOT_FOUND, "unknown service"))
        return Reply((_response(status),), OK)

    def _list(self, message: bytes) -> Reply:
        HealthListRequest.FromString(message)
        response = HealthListResponse()
        for service in (LIVENESS, *FOLLOWERS):
            status = self._health.status(service)
            assert status is not None
            response.statuses[service].status = status
        return Reply((response.SerializeToString(),), OK)


def _response(status: HealthCheckResponse.ServingStatus) -> bytes:
    return HealthCheckResponse(status=status).SerializeToString()


class _Unary:
    """One message in, one out."""

    def __init__(self, answer: Callable[[bytes], Reply]) -> None:
        self._answer = answer

    def receive(self, message: bytes) -> Reply:
        try:
            return self._answer(message)
        except DecodeError:
            return Reply(status=_UNREADABLE)

    def end(self) -> Reply:
        return Reply(status=_ONE_MESSAGE)

    def cancel(self) -> None:
        """Nothing is held."""


class _Watch:
    """One message in, a message out for each change of the status, until the peer leaves."""

    def __init__(self, health: Health, push: Push) -> None:
        self._health = health
        self._push = push
        self._service: str | None = None
        self._told: HealthCheckResponse.ServingStatus | None = None

    def receive(self, message: bytes) -> Reply | None:
        if self._service is not None:
            self.cancel()
            return Reply(status=_ONE_MESSAGE)
        if len(self._health.watchers) >= _MAX_WATCHERS:
            return Reply(status=Status(RESOURCE_EXHAUSTED, "too many watchers"))
        try:
            self._service = HealthCheckRequest.FromString(message).service
        except DecodeError:
            return Reply(status=_UNREADABLE)
        self._health.watchers.add(self)
        return Reply((self._news(),))

    def end(self) -> Reply | None:
        return Reply(status=_ONE_MESSAGE) if self._service is None else None

    def cancel(self) -> None:
        self._health.watchers.discard(self)

    def tell(self) -> None:
        """Push the status if it is another one than was told last."""
        if self._status() != self._told:
            self._push(Reply((self._news(),)))

    def _status(self) -> HealthCheckResponse.ServingStatus:
        assert self._service is not None
        status = self._health.status(self._service)
        return _UNKNOWN if status is None else status

    def _news(self) -> bytes:
        self._told = self._status()
        return _response(self._told)
