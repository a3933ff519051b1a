"""What can be chosen about the generated Envoy configuration, and which choices contradict."""

from dataclasses import dataclass
from enum import StrEnum


class EndpointMode(StrEnum):
    """How Envoy turns the picked address into a connection."""

    ORIGINAL_DST = "original-dst"
    """Any address is reached, none is checked; a list of fallbacks is answered with 503."""

    OVERRIDE_HOST = "override-host"
    """One cluster per pool, its members in an EDS file that the picker keeps current.  Fallbacks
    work; a picked address that is no member is silently replaced by a member of Envoy's choice."""


class BodyMode(StrEnum):
    """How Envoy shows a body to the picker."""

    FULL_DUPLEX = "full-duplex"
    """The picker answers whenever it likes: any size, lowest memory.  The one to use."""

    BUFFERED = "buffered"
    """The whole body in one message; a body over `buffer_limit_bytes` gets 413 from Envoy."""

    BUFFERED_PARTIAL = "buffered-partial"
    """As buffered, but over the limit the picker sees the first part only."""

    STREAMED = "streamed"
    """Chunk by chunk; Envoy holds what is not answered yet, so that a body over
    `buffer_limit_bytes` never gets through."""

    NONE = "none"
    """No body: the picker cannot see a model's name."""


MIB = 1024 * 1024


class OptionError(ValueError):
    """Options that contradict each other; the message names the flags."""


@dataclass(frozen=True, slots=True)
class EnvoyOptions:
    """Everything that differs between two generated configurations."""

    endpoint: EndpointMode = EndpointMode.ORIGINAL_DST
    pools: tuple[str, ...] = ()
    """`namespace/name` of each pool: one cluster each, with `override-host` only."""
    eds_dir: str = "/var/run/epp/eds"
    """Where the picker writes one EDS file per pool, with `override-host` only."""

    request_body: BodyMode = BodyMode.FULL_DUPLEX
    response_body: BodyMode = BodyMode.FULL_DUPLEX
    """`none` also skips the response's headers: the picker then never sees a response."""

    picker_host: str = "127.0.0.1"
    picker_port: int = 9002
    picker_tls: bool = True
    picker_ca_file: str | None = None
    """Whom to trust as the picker; without it any certificate is accepted (it signs its own)."""
    picker_health_check: bool = True
    """Take a picker out that is not ready, asked over gRPC."""
    authority: str | None = None
    """`:authority` of the calls to the picker; None = the name of Envoy's cluster."""
    bind_namespace: str | None = None
    bind_pool: str | None = None
    """Sent as gRPC initial metadata: every request of this listener belongs to that pool."""

    listener_host: str = "0.0.0.0"  # noqa: S104 - a gateway listens to the world
    listener_port: int = 8081
    admin_host: str = "127.0.0.1"
    admin_port: int = 19000
    """0 lets the system choose; -1 leaves the admin interface out."""

    failure_mode_allow: bool = False
    """Send a request on without a pick when the picker cannot be reached."""
    message_timeout_s: float | None = None
    """How long Envoy waits for one answer; None = 30 s, or 300 s where the answer to the headers
    comes after the upload (streamed).  Envoy's own default is 200 ms."""
    max_requests: int = 100_000
    """Circuit breakers, of every cluster.  Envoy's default of 1024 refuses long generations."""
    buffer_limit_bytes: int | None = None
    """Per connection; None = 16 MiB where Envoy holds a whole body, else 1 MiB."""
    access_log: str | None = "/dev/stdout"
    graceful_close: bool = True
    """End calls to the picker with a half-close instead of a reset."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, naming the flags."""
        if self.endpoint is EndpointMode.OVERRIDE_HOST and not self.pools:
            raise OptionError("--endpoint override-host needs at least one --pool NAMESPACE/NAME")
        if self.endpoint is EndpointMode.ORIGINAL_DST and self.pools:
            raise OptionError("--pool has a meaning with --endpoint override-host only")
        for pool in self.pools:
            if pool.count("/") != 1 or not all(pool.split("/")):
                raise OptionError(f"--pool {pool}: not NAMESPACE/NAME")
        if len(set(self.pools)) != len(self.pools):
            raise OptionError("--pool names the same pool twice")
        if self.picker_ca_file and not self.picker_tls:
            raise OptionError("--picker-ca needs TLS to the picker: drop --no-picker-tls")

    @property
    def buffers(self) -> bool:
        """Whether Envoy has to hold a whole body."""
        whole = {BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.STREAMED}
        return bool(whole & {self.request_body, self.response_body})

    @property
    def effective_message_timeout_s(self) -> float:
        """The timeout that goes into the configuration."""
        if self.message_timeout_s is not None:
            return self.message_timeout_s
        return 300.0 if self.request_body is BodyMode.STREAMED else 30.0

    @property
    def effective_buffer_limit_bytes(self) -> int:
        """The limit that goes into the configuration."""
        if self.buffer_limit_bytes is not None:
            return self.buffer_limit_bytes
        return 16 * MIB if self.buffers else MIB


def eds_file_name(pool: str) -> str:
    """Return the file in the EDS folder for a pool `namespace/name`.

    `_` occurs in no Kubernetes name, so two pools never share a file.
    """
    return pool.replace("/", "_") + ".json"
