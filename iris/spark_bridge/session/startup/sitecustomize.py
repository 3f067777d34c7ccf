"""Start-up of Spark's workers: PySpark as it is installed, in the place of Spark's zip of it.

Spark puts its own ``pyspark.zip``, ``py4j`` and a jar in front of the path of every Python that it starts.  Modules
from a zip are compiled anew in each process, which takes PySpark most of the time that a process needs to start.  That
happens for each query, and Spark gives up a worker that is not there after 10 s.  The same files stand compiled in the
package that the zip is a copy of.

Spark starts most workers as children of a process that waits, ``pyspark.daemon``.  What that one has imported none of
its children imports again: it imports the part of Iris that starts no thread, which a process with children must not
have.  That is half of what a worker imports; numpy and Arrow start threads.

Python runs a module of this name, if there is one, before anything else (see ``site`` in its library).  ``configure``
has Spark give its workers a ``PYTHONPATH`` that ends with the folder of this file.  A machine of a cluster that has no
such folder, or another PySpark, starts its workers as it did.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder

_LIBRARY = os.path.join("python", "lib", "")


def without_zips(path: Sequence[str]) -> list[str]:
    """Return a path without Spark's zips and its jar, if it leads to the same PySpark without them."""
    zips = [entry for entry in path if entry.endswith(f"{_LIBRARY}pyspark.zip")]
    if not zips:
        return list(path)
    home = zips[0].removesuffix(f"{_LIBRARY}pyspark.zip")
    own = (os.path.join(home, _LIBRARY), os.path.join(home, "jars", ""))
    rest = [entry for entry in path if not (entry.startswith(own) and entry.endswith((".zip", ".jar")))]
    found = PathFinder.find_spec("pyspark", rest)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", rest) is None:
        return list(path)
    return rest if _is_copy(zips[0], os.path.dirname(found.origin)) else list(path)


def _is_copy(archive: str, package: str) -> bool:
    """Return whether a zip is one of the installed PySpark: the one beside it, or one of the same version."""
    beside = os.path.join(package, _LIBRARY, "pyspark.zip")
    try:
        if os.path.exists(beside) and os.path.samefile(archive, beside):
            return True
        import zipfile

        with open(os.path.join(package, "version.py"), "rb") as file, zipfile.ZipFile(archive) as opened:
            return opened.read("pyspark/version.py") == file.read()
    except (OSError, KeyError, ValueError, RuntimeError):  # no such files, or no zip: it is left as it is
        return False


def is_parent_of_workers(command: Sequence[str]) -> bool:
    """Return whether a process waits to be the parent of workers that may have to do with Iris."""
    return tuple(command[1:3]) == ("-m", "pyspark.daemon") and command[-1] != "pyspark.sql.worker.lookup_data_sources"


def _prepare_children() -> None:
    import gc

    gc.disable()  # loading makes no garbage to be looked for
    try:
        import_module("iris.sync")
    except ImportError:  # a worker that needs what is missing says so
        return
    finally:
        gc.enable()
    gc.freeze()  # each worker collects garbage after each task


def _run() -> None:
    """Settle the path of this process, and let the module run that would have run without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in without_zips(sys.path) if os.path.abspath(entry) != here]
    own = sys.modules.pop(__name__)
    try:
        import_module(__name__)
    except ModuleNotFoundError:
        sys.modules[__name__] = own
    if is_parent_of_workers(sys.orig_argv):
        _prepare_children()


if __name__ == "sitecustomize":
    _run()
