"""The commands of docs/howto/doors/open.md work as they are typed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.command import PATIENCE, Terminal, open_terminal
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(
    shutil.which("curl") is None or shutil.which("mosquitto_pub") is None,
    reason="curl or Mosquitto's clients are not installed: apt install curl mosquitto-clients",
)


def commands() -> Iterator[tuple[str, str]]:
    """Return each command of the example and what it prints."""
    section = (ROOT / "docs" / "howto" / "doors" / "open.md").read_text()
    for block in re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, printed = command.partition("\n")
            yield line, printed


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with open_terminal() as opened:
        (opened.directory / "examples").symlink_to(ROOT / "examples")
        commands_of_python = opened.directory.parent / "bin"
        commands_of_python.mkdir()
        iris = commands_of_python / "iris"
        iris.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m iris "$@"\n')
        iris.chmod(0o755)
        opened.environment["PATH"] = f"{commands_of_python}:{os.environ['PATH']}"
        yield opened


def test_the_first_example_works_as_it_is_typed(terminal: Terminal) -> None:
    ports = {"127.0.0.1:8080": f"127.0.0.1:{free_port()}", "1883": str(free_port())}
    followed: list[tuple[subprocess.Popen[str], str]] = []
    with ExitStack() as stack:
        for command, printed in commands():
            for old, new in ports.items():
                command = command.replace(old, new)
            lasting = command.startswith(("iris run", "iris door", "curl -sSN"))
            if command.startswith("curl -sSN"):
                command = command.replace("curl -sSN", "curl -sSN -D /dev/stderr")  # which shows that it follows
            process = stack.enter_context(
                subprocess.Popen(
                    ["bash", "-c", f"exec {command}" if lasting else command],
                    cwd=terminal.directory, env=terminal.environment, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
            )  # fmt: skip
            if lasting:
                stack.callback(process.kill)
                assert process.stderr is not None
                ready = {"iris run": "greeters", "iris doo": "mqtt://", "curl -sS": "text/event-stream"}[command[:8]]
                said: list[str] = []
                while not said or ready not in said[-1]:
                    said.append(process.stderr.readline())
                    assert said[-1], (command, said)
                followed.append((process, printed))
            else:
                out, err = process.communicate(timeout=PATIENCE)
                assert (out.rstrip("\n"), err) == (printed.rstrip("\n"), "" if "keys" not in command else err), command
        for process, printed in followed:
            assert process.stdout is not None
            for line in printed.rstrip("\n").splitlines():
                while (read := process.stdout.readline().rstrip("\n")) == ":":
                    process.stdout.readline()  # a sign of life, and the empty line behind it
                assert re.sub(r"^id: \w{8}-", "id: X-", read) == re.sub(r"^id: \w{8}-", "id: X-", line)
