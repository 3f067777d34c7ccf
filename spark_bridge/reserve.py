"""A little of the disk that is kept occupied, to be given up when the disk is full and something is to be removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, final

from iris.spark_bridge.segment import FileSystem

_SIZE: Final = 1024 * 1024
"""The index needs less than that to write down that something was removed."""


@final
class Reserve:
    """One file.

    Args:
        path: of it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self) -> None:
        """Occupy it, if there is room and it is not there."""
        if not self._path.exists():
            try:
                os.close(FileSystem().create(self._path, _SIZE))
            except OSError:
                return

    def give_up(self) -> None:
        """Leave its room to others."""
        self._path.unlink(missing_ok=True)
