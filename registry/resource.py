"""The InferenceService resource that an intent wants: only the fields that are ours to say."""

from registry import names
from registry.model import Intent, Json, Policy, Resource, Serving
from registry.ownership import delta

API_VERSION = "serving.kserve.io/v1beta1"
KIND = "InferenceService"

_SAME_MODE = {
    "Standard": "RawDeployment",
    "RawDeployment": "RawDeployment",
    "Knative": "Serverless",
    "Serverless": "Serverless",
    "ModelMesh": "ModelMesh",
}
MODES = tuple(_SAME_MODE)
_PIN_WORDS = {"versionId": "version-id", "etag": "etag", "sha256": "sha256", "md5": "md5"}


def wanted_resource(
    namespace: str,
    intent: Intent,
    serving: Serving,
    policy: Policy,
    *,
    existing: Resource | None = None,
    record_id: str | None = None,
) -> Json:
    """Return what to apply.  `record_id` is left out while the record does not exist."""
    name = existing.name if existing else names.resource_name(intent.name, intent.id)
    labels = {
        names.INTENT_LABEL: intent.id,
        names.NAME_LABEL: names.label_value(intent.name, name),
        names.DASHBOARD_LABEL: "true",
    }
    if record_id:
        labels[names.RECORD_LABEL] = record_id
    annotations = {
        names.DISPLAY_NAME: intent.name or name,
        names.DEPLOYMENT_MODE: _mode(policy.deployment_mode, existing),
        **{names.PIN_ANNOTATION + _PIN_WORDS[key]: pin for key, pin in serving.pins.items()},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {"predictor": _predictor(intent, serving)},
    }


def with_record(body: Json, record_id: str) -> Json:
    """Return the same resource, labelled with its record."""
    metadata = body["metadata"]
    labels = {**metadata["labels"], names.RECORD_LABEL: record_id}
    return {**body, "metadata": {**metadata, "labels": labels}}


def resource_delta(wanted: Json, existing: Resource) -> tuple[str, ...]:
    """Return which of our fields the existing resource lacks or has otherwise."""
    return delta(wanted, existing.body, names.FIELD_MANAGER)


def _predictor(intent: Intent, serving: Serving) -> Json:
    model_format = {"name": serving.format_name}
    if serving.format_version:
        model_format["version"] = serving.format_version
    model: Json = {"modelFormat": model_format, "runtime": intent.runtime or ""}
    if serving.uri is not None:
        model["storageUri"] = serving.uri
    else:
        storage: Json = {"key": serving.storage_key, "path": serving.storage_path}
        if serving.pins:
            storage["parameters"] = {
                key: pin.removeprefix("sha256:") for key, pin in serving.pins.items()
            }
        model["storage"] = {key: value for key, value in storage.items() if value}
    predictor: Json = {"model": model}
    if serving.service_account:
        predictor["serviceAccountName"] = serving.service_account
    return predictor


def _mode(wanted: str, existing: Resource | None) -> str:
    """Return the mode in the spelling that is there, where that means the same."""
    present = existing.annotations.get(names.DEPLOYMENT_MODE) if existing else None
    if present and _SAME_MODE.get(present) == _SAME_MODE.get(wanted):
        return present
    return wanted
