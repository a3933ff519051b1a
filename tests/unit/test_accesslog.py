"""The access log: one line a request, never a wait, never a word of a prompt."""

import fcntl
import io
import json
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from epp.accesslog import MAX_NAME, AccessLog
from epp.logs import MAX_LINES, JsonFormatter, LogHandler, set_up_logs
from epp.outcome import Outcome


def outcome(**changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "request_id": "r-1", "namespace": "prod", "model": "llama", "target": "llama-v1",
        "pool": "prod/gpus", "endpoint": "10.0.0.1:8000", "choice": "less_loaded",
        "revision": 7, "picker_s": 0.0000314, "body_bytes": 1000,
    }  # fmt: skip
    return Outcome(**{**values, **changes})


OUTCOME = outcome()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue


def lines(reader: int, writer: int) -> list[dict[str, object]]:
    """Everything that was written, once the writing end is closed."""
    os.close(writer)
    with os.fdopen(os.dup(reader), "rb") as file:
        return [json.loads(line) for line in file]


def read_into(got: list[bytes], fd: int) -> None:
    with os.fdopen(os.dup(fd), "rb") as file:
        got.extend(file)


@pytest.mark.parametrize("odd", ["\x7f", "\x9b31m", "\u202e", "\u2028", "\U000e0041", "\x1b[31m"])
def test_a_terminal_has_nothing_to_obey(pipe: tuple[int, int], odd: str) -> None:
    """Control characters of a client's choosing are spelled out, and mean the same as JSON."""
    log = AccessLog(pipe[1])
    log.write(outcome(model=odd, request_id=odd, target="名"))
    log.close()
    os.close(pipe[1])
    with os.fdopen(os.dup(pipe[0]), "rb") as file:
        written = file.read().decode()
    record = logging.makeLogRecord({"msg": odd})

    assert written.removesuffix("\n").isprintable()
    assert "名" in written
    assert json.loads(written)["model"] == json.loads(written)["request_id"] == odd
    assert JsonFormatter().format(record).isprintable()
    assert json.loads(JsonFormatter().format(record))["message"] == odd


def test_a_line_says_what_came_of_a_request(pipe: tuple[int, int]) -> None:
    log = AccessLog(pipe[1], wall=lambda: 1_800_000_000.25)
    log.write(OUTCOME)
    log.close()

    assert lines(*pipe) == [
        {
            "time": "2027-01-15T08:00:00.250Z",
            "request_id": "r-1",
            "namespace": "prod",
            "model": "llama",
            "target": "llama-v1",
            "pool": "prod/gpus",
            "endpoint": "10.0.0.1:8000",
            "choice": "less_loaded",
            "reason": "picked",
            "status": 200,
            "state_revision": 7,
            "picker_ms": 0.0314,
            "bytes": 1000,
        }
    ]


def test_every_line_comes_out_whole_and_in_order(pipe: tuple[int, int]) -> None:
    """Writes are cut at any byte by a full pipe; lines are not."""
    log = AccessLog(pipe[1])
    got: list[bytes] = []
    reader = threading.Thread(target=read_into, args=(got, pipe[0]))
    reader.start()
    for number in range(20_000):
        log.write(outcome(request_id=str(number)))
    log.close(timeout_s=30)
    os.close(pipe[1])
    reader.join()

    assert [json.loads(line)["request_id"] for line in got] == [str(n) for n in range(20_000)]
    assert log.dropped == 0


def test_a_reader_that_never_reads_costs_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    """With standard output blocked, `write` returns at once, memory is bounded, drops counted."""
    log = AccessLog(pipe[1], max_lines=1000)
    for _ in range(50_000):
        log.write(OUTCOME)
    log.close(timeout_s=0.1)

    assert log.dropped >= 40_000
    os.close(pipe[0])


def test_a_closed_standard_output_is_no_error(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    log = AccessLog(pipe[1])
    log.write(OUTCOME)
    log.close()
    log.write(OUTCOME)

    assert log.dropped == 1


def test_a_non_blocking_standard_output_loses_nothing(pipe: tuple[int, int]) -> None:
    """A terminal or a pipe may have been set so by the parent process."""
    flags = fcntl.fcntl(pipe[1], fcntl.F_GETFL)
    fcntl.fcntl(pipe[1], fcntl.F_SETFL, flags | os.O_NONBLOCK)
    log = AccessLog(pipe[1])
    got: list[bytes] = []
    reader = threading.Thread(target=read_into, args=(got, pipe[0]))
    for _ in range(2000):
        log.write(OUTCOME)
    reader.start()
    log.close(timeout_s=30)
    os.close(pipe[1])
    reader.join()

    assert len(got) == 2000


@pytest.mark.parametrize("odd", ["\udcff\udcfe", 'quote " and \\', "line\nend", "\x00", "模型"])
def test_odd_names_make_good_lines(pipe: tuple[int, int], odd: str) -> None:
    """A header's bytes need not be UTF-8; the line is JSON all the same, and one line."""
    log = AccessLog(pipe[1])
    log.write(outcome(request_id=odd, model=odd))
    log.close()

    assert len(lines(*pipe)) == 1


def test_long_names_are_cut(pipe: tuple[int, int]) -> None:
    """Whatever a client sends as an id, no essay of theirs gets into a log."""
    log = AccessLog(pipe[1])
    log.write(outcome(model="x" * 100_000))
    log.close()

    assert lines(*pipe)[0]["model"] == "x" * MAX_NAME + "…"


def test_lines_written_while_idle_come_out_without_a_close(pipe: tuple[int, int]) -> None:
    """The writer sleeps between requests, and wakes for each."""
    log = AccessLog(pipe[1])
    for _ in range(3):
        log.write(OUTCOME)
        assert os.read(pipe[0], 10_000).endswith(b"}\n")
    log.close()


def test_records_are_json_with_their_traceback() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("epp.test")
    logger.addHandler(handler)
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        logger.exception("request %s failed", "r-1")
    finally:
        logger.removeHandler(handler)
    said = json.loads(stream.getvalue())

    assert len(stream.getvalue().splitlines()) == 1
    assert said["message"] == "request r-1 failed"
    assert said["level"] == "error"
    assert said["logger"] == "epp.test"
    assert "ValueError: broken" in said["traceback"]


def log_to(fd: int, *messages: str) -> None:
    """Set up logs as the program does, say something, and put everything back."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        set_up_logs("INFO", fd)
        for message in messages:
            logging.getLogger("epp").info(message)
        logging.getLogger("epp").debug("not this")
        logging.getLogger("aiohttp.access").info("nor this")
        set_up_logs("INFO", fd)  # a second time: the first handler ends, and has written all
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = before
        root.setLevel(level)


def test_set_up_logs_is_the_whole_set_up(pipe: tuple[int, int]) -> None:
    log_to(pipe[1], "hello", "again")

    assert [line["message"] for line in lines(*pipe)] == ["hello", "again"]


def test_a_blocked_standard_error_blocks_nobody(pipe: tuple[int, int]) -> None:
    """A warning goes out while nobody reads: who said it goes on, and memory stays bounded."""
    handler = LogHandler(pipe[1])
    record = logging.LogRecord("epp", logging.WARNING, "", 0, "x" * 100, None, None)
    for _ in range(3 * MAX_LINES):
        handler.emit(record)

    assert handler.dropped >= MAX_LINES
    os.close(pipe[0])
    handler.close()


def test_a_message_that_does_not_fit_its_arguments_is_logged_as_it_stands(
    pipe: tuple[int, int],
) -> None:
    """A slip in a log call must not fail the request that runs into it."""
    handler = LogHandler(pipe[1])
    handler.emit(logging.LogRecord("epp", logging.INFO, "", 0, "%d of %d", ("one",), None))
    handler.close()

    assert lines(*pipe)[0]["message"] == "%d of %d"
