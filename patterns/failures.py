"""What becomes of an error that a handler raises: a code and a text for its caller."""

from __future__ import annotations

import math
import traceback
from typing import Final, cast

import trio

from iris.kernel.errors import IrisError, RemoteError

_ENDS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends a program, or drops a coroutine, wherever it is raised."""


def described(error: BaseException, *, tracebacks: bool) -> tuple[str, str]:
    """Return what a caller may know of an error: a stable word and a text; a traceback only if the service says so."""
    if isinstance(error, RemoteError):
        code, text = _text(error.code)[:64], _text(error.message)[:1024]
    elif isinstance(error, IrisError):
        code, text = type(error).__name__, _text(error)[:1024]
    else:
        code, text = "error", f"{type(error).__name__}: {_text(error)}"[:1024]
    if tracebacks:
        text += "\n" + _text("".join(traceback.format_exception(error))[-8192:])
    return code, text


def _text(value: object) -> str:
    """What a handler gives as a text, whatever that is, in a form that has one in UTF-8."""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 -- it is the handler's own code that makes it
        return f"a {type(value).__name__} without a text"


def is_only(error: BaseException, kind: type[Exception]) -> bool:
    """Tell whether an error is of a kind, or a group of nothing else."""
    if not isinstance(error, BaseExceptionGroup):
        return isinstance(error, kind)
    return cast("BaseExceptionGroup[BaseException]", error).split(kind)[1] is None


def failure_in(error: BaseException) -> BaseException | None:
    """Return what went wrong in a handler besides its being cancelled.

    It may be a group: what a nursery raises that was cancelled, when a task of it failed at that.  It may be no
    ``Exception``: ``asyncio.CancelledError`` is none, and means nothing here.  Nor does a ``trio.Cancelled`` that was
    kept from another task, or an ended scope, while nothing around this task is cancelled.

    Returns:
        None if nothing did, or the program is to end: that is not for the caller of one handler.
    """
    cancelled = trio.current_effective_deadline() == -math.inf
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        rest = group.split(trio.Cancelled)[1] if cancelled else group
        return None if rest is None or rest.subgroup(_ENDS) is not None else rest
    return None if isinstance(error, (trio.Cancelled, *_ENDS) if cancelled else _ENDS) else error
