"""``iris run --reload``: what counts as a change, and a member that follows its file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iris.cli.supervision.source_files import SourceFiles
from tests.support.command import interrupt, open_terminal
from tests.support.processes import Child
from tests.support.supervision import log, wait_workers, workers

APP = """
import iris

store = iris.Service("store")

@store.request
async def version(request: iris.Request) -> object:
    return {version}
"""


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_python_files_that_come_change_or_go_are_named(tmp_path: Path) -> None:
    write(tmp_path / "app.py")
    write(tmp_path / "pack/old.py")
    write(tmp_path / "notes.txt")
    files = SourceFiles(tmp_path)
    assert files.changed() == []
    write(tmp_path / "app.py", "x")
    write(tmp_path / "pack/deep/new.py")
    (tmp_path / "pack/old.py").unlink()
    write(tmp_path / "notes.txt", "x")
    assert files.changed() == ["app.py", "pack/deep/new.py", "pack/old.py"]
    assert files.changed() == []
    os.utime(tmp_path / "app.py", (1, 1))
    assert files.changed() == ["app.py"], "an older file was put there"


def test_environments_and_hidden_directories_are_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "venv/pyvenv.cfg")
    files = SourceFiles(tmp_path)
    for left_out in ("venv/lib", "venv", ".git", "node_modules/x", "src/__pycache__"):
        write(tmp_path / left_out / "a.py")
    assert files.changed() == []


def test_a_directory_that_goes_while_it_is_looked_at_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "app.py").symlink_to(tmp_path / "nowhere")
    assert SourceFiles(tmp_path).changed() == []


def lines_until(process: subprocess.Popen[bytes], text: str) -> list[str]:
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line.decode())
        if text in said[-1]:
            return said
    raise AssertionError(f"it ended, and had said {said}")


def test_a_worker_is_started_anew_at_each_change_and_a_mistake_waits_for_the_next_one(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.touch()
    command = [sys.executable, "-m", "tests.support.programs.supervised", "0", str(tmp_path)]
    child = Child(command, ready="never", log=tmp_path / "log.txt")
    child.launch()
    try:
        first = wait_workers(tmp_path, lambda now: len(now) == 1)
        (tmp_path / "fails").write_text("app.py:1: SyntaxError")
        app.write_text("x")
        waiting = child.wait_ready("ended with status 2; waiting for a change")
        assert log(tmp_path).splitlines()[-3:-1] == [
            "iris: app.py changed: starting again",
            "iris: app.py:1: SyntaxError",
        ]
        assert waiting.startswith("iris: worker ")
        (tmp_path / "fails").unlink()
        app.write_text("xx")
        second = wait_workers(tmp_path, lambda now: len(now) == 1)
        assert not first.keys() & second.keys()
        assert child.end(signal.SIGTERM) == 0
        assert workers(tmp_path) == {}
    finally:
        child.end()


@pytest.mark.long
def test_a_member_follows_its_file_through_a_mistake() -> None:
    with open_terminal() as terminal:
        app = terminal.directory / "app.py"
        app.write_text(APP.format(version=1))
        with terminal.started("run", "app:store", "--reload", announces="serves store") as process:
            app.write_text("def broken(:\n")
            changed, error, waiting = lines_until(process, "waiting for a change")
            assert changed == "iris: app.py changed: starting again\n"
            assert "app.py:1: SyntaxError" in error
            assert "ended with status 2; waiting for a change" in waiting
            app.write_text(APP.format(version=22))
            lines_until(process, "serves store")
            done = terminal.run("request", "store", "--timeout", "20")
            assert (done.returncode, done.stdout) == (0, b"22\n")
            assert interrupt(process, signal.SIGINT) == 0
