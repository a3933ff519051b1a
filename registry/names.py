"""Names and keys: what we write on a resource, and how a free name becomes one of Kubernetes's."""

import hashlib
import re
from collections.abc import Mapping

FIELD_MANAGER = "epp-registry"

INTENT_LABEL = "model-registry-is-id"
RECORD_LABEL = "model-registry-sm-id"
NAME_LABEL = "name"
DASHBOARD_LABEL = "opendatahub.io/dashboard"
DISPLAY_NAME = "openshift.io/display-name"
DEPLOYMENT_MODE = "serving.kserve.io/deploymentMode"
PIN_ANNOTATION = "model-registry-pin-"
POOL_LABEL = "model-registry-inference-pool"
MODEL_PROPERTY = "inferenceModel"
WEIGHT_PROPERTY = "weight"
MANAGED_BY = "app.kubernetes.io/managed-by"

SYNC_SELECTOR = "model-registry-sync=enabled"

_REVERSE_KEY = re.compile(r"modelregistry\.[^/]+/inference-service-id")
_REVERSE_NAME = re.compile(r"[^/]+/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# What KServe's webhook takes: a DNS-1123 label that begins with a letter.
_RESOURCE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LONGEST_STEM = 120
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def resource_name(name: str, intent_id: str) -> str:
    """Return the name of an intent's resource: its own, or one made from it, always the same.

    A made name ends in a digest of the original, so two names never become one.
    """
    if _RESOURCE_NAME.fullmatch(name):
        return name
    if not name:
        return f"is-{intent_id}"
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-")
    if not stem or not stem[0].isalpha():
        stem = f"m-{stem}".strip("-")
    return f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def is_resource_name(name: str) -> bool:
    """Whether Kubernetes and KServe take this name as it is."""
    return _RESOURCE_NAME.fullmatch(name) is not None


def record_stem(name: str, intent_id: str) -> str:
    """Return what the names of an intent's records begin with; a registry's names have a limit."""
    if len(name) <= _LONGEST_STEM:
        return name or intent_id
    return f"{name[:_LONGEST_STEM]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def label_value(name: str, otherwise: str) -> str:
    """Return the name where it can be a label's value, else the other one."""
    return name if _LABEL_VALUE.fullmatch(name) else otherwise


def reverse_intent(labels: Mapping[str, str]) -> str | None:
    """Return the intent that the reverse controller made for an object with these labels."""
    for key, value in labels.items():
        if _REVERSE_KEY.fullmatch(key):
            return value
    return None


def is_reverse_name(name: str) -> bool:
    """Whether this intent's name is one that the reverse controller gives: `<isvc>/<uid>`."""
    return _REVERSE_NAME.fullmatch(name) is not None
