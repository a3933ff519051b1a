"""Ordinary log records as lines of JSON on standard error, beside the access log's.

They are formatted where they arise and written by a thread: a container runtime that reads nothing
must not hold up the event loop for a warning.
"""

import json
import logging

from epp.accesslog import timestamp
from epp.linewriter import LineWriter, printable

MAX_LINES = 4096
"""Records waiting to be written; more than that at once is the same one over and over."""


class JsonFormatter(logging.Formatter):
    """One line per record: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON; what its arguments hold is only text."""
        said: dict[str, object] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return printable(json.dumps(said))


class LogHandler(logging.Handler):
    """Hands records to a writer; never blocks."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._lines: LineWriter[str] = LineWriter(fd, _line, max_lines=MAX_LINES, name="log")
        self.setFormatter(JsonFormatter())

    @property
    def dropped(self) -> int:
        """How many records could not be written."""
        return self._lines.dropped

    def emit(self, record: logging.LogRecord) -> None:
        """Format one record and hand it over."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001  # a message that does not fit its arguments breaks nobody
            line = json.dumps({"level": "error", "logger": record.name, "message": str(record.msg)})
        self._lines.write(line)

    def close(self) -> None:
        """Write what is left."""
        self._lines.close()
        super().close()


def set_up_logs(level: str, fd: int = 2) -> None:
    """Send every record of at least `level` to standard error; `logging` flushes it at exit."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    root.addHandler(LogHandler(fd))
    root.setLevel(level)
    # Clients of ours say each request at info; that is our debugging, nobody's news.
    for chatty in ("aiohttp.access", "watchfiles", "kubernetes_asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


def _line(text: str) -> bytes:
    return text.encode() + b"\n"
