"""The settings of `epp-registry`, as values; the command line is read in `cli`."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from registry.model import Policy
from registry.names import SYNC_SELECTOR
from registry.resource import MODES
from registry.rest import Address


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that an operator decides."""

    enabled: bool = False
    """--model-registry-enabled: without it nothing is read or written, and that is said."""
    address: Address = field(default_factory=lambda: Address(""))
    policy: Policy = field(default_factory=Policy)
    period_s: float = 60.0
    """--model-registry-period; 0 = only on events."""
    settle_s: float = 1.0
    max_deletes: int = 10
    """--max-deletes in a period: the bound on any mistake."""
    selector: str = SYNC_SELECTOR
    """--namespace-selector; empty with --all-namespaces."""
    elect: bool = True
    lease_name: str = "epp-registry"
    lease_namespace: str = ""
    identity: str = ""
    host: str = ""
    """--http-host; empty = every address, of either family."""
    port: int = 9091
    kubeconfig: Path | None = None
    context: str | None = None

    @property
    def budget_period_s(self) -> float:
        """The period that deletes are counted in."""
        return self.period_s or 60.0

    @property
    def answer_ttl_s(self) -> float:
        """How long an answer about a model holds: far less than a period."""
        return min(5.0, self.period_s / 4) if self.period_s else 5.0


def mistakes_in(settings: Settings) -> list[tuple[str, str]]:
    """Return what is wrong, as (flag, what), all of it."""
    found = []
    url = settings.address.url
    if url and not re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?", url):
        found.append(("--model-registry-url", "is not an http or https address"))
    if settings.policy.deployment_mode not in MODES:
        found.append(("--deployment-mode", f"is none of {', '.join(MODES)}"))
    if settings.period_s < 0:
        found.append(("--model-registry-period", "is negative"))
    if settings.max_deletes < 0:
        found.append(("--max-deletes", "is negative"))
    for flag, path in (
        ("--model-registry-token-file", settings.address.token_file),
        ("--model-registry-ca-file", settings.address.ca_file),
        ("--kubeconfig", settings.kubeconfig),
    ):
        if path is not None and not path.is_file():
            found.append((flag, f"{path} is not a file"))
    return found
