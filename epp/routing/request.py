"""What the router is asked, and what it answers."""

from collections.abc import Mapping

import msgspec

from datastore.model import Endpoint, ObjectName


class Binding(msgspec.Struct, frozen=True, gc=False):
    """What the gateway has said of a stream before the request: the namespace, pool or Service.

    `namespace` and `pool` come from gRPC metadata that only the gateway's configuration can set;
    `service` is the picker's own Service as the `:authority` names it, `service_namespace` its
    namespace when the authority says it.
    """

    namespace: str | None = None
    pool: str | None = None
    service: str | None = None
    service_namespace: str | None = None


UNBOUND = Binding()

UNKNOWN_MODEL = "unknown"
"""Stands, wherever requests are counted, for every name that is not one of our models'."""


class Request(msgspec.Struct, frozen=True):
    """One HTTP request.  Header names in lower case, values as they came.

    `body` None: there is none to see.  `partial`: it may be only the beginning of the body.
    `unseen_mode` names Envoy's body mode when it keeps a body from us.
    `subset`: the endpoints that the gateway allows; None = all.
    """

    headers: Mapping[str, bytes]
    body: bytes | None = None
    subset: tuple[str, ...] | None = None
    partial: bool = False
    unseen_mode: str | None = None

    @property
    def method(self) -> str:
        """The HTTP method, in upper case."""
        return self.headers.get(":method", b"POST").decode("latin-1").upper()

    @property
    def path(self) -> str:
        """The path without its query string."""
        path = self.headers.get(":path", b"/").decode("latin-1")
        return path.partition("?")[0]


class Pick(msgspec.Struct, frozen=True):
    """Where the request goes and why.

    `endpoints` in order of preference, never empty.  `model` is the client's name ("" = none),
    `target` the model server's.  `body` replaces the request's body (None = unchanged);
    `drop_encoding`: the new body is no longer compressed.  `choice` says how the endpoint was
    chosen, in a word from a closed set.  `is_ours` false: there is no such model, and its name
    is whatever the client made up.
    """

    pool: ObjectName
    endpoints: tuple[Endpoint, ...]
    model: str
    target: str
    choice: str
    body: bytes | None = None
    drop_encoding: bool = False
    is_ours: bool = True

    @property
    def destination(self) -> str:
        """The endpoints as they go on the wire: `ip:port[,ip:port…]`."""
        if len(self.endpoints) == 1:
            return self.endpoints[0].authority
        return ",".join(endpoint.authority for endpoint in self.endpoints)


class Listing(msgspec.Struct, frozen=True):
    """An answer that needs no upstream: JSON about the models served here."""

    body: bytes
