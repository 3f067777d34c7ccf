"""Output and input of verbs: bytes for pipes, text for people, lines for slow readers, bars on a terminal."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from iris.cli import terminal
from iris.cli.printable import PrintableFormatter
from iris.cli.terminal import (
    LINES,
    counting,
    input_size,
    note,
    open_lines,
    read_chunks,
    read_lines,
    write_chunk,
    write_line,
    write_object,
    write_payload,
)

Captured = pytest.CaptureFixture[bytes]


class Screen(io.StringIO):
    """A terminal, or a file that is none."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


# -- writing ------------------------------------------------------------------------------------------------


def test_bytes_go_to_a_pipe_as_they_are_and_to_a_person_as_a_text(
    capsysbinary: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_payload(b"\xff\n")
    assert capsysbinary.readouterr().out == b"\xff\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_payload(b"\xff\n")
    assert capsysbinary.readouterr().out == b"base64:/wo=\n"


HOSTILE = "a\x1b]52;c;Zm9v\x07b\x9b2Jc\u202ed\r\x7fe"
HARMLESS = r"a\x1b]52;c;Zm9v\x07b\x9b2Jc\u202ed\r\x7fe"


def write_text_chunk(text: str) -> None:
    write_chunk(text.encode())


def test_what_others_sent_commands_no_terminal_and_goes_to_a_pipe_as_it_is(
    capsysbinary: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for write in (write_payload, write_line, write_text_chunk):
        write(HOSTILE + "\n")
        assert capsysbinary.readouterr().out.decode().startswith(HOSTILE)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for write in (write_payload, write_line, write_text_chunk):
        write(HOSTILE)
        assert capsysbinary.readouterr().out.decode().strip() == HARMLESS
    write_payload("two\nlines\tand a tab")
    assert capsysbinary.readouterr().out == b"two\nlines\tand a tab\n"
    write_line("orders.1 x\norders.2 made up")
    assert capsysbinary.readouterr().out == b"orders.1 x\\norders.2 made up\n"
    write_chunk(b"\xff\x1b[2J")
    assert capsysbinary.readouterr().out == b"\\xff\\x1b[2J"


async def test_lines_for_a_terminal_command_it_neither(capsysbinary: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    async with open_lines() as lines:
        await lines.write(f"topic {HOSTILE}\nforged")
    assert capsysbinary.readouterr().out.decode() == f"topic {HARMLESS}\\nforged\n"


def test_what_is_told_on_standard_error_commands_no_terminal(capsysbinary: Captured) -> None:
    note(f"it said {HOSTILE}")
    assert capsysbinary.readouterr().err.decode() == f"iris: it said {HARMLESS.replace(chr(92) + 'r', ' ')}\n"
    record = logging.LogRecord("iris", logging.WARNING, __file__, 1, "peer says %s", (HOSTILE,), None)
    assert PrintableFormatter("iris: %(message)s").format(record) == f"iris: peer says {HARMLESS}"


def test_an_object_is_one_compact_line(capsysbinary: Captured) -> None:
    write_object({"a": [1, None], "b": {"text": "two\nlines", "bytes": b"\xff"}})
    out = capsysbinary.readouterr().out
    assert out == b'{"a":[1,null],"b":{"text":"two\\nlines","bytes":"base64:/w=="}}\n'


def test_a_note_is_one_line_on_standard_error_whatever_it_quotes(capsysbinary: Captured) -> None:
    note("the handler said:\n  no\r\n\tdisk")
    assert capsysbinary.readouterr() == (b"", b"iris: the handler said: no disk\n")


async def test_lines_are_out_when_the_block_ends(capsysbinary: Captured) -> None:
    async with open_lines() as lines:
        for number in range(3 * LINES):
            await lines.write(str(number))
        await lines.write_object({"payload": "Grüße"})
    *numbers, last = capsysbinary.readouterr().out.splitlines()
    assert [int(number) for number in numbers] == list(range(3 * LINES))
    assert json.loads(last) == {"payload": "Grüße"}


async def test_a_slow_reader_stops_the_writer_and_not_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    read = trio.Event()

    def write_when_read(data: bytes) -> None:
        trio.from_thread.run(read.wait)
        written.append(data)

    monkeypatch.setattr(terminal, "_write_and_flush", write_when_read)
    sent = 0

    async def write() -> None:
        nonlocal sent
        while True:
            await lines.write("x")
            sent += 1

    async with open_lines() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
        read.set()
    assert LINES <= sent <= LINES + 2
    assert b"".join(written) == b"x\n" * sent


async def test_a_reader_that_has_gone_ends_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    async def write() -> None:
        async with open_lines() as lines:
            while True:
                await lines.write("x")

    with io.TextIOWrapper(io.FileIO(writer, "wb")) as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        with pytest.raises(ExceptionGroup) as caught:
            await write()
    assert caught.group_contains(BrokenPipeError)


# -- reading ------------------------------------------------------------------------------------------------


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> io.TextIOWrapper:
    """Standard input: a pipe whose other end is returned."""
    reader, writer = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(reader))
    return os.fdopen(writer, "w")


async def test_the_size_of_a_file_is_known_and_that_of_a_pipe_is_not(
    typed: io.TextIOWrapper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with typed, sys.stdin:
        assert input_size() is None
    (tmp_path / "file").write_bytes(bytes(12345))
    with (tmp_path / "file").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert input_size() == 12345
        assert b"".join([chunk async for chunk in read_chunks()]) == bytes(12345)


async def test_a_line_that_comes_in_pieces_is_one_line(typed: io.TextIOWrapper) -> None:
    lines: list[bytes] = []
    got_first = trio.Event()

    async def read() -> None:
        async for line in read_lines():
            lines.append(line)
            got_first.set()

    with sys.stdin:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            with typed:
                typed.write("one\ntw")
                typed.flush()
                await got_first.wait()
                assert lines == [b"one"]
                typed.write("o\n\nthree")
    assert lines == [b"one", b"two", b"", b"three"]


async def test_waiting_for_a_person_can_be_cancelled(typed: io.TextIOWrapper) -> None:
    with trio.move_on_after(0.01) as scope:
        async for _ in read_chunks():
            raise AssertionError("nobody has typed anything")
    assert scope.cancelled_caught
    typed.close()  # the thread that reads ends with the pipe
    sys.stdin.close()


# -- progress -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "output", "given", "beside_output", "shown"),
    [
        (True, False, False, False, True),
        (True, True, False, False, True),
        (True, False, False, True, True),
        (True, True, False, True, False),  # the bar would be drawn over what comes back
        (True, False, True, False, False),  # and here over what is being typed
        (False, False, False, False, False),
    ],
)
def test_a_bar_is_shown_where_somebody_looks_and_nothing_is_in_its_way(
    error: bool, output: bool, given: bool, beside_output: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screens = {"stderr": Screen(terminal=error), "stdout": Screen(terminal=output), "stdin": Screen(terminal=given)}
    for name, screen in screens.items():
        monkeypatch.setattr(sys, name, screen)
    with counting("events published", total=10, beside_output=beside_output) as count:
        for _ in range(10):
            count(1)
    assert ("events published" in screens["stderr"].getvalue()) is shown
    assert ("10/10" in screens["stderr"].getvalue()) is shown
    assert screens["stdout"].getvalue() == ""


def test_bytes_are_counted_in_their_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdin", Screen(terminal=False))
    with counting("sent", total=2_000_000, unit_bytes=True) as count:
        count(2_000_000)
    assert "2.0/2.0 MB" in screen.getvalue()
