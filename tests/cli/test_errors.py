"""Whatever goes wrong, people get one line and scripts a status."""

from __future__ import annotations

import errno
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from iris.cli.main import FAILED, INTERRUPTED, MISUSED, SUMMARIES, VERBS, run_command
from iris.kernel.errors import ConfigError, NoSuchCluster, Overloaded

Failing = Callable[[BaseException], int]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Run a verb that raises an error."""

    def run(error: BaseException) -> int:
        @click.command()
        def fail() -> None:
            raise error

        module = types.ModuleType("verb_that_fails")
        module.__dict__["fail"] = fail
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(VERBS, "fail", module.__name__)
        return run_command(["fail"])

    return run


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nonsense"], "iris: No such command 'nonsense' (see iris --help)"),
        (["--nonsense"], "iris: No such option"),  # click 8.2 and 8.5 put it in other marks
        (["request"], "iris: Missing argument 'CLUSTER' (see iris request --help)"),
        (["request", "a", "--timeout", "0"], "iris: Invalid value for '--timeout': 0.0 is not in the range x>0 "),
        (["request", "a", "@/no/such/file"], "iris: cannot read /no/such/file: No such file or directory "),
        (["request", "a", "{", "--json-payload"], "iris: the payload is not JSON: "),
        (["pub", "a", "b", "--header", "c"], "iris: 'c' is not a header: write NAME=VALUE"),
        (["pub", "a", "b", "--lines"], "iris: --lines reads the payloads from standard input: give no PAYLOAD"),
        (["sub"], "iris: Missing argument 'PATTERN...' (see iris sub --help)"),
        (["run", "app"], "iris: 'app' names no service: write MODULE:SERVICE, such as app:databases"),
        (["request", "a", "caf\udce9"], r"iris: the argument 'caf\udce9' is not UTF-8 (see iris --help)"),
        (["keys", "show", "\udcff.iris"], r"iris: the argument '\udcff.iris' is not UTF-8 (see iris --help)"),
        (["run", "no.such.module:x"], "iris: there is no module no.such.module in "),
    ],
)
def test_a_wrong_command_line_is_explained_in_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == MISUSED
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(line)
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NoSuchCluster("nobody serves 'a'"), FAILED),
        (Overloaded("all members\nare busy"), FAILED),
        (ConfigError("no such credential"), MISUSED),
        (click.ClickException("something"), FAILED),
    ],
)
def test_an_expected_error_is_one_line(
    error: Exception, status: int, failing: Failing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(error) == status
    assert capsys.readouterr().err == f"iris: {' '.join(str(error).split())}\n"


def test_of_errors_that_came_together_the_one_people_can_act_on_is_shown(
    failing: Failing, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = ExceptionGroup("inner", [ConfigError("the port is in use")])
    assert failing(ExceptionGroup("outer", [RuntimeError("a consequence"), inner])) == MISUSED
    assert capsys.readouterr().err == "iris: the port is in use\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "log"), "log: Permission denied"),
        (PermissionError(errno.EACCES, "Permission denied", b"log\xff"), "log\\xff: Permission denied"),
        (OSError("the device\nis gone"), "the device is gone"),
        (OSError(), "OSError"),
        (ExceptionGroup("nursery", [RuntimeError("a consequence"), OSError(errno.EIO, "I/O error")]), "I/O error"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: Exception, line: str, failing: Failing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(error) == FAILED
    assert capsys.readouterr() == ("", f"iris: {line}\n")


def test_output_that_cannot_be_written_is_told_once_and_dropped(
    failing: Failing, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w") as full:
        full.write("a result")
        monkeypatch.setattr(sys, "stdout", full)
        assert failing(OSError(errno.ENOSPC, "No space left on device")) == FAILED
        full.write("more")
        full.flush()
    assert capsys.readouterr().err == "iris: No space left on device\n"


def test_an_error_of_ours_keeps_its_traceback_and_says_what_to_report(failing: Failing) -> None:
    bug = ExceptionGroup("outer", [ZeroDivisionError()])
    with pytest.raises(ExceptionGroup) as caught:
        failing(bug)
    assert caught.value is bug
    (note,) = bug.exceptions[0].__notes__
    assert note.startswith("Iris did not expect this error. Please report the whole traceback")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BaseExceptionGroup("nursery", [KeyboardInterrupt()])])
def test_an_interruption_is_silent(error: BaseException, failing: Failing, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(error) == INTERRUPTED
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([verb, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: iris {verb}")
    assert "--help" in said


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"iris {version('iris-mesh')}\n"


def test_without_a_verb_the_verbs_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([]) == MISUSED
    said = capsys.readouterr().out
    assert list(SUMMARIES) == list(VERBS)
    assert [line.split()[0] for line in said.partition("Commands:\n")[2].splitlines()] == list(VERBS)
