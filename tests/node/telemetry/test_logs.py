"""Logs: one event a line with its fields, as text or JSON, and no cause more than once a second."""

from __future__ import annotations

import ast
import io
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import iris
from iris.cli.printable import PrintableFormatter
from iris.node.telemetry.logs import FIELDS, JsonFormatter, LimitedHandler, RateLimit, TextFormatter
from tests.support.command import Terminal, interrupt, open_terminal

ROOT = Path(__file__).resolve().parents[3]


def record(
    text: str = "%s went wrong", *args: object, level: int = logging.WARNING, **fields: Any
) -> logging.LogRecord:
    made = logging.LogRecord("iris", level, __file__, 1, text, args or ("this",), None)
    vars(made).update(fields)
    return made


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(records: list[logging.LogRecord]) -> list[tuple[str, int | None]]:
    return [(one.getMessage(), vars(one).get("left_out")) for one in records]


def test_of_one_cause_a_second_has_one_line_and_the_next_says_how_many_were_left_out() -> None:
    clock = Clock()
    limit = RateLimit(clock)
    assert shown(limit.admit(record("%s", "a"))) == [("a", None)]
    for _ in range(41):
        clock.now += 0.01
        assert limit.admit(record("%s", "b")) == []
    clock.now = 101.0
    assert shown(limit.admit(record("%s", "c"))) == [("c", 41)]
    clock.now = 102.5
    assert shown(limit.admit(record("%s", "d"))) == [("d", None)]


@pytest.mark.parametrize(
    "other",
    [
        record("another"),
        record(level=logging.ERROR),
        record(cluster="archive"),
        record(operation="look_up"),
        record(cause="elsewhere"),
    ],
    ids=["text", "level", "cluster", "operation", "cause"],
)
def test_another_cause_is_not_held_back(other: logging.LogRecord) -> None:
    limit = RateLimit(Clock())
    assert len(limit.admit(record())) == 1
    assert limit.admit(record()) == []
    assert limit.admit(other) == [other]


def test_what_was_left_out_is_said_when_another_cause_comes_or_nothing_more_does() -> None:
    clock = Clock()
    limit = RateLimit(clock)
    for text in ("first", "second", "third"):
        limit.admit(record("a: %s", text))
    clock.now += 1
    assert shown(limit.admit(record("b: %s", "other"))) == [("a: third", 1), ("b: other", None)]
    limit.admit(record("b: %s", "again"))
    assert shown(limit.flush()) == [("b: again", None)]
    assert limit.flush() == []


def test_what_a_record_stands_for_is_counted_with_what_was_left_out() -> None:
    clock = Clock()
    limit = RateLimit(clock)
    assert shown(limit.admit(record("%s", "a", left_out=2))) == [("a", 2)]
    clock.now += 0.5
    assert limit.admit(record("%s", "b", left_out=45)) == []
    clock.now += 0.5
    assert shown(limit.admit(record("%s", "c", left_out=3))) == [("c", 1 + 45 + 3)]
    assert limit.admit(record("%s", "d", left_out=7)) == []
    assert shown(limit.flush()) == [("d", 7)]


def test_causes_without_end_take_no_room_without_end_and_fill_no_log() -> None:
    """Of those that find no room one line is written in a second, as of one cause."""
    clock = Clock()
    limit = RateLimit(clock)
    written = [one for number in range(5000) for one in limit.admit(record(f"cause {number}"))]
    assert len(written) == 1025
    assert len(limit._causes) == 1025
    clock.now += 1
    written = [one for number in range(5000, 10_000) for one in limit.admit(record(f"cause {number}"))]
    assert len(written) <= 1026
    assert sum(vars(one).get("left_out") or 0 for one in written) >= 5000 - 1025 - 1
    assert len(limit._causes) <= 1025


def _failed(error: BaseException) -> logging.LogRecord:
    made = record("a handler failed")
    made.exc_info = type(error), error, error.__traceback__
    return made


def test_two_failures_of_one_type_do_not_hide_each_other() -> None:
    limit, raised = RateLimit(Clock()), list[BaseException]()
    for number in range(3):
        try:
            if number % 2:
                raise ValueError("one")
            raise ValueError("another")
        except ValueError as error:
            raised.append(error)
    assert [len(limit.admit(_failed(error))) for error in raised] == [1, 1, 0]


def test_what_fails_in_the_handler_of_a_log_does_not_reach_who_logs(capsys: pytest.CaptureFixture[str]) -> None:
    class Odd:
        def __str__(self) -> str:
            raise ZeroDivisionError("no text")

    handler = LimitedHandler(io.StringIO())
    handler.handle(record(cluster=Odd()))
    handler.handle(record("%s"))
    assert "no text" in capsys.readouterr().err


def test_a_handler_writes_what_it_left_out_when_it_is_closed() -> None:
    stream = io.StringIO()
    handler = LimitedHandler(stream)
    handler.setFormatter(TextFormatter("%(message)s"))
    for number in range(10):
        handler.handle(record("%d went wrong", number))
    assert stream.getvalue() == "0 went wrong\n"
    handler.close()
    assert stream.getvalue() == "0 went wrong\n9 went wrong left_out=8\n"


def test_text_says_the_fields_that_the_message_does_not_in_one_line() -> None:
    text = TextFormatter("iris: %(message)s")
    line = text.format(record("cluster %r: %s", "store", "a\nb", cluster="store", request_id=7, unknown="x"))
    assert line == "iris: cluster 'store': a\\nb request_id=7"
    assert PrintableFormatter("iris: %(message)s").format(record("%s", "\x1b[2J", peer="\x9b")) == (
        "iris: \\x1b[2J peer=\\x9b"
    )


def test_json_is_one_line_whatever_is_in_it() -> None:
    try:
        raise ValueError("a\nb\u2028")
    except ValueError:
        made = record("%s", "x\n\x1b\ud800", cluster="store", count=3, peer=Path("/p"), unknown="x")
        made.exc_info = sys.exc_info()
    line = JsonFormatter().format(made)
    assert "\n" not in line
    assert line.isascii()
    told = json.loads(line)
    assert told["time"].endswith("Z")
    assert told["exception"].startswith("Traceback")
    del told["time"], told["exception"]
    assert told == {
        "level": "warning",
        "logger": "iris",
        "message": "x\n\x1b\ud800",
        "cluster": "store",
        "peer": "/p",
        "count": 3,
    }


def test_json_names_the_trace_that_it_is_in() -> None:
    span = NonRecordingSpan(SpanContext(5, 7, is_remote=False, trace_flags=TraceFlags(1)))
    assert "trace_id" not in json.loads(JsonFormatter().format(record()))
    with use_span(span):
        told = json.loads(JsonFormatter().format(record()))
    assert (told["trace_id"], told["span_id"]) == (f"{5:032x}", f"{7:016x}")


def test_what_an_error_says_begins_no_line_and_commands_no_terminal() -> None:
    try:
        raise ValueError("x\nWARNING iris forged\x1b[2J")
    except ValueError:
        made = record("%s", "a\x1b[2J\rb\u2028c")
        made.exc_info = sys.exc_info()
    first, *rest = TextFormatter().format(made).split("\n")
    assert first == "a\\x1b[2J\\rb\\u2028c"
    assert rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_the_number_of_those_left_out_is_told_whatever_the_message_says() -> None:
    assert TextFormatter().format(record("%s", "at port 7002", left_out=2)) == "at port 7002 left_out=2"


def test_a_line_that_is_written_late_names_its_own_trace() -> None:
    spans = [NonRecordingSpan(SpanContext(5, n, is_remote=False, trace_flags=TraceFlags(1))) for n in (7, 8)]
    stream = io.StringIO()
    handler = LimitedHandler(stream)
    handler.setFormatter(JsonFormatter())
    with use_span(spans[0]):
        handler.handle(record("%s again", "a"))
        handler.handle(record("%s again", "b"))
    with use_span(spans[1]):
        handler.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["message"], line["span_id"]) for line in lines] == [
        ("a again", f"{7:016x}"), ("b again", f"{7:016x}"),
    ]  # fmt: skip


def test_every_log_call_of_iris_has_fields_that_are_known() -> None:
    """A call without ``extra`` says something about nothing in particular."""
    calls = [
        (f"{file.relative_to(ROOT)}:{node.lineno}", node)
        for file in (ROOT / "iris").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "_log"
        and node.func.attr in ("debug", "info", "warning", "error", "critical", "exception", "log")
    ]
    assert len(calls) > 30
    extras = {where: next((one.value for one in call.keywords if one.arg == "extra"), None) for where, call in calls}
    assert [where for where, extra in extras.items() if not isinstance(extra, ast.Dict)] == []
    unknown = {
        (where, key.value)
        for where, extra in extras.items()
        if isinstance(extra, ast.Dict)
        for key in extra.keys
        if isinstance(key, ast.Constant) and key.value not in (*FIELDS, "cause")
    }
    assert unknown == set()


def test_iris_publishes_the_module() -> None:
    assert iris.logs.JsonFormatter is JsonFormatter


@pytest.fixture
def terminal() -> Any:
    with open_terminal() as opened:
        yield opened


SERVICE = """
import iris

store = iris.Service("store")

@store.request("fail")
async def fail(request: iris.Request) -> object:
    raise ValueError("no such row")
"""


async def test_a_service_logs_json_and_a_handler_that_fails_each_time_once_a_second(terminal: Terminal) -> None:
    (terminal.directory / "app.py").write_text(SERVICE)
    process_environment = terminal.environment
    with terminal.started("--log-format", "json", "run", "app:store", announces="serves store") as process:
        asking = [sys.executable, "-c", ASKING]
        done = await trio.run_process(asking, env=process_environment, capture_stdout=True)
        peer, elapsed = done.stdout.decode().split()
        assert await trio.to_thread.run_sync(interrupt, process, signal.SIGTERM) == 0
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr.read().splitlines()]
    failures = [line for line in lines if line["level"] == "error"]
    first = failures[0]
    fields = {name: first[name] for name in ("cluster", "operation", "pattern", "peer", "reason", "logger")}
    assert fields == {
        "cluster": "store",
        "operation": "fail",
        "pattern": "request",
        "peer": peer,
        "reason": "ValueError",
        "logger": "iris.handlers",
    }
    assert type(first["request_id"]) is int
    assert "no such row" in first["exception"]
    assert len(failures) <= float(elapsed) + 2, "one a second, and one at the end"
    assert sum(line.get("left_out", 0) for line in failures) + sum("exception" in line for line in failures) == 200


ASKING = """
import contextlib, time, trio, iris

async def main():
    async with iris.open_node("shop") as node:
        await node.wait_for("store")
        began = time.monotonic()
        for _ in range(200):
            with contextlib.suppress(iris.RemoteError):
                await node.request("store", operation="fail")
        print(node.id, time.monotonic() - began)

trio.run(main)
"""


def test_the_level_of_the_log_is_what_was_asked_for(terminal: Terminal) -> None:
    quiet = terminal.run("--log-level", "error", "request", "nobody", "hello")
    assert quiet.returncode == 1
    assert quiet.stderr.count(b"\n") == 1
    told = terminal.run("--log-level", "info", "--log-format", "json", "request", "nobody", "hello")
    lines = [json.loads(line) for line in told.stderr.splitlines()]
    assert {line["level"] for line in lines} == {"info", "error"}
    assert lines[-1]["logger"] == "iris.command"
    assert "nobody" in lines[-1]["message"]
    wrong = terminal.run("--log-level", "loud", "request", "nobody", "hello")
    assert wrong.returncode == 2
