"""Ctrl-C while the ``iris`` command loads its modules, or ends: status 130 and not a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPT_AT = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            signal.raise_signal({number})

sys.meta_path.insert(0, Interrupting())
"""


def run(
    arguments: list[str], directory: Path, name: str, number: signal.Signals = signal.SIGINT
) -> subprocess.CompletedProcess[str]:
    """Run Python; when it is about to load the module called ``name`` it gets a signal."""
    (directory / "sitecustomize.py").write_text(INTERRUPT_AT.format(name=name, number=int(number)))
    environment = os.environ | {"PYTHONPATH": str(directory), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("module", "trio"),
        ("module", "click"),
        ("module", "iris.cli.operators.nodes"),
        ("script", "iris.node.open"),
        ("script", "iris.cli.main"),
    ],
)
def test_interrupted_while_it_loads_it_ends_with_130_and_says_nothing(form: str, name: str, tmp_path: Path) -> None:
    script = tmp_path / "iris"  # as installing the package makes it
    script.write_text("import sys\nfrom iris.__main__ import main\nsys.exit(main())\n")
    begun = ["-m", "iris"] if form == "module" else [str(script)]
    ended = run([*begun, "nodes", "--help"], tmp_path, name)
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, "", "")  # click ends the line of "^C"


@pytest.mark.parametrize(("workers", "status"), [(["--workers", "0"], 2), (["--workers=0"], 2), ([], -signal.SIGHUP)])
def test_sighup_while_a_supervisor_loads_does_not_end_it(workers: list[str], status: int, tmp_path: Path) -> None:
    ended = run(["-m", "iris", "run", *workers, "nothing:service"], tmp_path, "iris.cli.run", signal.SIGHUP)
    assert ended.returncode == status, ended.stderr  # 2: it goes on, and does not take that number


def test_garbage_is_looked_for_again_when_the_command_has_been_loaded(tmp_path: Path) -> None:
    script = tmp_path / "iris"
    script.write_text(
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.isenabled()))\n"
        "from iris.__main__ import main\n"
        "print(gc.isenabled())\n"
        "sys.exit(main())\n"
    )
    ended = run([str(script), "bridge", "--topic", "x"], tmp_path, "nothing")
    assert ended.stdout.split() == ["False", "True"]


def test_interrupted_when_it_is_done_it_ends_with_130_and_says_no_more(tmp_path: Path) -> None:
    code = (
        "import atexit, signal, sys; from iris.__main__ import main; sys.argv = ['iris', '--version'];"
        "atexit.register(signal.raise_signal, signal.SIGINT); main()"
    )
    ended = run(["-c", code], tmp_path, "nothing")
    assert (ended.returncode, ended.stderr) == (130, "")
    assert ended.stdout.startswith("iris ")


@pytest.mark.parametrize("file", ["program.py", "iris"])
def test_a_program_that_has_imported_iris_is_interrupted_and_collects_garbage_as_any_other(
    file: str, tmp_path: Path
) -> None:
    program = tmp_path / file
    program.write_text(
        "import gc, signal\n"
        "import iris\n"
        "iris.open_node\n"
        "assert signal.getsignal(2) is signal.default_int_handler\n"
        "assert gc.isenabled()\n"
    )
    ended = run([str(program)], tmp_path, "nothing")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_program_that_imports_iris_can_catch_an_interruption(tmp_path: Path) -> None:
    code = "try:\n import iris\n iris.open_node\nexcept KeyboardInterrupt:\n print('caught')"
    ended = run(["-c", code], tmp_path, "iris.node.open")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "caught\n", "")


def test_where_interruptions_are_ignored_they_stay_so(tmp_path: Path) -> None:
    code = "import signal, runpy, sys; signal.signal(2, signal.SIG_IGN); sys.argv = ['iris', '--version']; "
    ended = run(["-c", code + "runpy.run_module('iris', run_name='__main__')"], tmp_path, "iris.cli.main")
    assert (ended.returncode, ended.stderr) == (0, "")
