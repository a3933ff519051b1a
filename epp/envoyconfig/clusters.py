"""The clusters of the generated configuration: the picker, and where the model servers are."""

import ipaddress
from typing import Any

from epp.envoyconfig.options import EndpointMode, EnvoyOptions, eds_file_name

Json = dict[str, Any]

PICKER_CLUSTER = "endpoint_picker"
MODEL_SERVERS_CLUSTER = "model_servers"
DESTINATION_HEADER = "x-gateway-destination-endpoint"
SERVED_KEY = "x-gateway-destination-endpoint-served"
LB_NAMESPACE = "envoy.lb"
PICKER_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
HTTP2_PROTOCOL = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def clusters(options: EnvoyOptions) -> list[Json]:
    """Return every cluster."""
    if options.endpoint is EndpointMode.ORIGINAL_DST:
        return [picker_cluster(options), original_dst_cluster(options)]
    return [picker_cluster(options), *(pool_cluster(options, pool) for pool in options.pools)]


def pool_cluster_name(pool: str) -> str:
    """Return the name of the cluster for a pool `namespace/name`."""
    return f"pool:{pool}"


def picker_cluster(options: EnvoyOptions) -> Json:
    """Return the cluster of the picker: HTTP/2, TLS unless turned off, health-checked over gRPC."""
    cluster: Json = {
        "name": PICKER_CLUSTER,
        "type": "STATIC" if _is_ip(options.picker_host) else "STRICT_DNS",
        "connect_timeout": "1s",
        "circuit_breakers": _circuit_breakers(options),
        "typed_extension_protocol_options": {HTTP2_PROTOCOL: _http2_options()},
        "load_assignment": {
            "cluster_name": PICKER_CLUSTER,
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": _endpoint(options.picker_host, options.picker_port)}
                    ]
                }
            ],
        },
    }
    if options.picker_tls:
        cluster["transport_socket"] = _tls(options)
    if options.picker_health_check:
        cluster["health_checks"] = [_health_check(options)]
    return cluster


def original_dst_cluster(options: EnvoyOptions) -> Json:
    """Return the cluster that connects to whatever address the picked header names."""
    return {
        "name": MODEL_SERVERS_CLUSTER,
        "type": "ORIGINAL_DST",
        "connect_timeout": "5s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": _circuit_breakers(options),
        "per_connection_buffer_limit_bytes": options.effective_buffer_limit_bytes,
        "original_dst_lb_config": {
            "use_http_header": True,
            "http_header_name": DESTINATION_HEADER,
        },
    }


def pool_cluster(options: EnvoyOptions, pool: str) -> Json:
    """Return the cluster of one pool: members from its EDS file, chosen by the picked header."""
    return {
        "name": pool_cluster_name(pool),
        "type": "EDS",
        "connect_timeout": "5s",
        "circuit_breakers": _circuit_breakers(options),
        "per_connection_buffer_limit_bytes": options.effective_buffer_limit_bytes,
        "eds_cluster_config": {
            "service_name": pool,
            "eds_config": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": f"{options.eds_dir.rstrip('/')}/{eds_file_name(pool)}",
                },
            },
        },
        "load_balancing_policy": {"policies": [_override_host_policy()]},
    }


def _override_host_policy() -> Json:
    return _policy(
        "override_host",
        "OverrideHost",
        {
            "override_host_sources": [
                {"header": DESTINATION_HEADER},
                {"metadata": _metadata_key(DESTINATION_HEADER)},
            ],
            "selected_host_key": _metadata_key(SERVED_KEY),
            "fallback_policy": {"policies": [_policy("least_request", "LeastRequest", {})]},
        },
    )


def _policy(name: str, message: str, fields: Json) -> Json:
    package = f"envoy.extensions.load_balancing_policies.{name}.v3"
    return {
        "typed_extension_config": {
            "name": f"envoy.load_balancing_policies.{name}",
            "typed_config": {"@type": f"type.googleapis.com/{package}.{message}", **fields},
        }
    }


def _metadata_key(key: str) -> Json:
    return {"key": LB_NAMESPACE, "path": [{"key": key}]}


def _circuit_breakers(options: EnvoyOptions) -> Json:
    limit = options.max_requests
    threshold = {
        "max_connections": limit,
        "max_pending_requests": limit,
        "max_requests": limit,
        "max_retries": limit,
    }
    return {"thresholds": [threshold]}


def _http2_options() -> Json:
    return {
        "@type": f"type.googleapis.com/{HTTP2_PROTOCOL}",
        "explicit_http_config": {
            "http2_protocol_options": {
                "max_concurrent_streams": 1024,
                "connection_keepalive": {"interval": "30s", "timeout": "5s"},
            }
        },
    }


def _tls(options: EnvoyOptions) -> Json:
    context: Json = {"alpn_protocols": ["h2"]}
    if options.picker_ca_file:
        context["validation_context"] = {"trusted_ca": {"filename": options.picker_ca_file}}
    package = "envoy.extensions.transport_sockets.tls.v3"
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"type.googleapis.com/{package}.UpstreamTlsContext",
            "common_tls_context": context,
        },
    }


def _health_check(options: EnvoyOptions) -> Json:
    grpc: Json = {"service_name": PICKER_SERVICE}
    if options.authority:
        grpc["authority"] = options.authority
    check: Json = {
        "timeout": "2s",
        "interval": "10s",
        "no_traffic_interval": "10s",
        "unhealthy_interval": "1s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "grpc_health_check": grpc,
    }
    if options.picker_tls:
        check["tls_options"] = {"alpn_protocols": ["h2"]}
    return check


def _endpoint(host: str, port: int) -> Json:
    return {"address": {"socket_address": {"address": host, "port_value": port}}}


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
