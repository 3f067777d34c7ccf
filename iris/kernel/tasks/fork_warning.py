"""Fork warning: a process that forks inside of a running trio run is told what comes of it.

The child shares the epoll instance and the wake-up socket of trio with its parent.  If it goes on running, it takes
wake-ups that were the parent's, which then stands still.  Python has no hook that could refuse a fork.
"""

from __future__ import annotations

import logging
import os
from typing import Final

import trio

_log: Final = logging.getLogger("iris")


def _warn() -> None:
    if trio.lowlevel.in_trio_run():
        _log.warning(
            "this process was forked while trio runs: a child that goes on running takes events of this one, which "
            "then hangs; have it call os._exit() or os.exec*() at once, or use trio.run_process",
            extra={"cause": "fork"},
        )


os.register_at_fork(after_in_parent=_warn)
