"""Flags of the reference picker that do nothing here.

They are accepted, so that its command lines start this picker too, and named in one warning.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Foreign:
    """Names of flags without effect.

    `valued` take a value, `switches` do not.  `already_so` are switches whose effect is always on.
    """

    valued: frozenset[str]
    switches: frozenset[str]
    already_so: frozenset[str]

    def __contains__(self, name: str) -> bool:
        return name in self.valued or name in self.switches or name in self.already_so


FOREIGN = Foreign(
    valued=frozenset(
        {
            "zap-encoder",
            "zap-log-level",
            "zap-stacktrace-level",
            "zap-time-encoding",
            "config-file",
            "config-text",
            "endpoint-selector",
            "endpoint-target-ports",
            "pool-group",
            "refresh-prometheus-metrics-interval",
            "total-queued-requests-metric",
            "total-running-requests-metric",
            "kv-cache-usage-percentage-metric",
            "lora-info-metric",
            "cache-info-metric",
            "destination-endpoint-hint-key",
            "destination-endpoint-hint-metadata-namespace",
        }
    ),
    switches=frozenset({"zap-devel", "tracing", "enable-pprof"}),
    already_so=frozenset({"enable-cert-reload", "health-checking"}),
)
