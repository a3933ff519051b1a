"""Decide where a request goes.  One call, no await: a request sees one state of the datastore."""

from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import Protocol

import msgspec

from datastore.model import Endpoint, InferenceModel, ObjectName, PoolView, TargetModel
from epp.errors import (
    BodyTooLarge,
    InvalidJson,
    ModelInvalid,
    ModelNotFound,
    RequestError,
    RouteNotFound,
    UnsupportedBodyMode,
)
from epp.routing import filters, listing, resolve
from epp.routing.body import ModelField, read_model, read_model_in_prefix
from epp.routing.encoding import CutShort, decoded
from epp.routing.pickers import pick_two_choices
from epp.routing.request import UNKNOWN_MODEL, Binding, Listing, Pick, Request
from epp.routing.resolve import Scope

_BODYLESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE", "CONNECT"})
_SHOWN_CHARACTERS = 256
"""How much of a client's method and path an error repeats."""

ONLY_ENDPOINT = "only_endpoint"
LESS_LOADED = "less_loaded_of_two"
IN_SUBSET = "less_loaded_in_subset"


class ServeModels(Enum):
    """Whether the picker itself answers `GET /v1/models`; auto = when it knows a model."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Snapshot(resolve.Snapshot, Protocol):
    """What routing reads of the datastore, beyond resolving."""

    def models_in(self, namespace: str) -> Sequence[InferenceModel]:
        """Return a namespace's models, sorted by name."""

    def pool_names(self) -> Sequence[ObjectName]:
        """Return the name of every pool."""


class Policy(msgspec.Struct, frozen=True):
    """How this picker decides, set once at its start."""

    own_namespace: str = "default"
    own_pool: str | None = None
    fallbacks: int = 0
    serve_models: ServeModels = ServeModels.AUTO
    pass_unknown_models: bool = False
    use_subset: bool = True
    max_body_bytes: int = 16 * 1024 * 1024


class Router:
    """Routes by a policy, with dice of its own.  It writes nothing but the picked Load."""

    def __init__(self, policy: Policy, rng: Random) -> None:
        self._policy = policy
        self._rng = rng

    def scope(self, binding: Binding, snapshot: Snapshot) -> Scope:
        """Return the namespace and pool that a stream's requests are bound to."""
        return resolve.find_scope(
            binding,
            snapshot,
            own_pool=self._policy.own_pool,
            own_namespace=self._policy.own_namespace,
        )

    def route(
        self, request: Request, scope: Scope, snapshot: Snapshot, now: float
    ) -> Pick | Listing:
        """Return where the request goes, or the list that it asks for.

        `now` is in monotonic seconds.  Raises RequestError.
        """
        if request.unseen_mode is not None:
            return self._route_unseen(request, scope, snapshot, now)
        if _is_bodyless(request):
            return self._route_bodyless(request, scope, snapshot, now)
        field, encoded = self._read(request)
        model = self._model(field.name, scope, snapshot)
        if model is None:
            view = self._single_pool(scope, snapshot)
            assert view is not None, "an unknown model passes only where there is a pool"
            return self._pick(request, view, field.name, field.name, now, is_ours=False)
        try:
            return self._pick_for(model, field, request, snapshot, now, encoded=encoded)
        except RequestError as error:
            error.model, error.pool = model.name.name, str(model.pool)
            raise

    # --- requests with a body ---------------------------------------------------------------

    def _read(self, request: Request) -> tuple[ModelField, bool]:
        """Return the model asked for, and whether the body came encoded."""
        body = request.body or b""
        content_encoding = request.headers.get("content-encoding")
        if content_encoding is None:
            return self._read_plain(body, request.partial), False
        try:
            plain = decoded(
                body, content_encoding.decode("latin-1"), limit=self._policy.max_body_bytes
            )
        except CutShort as error:
            if request.partial:
                raise self._cut_short(body) from error
            raise
        if plain is body:
            return self._read_plain(body, request.partial), False
        return read_model(plain), True

    def _read_plain(self, body: bytes, partial: bool) -> ModelField:
        if not partial:
            return read_model(body)
        try:
            return read_model(body)  # whole after all: it ends in trailers
        except InvalidJson:
            field = read_model_in_prefix(body)
        if field is None:
            raise self._not_in_prefix(body)
        return field

    def _not_in_prefix(self, body: bytes) -> BodyTooLarge:
        return BodyTooLarge(
            f"The first {len(body)} bytes of the body, all that Envoy's BUFFERED_PARTIAL"
            " shows, do not hold `model`: send it first, or use FULL_DUPLEX_STREAMED."
        )

    def _cut_short(self, body: bytes) -> BodyTooLarge:
        return BodyTooLarge(
            f"The body is compressed, and its first {len(body)} bytes, all that Envoy's"
            " BUFFERED_PARTIAL shows, cannot be read alone: use FULL_DUPLEX_STREAMED."
        )

    def _model(self, name: str, scope: Scope, snapshot: Snapshot) -> InferenceModel | None:
        """Return the model, or None where an unknown one may pass to the only pool."""
        try:
            return resolve.find_model(name, scope, snapshot)
        except (ModelNotFound, ModelInvalid) as error:
            known = snapshot.model(ObjectName(scope.namespace, name))
            if known is not None:
                error.model, error.pool = name, str(scope.pool or known.pool)
                raise
            error.model = UNKNOWN_MODEL
            if not self._policy.pass_unknown_models or not self._single_pool(scope, snapshot):
                raise
            return None

    def _pick_for(
        self,
        model: InferenceModel,
        field: ModelField,
        request: Request,
        snapshot: Snapshot,
        now: float,
        *,
        encoded: bool,
    ) -> Pick:
        target = self._draw(model)
        view = resolve.find_pool(model.pool, snapshot)
        body = field.renamed(target.name) if target.name != field.name else None
        return self._pick(
            request,
            view,
            field.name,
            target.name,
            now,
            target=target,
            body=body,
            drop_encoding=encoded and body is not None,
        )

    def _draw(self, model: InferenceModel) -> TargetModel:
        if len(model.targets) == 1:
            return model.targets[0]
        ticket = int(self._rng.random() * model.cumulative[-1])
        return model.targets[bisect_right(model.cumulative, ticket)]

    # --- requests without one ---------------------------------------------------------------

    def _route_unseen(self, request: Request, scope: Scope, snapshot: Snapshot, now: float) -> Pick:
        view = self._single_pool(scope, snapshot)
        if view is None:
            raise UnsupportedBodyMode(
                f"Envoy's request_body_mode {request.unseen_mode} does not show the picker the"
                " body that names the model, and no single InferencePool is bound: set"
                " processing_mode.request_body_mode to FULL_DUPLEX_STREAMED."
            )
        return self._pick(request, view, "", "", now)

    def _route_bodyless(
        self, request: Request, scope: Scope, snapshot: Snapshot, now: float
    ) -> Pick | Listing:
        if request.method == "GET":
            answer = self._listing(request.path, scope, snapshot)
            if answer is not None:
                return answer
        view = self._single_pool(scope, snapshot)
        if view is None:
            what = f"{request.method[:_SHOWN_CHARACTERS]} {request.path[:_SHOWN_CHARACTERS]}"
            raise RouteNotFound(
                f"{what} names no model, and no single InferencePool of namespace"
                f" {scope.namespace} is bound to it."
            )
        return self._pick(request, view, "", "", now)

    def _listing(self, path: str, scope: Scope, snapshot: Snapshot) -> Listing | None:
        name = listing.listed_name(path)
        if name is None and not listing.is_listing(path):
            return None
        if self._policy.serve_models is ServeModels.NEVER:
            return None
        models = [
            model
            for model in snapshot.models_in(scope.namespace)
            if model.invalid is None and (scope.pool is None or model.pool == scope.pool)
        ]
        if not models and self._policy.serve_models is ServeModels.AUTO:
            return None
        if name is None:
            return Listing(listing.encode_list(models))
        return Listing(listing.encode_model(resolve.find_model(name, scope, snapshot)))

    def _single_pool(self, scope: Scope, snapshot: Snapshot) -> PoolView | None:
        """Return the pool that is bound, or else the only one of the namespace."""
        if scope.pool is not None:
            return resolve.find_pool(scope.pool, snapshot)
        names = [name for name in snapshot.pool_names() if name.namespace == scope.namespace]
        return resolve.find_pool(names[0], snapshot) if len(names) == 1 else None

    # --- the pick ---------------------------------------------------------------------------

    def _pick(
        self,
        request: Request,
        view: PoolView,
        model: str,
        target_name: str,
        now: float,
        *,
        target: TargetModel | None = None,
        body: bytes | None = None,
        drop_encoding: bool = False,
        is_ours: bool = True,
    ) -> Pick:
        choice = LESS_LOADED
        try:
            candidates: Sequence[Endpoint] = filters.ready(view)
            if request.subset is not None and self._policy.use_subset:
                candidates = filters.in_subset(candidates, request.subset)
                choice = IN_SUBSET
            if target is not None and target.artifact_digest is not None:
                candidates = filters.with_artifact(candidates, target)
        except RequestError as error:
            error.model = model if is_ours else UNKNOWN_MODEL
            error.pool = str(view.pool.name)
            raise
        if len(candidates) == 1:
            choice = ONLY_ENDPOINT
        chosen = pick_two_choices(
            candidates, count=self._policy.fallbacks + 1, now=now, rng=self._rng
        )
        chosen[0].load.add_pick(now)
        return Pick(
            view.pool.name, chosen, model, target_name, choice, body, drop_encoding, is_ours
        )


def _is_bodyless(request: Request) -> bool:
    """Tell a request without a body from one whose body is empty.

    Either ends at its headers; `content-length: 0` says that the body was meant to be there.
    """
    if request.body:
        return False
    if request.method in _BODYLESS_METHODS:
        return True
    return request.body is None and "content-length" not in request.headers
