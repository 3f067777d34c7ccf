"""Context propagation: the requests that a handler makes inherit the priority of the request that it serves.

The remaining time needs no propagation: it is the deadline of the cancel scope around the handler.  The priority is a
context variable, so tasks and worker threads that the handler starts inherit it too.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar
from typing import Final, Literal, final

from iris.kernel.errors import ConfigError


@final
class Priority(enum.IntEnum):
    """Priority of a request when not all can be served.  The numbers are on the wire."""

    NORMAL = 0
    HIGH = 1
    LOW = 2


PriorityName = Literal["low", "normal", "high"]


def check_priority(name: str | None) -> Priority | None:
    """Return the priority of a name, None: of the request served here; raise ConfigError if there is none."""
    if name is None:
        return None
    for priority in Priority:
        if priority.name.lower() == name:
            return priority
    raise ConfigError(f"priority is {name!r}: use 'low', 'normal' or 'high'")


served_priority: Final[ContextVar[int]] = ContextVar("served_priority", default=Priority.NORMAL)
"""Priority of the request that the present task serves; normal if it serves none."""
