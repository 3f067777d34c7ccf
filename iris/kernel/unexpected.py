"""Unexpected errors: the traceback of an error that nobody foresaw ends with what to report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from iris.kernel.errors import IrisError
from iris.kernel.shapes import is_group

_NOTE: Final = "Iris did not expect this error. Please report the whole traceback, what was being done, and: "

_EXPECTED: Final = (
    IrisError,
    OSError,
    trio.ClosedResourceError,
    trio.BrokenResourceError,
    trio.BusyResourceError,
    trio.EndOfChannel,
    trio.TooSlowError,
)
"""Errors that are raised on purpose, and those of the system."""


def note_unexpected(error: BaseException) -> None:
    """Have the traceback of an error, or of those in a group, say what to report, unless it is raised on purpose."""
    if is_group(error):
        for inner in error.exceptions:
            note_unexpected(inner)
        return
    noted = any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ()))
    if isinstance(error, Exception) and not isinstance(error, _EXPECTED) and not noted:
        error.add_note(_NOTE + _versions())


@contextmanager
def noting_unexpected() -> Iterator[None]:
    """Note it of errors that leave the block and were raised by code of Iris, and not by that of its user."""
    try:
        yield
    except BaseExceptionGroup as group:
        for error in _leaves(group):
            if _is_own(error):
                note_unexpected(error)
        raise
    except Exception as error:
        if _is_own(error):
            note_unexpected(error)
        raise


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if is_group(error):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_own(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    raised_by = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__"))
    return raised_by.startswith("iris.") and not raised_by.startswith("iris.testing.")  # a check that does not hold


def _versions() -> str:
    """Name what decides how Iris works here."""
    import platform  # both take milliseconds to import, and are hardly ever needed
    from importlib import metadata

    versions: list[str] = []
    for name in ("iris-mesh", "trio", "cryptography", "msgpack"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{name}, not installed as a package")
    return f"{'; '.join(versions)}; Python {platform.python_version()} on {platform.system()} {platform.machine()}"
