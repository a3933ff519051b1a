"""The settings of `epp-registry`, as values; the command line is read in `cli`."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from registry.model import Policy
from registry.names import SYNC_SELECTOR
from registry.resource import MODES
from registry.rest import Address, has_certificates


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
    address = settings.address
    if why := _mistake_in_url(address.url):
        found.append(("--model-registry-url", why))
    if not math.isfinite(address.timeout_s):
        found.append(("--model-registry-timeout", "is not a number of seconds"))
    if settings.policy.deployment_mode not in MODES:
        found.append(("--deployment-mode", f"is none of {', '.join(MODES)}"))
    if settings.period_s < 0:
        found.append(("--model-registry-period", "is negative"))
    elif not math.isfinite(settings.period_s):
        found.append(("--model-registry-period", "is not a number of seconds"))
    if settings.max_deletes < 0:
        found.append(("--max-deletes", "is negative"))
    return found + _mistakes_in_files(settings)


def _mistakes_in_files(settings: Settings) -> list[tuple[str, str]]:
    found = []
    for flag, path in (
        ("--model-registry-token-file", settings.address.token_file),
        ("--model-registry-ca-file", settings.address.ca_file),
        ("--kubeconfig", settings.kubeconfig),
    ):
        if path is not None and not path.is_file():
            found.append((flag, f"{path} is not a file"))
        elif path and flag == "--model-registry-ca-file" and not has_certificates(path):
            found.append((flag, f"{path} holds no certificate; give a bundle in PEM"))
    return found


def _mistake_in_url(url: str) -> str:
    """Return what is wrong with an address, empty for nothing.  It is logged: no secret in it."""
    if not url:
        return ""
    if not re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?", url):
        return "is not an http or https address"
    try:
        parts = urlsplit(url)
        known = parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        return "is not an http or https address: its host or port cannot be"
    if "@" in parts.netloc:
        return "holds a name or a password; use --model-registry-token-file"
    return ""
