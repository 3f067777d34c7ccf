"""Helpers: background nursery, wake-up, Ctrl-C, Happy Eyeballs (RFC 8305), calls from outside, locks, late names.

Those around trio promise that no task outlives the block that opened it, that an error in one of them ends the block,
and that a Ctrl-C never strikes between two lines of Iris.  They are not a scheduler and hold no queue: the task that
opens the block owns its tasks.
"""

from iris.kernel.tasks.background import open_background
from iris.kernel.tasks.calls import AtOnce, OutsideCall, CallTasks, HeldBlock, behind_events
from iris.kernel.tasks.checkpoints import checkpoint_after_error, checkpointed
from iris.kernel.tasks.effective_deadline import effective_deadline
from iris.kernel.tasks.file_locks import close_locked, try_lock
from iris.kernel.tasks.happy_eyeballs import AT_ONCE, first_of
from iris.kernel.tasks.host import HostLoop, host_loop
from iris.kernel.tasks.interrupts import interruptible, leave_unprotected, protected_context
from iris.kernel.tasks.late_names import late_names
from iris.kernel.tasks.must_enter import MustEnter
from iris.kernel.tasks.patched import check_not_patched
from iris.kernel.tasks.threads import ThreadRunner, deadline_for_threads, run_in_thread, thread_deadline
from iris.kernel.tasks.time_left import time_left
from iris.kernel.tasks.wakeup import Wakeup

__all__ = (
    "AT_ONCE", "AtOnce", "CallTasks", "HeldBlock", "HostLoop", "MustEnter", "OutsideCall", "ThreadRunner", "Wakeup",
    "behind_events", "check_not_patched", "checkpoint_after_error", "checkpointed", "close_locked",
    "deadline_for_threads", "effective_deadline", "first_of", "host_loop", "interruptible", "late_names",
    "leave_unprotected", "open_background", "protected_context", "run_in_thread", "thread_deadline",
    "time_left", "try_lock",
)  # fmt: skip
