"""A datastore and a picker's service of a given size, without sockets."""

import time
from random import Random

from datastore.events import Event, Upserted
from datastore.model import Backend, InferenceModel, InferencePool, ObjectName, TargetModel
from datastore.store import Store
from epp.extproc.service import ExtProc
from epp.outcome import Observer
from epp.routing.router import Policy, Router

NAMESPACE = "default"


def store(*, models: int = 100, endpoints: int = 10) -> Store:
    """Return a store with one pool."""
    pool = ObjectName(NAMESPACE, "pool")
    events: list[Event] = [Upserted(InferencePool(pool, (("app", "vllm"),), (8000,)))]
    for number in range(endpoints):
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        name = ObjectName(NAMESPACE, f"vllm-{number}")
        events.append(Upserted(Backend(name, str(number), address, True, {"app": "vllm"})))
    for number in range(models):
        target = TargetModel(f"model-{number}")
        name = ObjectName(NAMESPACE, f"model-{number}")
        events.append(Upserted(InferenceModel(name, pool, (target,), (1,))))
    made = Store()
    made.apply(events)
    return made


def service(known: Store, observer: Observer, *, pass_response: bool = False) -> ExtProc:
    """Return the service that answers from a store."""
    router = Router(Policy(), Random(7))
    return ExtProc(router, known, observer, clock=time.monotonic, pass_response=pass_response)
