"""Logs: the lines of the ``iris`` loggers, as text or JSON, and no cause more than once a second.

Every event is one record of the loggers ``iris`` and ``iris.handlers``, and has its fields in ``extra``: what they mean
is in docs/reference/telemetry.md.  Published as ``iris.logs``: a program that sets logging up by itself uses
``JsonFormatter`` and ``LimitedHandler`` as it likes.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from types import TracebackType
from typing import Final, TextIO, final

FIELDS: Final = (
    "cluster", "operation", "pattern", "caller", "peer", "request_id", "site", "realm", "topic", "address", "path",
    "bridge", "shard", "queue", "query", "batch", "door", "client", "count", "reason", "left_out",
)  # fmt: skip
"""Names in ``extra``, in the order in which they are written."""

_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_PAUSE: Final = 1.0
_MAX_CAUSES: Final = 1024


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a record that are known, and say something."""
    values = vars(record)
    return {name: values[name] for name in FIELDS if values.get(name) is not None}


class TextFormatter(logging.Formatter):
    """One event a line: the message, and the fields that it does not say; a traceback follows on indented lines.

    Of what peers and errors say nothing commands a terminal or begins a line: what is not printable is escaped.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- logging calls it so
        """Return the line."""
        message = record.getMessage()
        unsaid = [
            f"{name}={value}"
            for name, value in fields_of(record).items()
            if name in ("count", "left_out") or str(value) not in message
        ]
        record.message = _printable(" ".join((message, *unsaid)))
        return super().formatMessage(record)

    def formatException(self, ei: _Raised) -> str:  # noqa: N802 -- logging calls it so
        """Return the traceback."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 -- logging calls it so
        """Return where a thread stands."""
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(f"  {_printable(line)}" for line in text.split("\n"))


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


@final
class JsonFormatter(logging.Formatter):
    """One event a line: an object with time (RFC 3339, UTC), level, logger, message, and its fields.

    A traceback is its ``exception``.  Within a trace of OpenTelemetry it has ``trace_id`` and ``span_id``.
    """

    def __init__(self) -> None:
        super().__init__()
        import json  # few programs use it

        self._encode = json.JSONEncoder(default=str).encode

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; whatever is in the record, it is ASCII."""
        line: dict[str, object] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
            **vars(record).get(_TRACE, _trace_of_here()),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return self._encode(line)


_TRACE: Final = "iris_trace"


def _trace_of_here() -> dict[str, str]:
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


_Cause = tuple[str, int, str, str, str, str]

_OTHERS: Final[_Cause] = ("", 0, "", "", "", "")
"""Stands for all causes that found no room."""


@final
class RateLimit:
    """Lets one record of each cause through in a second, and says how many were left out.

    One cause is one message before its arguments, of one logger and level, about one cluster and operation and one type
    of error, raised at one line of a program.  Of more than 1,024 causes in a second the further ones are one together:
    who can make up causes fills no log.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._causes: OrderedDict[_Cause, tuple[float, int, logging.LogRecord | None]] = OrderedDict()
        """Time when each cause was let through last, the number left out since then, and the last of these."""

    def __repr__(self) -> str:
        return f"<RateLimit of {len(self._causes)} causes>"

    def admit(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """Return what is to be written now: the record, or not; before it those whose second is over."""
        now = self._clock()
        cause = _cause_of(record)
        written = self._due(now, but=cause)
        if cause not in self._causes and len(self._causes) >= _MAX_CAUSES:
            cause = _OTHERS
        let_through, left_out, _ = self._causes.get(cause, (None, 0, None))
        own = getattr(record, "left_out", None) or 0  # it may stand for others that its logger has left out
        if let_through is not None and let_through <= now < let_through + _PAUSE:
            self._causes[cause] = (let_through, left_out + 1 + own, record)
            return written
        if left_out:
            record = _standing_for(record, left_out + own)
        self._causes[cause] = (now, 0, None)
        self._causes.move_to_end(cause)
        return [*written, record]

    def flush(self) -> list[logging.LogRecord]:
        """Return a record for each cause of which some were left out: nothing more may come."""
        return self._due(float("inf"), but=None)

    def _due(self, now: float, but: _Cause | None) -> list[logging.LogRecord]:
        """Forget the causes whose second is over; return the last record of those of which some were left out.

        They are in the order in which they were let through, so it looks at none that is to stay but one.
        """
        due: list[logging.LogRecord] = []
        for cause, (let_through, left_out, last) in list(self._causes.items())[: _LOOKED_AT if but else None]:
            if let_through <= now < let_through + _PAUSE:
                break
            if cause == but:
                continue
            del self._causes[cause]
            if last is not None:
                due.append(_standing_for(last, left_out - 1))  # it is one of them
        return due


def _standing_for(record: logging.LogRecord, others: int) -> logging.LogRecord:
    """Return a record that says how many others were left out; other handlers have the one that was given."""
    record = copy(record)
    record.left_out = others or None
    return record


_LOOKED_AT: Final = 16
"""Causes that are forgotten at a time, so that none is looked at for long."""


def _cause_of(record: logging.LogRecord) -> _Cause:
    values = vars(record)
    where = str(values.get("cause", ""))
    if record.exc_info and record.exc_info[0] is not None:
        kind, _, traceback = record.exc_info
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        place = "" if traceback is None else f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        where = f"{where} {kind.__name__} {place}"
    return (
        record.name,
        record.levelno,
        str(record.msg),
        str(values.get("cluster", "")),
        str(values.get("operation", "")),
        where,
    )


@final
class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream, each cause once a second: see ``RateLimit``."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._limit = RateLimit()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or leave it out and count it."""
        try:
            setattr(record, _TRACE, _trace_of_here())  # it may be written later, from within another trace
            due = self._limit.admit(record)
        except Exception:  # noqa: BLE001 -- of a record whose fields raise when they become text; its caller goes on
            self.handleError(record)
            return
        for one in due:
            super().emit(one)

    def close(self) -> None:
        """Write how many were left out, and end."""
        self.acquire()
        try:
            for due in self._limit.flush():
                super().emit(due)
        finally:
            self.release()
        super().close()
