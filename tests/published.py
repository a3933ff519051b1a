"""What the published CRDs allow in a spec, as JSON schemas in which an unknown field is an error.

Written down from the CRDs of the Gateway API Inference Extension (whole specs) and of KServe (the
fields that our manifests use), so that no test depends on a copy of them that may not be there.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}


def closed(*required: str, **properties: Schema) -> Schema:
    """An object with these fields, of which some must be there, and no others."""
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def listed(item: Schema, *, at_least: int = 0, at_most: int | None = None) -> Schema:
    """A list of so many items."""
    bound = {} if at_most is None else {"maxItems": at_most}
    return {"type": "array", "items": item, "minItems": at_least, **bound}


def one_of(*values: str) -> Schema:
    """One of a few words."""
    return {**TEXT, "enum": list(values)}


FAILURE_MODE = one_of("FailOpen", "FailClose")

INFERENCE_MODEL = closed(
    "modelName",
    "poolRef",
    modelName=TEXT,
    criticality=one_of("Critical", "Standard", "Sheddable"),
    poolRef=closed("name", group=TEXT, kind=TEXT, name=TEXT),
    targetModels=listed(
        closed("name", name=TEXT, weight={"type": "integer", "minimum": 1, "maximum": 1_000_000}),
        at_most=10,
    ),
)
"""The spec of v1alpha2, as the reference picker's v0.4 has it."""

INFERENCE_POOL_V1 = closed(
    "endpointPickerRef",
    "selector",
    "targetPorts",
    appProtocol=one_of("http", "kubernetes.io/h2c"),
    endpointPickerRef=closed(
        "name",
        failureMode=FAILURE_MODE,
        group=TEXT,
        kind=TEXT,
        name=TEXT,
        port=closed("number", number=PORT),
    ),
    selector=closed("matchLabels", matchLabels=TEXTS),
    targetPorts=listed(closed("number", number=PORT), at_least=1, at_most=8),
)

INFERENCE_POOL_V1ALPHA2 = closed(
    "extensionRef",
    "selector",
    "targetPortNumber",
    extensionRef=closed(
        "name", failureMode=FAILURE_MODE, group=TEXT, kind=TEXT, name=TEXT, portNumber=PORT
    ),
    selector=TEXTS,
    targetPortNumber=PORT,
)

KSERVE: dict[tuple[str, str], Schema] = {
    ("serving.kserve.io/v1alpha1", "ClusterStorageContainer"): closed(
        "container",
        "supportedUriFormats",
        container=closed(
            "name",
            name=TEXT,
            image=TEXT,
            command=listed(TEXT),
            env=listed(closed("name", name=TEXT, value=TEXT)),
            terminationMessagePath=TEXT,
            resources=closed(requests=TEXTS, limits=TEXTS),
            securityContext={"type": "object"},
        ),
        supportedUriFormats=listed(closed(prefix=TEXT, regex=TEXT)),
        supportsMultiModelDownload={"type": "boolean"},
        workloadType=TEXT,
    ),
    ("serving.kserve.io/v1beta1", "InferenceService"): closed(
        "predictor",
        predictor=closed(
            storageContainerName=TEXT,
            model=closed(
                modelFormat=closed("name", name=TEXT, version=TEXT),
                storageUri=TEXT,
                storage=closed(key=TEXT, path=TEXT, parameters=TEXTS),
            ),
        ),
    ),
    ("serving.kserve.io/v1alpha1", "LLMInferenceService"): closed(
        "model",
        model=closed("uri", name=TEXT, uri=TEXT),
        replicas={"type": "integer", "minimum": 0},
    ),
}
