"""Which replica writes status: one holder of a Lease.

kubernetes-asyncio does the election.  Around it: network failures count as failed attempts (there
they escape, and leave a leader that has lost its lease at work), and a lease is given back at the
end, so that a restart does not leave everybody waiting.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes_asyncio.client import ApiClient, V1Lease, V1LeaseSpec, V1ObjectMeta
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.leaderelection.electionconfig import Config
from kubernetes_asyncio.leaderelection.leaderelection import LeaderElection
from kubernetes_asyncio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes_asyncio.leaderelection.resourcelock.leaselock import LeaseLock

log = logging.getLogger(__name__)

_NETWORK = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class Election:
    """Who stands for election, for which lease, and how fast a lost leader is replaced."""

    lease: str
    namespace: str
    identity: str
    lease_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


class Leadership:
    """Whether we lead.  `won` and `lost` are set accordingly; `on_change` is called as well."""

    def __init__(
        self,
        api: ApiClient,
        election: Election,
        *,
        on_change: Callable[[bool], None] = lambda leading: None,
    ) -> None:
        self.won = asyncio.Event()
        self.lost = asyncio.Event()
        self.lost.set()
        self._election = election
        self._lock = _Lock(election.lease, election.namespace, election.identity, api)
        self._lock.patience_s = election.renew_deadline_s / 2
        self._on_change = on_change

    @property
    def is_leader(self) -> bool:
        """Tell whether we lead now."""
        return self.won.is_set()

    async def run(self) -> None:
        """Stand for election, again after each defeat, until cancelled."""
        election = self._election
        try:
            while True:
                config = Config(
                    self._lock,
                    lease_duration=election.lease_s,
                    renew_deadline=election.renew_deadline_s,
                    retry_period=election.retry_s,
                    onstarted_leading=self._win,
                    onstopped_leading=self._lose,
                )
                await LeaderElection(config).run()
                await asyncio.sleep(election.retry_s)
        finally:
            was_leader = self.is_leader
            self._set(False)
            if was_leader:
                await self._lock.release()

    async def _win(self) -> None:
        self._set(True)

    async def _lose(self) -> None:
        self._set(False)

    def _set(self, leading: bool) -> None:
        if leading is self.is_leader:
            return
        log.info("%s %s", "leading as" if leading else "no longer leading as", self._lock.identity)
        (self.won.set if leading else self.won.clear)()
        (self.lost.clear if leading else self.lost.set)()
        self._on_change(leading)


class _Lock(LeaseLock):
    """A Lease, for which every failure is a failed attempt."""

    patience_s = 5.0

    async def get(self, name: str, namespace: str) -> Any:
        try:
            async with asyncio.timeout(self.patience_s):
                found = await super().get(name, namespace)
        except _NETWORK as error:
            return False, _failure(0, str(error))
        if isinstance(found[1], ApiException):
            return False, _failure(found[1].status, found[1].reason)
        return found

    async def create(
        self, name: str, namespace: str, election_record: LeaderElectionRecord
    ) -> bool:
        body = V1Lease(
            metadata=V1ObjectMeta(name=name, namespace=namespace),
            spec=self.update_lease(election_record),
        )
        return await self._attempt(self.api_instance.create_namespaced_lease(namespace, body))

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        lease = self.lease_reference
        assert lease is not None, "an election reads the lease before it writes it"
        lease.spec = self.update_lease(updated_record, lease.spec)
        return await self._attempt(
            self.api_instance.replace_namespaced_lease(name, namespace, lease)
        )

    async def release(self) -> None:
        """Give the lease back, if it can be done at once."""
        lease = self.lease_reference
        if lease is None:
            return
        with suppress(ApiException, *_NETWORK):
            async with asyncio.timeout(self.patience_s):
                current = await self.api_instance.read_namespaced_lease(self.name, self.namespace)
                if current.spec.holder_identity != self.identity:
                    return
                current.spec = V1LeaseSpec(holder_identity="", lease_duration_seconds=1)
                await self.api_instance.replace_namespaced_lease(self.name, self.namespace, current)

    async def _attempt(self, request: Any) -> bool:
        try:
            async with asyncio.timeout(self.patience_s):
                await request
        except ApiException as error:
            level = logging.DEBUG if error.status == 409 else logging.WARNING
            log.log(
                level, "the lease %s was not taken: %s %s", self.name, error.status, error.reason
            )
            return False
        except _NETWORK as error:
            log.warning("the lease %s was not taken: %s", self.name, error)
            return False
        return True


def _failure(status: int | None, reason: str | None) -> ApiException:
    """Return a failure in the form that the election reads: JSON with a code."""
    failure = ApiException(status=status or 0, reason=reason)
    failure.body = json.dumps({"code": status or 0}).encode()
    return failure
