"""Short runs of the command in these tests: children of a process that has imported it, and as good as others."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.command import COMMAND, open_terminal
from tests.support.verbs import Verbs


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (("--version",), b""),
        (("nodez",), b""),
        (("keys", "show", "none.iris"), b""),
        (("keys", "show", "made.iris"), b""),
        (("request", "nobody", "-"), b"\xff bytes \n"),
    ],
)
def test_a_run_in_a_child_says_and_ends_as_one_that_is_started_anew(arguments: tuple[str, ...], given: bytes) -> None:
    with open_terminal() as terminal:
        (terminal.directory / "made.iris").write_bytes(b"nothing of ours")
        quick = Verbs().run(arguments, terminal.directory, terminal.environment, given, 60)
        anew = subprocess.run(
            [*COMMAND, *arguments],
            cwd=terminal.directory,
            env=terminal.environment,
            input=given,
            capture_output=True,
            check=False,
        )
    assert quick is not None
    assert (quick.returncode, quick.stdout, quick.stderr) == (anew.returncode, anew.stdout, anew.stderr)


def test_a_run_that_hangs_is_killed_and_the_next_one_works(tmp_path: Path) -> None:
    verbs = Verbs()
    with open_terminal() as terminal:
        with pytest.raises(subprocess.TimeoutExpired):
            verbs.run(("sub", ">"), terminal.directory, terminal.environment, b"", 0.5)
        done = verbs.run(("--version",), terminal.directory, terminal.environment, b"", 60)
        assert done is not None
        assert done.returncode == 0


def test_a_run_that_goes_on_is_read_from_and_ends_at_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    verbs = Verbs()
    with open_terminal() as terminal:
        for name in ("IRIS_HOME", "XDG_RUNTIME_DIR"):
            monkeypatch.setenv(name, terminal.environment[name])
        started = verbs.start(("sub", ">"), terminal.environment)
        assert started is not None
        with started.stderr:
            assert "subscribed to >" in started.stderr.readline()
            assert verbs.run(("--version",), terminal.directory, terminal.environment, b"", 60) is not None
            with pytest.raises(subprocess.TimeoutExpired):
                started.wait(0)
            started.send_signal(signal.SIGTERM)
            assert started.wait(60) == 0
            assert started.stderr.read() == ""
        killed = verbs.start(("sub", ">"), terminal.environment)
        assert killed is not None
        with killed.stderr:
            killed.send_signal(signal.SIGKILL)
            assert killed.wait(60) == -signal.SIGKILL


def test_what_an_interpreter_looks_at_when_it_starts_needs_one_that_is_started_anew() -> None:
    with open_terminal() as terminal:
        environment = {**terminal.environment, "PYTHONUTF8": "1"}
        assert Verbs().run(("--version",), terminal.directory, environment, b"", 60) is None
