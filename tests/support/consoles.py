"""Terminals of the pages: runs the commands of ``console`` blocks in a shell, and compares what they print.

``iris`` and ``python FILE`` with nothing that only a shell understands are children of a process that has imported
Iris, which each would do anew: of the processor time of these pages it was half.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, final

from docs.pages import ROOT, Block, matches
from tests.support.command import VERBS
from tests.support.ports import free_port
from tests.support.verbs import Started

PATIENCE: Final = 600.0  # a busy machine starts Spark in minutes
PROGRAMS: Final = {
    "iris": "-m iris",
    "python": "",
    "pytest": "-m pytest -p no:cacheprovider",
    "uvicorn": "-m uvicorn",
}
"""Commands of terminals, with the arguments with which this Python runs each."""
_BEYOND_WORDS: Final = re.compile(r"[^\w\s.,:/@=+-]")
"""Characters that a shell might interpret, outside of quotes."""
PORT: Final = re.compile(r"\b1[78]\d{3}\b")
FOLDER: Final = re.compile(r", in (?:an? |the )?(checkout|examples\b[\w/]*)")
"""Where a terminal is, as its caption says it.  Without that it is where the programs of its page are."""
STAYS: Final = "leave it running"
"""A caption with these words: the last command of the block goes on until the page ends."""


@final
class Running:
    """A command in a shell, and what it has printed so far."""

    def __init__(self, command: str, directory: Path, environment: dict[str, str]) -> None:
        self.command: Final = command
        self.printed = ""
        self.seen = 0
        self._process: Final = _start_plain(command, directory, environment) or subprocess.Popen(
            ["bash", "-c", command], cwd=directory, env=environment, process_group=0,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader: Final = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.printed += line.decode()

    def wait_end(self) -> int:
        """Wait until it has ended; return its exit status."""
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(f"{self.command} does not end; it printed:\n{self.printed}") from None
        self._reader.join(PATIENCE)
        return self._process.returncode

    def wait_printed(self, expected: str) -> None:
        """Wait until it has printed this, after what was expected before."""
        ends = time.monotonic() + PATIENCE
        while not matches(expected, self.printed[self.seen :]):
            if self._process.poll() is not None or time.monotonic() > ends:
                printed = self.printed[self.seen :]
                raise AssertionError(f"{self.command} printed\n{printed}\ninstead of\n{expected}")
            time.sleep(0.02)
        self.seen = len(self.printed)

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise AssertionError(f"{self.command} does not end at Ctrl-C") from None


def _start_plain(command: str, directory: Path, environment: dict[str, str]) -> Started | None:
    words = plain_words(command)
    if words is None:
        return None
    reading, writing = os.pipe()
    pipe = os.fdopen(reading, "rb")
    with Path(os.devnull).open("rb") as nothing, os.fdopen(writing, "wb"):
        streams = (nothing.fileno(), writing, writing)
        started = VERBS.begin(words, directory, environment, streams, pipes=(pipe, None), group=True)
    if started is None:
        pipe.close()
    return started


def plain_words(command: str) -> list[str] | None:
    """Return ``iris`` or a file of Python, and its arguments; None: it is another command, or one for a shell."""
    if _BEYOND_WORDS.search(re.sub(r"'[^']*'", "", command.partition(" # ")[0])):
        return None
    match shlex.split(command, comments=True):
        case ["iris", *_] as words:
            return words
        case ["python", file, *arguments] if file.endswith(".py"):
            return [file, *arguments]
        case _:
            return None


def run_console(blocks: Iterable[Block]) -> None:
    """Run the terminals of a page, one block after another, in a realm of their own.

    They begin in a folder with the programs that stand in the folder of each program that the page shows, and those in
    a checkout, as their captions say, in a copy of its examples.  Nothing else of the checkout is found.  Ports from
    17000 to 18999 stand for free ones, so that pages can run beside each other.
    """
    blocks = list(blocks)
    named = {port for block in blocks if block.language == "console" for port in PORT.findall(block.code)}
    ports = {port: str(free_port()) for port in named}
    blocks = [
        dataclasses.replace(one, code=PORT.sub(lambda port: ports.get(port[0], port[0]), one.code)) for one in blocks
    ]
    with TemporaryDirectory(prefix="iris") as directory:  # short: the path of a socket has at most 107 bytes
        _run_console(blocks, Path(directory))


def _run_console(blocks: list[Block], directory: Path) -> None:
    programs, work, checkout = directory / "bin", directory / "work", directory / "checkout"
    for folder in (programs, work):
        folder.mkdir()
    if any(FOLDER.search(block.caption) for block in blocks):
        shutil.copytree(ROOT / "examples", checkout / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for source in {block.file.parent for block in blocks if block.file is not None}:
        for file in source.glob("*.py"):
            shutil.copy(file, work)
    for name, what in PROGRAMS.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {what} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "IRIS_HOME": str(directory / "home"),
        "XDG_RUNTIME_DIR": str(directory),
    }
    terminals: dict[str, Running] = {}
    try:
        for block in blocks:
            if block.language == "console":
                found = FOLDER.search(block.caption)
                folder = work if found is None else checkout / found[1].removeprefix("checkout")
                try:
                    _run_block(block, terminals, folder, environment)
                except AssertionError as error:
                    for title, running in terminals.items():
                        error.add_note(f"{title} has printed:\n{running.printed}")
                    raise
    finally:
        for running in reversed(terminals.values()):
            running.stop()


def _run_block(block: Block, terminals: dict[str, Running], folder: Path, environment: dict[str, str]) -> None:
    title = block.caption.removesuffix(f": {STAYS}")
    code = re.sub(r"\\\n\s*", "", block.code)
    before, *commands = re.split(r"^\$ ", code, flags=re.MULTILINE)
    if before.rstrip() == "^C":
        terminals.pop(title).stop()
    elif before.strip():
        assert title in terminals, f"{block.place}: nothing runs in {title!r}"
        terminals[title].wait_printed(before)
    for number, text in enumerate(commands, 1):
        command, _, expected = text.partition("\n")
        running = Running(command, folder, environment)
        if STAYS in block.caption and number == len(commands):
            if title in terminals:
                terminals.pop(title).stop()
            terminals[title] = running
            running.wait_printed(expected)
        else:
            status = running.wait_end()
            assert status == 0 or expected.strip() != "...", f"{block.place}: {command} failed:\n{running.printed}"
            assert matches(expected, running.printed), (
                f"{block.place}: {command} printed\n{running.printed}\ninstead of\n{expected}"
            )
