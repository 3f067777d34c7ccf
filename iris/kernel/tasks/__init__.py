"""Helpers around trio: a background nursery, a wake-up that remembers, Happy Eyeballs (RFC 8305).

Promises: no task outlives the block that opened it, and an error in one of them ends the block.
"""

from iris.kernel.tasks.background import open_background
from iris.kernel.tasks.happy_eyeballs import AT_ONCE, first_of
from iris.kernel.tasks.interrupts import interruptible, protected_context
from iris.kernel.tasks.wakeup import Wakeup

__all__ = (
    "AT_ONCE", "Wakeup", "first_of", "interruptible", "open_background", "protected_context",
)  # fmt: skip
