"""What the requests of a handler inherit from the one that it serves: its priority.

The time that is left is inherited without this: it is the cancel scope around the handler.  A context variable, so that
tasks which the handler begins, and its worker threads, inherit it too.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from iris.patterns.shedding import Priority

served_priority: Final[ContextVar[int]] = ContextVar("served_priority", default=Priority.NORMAL)
"""Of the request that the present task serves; normal if it serves none."""
