"""The source files of a program under development: the Python files below a directory, and when each was changed.

They are looked at again and again, which works for every file system and needs no package.  Directories of environments
and of installed packages are left out, and those whose name begins with a dot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

_ENVIRONMENT: Final = "pyvenv.cfg"
"""File that makes a directory a virtual environment."""


@final
class SourceFiles:
    """The Python files below a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._seen = dict(self._scan())

    def changed(self) -> list[str]:
        """Return which files have come, changed or gone since the last call, relative to the directory."""
        before, self._seen = self._seen, dict(self._scan())
        return sorted(
            os.path.relpath(path, self._directory)
            for path in before.keys() | self._seen.keys()
            if before.get(path) != self._seen.get(path)
        )

    def _scan(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield each file, with the time of its last change and its size."""
        for directory, below, files in os.walk(self._directory):
            if _ENVIRONMENT in files:
                below.clear()
                continue
            below[:] = [name for name in below if _looked_at(name)]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(directory, name)  # noqa: PTH118 -- a Path for each takes ten times as long
                    try:
                        status = os.stat(path)  # noqa: PTH116
                    except OSError:  # it has gone meanwhile
                        continue
                    yield path, (status.st_mtime_ns, status.st_size)


def _looked_at(name: str) -> bool:
    return not name.startswith(".") and name not in _LEFT_OUT
