"""Sanitizing of text from peers, so that a terminal obeys no part of it.

Payloads, errors and log lines quote what peers have sent.  A terminal obeys escape sequences: they move the cursor,
rewrite lines, set the clipboard.  Controls of bidirectional text show a line in another order than it has.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from typing import Final, final

from iris.node.telemetry.logs import JsonFormatter, LimitedHandler, TextFormatter

_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""C0 but for tab and newline, DEL, C1, and what separates lines or changes their direction in Unicode."""


def printable(text: str) -> str:
    """Return ``text`` with each control character written as Python would; newlines and tabs stay."""
    return _CONTROLS.sub(_escaped, text)


def printable_line(text: str) -> str:
    """Return ``text`` in one line: as ``printable``, and newlines are written as an escape, too.

    Where each line is a message, a newline in one would let its sender make up the next.
    """
    return printable(text).replace("\n", "\\n")


def _escaped(control: re.Match[str]) -> str:
    return control[0].encode("unicode_escape").decode()


@final
class PrintableFormatter(TextFormatter):
    """Formats log lines for people: what a peer may have chosen in them commands no terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with its traceback if it has one."""
        return printable(super().format(record))


_FOR_PEOPLE: Final = PrintableFormatter("iris: %(message)s")
_handler: Final[list[LimitedHandler]] = []
"""Handler of the command, once it writes its log."""


def write_log(style: str) -> None:
    """Write the log to standard error from now on: as ``text`` for people, or as ``json``."""
    logger = logging.getLogger("iris")
    for handler in _handler:
        logger.removeHandler(handler)
    _handler[:] = [LimitedHandler(sys.stderr)]
    _handler[0].setFormatter(JsonFormatter() if style == "json" else _FOR_PEOPLE)
    logger.addHandler(_handler[0])


def write_note(text: str, level: int = logging.INFO) -> None:
    """Write one line to standard error, whatever the level of the log, in the form that the log has.

    If nobody reads it any more it is left out, as lines of the log are: what is done besides does not depend on it.
    """
    line = " ".join(text.split())
    record = logging.LogRecord("iris.command", level, __file__, 0, line, None, None)
    formatter = _handler[0].formatter if _handler else None
    with suppress(OSError):
        print((formatter or _FOR_PEOPLE).format(record), file=sys.stderr, flush=True)  # noqa: T201 -- the command's
