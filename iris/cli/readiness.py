"""Readiness: tells the parent of this process, once, that its services are joined.

The parent opens a pipe, lets the child inherit the writing end, and names that end's number in ``IRIS_READY_FD``.  It
reads the line ``ready`` when all services are joined, and the end of the file without that line if the process ended
before.  Nothing else is written.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final, final

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import read_whole

READY_FD: Final = "IRIS_READY_FD"


@final
class Readiness:
    """The pipe to the parent, if there is one.

    Args:
        variables: environment of this process.  The variable is taken out: it is not for children of this process.

    Raises:
        ConfigError: the variable names no descriptor that is open.
    """

    def __init__(self, variables: MutableMapping[str, str]) -> None:
        text = variables.pop(READY_FD, "")
        self._descriptor: int | None = read_whole(text)
        try:
            if self._descriptor is not None:
                os.set_inheritable(self._descriptor, False)  # else a child of this process would hold it open
        except (OSError, OverflowError):
            self._descriptor = None
        if text and self._descriptor is None:
            raise ConfigError(f"{READY_FD} is {text!r}: use the number of a descriptor that this process inherits")

    def announce(self) -> None:
        """Say that all services are joined."""
        if self._descriptor is not None:
            with suppress(OSError):  # the parent has gone, or does not want to know any more
                os.write(self._descriptor, b"ready\n")
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
