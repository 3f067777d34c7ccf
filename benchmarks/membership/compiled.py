"""``python -m benchmarks.membership.compiled ARGUMENTS``: the same as without ``compiled``, three times as fast.

Compiles the machines of membership and the realm around them, unchanged, with mypyc; a C compiler has to be there, and
it takes a minute.  Then both kinds run the same realm, and their traces have to be equal in every effect before
anything is measured.  For the soak, which asks for hours of processor time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]

MODULES: Final = (
    *sorted(
        str(path.relative_to(_ROOT))
        for path in (_ROOT / "iris" / "cluster" / "swim").glob("*.py")
        if path.name != "__init__.py"
    ),
    "tests/support/population.py",
    "benchmarks/membership/realm.py",
)
"""Modules that are compiled."""

_SETUP: Final = """
from mypyc.build import mypycify
from setuptools import setup
setup(name="compiled", packages=[], ext_modules=mypycify(["--config-file", "mypy.ini", *{modules!r}]))
"""

_CHECKING: Final = "[mypy]\nmypy_path = typings\nexplicit_package_bases = True\n"

_TRACE: Final = """
from benchmarks.membership.realm import Realm
realm = Realm(20, 7, loss=0.05, traced=True)
realm.run(2.0)
realm.start(realm.nodes[0])
realm.run(1.0)
realm.kill(realm.nodes[3])
realm.vanish(realm.nodes[4])
realm.stall(realm.nodes[5], 1.5)
realm.run(60.0)
print(realm.digest, realm.events)
"""


def compilable(source: str) -> str:
    """Return a module's source as mypyc takes it: it gives all classes slots by itself."""
    return source.replace(", slots=True", "")


def build(directory: Path) -> None:
    """Lay out the tree in ``directory``, and compile what is to be compiled there.

    Raises:
        subprocess.CalledProcessError: it could not be compiled; the compiler has said why.
    """
    for name in ("iris", "benchmarks", "tests", "typings"):
        shutil.copytree(_ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for module in MODULES:
        path = directory / module
        path.write_text(compilable(path.read_text()))
    (directory / "mypy.ini").write_text(_CHECKING)
    (directory / "setup.py").write_text(_SETUP.format(modules=MODULES))
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=directory,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def trace(directory: Path) -> str:
    """Return the digest of a realm's trace, as the tree in a directory runs it."""
    return _run(directory, "-c", _TRACE, stdout=subprocess.PIPE).stdout


def _run(directory: Path, *arguments: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, env=environment, stdout=stdout, check=True, text=True)


def check_same(compiled: str, interpreted: str) -> None:
    """Say that two traces are the same.

    Raises:
        SystemExit: they are not, so that nothing can be measured.
    """
    if compiled != interpreted:
        raise SystemExit(f"compiled machines do otherwise: {compiled.strip()}, not {interpreted.strip()}")
    print(f"compiled; the trace is the same: {compiled.strip()}", file=sys.stderr)


def main(arguments: list[str]) -> None:
    """Compile, compare, and run."""
    with tempfile.TemporaryDirectory(prefix="iris-compiled-") as name:
        directory = Path(name)
        build(directory)
        check_same(trace(directory), trace(_ROOT))
        _run(directory, "-m", "benchmarks.membership", *arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
