"""A small application with one method for each way in which a call can go."""

from collections.abc import Callable

from epp.extproc.calls import OK, RESOURCE_EXHAUSTED, Metadata, Push, Reply, Status

ECHO = "/test.Echo/Echo"
"""Each message comes back; the call ends with the peer's end."""
ONCE = "/test.Echo/Once"
"""The first message comes back, and the call ends with OK, before the peer's end."""
REFUSE = "/test.Echo/Refuse"
"""The first message ends the call with a status and no message."""
COUNT = "/test.Echo/Count"
"""The message is a number: so many messages of 1 KiB come back, and OK."""
SILENT = "/test.Echo/Silent"
"""Nothing ever comes back, except by `push`."""
OPEN_FAILS = "/test.Echo/OpenFails"
RECEIVE_FAILS = "/test.Echo/ReceiveFails"
END_FAILS = "/test.Echo/EndFails"
CANCEL_FAILS = "/test.Echo/CancelFails"
"""As `SILENT`, and `cancel` raises."""

REFUSAL = Status(RESOURCE_EXHAUSTED, "full: 100 % später, 遅い")


class EchoCall:
    """One call.  What happened to it is in `events`."""

    def __init__(self, path: str, metadata: Metadata, push: Push) -> None:
        self.path = path
        self.metadata = dict(metadata)
        self.push = push
        self.events: list[str] = []

    def receive(self, message: bytes) -> Reply | None:
        self.events.append("receive")
        match self.path:
            case "/test.Echo/Once":
                return Reply((message,), OK)
            case "/test.Echo/Refuse":
                return Reply(status=REFUSAL)
            case "/test.Echo/Count":
                return Reply((b"x" * 1024,) * int(message), OK)
            case "/test.Echo/ReceiveFails":
                raise ZeroDivisionError
            case "/test.Echo/Silent" | "/test.Echo/CancelFails":
                return None
            case _:
                return Reply((message,))

    def end(self) -> Reply | None:
        self.events.append("end")
        if self.path == END_FAILS:
            raise ZeroDivisionError
        return None if self.path in (SILENT, CANCEL_FAILS) else Reply(status=OK)

    def cancel(self) -> None:
        self.events.append("cancel")
        if self.path == CANCEL_FAILS:
            raise ZeroDivisionError


class EchoApp:
    """The application; remembers its calls."""

    def __init__(self, on_open: Callable[[EchoCall], None] | None = None) -> None:
        self.calls: list[EchoCall] = []
        self._on_open = on_open

    def open(self, path: str, metadata: Metadata, push: Push) -> EchoCall | None:
        if not path.startswith("/test.Echo/") or path == "/test.Echo/Nothing":
            return None
        if path == OPEN_FAILS:
            raise ZeroDivisionError
        call = EchoCall(path, metadata, push)
        self.calls.append(call)
        if self._on_open is not None:
            self._on_open(call)
        return call
