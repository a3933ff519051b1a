"""What an InferenceModel's status says: one condition, `Accepted`, that a person can act on.

Pure.  `status` asks `accepted` what should be there, and writes only where that is not what is.
"""

from dataclasses import dataclass

from datastore.model import InferenceModel, InferencePool

ACCEPTED = "Accepted"
MODEL_NAME_IGNORED = "ModelNameIgnored"
POOL_NOT_FOUND = "PoolNotFound"
POOL_INVALID = "PoolInvalid"
INVALID_SPEC = "InvalidSpec"


@dataclass(frozen=True, slots=True)
class Condition:
    """The `Accepted` condition.  `since` is when its status last changed (RFC 3339)."""

    is_true: bool
    reason: str
    message: str
    generation: int
    since: str = ""

    def says_the_same(self, other: "Condition | None") -> bool:
        """Tell whether another condition says the same, whenever it began to."""
        return other is not None and (
            (self.is_true, self.reason, self.message, self.generation)
            == (other.is_true, other.reason, other.message, other.generation)
        )


def accepted(
    model: InferenceModel, pool: InferencePool | None, observed: Condition | None, now: str
) -> Condition | None:
    """Return the condition that should be written, or None where `observed` is right already."""
    wanted = _judge(model, pool)
    if wanted.says_the_same(observed):
        return None
    since = observed.since if observed is not None and _same_status(observed, wanted) else now
    return Condition(wanted.is_true, wanted.reason, wanted.message, wanted.generation, since or now)


def is_refusal(observed: Condition | None, wanted: Condition) -> bool:
    """Tell whether this is the moment at which a model stops being served."""
    return not wanted.is_true and (observed is None or observed.is_true)


def _same_status(one: Condition, other: Condition) -> bool:
    return one.is_true is other.is_true


def _judge(model: InferenceModel, pool: InferencePool | None) -> Condition:
    generation = model.generation
    if model.invalid is not None:
        return Condition(False, model.invalid_reason or INVALID_SPEC, model.invalid, generation)
    if pool is None:
        text = (
            f"there is no InferencePool {model.pool.name} in namespace {model.pool.namespace}; "
            "create it, or correct spec.poolRef.name"
        )
        return Condition(False, POOL_NOT_FOUND, text, generation)
    if pool.invalid is not None:
        text = f"the InferencePool {model.pool.name} cannot be served: {pool.invalid}"
        return Condition(False, POOL_INVALID, text, generation)
    old_name = model.deprecated_model_name
    if old_name not in (None, model.name.name):
        text = (
            f"spec.modelName ({old_name}) is ignored: clients ask for {model.name.name}, this "
            "object's metadata.name; remove spec.modelName (epp migrate shows how)"
        )
        return Condition(True, MODEL_NAME_IGNORED, text, generation)
    return Condition(True, ACCEPTED, "requests for this model are served", generation)
