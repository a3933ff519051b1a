"""`GET /v1/models`: the InferenceModels of a namespace, in the shape of OpenAI's API."""

from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from datastore.model import InferenceModel

_PATH = "/v1/models"


class _Model(msgspec.Struct):
    id: str
    created: int
    owned_by: str
    object: str = "model"


class _List(msgspec.Struct):
    data: list[_Model]
    object: str = "list"


def is_listing(path: str) -> bool:
    """Tell whether a path asks for the list of models."""
    return path.rstrip("/") == _PATH


def listed_name(path: str) -> str | None:
    """Return the name in `/v1/models/{name}`, unquoted; None for any other path."""
    name = unquote(path.removeprefix(_PATH + "/")) if path.startswith(_PATH + "/") else ""
    return name or None


def encode_list(models: Iterable[InferenceModel]) -> bytes:
    """Return the JSON of a list of models."""
    return msgspec.json.encode(_List([_entry(model) for model in models]))


def encode_model(model: InferenceModel) -> bytes:
    """Return the JSON of one model."""
    return msgspec.json.encode(_entry(model))


def _entry(model: InferenceModel) -> _Model:
    return _Model(id=model.name.name, created=model.created_s, owned_by=model.pool.name)
