"""Python for Spark's workers on this machine: this interpreter, with PySpark as it is installed.

Spark puts its own ``pyspark.zip``, ``py4j`` and a jar in front of the path of every Python that it starts.  Modules
from a zip are compiled anew in each process, which takes PySpark most of the time that a process needs to start.  That
happens for each query, and Spark gives up a worker that is not there after 10 s.  The same files stand compiled in the
package that the zip is a copy of.  So Spark starts a *shim*, a script that takes the three out of the path and becomes
this Python.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from iris.spark_bridge.session.shims import cache_directory, make_shim

_SHIM: Final = """#!/bin/sh
# Made by Iris: PySpark is compiled in the package, and never in Spark's zip.
path=
IFS=:
set -f
for entry in $PYTHONPATH; do
    case $entry in
        {home}/python/lib/*.zip | {home}/jars/*.jar) ;;
        *) path=$path${{path:+:}}$entry ;;
    esac
done
PYTHONPATH=$path
exec {python} "$@"
"""


def find_worker_python(environment: Mapping[str, str]) -> str:
    """Return the Python for the workers of a Spark that runs on this machine alone.

    A Spark that ``SPARK_HOME`` names is another one than this Python's package: then it is this Python itself.

    Raises:
        ConfigError: the user's cache directory cannot be written.
    """
    home = package_home()
    if home is None or environment.get("SPARK_HOME", str(home)) != str(home):
        return sys.executable
    script = _SHIM.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable))
    return str(make_shim(cache_directory(environment), "python", script) / "bin" / "python")


def package_home() -> Path | None:
    """Return where PySpark is installed with the files of its zip beside it; None if that is not so."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    home = Path(found.origin).parent
    return home if (home / "python" / "lib" / "pyspark.zip").exists() else None
