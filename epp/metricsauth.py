"""Who may read /metrics: whoever the cluster says may.

A TokenReview tells whose token it is, a SubjectAccessReview whether they may get /metrics.  Answers
are kept for a while, under a digest of the token, never the token.  While the API server is away a
reader that was allowed before stays allowed: an outage is when the metrics are needed.
"""

import asyncio
import hashlib
import logging
from dataclasses import dataclass

from datastore import manifests as m
from datastore.kube import KubeClient
from datastore.kube_errors import KubeError

log = logging.getLogger(__name__)

TOKEN_REVIEW = m.Resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews")
ACCESS_REVIEW = m.Resource(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews"
)


@dataclass(frozen=True, slots=True)
class _Answer:
    allowed: bool
    asked_at: float


class MetricsAuth:
    """Asks the cluster about bearer tokens."""

    ALLOWED_S = 60.0
    """How long a yes is good."""
    REFUSED_S = 10.0
    """How long a no is good: a right that is granted should be seen soon."""
    OUTAGE_S = 600.0
    """How long a yes is good while nobody can be asked."""
    KEPT = 1024
    """How many tokens are remembered."""

    def __init__(self, client: KubeClient, *, path: str = "/metrics") -> None:
        self._client = client
        self._path = path
        self._answers: dict[bytes, _Answer] = {}
        self._asking: dict[bytes, asyncio.Lock] = {}

    async def allowed(self, token: str) -> bool:
        """Tell whether the holder of this token may read the metrics."""
        if not token or not token.isascii():
            return False
        key = hashlib.sha256(token.encode()).digest()
        lock = self._asking.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                return await self._answer(key, token)
        finally:
            if not lock.locked():
                self._asking.pop(key, None)

    async def _answer(self, key: bytes, token: str) -> bool:
        now = asyncio.get_running_loop().time()
        known = self._answers.get(key)
        if known is not None:
            good_s = self.ALLOWED_S if known.allowed else self.REFUSED_S
            if now - known.asked_at < good_s:
                return known.allowed
        try:
            allowed = await self._ask(token)
        except KubeError as error:
            log.warning("nobody can say who may read %s: %s", self._path, error.message)
            return known is not None and known.allowed and now - known.asked_at < self.OUTAGE_S
        self._answers.pop(key, None)
        while len(self._answers) >= self.KEPT:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = _Answer(allowed, now)
        return allowed

    async def _ask(self, token: str) -> bool:
        review = await self._client.create(TOKEN_REVIEW, "", {"spec": {"token": token}})
        status = review.get("status") or {}
        if not status.get("authenticated"):
            return False
        user = status.get("user") or {}
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": self._path, "verb": "get"},
        }
        access = await self._client.create(ACCESS_REVIEW, "", {"spec": spec})
        return bool((access.get("status") or {}).get("allowed"))
