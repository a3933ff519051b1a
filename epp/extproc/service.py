"""Join the wire and the session: one `Stream` per ext_proc call, and what is told of each request.

This is the only module that knows both Envoy's protocol and the router.  It has no socket: a
transport feeds it messages, and it returns messages.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from epp.errors import Internal, NotSynced, Overloaded, RequestError
from epp.extproc import codec
from epp.extproc.calls import ENDS_APART, INVALID_ARGUMENT, OK, Metadata, Push, Reply, Status
from epp.extproc.events import (
    Action,
    Answer,
    Ask,
    Close,
    Event,
    RequestBody,
    RequestHeaders,
    Route,
)
from epp.extproc.refusal import refusal
from epp.extproc.response import ResponseWatch
from epp.extproc.session import ProtocolViolation, Session, State
from epp.outcome import LISTED, PICKED, Observer, Outcome
from epp.routing.request import UNKNOWN_MODEL, Binding, Listing, Request
from epp.routing.resolve import NAMESPACE_METADATA, POOL_METADATA, Scope, read_binding
from epp.routing.router import Router, Snapshot

_log = logging.getLogger(__name__)

_CLOSED = Reply((), OK)
_ENDS_APART = (ENDS_APART, b"")
_NO_HEADERS: Mapping[str, bytes] = {}
_NO_SCOPE = Scope("")
_BINDING_FIELDS = (b":authority", NAMESPACE_METADATA, POOL_METADATA)
_BINDINGS = 1024
"""Distinct sets of binding metadata that are remembered: gateways have a handful."""


class Knowledge(Snapshot, Protocol):
    """The datastore as the service reads it."""

    @property
    def revision(self) -> int:
        """Which state a request saw."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """What a stream may ask of us."""

    max_body_bytes: int = 16 * 1024 * 1024
    max_buffered_bytes: int = 1024 * 1024 * 1024
    """Over all streams; beyond it, new bytes are refused with 503."""


class ExtProc:
    """The application that transports serve as Envoy's ExternalProcessor."""

    def __init__(
        self,
        router: Router,
        knowledge: Knowledge,
        observer: Observer,
        *,
        clock: Callable[[], float],
        pass_response: bool = False,
        limits: Limits = Limits(),  # noqa: B008 - a frozen value
        synced: bool = True,
    ) -> None:
        self.router = router
        self.knowledge = knowledge
        self.observer = observer
        self.clock = clock
        self.pass_response = pass_response
        self.limits = limits
        self.synced = synced
        self.buffered_bytes = 0
        self._bindings: dict[tuple[bytes | None, ...], Binding] = {}
        self._scopes: dict[Binding, Scope] = {}
        self._scopes_revision = -1

    def become_synced(self) -> None:
        """The datastore is whole: what it does not hold does not exist."""
        self.synced = True

    def open(self, path: str, metadata: Metadata, push: Push) -> "Stream | None":
        """Begin one ext_proc stream; None for any other method."""
        if path != codec.METHOD:
            return None
        return Stream(self, self._binding(metadata), ends_apart=_ENDS_APART in metadata)

    def _binding(self, metadata: Metadata) -> Binding:
        fields = dict(metadata)
        told = tuple(map(fields.get, _BINDING_FIELDS))
        binding = self._bindings.get(told)
        if binding is None:
            if len(self._bindings) >= _BINDINGS:
                self._bindings.clear()
            binding = self._bindings[told] = read_binding(fields)
        return binding

    def scope(self, binding: Binding) -> Scope:
        """Return what a binding means in the present state of the datastore."""
        revision = self.knowledge.revision
        if revision != self._scopes_revision or len(self._scopes) >= _BINDINGS:
            self._scopes.clear()
            self._scopes_revision = revision
        scope = self._scopes.get(binding)
        if scope is None:
            scope = self._scopes[binding] = self.router.scope(binding, self.knowledge)
        return scope


class Stream:
    """One ext_proc call."""

    __slots__ = ("_binding", "_buffered", "_headers", "_response", "_service", "_session")

    def __init__(self, service: ExtProc, binding: Binding, *, ends_apart: bool) -> None:
        self._service = service
        self._binding = binding
        self._session = Session(
            max_body_bytes=service.limits.max_body_bytes,
            pass_response=service.pass_response,
            ends_apart=ends_apart,
        )
        self._headers: Mapping[str, bytes] = _NO_HEADERS
        self._buffered = 0
        self._response: ResponseWatch | None = None

    def receive(self, message: bytes) -> Reply | None:
        """Take one ProcessingRequest; return what answers it."""
        started = self._service.clock()
        try:
            event = codec.decode(message)
            actions = self._take(event, started)
        except (codec.MalformedMessage, ProtocolViolation) as error:
            self._finish()
            return Reply((), Status(INVALID_ARGUMENT, str(error)))
        if self._session.buffered_bytes != self._buffered:
            self._count_buffered()
        return self._reply(actions) if actions else None

    def end(self) -> Reply | None:
        """Envoy has half-closed: it will tell us nothing more, and needs no answer."""
        self._finish()
        return _CLOSED

    def cancel(self) -> None:
        """Envoy has reset the stream, as it ends most of them."""
        self._finish()

    # --- what an event leads to ---------------------------------------------------------------

    def _take(self, event: Event, started: float) -> tuple[Action, ...]:
        try:
            if type(event) is RequestHeaders:
                self._headers = event.headers
            elif self._response is not None:
                self._watch(event, started)
            if type(event) is RequestBody:
                self._refuse_overload(event)
            answer = self._session.receive(event)
            return self._decide(answer, started) if isinstance(answer, Ask) else answer
        except RequestError as error:
            return self._refuse(error, started)
        except (codec.MalformedMessage, ProtocolViolation):
            raise
        except Exception:  # noqa: BLE001 - a bug of ours costs one request, not the process
            request_id = _text(self._headers, "x-request-id")
            _log.exception("request %s failed inside the picker", request_id)
            message = f"The picker failed on request {request_id or '(no x-request-id)'}."
            return self._refuse(Internal(message), started)

    def _refuse_overload(self, event: RequestBody) -> None:
        service = self._service
        if service.buffered_bytes + len(event.data) <= service.limits.max_buffered_bytes:
            return
        if self._session.state is State.BODY:
            raise Overloaded("The picker holds too many request bodies at once; try again.")

    def _decide(self, ask: Ask, started: float) -> tuple[Action, ...]:
        service = self._service
        request = Request(
            ask.headers,
            ask.body,
            ask.subset,
            ask.partial,
            ask.unseen_mode.name if ask.unseen_mode is not None else None,
        )
        if not service.synced:
            raise NotSynced("The picker does not know the cluster yet; try again in a moment.")
        scope = service.scope(self._binding)
        found = service.router.route(request, scope, service.knowledge, started)
        size = len(ask.body) if ask.body is not None else 0
        if isinstance(found, Listing):
            self._tell(self._outcome(started, size, scope.namespace, reason=LISTED))
            return self._session.answer(Answer(200, found.body, LISTED))
        pool = str(found.pool)
        named = found.is_ours or codec.fits_header(found.model)
        model = found.model if named else ""
        route = Route(found.destination, pool, model, found.body, found.drop_encoding)
        actions = self._session.route(route)
        outcome = Outcome(
            request_id=_text(self._headers, "x-request-id"),
            namespace=found.pool.namespace,
            model=found.model,
            known=found.is_ours,
            target=found.target,
            pool=pool,
            endpoint=route.destination,
            choice=found.choice,
            reason=PICKED,
            revision=service.knowledge.revision,
            picker_s=service.clock() - started,
            body_bytes=size,
            passes=self._session.passes_response,
        )
        self._tell(outcome)
        if self._session.passes_response:
            self._response = ResponseWatch(outcome, started)
        return actions

    def _refuse(self, error: RequestError, started: float) -> tuple[Action, ...]:
        session = self._session
        if session.state is State.RESPONSE:  # the request is on its way: nothing left to refuse
            session.abandon()
            return (Close(),)
        scope = self._scope()
        outcome = self._outcome(
            started,
            session.buffered_bytes,
            scope.namespace,
            reason=error.reason,
            status=error.status,
            model=error.model,
            known=error.model not in ("", UNKNOWN_MODEL),
            pool=error.pool or (str(scope.pool) if scope.pool is not None else ""),
        )
        self._tell(outcome)
        path = _text(self._headers, ":path").partition("?")[0]
        return session.answer(refusal(error, path))

    def _scope(self) -> Scope:
        """Return what a refusal is about; a bug in finding it does not stop the refusal."""
        try:
            return self._service.scope(self._binding)
        except Exception:  # noqa: BLE001 - the refusal may be about this very bug
            _log.exception("the scope of a refused request was not found")
            return _NO_SCOPE

    def _tell(self, outcome: Outcome) -> None:
        try:
            self._service.observer.picked(outcome)
        except Exception:  # noqa: BLE001 - whoever keeps logs and metrics costs no request
            _log.exception("request %s was not counted", outcome.request_id)

    def _outcome(
        self,
        started: float,
        body_bytes: int,
        namespace: str,
        *,
        reason: str,
        status: int = 200,
        model: str = "",
        known: bool = True,
        pool: str = "",
    ) -> Outcome:
        """Return what came of a request that got no endpoint."""
        return Outcome(
            request_id=_text(self._headers, "x-request-id"),
            namespace=namespace,
            model=model,
            known=known,
            pool=pool,
            reason=reason,
            status=status,
            revision=self._service.knowledge.revision,
            picker_s=self._service.clock() - started,
            body_bytes=body_bytes,
        )

    # --- the response, where it passes --------------------------------------------------------

    def _watch(self, event: Event, now: float) -> None:
        assert self._response is not None
        if self._response.take(event, now):
            self._served(now, complete=True)

    def _served(self, now: float, *, complete: bool) -> None:
        assert self._response is not None
        served = self._response.served(now, complete=complete)
        self._response = None
        try:
            self._service.observer.served(served)
        except Exception:  # noqa: BLE001 - whoever keeps logs and metrics costs no response
            _log.exception("the response to %s was not counted", served.outcome.request_id)

    # --- bookkeeping --------------------------------------------------------------------------

    def _reply(self, actions: tuple[Action, ...]) -> Reply:
        if type(actions[-1]) is not Close:
            return Reply(tuple([codec.encode(action) for action in actions]))
        self._finish()
        return Reply(tuple([codec.encode(action) for action in actions[:-1]]), OK)

    def _count_buffered(self) -> None:
        now = self._session.buffered_bytes
        self._service.buffered_bytes += now - self._buffered
        self._buffered = now

    def _finish(self) -> None:
        self._session.abandon()
        self._count_buffered()
        if self._response is not None:
            self._served(self._service.clock(), complete=False)


def _text(headers: Mapping[str, bytes], name: str) -> str:
    return headers.get(name, b"").decode("latin-1")
