"""Log of handler failures: the traceback, and the caller for whom the handler ran.

Callers get an error's type and text, and broadcasts have no caller that waits, so this log is where a failure can be
seen.  It holds nothing of a payload but what the handler's own error says.
"""

from __future__ import annotations

import logging
import traceback
from contextvars import ContextVar
from typing import Final, Literal, final

import trio

from iris.kernel.errors import RemoteError
from iris.patterns.messages import Sender
from iris.patterns.service.process_calls import ProcessDied, RaisedInProcess, error_name

_log: Final = logging.getLogger("iris.handlers")

_PAUSE: Final = 1.0
"""Seconds between two entries of one cause: a handler that fails at every request would fill a disk."""

_MAX_CAUSES: Final = 256
"""Causes that are remembered at a time: more lines of one service do not raise at once."""

_MOST: Final = 16_384
"""Characters of one traceback, half at its beginning and half at its end: an error's text may hold a whole payload."""

HandlerKind = Literal["request", "broadcast", "tunnel"]
_Cause = tuple[HandlerKind, str | None, str, str, int]


@final
class FailureLog:
    """Logs what the handlers of one membership raise: each cause once a second, with the number in between.

    One cause is one type of error raised at one line for one operation.

    Args:
        cluster: cluster that is served.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._causes: dict[_Cause, tuple[float, int]] = {}
        """Time at which each cause was logged last, and its count since then; the one logged last is at the end."""

    def failed(
        self,
        kind: HandlerKind,
        error: BaseException,
        operation: str | None,
        caller: Sender,
        number: int | None = None,
        *,
        late: bool = False,
    ) -> None:
        """Log what a handler has raised.

        A ``RemoteError`` is an answer and no failure: its code is logged at DEBUG.

        Args:
            kind: kind of handler.
            error: error that it raised.
            operation: name of the handler within the service.
            caller: sender for whom it ran.
            number: number of the request, as its caller counts.
            late: True if nobody waited for it any more.
        """
        if isinstance(error, RemoteError):
            self.ended(kind, f"answered with the code {error.code!r:.80}", operation, caller, number)
            return
        cause = (kind, operation, error_name(error), *raised_at(error))
        now = trio.current_time()
        logged_at, more = self._causes.pop(cause, (None, 0))
        if logged_at is not None and logged_at <= now < logged_at + _PAUSE:
            self._causes[cause] = (logged_at, more + 1)
            return
        if len(self._causes) >= _MAX_CAUSES:
            self._write_off(next(iter(self._causes)))
        self._causes[cause] = (now, 0)
        note = " when nobody waits for it any more" if late else ""
        note += f" ({more} more of this cause since it was logged last)" if more else ""
        self._write(logging.ERROR, kind, f"failed{note}", operation, caller, number, error, more)

    def ended(
        self, kind: HandlerKind, how: str, operation: str | None, caller: Sender, number: int | None = None
    ) -> None:
        """Log at DEBUG that a handler has ended without a failure of its own."""
        if _log.isEnabledFor(logging.DEBUG):
            self._write(logging.DEBUG, kind, how, operation, caller, number, None)

    def write_off(self) -> None:
        """Log how many failures were left out so far: nothing new is served."""
        for cause in list(self._causes):
            self._write_off(cause)

    def _write_off(self, cause: _Cause) -> None:
        _, more = self._causes.pop(cause)
        if more:
            kind, operation, error, file, line = cause
            _log.error(
                "%s failed with %s at %s:%d: %d more of this cause since it was logged last",
                self._handler(kind, operation),
                error,
                file,
                line,
                more,
                extra={
                    "cluster": self._cluster,
                    "operation": operation,
                    "pattern": kind,
                    "reason": error,
                    "left_out": more,
                    "cause": f"{error} {file}:{line}",
                },
            )

    def _write(
        self,
        level: int,
        kind: HandlerKind,
        how: str,
        operation: str | None,
        caller: Sender,
        number: int | None,
        error: BaseException | None,
        more: int = 0,
    ) -> None:
        what = "" if number is None else f", request {number}"
        cut = "" if error is None else _cut(error)
        _log.log(
            level,
            "%s %s, called by %r (node %s)%s%s",
            self._handler(kind, operation),
            how,
            caller.cluster,
            caller.node,
            what,
            cut and f"\n{cut}",
            exc_info=None if cut else error,
            extra={
                "cluster": self._cluster,
                "operation": operation,
                "pattern": kind,
                "caller": caller.cluster,
                "peer": caller.node,
                "request_id": number,
                "reason": None if error is None else error_name(error),
                "left_out": more or None,
                "cause": how if error is None else "{} {}:{}".format(error_name(error), *raised_at(error)),
            },
        )

    def _handler(self, kind: HandlerKind, operation: str | None) -> str:
        which = "" if operation is None else f", operation {operation!r},"
        return f"{kind} handler of cluster {self._cluster!r}{which}"


def _cut(error: BaseException) -> str:
    """Return the traceback of an error without its middle; empty if it is short enough to be written as it is.

    One that was raised in a process has its own, cut there.
    """
    if isinstance(error, RaisedInProcess):
        return error.traceback.rstrip()
    if isinstance(error, ProcessDied):  # of which the traceback is the member's
        return str(error)
    text = "".join(traceback.format_exception(error))
    left_out = len(text) - _MOST
    if left_out <= 0:
        return ""
    return f"{text[: _MOST // 2]}\n... {left_out} characters left out ...\n{text[-_MOST // 2 :]}"


def raised_at(error: BaseException) -> tuple[str, int]:
    """Return the file and the line where an error was raised; of a group, where that was."""
    if isinstance(error, RaisedInProcess):
        return error.place
    last = error.__traceback__
    if last is None:
        return "", 0
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_code.co_filename, last.tb_lineno


serving_log: Final[ContextVar[FailureLog | None]] = ContextVar("serving_log", default=None)
"""Failure log of the membership whose handler the present task or thread runs.  None outside of handlers."""
