"""What can go wrong between us and an API server, by what a caller can do about it.

One class for each reaction: wait, list anew, ask somebody for a permission, install a CRD.  Pure:
`refusal` reads a status code and a body; `kube` raises what it returns.
"""

from dataclasses import dataclass

import msgspec

from datastore.manifests import Resource


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked of the API server: enough to say what was refused."""

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        path = f"{self.resource.plural}{f'/{self.subresource}' if self.subresource else ''}"
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {path}{f' {self.name}' if self.name else ''}{where}"

    @property
    def rule(self) -> str:
        """The RBAC rule that allows this call, to be pasted into a Role."""
        plural = self.resource.plural + (f"/{self.subresource}" if self.subresource else "")
        verbs = '["list", "watch"]' if self.verb in ("list", "watch") else f'["{self.verb}"]'
        role = f"Role in namespace {self.namespace}" if self.namespace else "ClusterRole"
        group = self.resource.group
        return f'{role}: {{apiGroups: ["{group}"], resources: ["{plural}"], verbs: {verbs}}}'


class KubeError(Exception):
    """A call that the API server did not carry out; `status` is 0 where it gave no answer."""

    def __init__(
        self, message: str, *, status: int = 0, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s


class Unauthorized(KubeError):
    """Our token is not (or no longer) good."""


class Forbidden(KubeError):
    """RBAC does not allow it; the message names the rule that would."""


class NotFound(KubeError):
    """There is no such object."""


class ResourceMissing(NotFound):
    """The API server has no such kind of object: its CRD is not installed."""


class Conflict(KubeError):
    """Somebody else changed the object, or owns the field."""


class AlreadyExists(Conflict):
    """An object of that name is there already."""


class Invalid(KubeError):
    """The API server does not accept what we sent."""


class Gone(KubeError):
    """The revision that we asked for is forgotten: list anew."""


class TooNew(KubeError):
    """The API server has not yet seen the revision that we asked for."""


class TooManyRequests(KubeError):
    """The API server wants us to wait; `retry_after_s` says how long, if it said so."""


class Unavailable(KubeError):
    """The API server is unreachable, failing, silent, or broke off in the middle."""


class _Cause(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: float | None = None


class Status(msgspec.Struct):
    """The `Status` object that a refusal carries."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None
    kind: str = ""


_BY_CODE: dict[int, type[KubeError]] = {
    401: Unauthorized,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: TooManyRequests,
    400: Invalid,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}
_STATUS = msgspec.json.Decoder(Status)


def refusal(
    code: int, body: bytes | msgspec.Raw, call: Call, retry_after: str | None = None
) -> KubeError:
    """Return the error for an answer that is not a success."""
    try:
        status = _STATUS.decode(body)
    except (ValueError, RecursionError):
        status = Status(bytes(body)[:200].decode("utf-8", "replace").strip())
    details = status.details or _Details()
    wait_s = _seconds(retry_after)
    wait_s = details.retry_after_seconds if wait_s is None else wait_s
    text = f"{call}: {status.message or code}"
    if code == 403:
        return Forbidden(f"{text}; add this rule: {call.rule}", status=code)
    if code == 404 and (status.kind != "Status" or (not call.name and call.verb != "create")):
        return ResourceMissing(_missing(call), status=code)
    if any(cause.reason == "ResourceVersionTooLarge" for cause in details.causes or ()):
        return TooNew(text, status=code, retry_after_s=wait_s)
    kind = AlreadyExists if status.reason == "AlreadyExists" else _BY_CODE.get(code, Unavailable)
    return kind(text, status=code, retry_after_s=wait_s)


def _missing(call: Call) -> str:
    resource = call.resource
    if not resource.group:
        return f"{call}: the API server has no {resource.plural}"
    return (
        f"{call}: the API server has no {resource.plural}.{resource.group}/{resource.version}; "
        "install its CRD"
    )


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < 86_400 else None
