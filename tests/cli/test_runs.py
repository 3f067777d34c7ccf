"""Short runs of the command in these tests: children of a process that has imported it, and as good as others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.command import COMMAND, open_terminal
from tests.support.consoles import plain_words
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


def test_a_run_that_goes_on_is_read_from_and_ends_at_a_signal() -> None:
    verbs = Verbs()
    with open_terminal() as terminal:
        started = verbs.start(("sub", ">"), terminal.directory, terminal.environment)
        assert started is not None
        assert started.stderr is not None
        with started:
            assert b"subscribed to >" in started.stderr.readline()
            assert started.poll() is None
            assert verbs.run(("--version",), terminal.directory, terminal.environment, b"", 60) is not None
            with pytest.raises(subprocess.TimeoutExpired):
                started.wait(0)
            started.send_signal(signal.SIGTERM)
            assert started.wait(60) == 0
            assert started.communicate() == (b"", b"")
        killed = verbs.start(("sub", ">"), terminal.directory, terminal.environment)
        assert killed is not None
        with killed:
            killed.send_signal(signal.SIGKILL)
            assert killed.wait(60) == -signal.SIGKILL
            killed.send_signal(signal.SIGTERM)  # as with every process that has ended, nothing happens


PROGRAM = """
import os, sys, helper
print(__name__, __file__, sys.argv, sys.path[0], helper.__file__, os.getpgid(0) == os.getpid(), flush=True)
helper.do(sys.argv[1])
"""


@pytest.mark.parametrize("what", ["print()", "1 / 0", "raise SystemExit('no more')", "raise SystemExit(7)"])
def test_a_program_in_a_child_says_and_ends_as_one_that_is_started_anew(what: str) -> None:
    with open_terminal() as terminal:
        (terminal.directory / "program.py").write_text(PROGRAM)
        elsewhere = terminal.directory.parent / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "helper.py").write_text("do = exec")
        environment = {**terminal.environment, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{elsewhere}"}
        with tempfile.TemporaryFile() as said, Path(os.devnull).open("rb") as nothing:
            streams = (nothing.fileno(), said.fileno(), said.fileno())
            quick = Verbs().begin(("program.py", what), terminal.directory, environment, streams, group=True)
            assert quick is not None
            quick.wait(60)
            said.seek(0)
            shown = said.read()
        anew = subprocess.run(
            [sys.executable, "program.py", what], cwd=terminal.directory, env=environment, process_group=0,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    assert (quick.returncode, shown) == (anew.returncode, anew.stdout)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("iris top --once  # a comment", ["iris", "top", "--once"]),
        ("iris sub 'orders.>' --count 2", ["iris", "sub", "orders.>", "--count", "2"]),
        ("python program.py --rows 3", ["program.py", "--rows", "3"]),
        ("python -m iris", None),
        ("iris keys use && iris keys refresh", None),
        ("IRIS_CONTEXT=prod iris nodes", None),
        ("iris nodes > nodes", None),
        ("iris nodes $HOME", None),
        ("iris nodes *.iris", None),
        ("ls", None),
    ],
)
def test_a_command_of_a_page_that_is_for_a_shell_is_run_by_one(command: str, words: list[str] | None) -> None:
    assert plain_words(command) == words


@pytest.mark.parametrize("name", ["PYTHONUTF8", "PYTHONPATH"])
def test_what_an_interpreter_looks_at_when_it_starts_needs_one_that_is_started_anew(name: str) -> None:
    with open_terminal() as terminal:
        environment = {**terminal.environment, name: "1"}
        assert Verbs().run(("--version",), terminal.directory, environment, b"", 60) is None
