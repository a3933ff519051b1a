"""Ordinary log records as lines of JSON on standard error, beside the access log's."""

import json
import logging
import sys
from typing import TextIO

from epp.accesslog import timestamp


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
        return json.dumps(said)


def set_up_logs(level: str, stream: TextIO | None = None) -> None:
    """Send every record of at least `level` to standard error; called once, by the program."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Clients of ours say each request at info; that is our debugging, nobody's news.
    for chatty in ("aiohttp.access", "watchfiles", "kubernetes_asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
