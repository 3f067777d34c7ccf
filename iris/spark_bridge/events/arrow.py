"""Arrow without pandas: for the processes of the ``iris`` command, which have no use for it.

With the first list that becomes an array, Arrow imports pandas where it is installed, to know its types when it sees
them.  That takes a bridge 0.2 s of processor time and 35 MB.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Refuse pandas, and leave other modules to the finders behind."""
        if name == "pandas":
            raise ModuleNotFoundError("Arrow is to do without", name=name)


def look_for_pandas() -> None:
    """Have Arrow import pandas now, if it is installed."""
    pa.array([])


def without_pandas() -> None:
    """Make Arrow assume that pandas is not installed, for as long as this process lives.

    Where pandas has been imported before, nothing changes.  Not for processes that run what users wrote: their arrays
    would not become pandas' any more.
    """
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        look_for_pandas()
    finally:
        sys.meta_path.remove(finder)
