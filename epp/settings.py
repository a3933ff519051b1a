"""Every setting of the picker, in one table: its flag, variable, type, default and reason.

The table is the dataclass below; `epp serve --help`, docs/settings.md and the parser are made from
it.  It reads no environment and no file itself: it is given a command line and a mapping.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from console import Mistake
from epp import kinds
from epp.flags import Setting, read
from epp.foreign import FOREIGN

_LISTEN = "Listeners"
_POOL = "Pools and sources"
_TLS = "TLS"
_REQUEST = "Requests"
_SCRAPE = "Model servers"
_LIFE = "Replicas and shutdown"
_LIMIT = "Limits"
_LOG = "Logs"


class InvalidSettings(Exception):
    """The command line or the environment is wrong, in one place or in many."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = tuple(mistakes)


def _setting(
    default: object,
    kind: kinds.Kind,
    group: str,
    about: str,
    why: str = "",
    flag: str = "",
    var: str = "",
) -> Any:
    row = {"kind": kind, "group": group, "about": about, "why": why, "flag": flag, "var": var}
    return field(default=default, metadata={"setting": MappingProxyType(row)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the picker was told.  `warnings` are lines to print once, about what had no effect."""

    grpc_port: int = _setting(
        9002, kinds.PORT, _LISTEN, "Port of the ext_proc service (0: any free one)."
    )
    grpc_health_port: int = _setting(
        9003, kinds.PORT, _LISTEN, "Port of gRPC health checks, always plaintext."
    )
    metrics_port: int = _setting(
        9090, kinds.PORT, _LISTEN, "Port of /metrics, /healthz and /readyz."
    )
    debug_port: int = _setting(
        9091,
        kinds.PORT,
        _LISTEN,
        "Port of /debug/state, on localhost only; 0 turns it off.",
        "`epp get` reads it; nobody outside the pod can.",
    )
    host: str = _setting(
        "", kinds.HOST, _LISTEN, "Address to listen on.", "Unset: every address, IPv4 and IPv6."
    )
    transport: str = _setting(
        "auto",
        kinds.choice("auto", "http2", "grpcio"),
        _LISTEN,
        "HTTP/2 implementation of the ext_proc port.",
        "auto: the fast one, and grpcio for connections that it would refuse (Istio's).",
    )

    pool_name: str = _setting(
        "",
        kinds.NAME,
        _POOL,
        "Serve this InferencePool only.",
        "Unset: every pool of the watched namespaces; the request tells which.",
    )
    pool_namespace: str = _setting(
        "default",
        kinds.NAMESPACE,
        _POOL,
        "Namespace of the pool and its models.",
        "$NAMESPACE where it is set.",
        var="NAMESPACE",
    )
    watch_namespaces: tuple[str, ...] = _setting(
        (),
        kinds.NAMESPACES,
        _POOL,
        "Namespace to watch; may be given more than once.",
        "Unset: the pool's namespace.",
        flag="watch-namespace",
    )
    manifests: str = _setting(
        "",
        kinds.PATH,
        _POOL,
        "File or folder of manifests to serve from, without a cluster.",
        "Unset: the cluster is the source.",
    )
    kubeconfig: str = _setting(
        "",
        kinds.PATH,
        _POOL,
        "Kubeconfig file of the cluster to watch.",
        "Unset: the pod's service account, else the user's default.",
    )
    eds_dir: str = _setting(
        "",
        kinds.PATH,
        _POOL,
        "Folder to keep one Envoy EDS file per pool in.",
        "Unset: no files; override_host needs them where Envoy has no other source.",
    )
    max_staleness_s: float | None = _setting(
        None,
        kinds.or_off(kinds.DURATION),
        _POOL,
        "End readiness when the cluster's state is older than this.",
        "Off: an old state serves better than none.",
        flag="max-staleness",
    )

    secure_serving: bool = _setting(
        True,
        kinds.BOOL,
        _TLS,
        "Serve ext_proc over TLS.",
        "Without --cert-path the certificate is self-signed.",
    )
    cert_path: str = _setting(
        "", kinds.PATH, _TLS, "Folder with tls.crt and tls.key; a change is served at once."
    )
    client_ca_path: str = _setting(
        "",
        kinds.PATH,
        _TLS,
        "CA bundle that clients' certificates must chain to.",
        "Unset: no client certificate is asked for.",
    )

    response_mode: str = _setting(
        "auto",
        kinds.choice("auto", "close", "pass"),
        _REQUEST,
        "End the stream after the pick (close), or see the response too (pass).",
        "auto: close, unless something needs the response: its chunks would cost a message each.",
    )
    fallbacks: int = _setting(
        0,
        kinds.integer(0, 16),
        _REQUEST,
        "Further endpoints named after the picked one.",
        "ORIGINAL_DST clusters answer 503 to a list; use 2 with override_host.",
    )
    serve_models: str = _setting(
        "auto",
        kinds.choice("auto", "always", "never"),
        _REQUEST,
        "Answer GET /v1/models from the InferenceModels.",
        "auto: when there is at least one.",
    )
    unknown_models: str = _setting(
        "reject",
        kinds.choice("reject", "passthrough"),
        _REQUEST,
        "What a model name without an InferenceModel gets: 404, or the bound pool.",
        "A misspelt name should not reach a model server.",
    )
    max_request_body_bytes: int = _setting(
        16 << 20,
        kinds.at_least(kinds.SIZE, 1),
        _REQUEST,
        "Largest request body, also when decompressed; more gets 413.",
        "Holds four million tokens of text, or a few images.",
    )
    disable_endpoint_subset_filter: bool = _setting(
        False, kinds.BOOL, _REQUEST, "Ignore the gateway's subset hint."
    )
    seed: int | None = _setting(
        None,
        kinds.integer(-(2**63), 2**63 - 1),
        _REQUEST,
        "Seed of the draws, for runs that repeat.",
        "Unset: a different one each start.",
    )

    refresh_metrics_interval_s: float = _setting(
        0.2,
        kinds.at_least(kinds.DURATION, 0.001),
        _SCRAPE,
        "Time between two scrapes of one model server.",
        "Our own picks are added to the last scrape, so that it ages well; the Go picker's"
        " 50ms would be 4 000 scrapes a second for 200 endpoints.",
        flag="refresh-metrics-interval",
    )
    metrics_staleness_threshold_s: float = _setting(
        2.0,
        kinds.at_least(kinds.DURATION, 0.001),
        _SCRAPE,
        "Age from which a scrape no longer counts.",
        "Ten scrapes missed.",
        flag="metrics-staleness-threshold",
    )
    model_server_metrics_port: int = _setting(
        0, kinds.PORT, _SCRAPE, "Port of the model servers' metrics.", "0: the endpoint's own."
    )
    model_server_metrics_path: str = _setting(
        "/metrics", kinds.URL_PATH, _SCRAPE, "Path of the model servers' metrics."
    )
    model_server_metrics_scheme: str = _setting(
        "http", kinds.choice("http", "https"), _SCRAPE, "Scheme of the model servers' metrics."
    )
    model_server_metrics_https_insecure_skip_verify: bool = _setting(
        True,
        kinds.BOOL,
        _SCRAPE,
        "Take any certificate when scraping over https.",
        "Pods are addressed by IP, which their certificates rarely name.",
    )

    metrics_endpoint_auth: bool | None = _setting(
        None,
        kinds.BOOL_OR_AUTO,
        _LISTEN,
        "Ask the cluster whether a bearer token may read /metrics.",
        "auto: true in a cluster, false with --manifests.",
    )
    ha_enable_leader_election: bool = _setting(
        False,
        kinds.BOOL,
        _LIFE,
        "Only the elected replica is ready (active-passive).",
        "Every replica can serve; one alone keeps prefix caches local.",
    )
    drain_timeout_s: float = _setting(
        30.0,
        kinds.DURATION,
        _LIFE,
        "Time for open streams to end after SIGTERM.",
        "A pod's terminationGracePeriodSeconds must be longer.",
        flag="drain-timeout",
    )
    max_connection_age_s: float | None = _setting(
        None,
        kinds.or_off(kinds.DURATION),
        _LIFE,
        "Ask a client to reconnect after this long (±10 %).",
        "Off; 5m lets new replicas get their share.",
        flag="max-connection-age",
    )

    max_concurrent_streams: int = _setting(
        16384,
        kinds.integer(1, 2**31 - 1),
        _LIMIT,
        "Open streams per connection.",
        "An Envoy worker has one connection, and on it a stream per request in flight.",
    )
    max_connections: int = _setting(
        1024,
        kinds.integer(1, 1_000_000),
        _LIMIT,
        "Open connections; further ones are closed.",
        "One per Envoy worker: 64 gateways of 16 cores.",
    )
    max_buffered_bytes: int = _setting(
        256 << 20,
        kinds.at_least(kinds.SIZE, 1),
        _LIMIT,
        "Request bytes held over all streams; beyond, new bodies get 503.",
        "Sixteen bodies of the largest size at once, in a pod of 512 MiB.",
    )
    max_header_list_bytes: int = _setting(
        16 << 10,
        kinds.at_least(kinds.SIZE, 1024),
        _LIMIT,
        "gRPC metadata of one stream.",
        "grpc's own hard limit; Envoy sends a few hundred bytes.",
    )
    first_message_timeout_s: float = _setting(
        10.0,
        kinds.at_least(kinds.DURATION, 0.001),
        _LIMIT,
        "Time for a stream's first message.",
        "Envoy opens a stream to send one at once.",
        flag="first-message-timeout",
    )
    stream_idle_timeout_s: float = _setting(
        3600.0,
        kinds.at_least(kinds.DURATION, 0.001),
        _LIMIT,
        "Time without any message on a stream.",
        "Longer than any generation: Envoy ends its streams itself, this reaps lost ones.",
        flag="stream-idle-timeout",
    )
    send_timeout_s: float = _setting(
        30.0,
        kinds.at_least(kinds.DURATION, 0.001),
        _LIMIT,
        "Time for a peer to take what was sent to it; then its connection is reset.",
        "Envoy gives up on a pick within seconds.",
        flag="send-timeout",
    )

    log_level: str | None = _setting(
        None,
        kinds.choice("debug", "info", "warning", "error"),
        _LOG,
        "Least level that is logged; one line per request is info.",
        "Unset: --v decides.",
    )
    v: int = _setting(
        2,
        kinds.integer(-128, 127),
        _LOG,
        "Verbosity as the Go picker counts it: 0, 1 warning; 2, 3 info; 4 and more debug.",
    )

    warnings: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls, args: Sequence[str] = (), env: Mapping[str, str] = MappingProxyType({})
    ) -> "Settings":
        """Read a command line and an environment; the command line wins.

        Raises `InvalidSettings` with every mistake there is.
        """
        reading = read(TABLE, FOREIGN, args, env)
        values: dict[str, Any] = reading.values
        settings = cls(**values, warnings=tuple(reading.warnings))
        mistakes = list(reading.mistakes)
        for names, mistake in _contradictions(settings):
            if reading.broken.isdisjoint(names):
                mistakes.append(mistake)
        if mistakes:
            raise InvalidSettings(mistakes)
        return settings

    @property
    def standalone(self) -> bool:
        """Whether manifests on disk are the source, and there is no cluster."""
        return bool(self.manifests)

    @property
    def metrics_auth(self) -> bool:
        """Whether /metrics asks the cluster about the reader's token."""
        if self.metrics_endpoint_auth is None:
            return not self.standalone
        return self.metrics_endpoint_auth

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces to watch, each once."""
        return tuple(dict.fromkeys(self.watch_namespaces)) or (self.pool_namespace,)

    @property
    def level(self) -> str:
        """The least level that is logged, in the names of `logging`."""
        if self.log_level is not None:
            return self.log_level.upper()
        return "WARNING" if self.v < 2 else "INFO" if self.v < 4 else "DEBUG"


def _contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], Mistake]]:
    """Find settings that are each right and wrong together, with the names of those involved."""
    ports: dict[int, str] = {}
    for name in ("grpc_port", "grpc_health_port", "metrics_port", "debug_port"):
        port, flag = getattr(settings, name), "--" + name.replace("_", "-")
        if port and (other := ports.setdefault(port, name)) != name:
            fix = f"--{other.replace('_', '-')} has it already; give each its own"
            yield (name, other), Mistake(f"port {port} is taken twice", flag, fix)
    if settings.client_ca_path and not settings.secure_serving:
        names = ("client_ca_path", "secure_serving")
        fix = "leave out --secure-serving=false, or --client-ca-path"
        yield names, Mistake("clients' certificates need TLS", "--client-ca-path", fix)
    if settings.manifests and settings.kubeconfig:
        fix = "leave one of them out"
        what = "manifests on disk and a cluster cannot both be the source"
        yield ("manifests", "kubeconfig"), Mistake(what, "--manifests, --kubeconfig", fix)
    if settings.metrics_staleness_threshold_s <= settings.refresh_metrics_interval_s:
        names = ("metrics_staleness_threshold_s", "refresh_metrics_interval_s")
        what = "every scrape would be stale before the next one"
        fix = "make it longer than --refresh-metrics-interval"
        yield names, Mistake(what, "--metrics-staleness-threshold", fix)


def _table() -> Iterator[Setting]:
    for row in fields(Settings):
        if "setting" in row.metadata:
            said = row.metadata["setting"]
            yield Setting(
                name=row.name,
                flag=said["flag"] or row.name.replace("_", "-"),
                kind=said["kind"],
                default=row.default,
                group=said["group"],
                about=said["about"],
                why=said["why"],
                fallback_variable=said["var"],
            )


TABLE = tuple(_table())
"""Every setting, in the order of `--help`."""
