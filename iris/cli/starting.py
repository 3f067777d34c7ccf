"""Start and exit of the ``iris`` command: quiet, also when Ctrl-C comes while its modules load or when it is done.

Loading takes a third of a second, before anything of the command runs that could catch ``KeyboardInterrupt``.  Programs
that import Iris are not concerned: there it is raised as Python does it.  SIGHUP, by which a supervisor is told to
replace its workers, does not end it meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path, PurePath
from types import FrameType

INTERRUPTED = 130

_TERMINAL = "/dev/tty"


def is_command() -> bool:
    """Return whether this process is the command, or a process of it: ``iris`` or ``python -m iris``."""
    program = PurePath(sys.argv[0] if sys.argv else "")
    return program.stem == "iris" or program.parts[-2:] == ("iris", "__main__.py")


def exit_when_interrupted() -> None:
    """Have SIGINT end this process at once, unless it is ignored or has another handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_when_interrupted() -> None:
    """Have SIGINT raise ``KeyboardInterrupt`` again."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_early_hang_ups() -> None:
    """Have SIGHUP do nothing while a supervisor loads: the workers that it will start are new.

    One that comes because the terminal is gone ends the process, as if nothing had been done about it.
    """
    supervises = "run" in sys.argv and any(argument.startswith("--workers") for argument in sys.argv)
    if supervises and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        had_terminal = has_terminal()

        def hang_up(number: int, _: FrameType | None) -> None:
            if had_terminal and not has_terminal():
                os._exit(128 + number)

        signal.signal(signal.SIGHUP, hang_up)


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal: after a hang-up it has none any more."""
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return Path(_TERMINAL).exists()


def _exit(_: int, __: FrameType | None) -> None:
    os._exit(INTERRUPTED)
