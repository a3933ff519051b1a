"""The listener: client-sent control headers removed, the picker asked, then the route chosen."""

from typing import Any

from epp.envoyconfig.clusters import (
    DESTINATION_HEADER,
    LB_NAMESPACE,
    MODEL_SERVERS_CLUSTER,
    PICKER_CLUSTER,
    pool_cluster_name,
)
from epp.envoyconfig.options import BodyMode, EndpointMode, EnvoyOptions

Json = dict[str, Any]

POOL_HEADER = "x-gateway-inference-pool"
CONTROL_HEADERS = (
    DESTINATION_HEADER,
    "x-gateway-destination-endpoint-subset",
    POOL_HEADER,
    "x-gateway-model-name",
)
"""Only the picker may set these: what a client sends under their names never enters the gateway."""

NO_POOL_BODY = (
    '{"error": {"message": "the endpoint picker chose no pool for this request", '
    '"type": "server_error", "param": null, "code": "no_pool"}}'
)

_BODY_MODES = {
    BodyMode.FULL_DUPLEX: "FULL_DUPLEX_STREAMED",
    BodyMode.BUFFERED: "BUFFERED",
    BodyMode.BUFFERED_PARTIAL: "BUFFERED_PARTIAL",
    BodyMode.STREAMED: "STREAMED",
    BodyMode.NONE: "NONE",
}


def listener(options: EnvoyOptions) -> Json:
    """Return the listener that clients talk to, HTTP/1.1 and HTTP/2 alike."""
    manager = _typed(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        _manager(options),
    )
    return {
        "name": "inference",
        "address": _address(options.listener_host, options.listener_port),
        "per_connection_buffer_limit_bytes": options.effective_buffer_limit_bytes,
        "filter_chains": [{"filters": [manager]}],
    }


def ext_proc(options: EnvoyOptions, request_body: BodyMode, response_body: BodyMode) -> Json:
    """Return the filter that asks the picker."""
    fields: Json = {
        "grpc_service": _grpc_service(options),
        "failure_mode_allow": options.failure_mode_allow,
        "message_timeout": f"{options.effective_message_timeout_s:g}s",
        "processing_mode": _processing_mode(request_body, response_body),
        "metadata_options": {
            "forwarding_namespaces": {"untyped": [f"{LB_NAMESPACE}.subset_hint", LB_NAMESPACE]},
            "receiving_namespaces": {"untyped": [LB_NAMESPACE]},
        },
    }
    if request_body is BodyMode.STREAMED:
        # Else Envoy waits for the answer to the headers, which the picker gives after the body.
        fields["send_body_without_waiting_for_header_response"] = True
    return _typed(
        "envoy.filters.http.ext_proc",
        "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        fields,
    )


def _manager(options: EnvoyOptions) -> Json:
    router = _typed(
        "envoy.filters.http.router", "envoy.extensions.filters.http.router.v3.Router", {}
    )
    manager: Json = {
        "stat_prefix": "inference",
        "codec_type": "AUTO",
        "http_protocol_options": {"enable_trailers": True},
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "stream_idle_timeout": "3600s",
        "early_header_mutation_extensions": [_strip_control_headers()],
        "upgrade_configs": [
            # The bytes of an upgraded connection are nothing that the picker could read.
            {
                "upgrade_type": "websocket",
                "filters": [ext_proc(options, BodyMode.NONE, BodyMode.NONE), router],
            }
        ],
        "http_filters": [
            ext_proc(options, options.request_body, options.response_body),
            router,
        ],
        "route_config": {
            "name": "inference",
            "virtual_hosts": [{"name": "inference", "domains": ["*"], "routes": _routes(options)}],
        },
    }
    if options.access_log is not None:
        manager["access_log"] = [_access_log(options.access_log)]
    return manager


def _routes(options: EnvoyOptions) -> list[Json]:
    everything = {"prefix": "/"}
    if options.endpoint is EndpointMode.ORIGINAL_DST:
        return [{"match": everything, "route": _route_to(MODEL_SERVERS_CLUSTER)}]
    by_pool = [
        {
            "match": {
                **everything,
                "headers": [{"name": POOL_HEADER, "string_match": {"exact": pool}}],
            },
            "route": {
                **_route_to(pool_cluster_name(pool)),
                # The list of fallbacks is walked by retries.
                "retry_policy": {
                    "retry_on": "connect-failure,refused-stream",
                    "num_retries": 3,
                    "retry_back_off": {"base_interval": "0.005s"},
                },
            },
        }
        for pool in options.pools
    ]
    if len(options.pools) == 1:
        only = {"match": everything, "route": _route_to(pool_cluster_name(options.pools[0]))}
        return [*by_pool, only]
    return [*by_pool, {"match": everything, **_no_pool()}]


def _route_to(cluster: str) -> Json:
    return {"cluster": cluster, "timeout": "0s"}


def _no_pool() -> Json:
    return {
        "direct_response": {"status": 503, "body": {"inline_string": NO_POOL_BODY}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
    }


def _processing_mode(request_body: BodyMode, response_body: BodyMode) -> Json:
    sees_response = response_body is not BodyMode.NONE
    return {
        "request_header_mode": "SEND",
        "request_body_mode": _BODY_MODES[request_body],
        "request_trailer_mode": _trailers(request_body),
        "response_header_mode": "SEND" if sees_response else "SKIP",
        "response_body_mode": _BODY_MODES[response_body],
        "response_trailer_mode": _trailers(response_body),
    }


def _trailers(body: BodyMode) -> str:
    return "SKIP" if body is BodyMode.NONE else "SEND"


def _grpc_service(options: EnvoyOptions) -> Json:
    envoy_grpc: Json = {"cluster_name": PICKER_CLUSTER}
    if options.authority:
        envoy_grpc["authority"] = options.authority
    # A picker that stops has closed its port before its health check fails: ask another one.
    another = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    predicate = _typed("envoy.retry_host_predicates.previous_hosts", another, {})
    retry: Json = {
        "retry_on": "connect-failure,refused-stream",
        "num_retries": 3,
        "retry_host_predicate": [predicate],
        "host_selection_retry_max_attempts": 5,
    }
    service: Json = {"envoy_grpc": envoy_grpc, "retry_policy": retry}
    bindings = (("x-epp-namespace", options.bind_namespace), ("x-epp-pool", options.bind_pool))
    metadata = [{"key": key, "value": value} for key, value in bindings if value]
    if metadata:
        service["initial_metadata"] = metadata
    return service


def _strip_control_headers() -> Json:
    return _typed(
        "envoy.http.early_header_mutation.header_mutation",
        "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        {"mutations": [{"remove": name} for name in CONTROL_HEADERS]},
    )


def _access_log(path: str) -> Json:
    fields = {
        "time": "%START_TIME%",
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(:PATH)%",
        "status": "%RESPONSE_CODE%",
        "detail": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "model": "%REQ(X-GATEWAY-MODEL-NAME)%",
        "pool": "%REQ(X-GATEWAY-INFERENCE-POOL)%",
        "picked": "%REQ(X-GATEWAY-DESTINATION-ENDPOINT)%",
        "served": "%UPSTREAM_HOST%",
        "request_bytes": "%BYTES_RECEIVED%",
        "response_bytes": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
    }
    return _typed(
        "envoy.access_loggers.file",
        "envoy.extensions.access_loggers.file.v3.FileAccessLog",
        {"path": path, "log_format": {"json_format": fields}},
    )


def _address(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}


def _typed(name: str, message: str, fields: Json) -> Json:
    return {
        "name": name,
        "typed_config": {"@type": f"type.googleapis.com/{message}", **fields},
    }
