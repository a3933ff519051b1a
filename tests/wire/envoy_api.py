"""Envoy's public API, typed, from another code base: the oracle and the peer of these tests."""

import warnings

with warnings.catch_warnings():  # the generated package calls pydantic in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core.v3 import (
        HeaderMap,
        HeaderValue,
        HeaderValueOption,
        HeaderValueOptionHeaderAppendAction,
        Metadata,
    )
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
        ProcessingMode,
        ProcessingModeBodySendMode,
    )
    from envoy_data_plane.envoy.service.ext_proc import v3
    from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
    from envoy_data_plane.google.protobuf import Struct

__all__ = [
    "HeaderMap",
    "HeaderValue",
    "HeaderValueOption",
    "HeaderValueOptionHeaderAppendAction",
    "HttpStatus",
    "Metadata",
    "ProcessingMode",
    "ProcessingModeBodySendMode",
    "StatusCode",
    "Struct",
    "v3",
]
