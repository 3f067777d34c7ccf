"""Processes of the command that get a signal at any moment of their opening and closing."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command import COMMAND, Terminal
from tests.support.ports import free_port

pytestmark = pytest.mark.long


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    (tmp_path / "work").mkdir()
    made = Terminal(tmp_path)
    (made.directory / "app.py").write_text("import iris\nservice = iris.Service('shop')\n")
    assert made.run("keys", "token", "tokens", "web", "--call", ">").returncode == 0
    return made


def arguments(verb: str) -> list[str]:
    return {
        "run": ["run", "app:service"],
        "bridge": ["bridge", "--topic", "jobs", "--data", "log"],
        "gateway": ["gateway", "--site", "eu", "--listen", f"ws://127.0.0.1:{free_port()}/gateway"],
        "door": ["door", "--mqtt", f"127.0.0.1:{free_port()}", "--tokens", "tokens"],
    }[verb]


VERBS = ["run", "bridge", "gateway", "door"]


def spawn(terminal: Terminal, *given: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *given],
        cwd=terminal.directory,
        env=terminal.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def left(parent: Path) -> list[Path]:
    return [found for found in parent.rglob("*.node") if found.is_file()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("verb", VERBS)
def test_a_signal_at_any_moment_ends_a_verb_quietly_and_it_can_be_started_again(
    tmp_path: Path, terminal: Terminal, verb: str, number: signal.Signals
) -> None:
    given = arguments(verb)
    for delay in (0.3, 0.6, 1.0):
        process = spawn(terminal, *given)
        try:
            time.sleep(delay)
            process.send_signal(number)
            _, error = process.communicate(timeout=20)
        finally:
            process.kill()
        text = error.decode()
        told = text.partition("Traceback")[2]
        assert not told or "iris" not in told, (delay, text)  # Python may not have found the module yet
        assert process.returncode in (0, 128 + number, -number), (delay, process.returncode, text)
        if process.returncode >= 0:
            assert not left(tmp_path), delay
    with terminal.started(*given, announces="") as process:
        time.sleep(2)
        assert process.poll() is None
        process.send_signal(number)
        time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=20)
        assert process.returncode in (0, 128 + number, -number)
