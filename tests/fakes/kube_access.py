"""Who may do what: bearer tokens, users, and RBAC rules read from the manifests we ship."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.kube_objects import Json, StatusError


@dataclass(frozen=True, slots=True)
class Rule:
    """One RBAC rule; `namespace` None = everywhere."""

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    namespace: str | None = None
    urls: tuple[str, ...] = ()

    def allows(self, attributes: "Attributes") -> bool:
        """Tell whether this rule allows the request."""
        if not _covers(self.verbs, attributes.verb):
            return False
        if attributes.url:
            return _covers(self.urls, attributes.url)
        return (
            self.namespace in (None, attributes.namespace)
            and _covers(self.groups, attributes.group)
            and _covers(self.resources, attributes.resource)
        )


def _covers(allowed: tuple[str, ...], wanted: str) -> bool:
    return "*" in allowed or wanted in allowed


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a request wants to do; `resource` includes the subresource (`pods/status`)."""

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """Who a token belongs to; `rules` None = may do anything."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    rules: tuple[Rule, ...] | None = None

    def may(self, attributes: Attributes) -> bool:
        """Tell whether this user may do that."""
        return self.rules is None or any(rule.allows(attributes) for rule in self.rules)


@dataclass(slots=True)
class Access:
    """The tokens of a cluster.  Written by tests."""

    users: dict[str, User] = field(default_factory=dict)

    def user_of(self, authorization: str) -> User:
        """Return who sent the request, or refuse with 401."""
        scheme, _, token = authorization.partition(" ")
        user = self.users.get(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        return user

    def review_token(self, body: Json) -> Json:
        """Answer a TokenReview."""
        token = (body.get("spec") or {}).get("token", "")
        user = self.users.get(token)
        if user is None:
            return {**body, "status": {"authenticated": False, "error": "invalid bearer token"}}
        who = {"username": user.name, "groups": list(user.groups)}
        return {**body, "status": {"authenticated": True, "user": who}}

    def review_access(self, body: Json) -> Json:
        """Answer a SubjectAccessReview."""
        spec = body.get("spec") or {}
        user = next((user for user in self.users.values() if user.name == spec.get("user")), None)
        allowed = user is not None and user.may(_attributes(spec))
        return {**body, "status": {"allowed": allowed}}


def _attributes(spec: Json) -> Attributes:
    if "nonResourceAttributes" in spec:
        wanted = spec["nonResourceAttributes"]
        return Attributes(wanted.get("verb", ""), url=wanted.get("path", ""))
    wanted = spec.get("resourceAttributes") or {}
    resource = wanted.get("resource", "")
    if wanted.get("subresource"):
        resource += f"/{wanted['subresource']}"
    return Attributes(
        wanted.get("verb", ""), wanted.get("group", ""), resource, wanted.get("namespace", "")
    )


def forbid(user: User, wanted: Attributes) -> StatusError:
    """Return the refusal of a request that RBAC does not allow, as an API server words it."""
    where = (
        f' in the namespace "{wanted.namespace}"' if wanted.namespace else " at the cluster scope"
    )
    resource, group = wanted.resource, wanted.group
    qualified = f"{resource}.{group}" if group else resource
    text = (
        f'{qualified} is forbidden: User "{user.name}" cannot {wanted.verb} resource "{resource}" '
        f'in API group "{group}"{where}'
    )
    return StatusError(403, "Forbidden", text)


def rules_of(manifests: Iterable[dict[str, Any]], namespace: str | None = None) -> tuple[Rule, ...]:
    """Return the rules of the Roles and ClusterRoles among manifests.

    A Role's rules hold in `namespace`, or in the Role's own; a ClusterRole's everywhere.
    """
    rules = []
    for manifest in manifests:
        if manifest["kind"] not in ("Role", "ClusterRole"):
            continue
        own = manifest["metadata"].get("namespace", "default")
        where = None if manifest["kind"] == "ClusterRole" else namespace or own
        rules += [
            Rule(
                tuple(rule.get("apiGroups", ())),
                tuple(rule.get("resources", ())),
                tuple(rule["verbs"]),
                where,
                tuple(rule.get("nonResourceURLs", ())),
            )
            for rule in manifest.get("rules", ())
        ]
    return tuple(rules)
