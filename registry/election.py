"""One process acts, the others wait: a Lease, held by renewing it.

A holder is taken for dead when its lease has not changed for as long as it lasts, by our own clock:
two machines' clocks are never compared.  A holder that cannot renew stops acting before anybody
else may begin.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

from datastore.kube import KubeClient
from datastore.kube_errors import AlreadyExists, Conflict, KubeError, NotFound, ResourceMissing
from datastore.manifests import Resource as Kind
from registry.model import Json

log = logging.getLogger(__name__)

LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")


@dataclass(frozen=True, slots=True)
class Terms:
    """Whose lease it is and how long it lasts."""

    namespace: str
    name: str
    identity: str
    lasts_s: float = 15.0

    @property
    def renew_s(self) -> float:
        """How often it is renewed, and looked at by those who wait."""
        return self.lasts_s / 6

    @property
    def gives_up_s(self) -> float:
        """How long renewing may fail before its holder stops."""
        return self.lasts_s * 2 / 3


class Election:
    """One candidate.  `leading` tells whether it holds the lease."""

    def __init__(self, client: KubeClient, terms: Terms, rng: Random) -> None:
        self.leading = False
        self._client = client
        self._terms = terms
        self._rng = rng
        self._seen: tuple[str, float] = ("", 0.0)
        self._is_held_by_another = False

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease and lead, again and again, until cancelled."""
        while True:
            while not await self._try():
                await self._pause()
            log.info("leading: %s holds lease %s", self._terms.identity, self._terms.name)
            self.leading = True
            try:
                await self._lead(lead)
            finally:
                self.leading = False
            log.warning("the lease %s is lost; waiting for it", self._terms.name)

    async def release(self) -> None:
        """Give the lease back, so that the next one need not wait."""
        try:
            lease = await self._client.get(LEASE, self._terms.namespace, self._terms.name)
            if lease["spec"].get("holderIdentity") == self._terms.identity:
                lease["spec"]["holderIdentity"] = ""
                await self._replace(lease)
        except KubeError as error:
            log.debug("the lease was not given back: %s", error)

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Lead for as long as the lease can be renewed."""
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(_awaited(lead), name="lead")
            renewed = _now()
            while _now() - renewed < self._terms.gives_up_s:
                await self._pause()
                started = _now()
                if await self._try():
                    renewed = started
                elif self._is_held_by_another:
                    break
            work.cancel()

    async def _try(self) -> bool:
        """Take or renew the lease; False where somebody has it, or nobody can tell."""
        try:
            async with asyncio.timeout(self._terms.renew_s * 2):
                return await self._take()
        except (Conflict, TimeoutError):
            return False
        except KubeError as error:
            log.warning("lease %s: %s", self._terms.name, error)
            return False

    async def _take(self) -> bool:
        try:
            lease = await self._client.get(LEASE, self._terms.namespace, self._terms.name)
        except ResourceMissing:
            raise
        except NotFound:
            return await self._create()
        spec = lease.setdefault("spec", {})
        holder = spec.get("holderIdentity") or ""
        self._is_held_by_another = holder not in ("", self._terms.identity)
        version = str(lease["metadata"].get("resourceVersion"))
        if version != self._seen[0]:
            self._seen = (version, _now())
        lasts_s = float(spec.get("leaseDurationSeconds") or self._terms.lasts_s)
        if self._is_held_by_another and _now() - self._seen[1] < lasts_s:
            return False
        if holder != self._terms.identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = _stamp()
        lease["spec"] = {**spec, **self._spec()}
        await self._replace(lease)
        self._is_held_by_another = False
        return True

    async def _create(self) -> bool:
        terms = self._terms
        body: Json = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": terms.name, "namespace": terms.namespace},
            "spec": {**self._spec(), "acquireTime": _stamp(), "leaseTransitions": 0},
        }
        try:
            await self._client.create(LEASE, terms.namespace, body)
        except AlreadyExists:
            return False
        return True

    async def _replace(self, lease: Json) -> None:
        await self._client.replace(LEASE, self._terms.namespace, self._terms.name, lease)

    def _spec(self) -> Json:
        return {
            "holderIdentity": self._terms.identity,
            "leaseDurationSeconds": max(1, round(self._terms.lasts_s)),
            "renewTime": _stamp(),
        }

    async def _pause(self) -> None:
        await asyncio.sleep(self._terms.renew_s * (0.75 + 0.5 * self._rng.random()))


async def _awaited(lead: Callable[[], Awaitable[None]]) -> None:
    await lead()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
