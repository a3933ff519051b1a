"""Which namespace, pool and InferenceModel a request is about.

A stream is bound to a pool by, in this order: gRPC metadata (`x-epp-namespace`, `x-epp-pool`);
the picker's own `--pool-name`; its `:authority`, where exactly one InferencePool names that
Service.  Bound, only that pool's models resolve; unbound, the model's poolRef decides.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from datastore.model import InferenceModel, ObjectName, PoolView
from epp.errors import ModelInvalid, ModelNotFound, PoolNotFound
from epp.routing.request import Binding

NAMESPACE_METADATA = b"x-epp-namespace"
POOL_METADATA = b"x-epp-pool"
_SHOWN_CHARACTERS = 256
"""How much of a client's model name an error repeats."""


class Snapshot(Protocol):
    """What resolving reads of the datastore."""

    def model(self, name: ObjectName) -> InferenceModel | None:
        """Return the model of that name."""

    def pool(self, name: ObjectName) -> PoolView | None:
        """Return a pool with its ready endpoints."""

    def pools_of_service(self, namespace: str | None, service: str) -> Sequence[ObjectName]:
        """Return the pools whose picker is this Service."""


class Scope(msgspec.Struct, frozen=True, gc=False):
    """Where a request's names are looked up: a namespace, and the one pool it is bound to."""

    namespace: str
    pool: ObjectName | None = None


def read_binding(metadata: Mapping[bytes, bytes]) -> Binding:
    """Return what a stream's gRPC metadata binds it to."""
    namespace = metadata.get(NAMESPACE_METADATA, b"").decode("latin-1") or None
    pool = metadata.get(POOL_METADATA, b"").decode("latin-1") or None
    service, service_namespace = _service(metadata.get(b":authority", b"").decode("latin-1"))
    return Binding(namespace, pool, service, service_namespace)


def _service(authority: str) -> tuple[str | None, str | None]:
    """Return the Service and namespace that an authority names, if it can be a Service's.

    `svc`, `svc.ns`, `svc.ns.svc[.domain]`, each with or without a port, and the name that Istio
    gives its clusters: `outbound|port||svc.ns.svc.domain`.
    """
    host = authority.rpartition("|")[2]
    if host.startswith("["):
        return None, None
    labels = host.partition(":")[0].split(".")
    if len(labels) == 1:
        return labels[0] or None, None
    if all(labels[:2]) and (len(labels) == 2 or labels[2] == "svc"):
        return labels[0], labels[1]
    return None, None


def find_scope(
    binding: Binding, snapshot: Snapshot, *, own_pool: str | None, own_namespace: str
) -> Scope:
    """Return where a request's names are looked up.

    `own_pool` and `own_namespace` are the picker's --pool-name and --pool-namespace.
    """
    namespace = binding.namespace or own_namespace
    if binding.pool is not None:
        return Scope(namespace, ObjectName(namespace, binding.pool))
    if own_pool is not None:
        return Scope(namespace, ObjectName(namespace, own_pool))
    if binding.service is not None:
        service_namespace = binding.service_namespace or binding.namespace
        pools = snapshot.pools_of_service(service_namespace, binding.service)
        if len(pools) == 1 and binding.namespace in (None, pools[0].namespace):
            return Scope(pools[0].namespace, pools[0])
    return Scope(namespace)


def find_model(name: str, scope: Scope, snapshot: Snapshot) -> InferenceModel:
    """Return the InferenceModel that a client's name means.

    Raises ModelNotFound (with the pools named when it belongs to another) and ModelInvalid.
    """
    model = snapshot.model(ObjectName(scope.namespace, name))
    if model is None:
        raise ModelNotFound(
            f"The model `{name[:_SHOWN_CHARACTERS]}` does not exist in namespace"
            f" {scope.namespace}.",
            param="model",
        )
    if scope.pool is not None and model.pool != scope.pool:
        raise ModelNotFound(
            f"The model `{name}` belongs to InferencePool {model.pool};"
            f" this request was routed to {scope.pool}.",
            param="model",
        )
    if model.invalid is not None:
        raise ModelInvalid(f"InferenceModel {model.name} cannot be served: {model.invalid}")
    return model


def find_pool(name: ObjectName, snapshot: Snapshot) -> PoolView:
    """Return a pool.  Raises PoolNotFound."""
    view = snapshot.pool(name)
    if view is None:
        raise PoolNotFound(f"InferencePool {name} does not exist.")
    if view.pool.invalid is not None:
        raise PoolNotFound(f"InferencePool {name} cannot be used: {view.pool.invalid}")
    return view
