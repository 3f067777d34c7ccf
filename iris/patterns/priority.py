"""What the requests of a handler inherit from the one that it serves: its priority.

The time that is left is inherited without this: it is the cancel scope around the handler.  A context variable, so that
tasks which the handler begins, and its worker threads, inherit it too.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar
from typing import Final, Literal, final

from iris.kernel.errors import ConfigError


@final
class Priority(enum.IntEnum):
    """What a request is worth when not all can be served.  The numbers are on the wire."""

    NORMAL = 0
    HIGH = 1
    LOW = 2


PriorityName = Literal["low", "normal", "high"]


def check_priority(name: str | None) -> Priority | None:
    """Return the priority of that name; None stands for that of the request that is served.

    Raises:
        ConfigError: there is none.
    """
    if name is None:
        return None
    for priority in Priority:
        if priority.name.lower() == name:
            return priority
    raise ConfigError(f"priority is {name!r}: use 'low', 'normal' or 'high'")


served_priority: Final[ContextVar[int]] = ContextVar("served_priority", default=Priority.NORMAL)
"""Of the request that the present task serves; normal if it serves none."""
