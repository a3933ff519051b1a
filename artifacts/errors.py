"""Every way in which an artifact can be refused, and the exit code that says which.

One tree: `exit_code` stands on the class, because a script, a Kubernetes init container and a
person all need to tell "the bytes are gone for good" from "ask again in a minute".  A message says
what failed, where, and what to do about it; it never holds a secret.
"""

from typing import ClassVar


class ArtifactError(Exception):
    """Something about an artifact that ends the command.

    `what` failed, `where` it did (a URI or a path), and the `fix` that a person can apply.
    """

    exit_code: ClassVar[int] = 1
    title: ClassVar[str] = "error"

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        """Return all three parts on one line, for a log or a termination message."""
        text = self.what if not self.where else f"{self.what} ({self.where})"
        return text if not self.fix else f"{text}. {self.fix}"


class UsageError(ArtifactError):
    """The command, a pin, a lock or a connection is written wrongly."""

    exit_code = 2
    title = "usage"


class VerificationFailed(ArtifactError):
    """The bytes, or the answer that carried them, are not those that the pin names."""

    exit_code = 3
    title = "verification failed"


class PinGone(ArtifactError):
    """What the pin names does not exist any more: asking again will not bring it back."""

    exit_code = 4
    title = "pin gone"


class NotAllowed(ArtifactError):
    """The store, or our own care about certificates, refuses the request."""

    exit_code = 5
    title = "not allowed"


class TryAgain(ArtifactError):
    """A fault that time may cure: the store is busy, the network broke, the disk is full."""

    exit_code = 6
    title = "try again later"
