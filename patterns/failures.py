"""What becomes of an error that a handler raises: a code and a text for its caller."""

from __future__ import annotations

import traceback

import trio

from iris.kernel.errors import IrisError, RemoteError


def described(error: Exception, *, tracebacks: bool) -> tuple[str, str]:
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


def failure_in(group: BaseExceptionGroup) -> Exception | None:
    """Return what went wrong in a handler besides its being cancelled; None if that is not an error but an exit.

    Such a group is what a nursery raises that was cancelled, when a task of it failed at that.
    """
    failure = group.split(trio.Cancelled)[1]
    return failure if isinstance(failure, Exception) else None
