"""Every metric of the picker: its name, type, labels and meaning, in one table.

`epp.metrics` exposes them and docs/metrics.md lists them; neither can name one that is not here.
`reference` marks names that the reference picker has too.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Described:
    """One metric."""

    name: str
    type: str
    about: str
    labels: tuple[str, ...] = ()
    reference: bool = True


_MODEL = ("namespace", "model_name", "target_model_name", "inference_pool")
_POOL = ("name", "namespace")
_OBJECTIVE = "inference_objective_"

_ROWS = (
    Described(
        f"{_OBJECTIVE}request_total",
        "counter",
        "Requests answered, refused ones too.",
        _MODEL,
    ),
    Described(
        f"{_OBJECTIVE}request_error_total",
        "counter",
        "Requests refused; error_code is the reason that the client was told.",
        (*_MODEL, "error_code"),
    ),
    Described(
        f"{_OBJECTIVE}running_requests",
        "gauge",
        "Requests at model servers, where responses pass through the picker.",
        ("model_name",),
    ),
    Described(f"{_OBJECTIVE}request_sizes", "histogram", "Bytes of the request's body.", _MODEL),
    Described(
        f"{_OBJECTIVE}request_duration_seconds",
        "histogram",
        "Time from the request to the end of its response.",
        _MODEL,
    ),
    Described(
        f"{_OBJECTIVE}request_ttft_seconds",
        "histogram",
        "Time from the request to the first bytes of its response's body.",
        _MODEL,
    ),
    Described(
        f"{_OBJECTIVE}normalized_time_per_output_token_seconds",
        "histogram",
        "Duration divided by the tokens generated.",
        _MODEL,
    ),
    Described(f"{_OBJECTIVE}response_sizes", "histogram", "Bytes of the response's body.", _MODEL),
    Described(f"{_OBJECTIVE}input_tokens", "histogram", "Tokens of the prompt.", _MODEL),
    Described(f"{_OBJECTIVE}output_tokens", "histogram", "Tokens generated.", _MODEL),
    Described(
        f"{_OBJECTIVE}prompt_cached_tokens",
        "histogram",
        "Tokens of the prompt that the model server had cached.",
        _MODEL,
    ),
    Described("inference_pool_ready_pods", "gauge", "Pods that can be picked.", _POOL),
    Described(
        "inference_pool_average_queue_size",
        "gauge",
        "Requests waiting at a pod, averaged over the scraped pods.",
        _POOL,
    ),
    Described(
        "inference_pool_average_running_requests",
        "gauge",
        "Requests running at a pod, averaged over the scraped pods.",
        _POOL,
    ),
    Described(
        "inference_pool_average_kv_cache_utilization",
        "gauge",
        "Used share of the KV cache (0…1), averaged over the scraped pods.",
        _POOL,
    ),
    Described(
        "inference_pool_per_pod_queue_size",
        "gauge",
        "Requests waiting at one pod's port.",
        (*_POOL, "model_server_pod", "port"),
    ),
    Described(
        "inference_extension_scheduler_attempts_total",
        "counter",
        "Picks of one endpoint (success), and requests that found none (failure).",
        ("status", "target_model_name", "pod_name", "namespace", "port"),
    ),
    Described(
        "inference_extension_scheduler_e2e_duration_seconds",
        "histogram",
        "The picker's own time per request.",
    ),
    Described(
        "inference_extension_info",
        "gauge",
        "Always 1; the labels say which build this is.",
        ("commit", "build_ref"),
    ),
    Described(
        "epp_loop_lag_seconds",
        "histogram",
        "How late the event loop woke: the signal to add replicas by.",
        reference=False,
    ),
    Described(
        "epp_state_revision",
        "gauge",
        "Grows by one with each change of models, pools or endpoints.",
        reference=False,
    ),
    Described(
        "epp_state_age_seconds",
        "gauge",
        "Time since the source of the state was last heard of.",
        reference=False,
    ),
    Described("epp_models", "gauge", "InferenceModels known.", reference=False),
    Described(
        "epp_manifest_errors_total",
        "counter",
        "Manifests that could not be applied; the last good state was kept.",
        reference=False,
    ),
    Described(
        "epp_manifests_broken",
        "gauge",
        "1 while the manifests on disk are not what is served, else 0.",
        reference=False,
    ),
    Described(
        "epp_access_log_dropped_total",
        "counter",
        "Log lines dropped because standard output did not take them in time.",
        reference=False,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Described):
    """A metric that is an attribute of `TransportStats`."""

    attribute: str


def _counted(attribute: str, about: str) -> Counted:
    """Describe a count: those that end in `_total` only grow, the others are "open now"."""
    grows = attribute.endswith("_total")
    name = attribute if grows or attribute == "buffered_bytes" else f"open_{attribute}"
    return Counted(
        name=f"epp_transport_{name}",
        type="counter" if grows else "gauge",
        about=about,
        reference=False,
        attribute=attribute,
    )


TRANSPORT = (
    _counted("connections", "Connections open now."),
    _counted("connections_total", "Connections accepted."),
    _counted("handed_over_total", "Connections served by grpcio for their :authority."),
    _counted("streams", "Streams open now."),
    _counted("streams_total", "Streams opened."),
    _counted("messages_received_total", "gRPC messages received."),
    _counted("messages_sent_total", "gRPC messages sent."),
    _counted("buffered_bytes", "Unfinished messages and unsent output, now."),
    _counted("resets_total", "Streams reset by the peer, as Envoy ends them."),
    _counted("application_errors_total", "Streams that ended in a bug of the picker's."),
    _counted("tls_failures_total", "TLS handshakes that failed."),
    _counted("certificate_reloads_total", "Certificates replaced while serving."),
    _counted("certificate_errors_total", "New certificates that cannot be served; the old one is."),
    _counted("accept_errors_total", "Failures to accept: too few file descriptors, mostly."),
    _counted("protocol_errors_total", "Connections ended because the peer broke HTTP/2."),
    _counted("deadlines_total", "Streams ended by their own grpc-timeout."),
    _counted("drained_by_age_total", "Connections asked to go by --max-connection-age."),
    _counted("refused_connections_total", "Connections over --max-connections."),
    _counted("refused_streams_total", "Streams over --max-concurrent-streams."),
    _counted("refused_requests_total", "HTTP requests that are no gRPC call we serve."),
    _counted("refused_messages_total", "Messages over a size limit, or compressed."),
    _counted("refused_floods_total", "Connections ended for a flood of resets or frames."),
    _counted("refused_handshakes_total", "Connections that did not begin in time."),
    _counted("refused_idle_total", "Streams or connections ended for saying nothing."),
    _counted("refused_stalls_total", "Streams or connections whose peer did not read."),
)
"""What a transport counts, by the names of its counts."""

CATALOGUE: dict[str, Described] = {row.name: row for row in (*_ROWS, *TRANSPORT)}
"""Every metric by its name, in the order of the docs."""
