"""How we find the API server and show who we are: a pod's service account, or a kubeconfig.

kubernetes-asyncio reads both.  What it does not do is read a token again when it has changed:
bound service-account tokens are replaced every hour, and a token that is read once dies in silence.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubernetes_asyncio import client, config
from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_KEY = "BearerToken"


class NoCluster(Exception):
    """No API server is configured here; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster to talk to.

    `kubeconfig` None: the service account of the pod that we run in, else `$KUBECONFIG`, else
    `~/.kube/config`.  `environ` is the environment, or what stands in for it.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    environ: Mapping[str, str] | None = None
    service_account: Path = SERVICE_ACCOUNT

    @property
    def is_in_cluster(self) -> bool:
        """Tell whether we run in a pod, and nothing says to use another cluster."""
        environ = self.environ or {}
        return (
            self.kubeconfig is None
            and self.context is None
            and "KUBERNETES_SERVICE_HOST" in environ
            and (self.service_account / "token").exists()
        )

    @property
    def files(self) -> list[Path]:
        """The kubeconfig files to read, first wins."""
        if self.kubeconfig is not None:
            return [self.kubeconfig]
        environ = self.environ or {}
        listed = [Path(part) for part in environ.get("KUBECONFIG", "").split(":") if part]
        return listed or [Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"]


class Identity:
    """Our configuration for kubernetes-asyncio, and the means to read the token again."""

    RELOAD_AFTER_S = 60.0

    def __init__(self, where: Where) -> None:
        self.configuration = client.Configuration()
        self.namespace = "default"
        self._where = where
        self._loaded_at = 0.0

    async def load(self, now: float) -> None:
        """Find the API server and our token; NoCluster where there is none."""
        try:
            if self._where.is_in_cluster:
                self._load_service_account()
            else:
                await self._load_kubeconfig(self.configuration)
        except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            looked = ", ".join(map(str, self._where.files))
            raise NoCluster(f"no usable Kubernetes configuration ({looked}): {error}") from error
        self._loaded_at = now

    async def refresh(self, now: float, *, refused: bool) -> None:
        """Read the token again if it may have changed; `refused` = the server said 401."""
        if self._where.is_in_cluster:
            self._set_token((self._where.service_account / "token").read_text())
            return
        age_s = now - self._loaded_at
        if age_s < (1.0 if refused else self.RELOAD_AFTER_S):
            return
        self._loaded_at = now
        fresh = client.Configuration()
        try:
            await self._load_kubeconfig(fresh)
        except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the kubeconfig cannot be read again, the old token stays: %s", error)
            return
        if _KEY in fresh.api_key:
            self.configuration.api_key[_KEY] = fresh.api_key[_KEY]

    def _load_service_account(self) -> None:
        folder = self._where.service_account
        loader = InClusterConfigLoader(
            token_filename=str(folder / "token"),
            cert_filename=str(folder / "ca.crt"),
            try_refresh_token=False,
            environ=dict(self._where.environ or {}),
        )
        loader.load_and_set(self.configuration)
        self._set_token((folder / "token").read_text())
        if (folder / "namespace").exists():
            self.namespace = (folder / "namespace").read_text().strip() or "default"

    async def _load_kubeconfig(self, into: client.Configuration) -> None:
        files = ":".join(str(path) for path in self._where.files if path.is_file())
        if not files:
            raise config.ConfigException("no such file")
        loader = await config.load_kube_config(
            config_file=files,
            context=self._where.context,
            client_configuration=into,
            persist_config=False,
        )
        current = (loader.current_context or {}).get("context", {})
        self.namespace = current.get("namespace") or "default"
        if _KEY in into.api_key:
            into.api_key[_KEY] = into.api_key[_KEY].strip()

    def _set_token(self, text: str) -> None:
        self.configuration.api_key[_KEY] = f"Bearer {text.strip()}"
