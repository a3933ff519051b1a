"""What can go wrong outside: the registry and the cluster, each refusal with its own meaning.

Foreign exceptions become these at the seam.  What the caller may conclude stands on the class: a
404 is never proof that a thing is gone, since a registry answers so when its database is down.
"""


class RegistryError(Exception):
    """The registry did not give a usable answer: conclude nothing, try again."""

    reason = "registry_error"


class RegistryUnavailable(RegistryError):
    """No connection, no answer in time, or a 5xx."""

    reason = "unavailable"


class RegistryUnauthorized(RegistryError):
    """The token was refused, or the answer was a redirect to a login."""

    reason = "unauthorized"


class RegistryNotFound(RegistryError):
    """A 404: absent, or the registry's database is down."""

    reason = "not_found"


class RegistryConflict(RegistryError):
    """A 409: the name exists."""

    reason = "conflict"


class RegistryRefused(RegistryError):
    """A 4xx that a retry will not change."""

    reason = "refused"


class RegistryMalformed(RegistryError):
    """An answer that is not what the API promises: cut, not JSON, or pages that go in circles."""

    reason = "malformed"


class RegistryNotConfigured(RegistryError):
    """No registry, or more than one, could be found."""

    reason = "not_configured"


class ClusterError(Exception):
    """The API server did not do it; try again."""

    reason = "cluster_error"


class ClusterRefused(ClusterError):
    """The API server refuses this object: invalid, forbidden, or denied by a webhook."""

    reason = "Refused"


class ClusterConflict(ClusterRefused):
    """Other managers own fields that we want to set."""

    reason = "Conflict"


class NameTaken(ClusterRefused):
    """The name belongs to an object that is not ours."""

    reason = "NameTaken"


REASONS = (
    "cluster_error", "conflict", "malformed", "not_configured", "not_found", "refused",
    "registry_error", "unauthorized", "unavailable", "Conflict", "NameTaken", "Refused",
)  # fmt: skip
"""Every `reason` above."""


class NotReachable(Exception):
    """No cluster is configured here; the message says what was looked for."""
