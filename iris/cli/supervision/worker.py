"""This process as a worker: what it says to its supervisor, and that it does not outlive it.

A supervisor hands its worker one end of a pair of sockets, whose number and the worker's place are in ``IRIS_WORKER``.
The worker takes the variable out of its environment, and programs that it starts get neither.

A signal has a worker leave, and another one changes nothing: systemd and terminals send theirs to the supervisor and to
its workers alike, so a worker cannot tell whether somebody insists.  Its supervisor can, and kills it.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from types import FrameType
from typing import Final, NamedTuple, final

from iris.cli.printable import write_note
from iris.kernel.errors import ConfigError

VARIABLE: Final = "IRIS_WORKER"

SERVING: Final = b"serving"
FAILED: Final = b"failed "
"""Lines of a worker; what follows the second one is the error."""

GRACE: Final = 10.0
"""Seconds beyond the drain time that a worker has to say goodbye and to end its lifespan."""

LONGEST: Final = 4096
"""Bytes of an error that are passed on."""


class Place(NamedTuple):
    """Ports of a worker beside others of one command line.

    Attributes:
        listen: how many ports above those of ``--listen``: the lowest number that no other worker has.
        metrics: how many ports above that of ``--metrics``.
        follows: True if another worker has that one until it has left.
    """

    listen: int
    metrics: int
    follows: bool

    def __str__(self) -> str:
        return ":".join(str(int(number)) for number in self)


@final
class Worker:
    """This process under a supervisor.

    Args:
        supervisor: number of this end of the pair of sockets.
        place: its ports.
    """

    def __init__(self, supervisor: int, place: Place) -> None:
        self.place: Final = place
        self._supervisor = supervisor
        self._serving = False

    def announce(self) -> None:
        """Say that this process serves: all of its services are joined."""
        self._serving = True
        self._say(SERVING)

    def failed(self, error: str) -> bool:
        """Say why this process ends; False once it has served: its own log tells that."""
        return not self._serving and self._say(FAILED + " ".join(error.split()).encode()[:LONGEST])

    def follow(self, drain_timeout: float) -> None:
        """Leave as by SIGTERM when the supervisor is gone, from now on, and ignore SIGHUP, which is for the supervisor.

        It is a thread that watches, so that a worker ends in time whose event loop does not run yet, or never again.

        Args:
            drain_timeout: seconds for what has begun; ``GRACE`` later the process ends at once.
        """
        signal.signal(signal.SIGHUP, _ignore)
        threading.Thread(target=self._watch, args=(drain_timeout + GRACE,), name="supervisor", daemon=True).start()

    def _say(self, line: bytes) -> bool:
        try:
            os.write(self._supervisor, line + b"\n")
        except OSError:  # it is gone, and the thread sees that
            return False
        return True

    def _watch(self, patience: float) -> None:
        try:
            while os.read(self._supervisor, 1):
                pass
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)  # first: nobody may read what is written
        write_note("the supervisor is gone: leaving")
        time.sleep(patience)
        os._exit(1)


def _ignore(_: int, __: FrameType | None) -> None:
    """Do nothing: unlike with SIG_IGN, programs that this process starts are as before."""


class Invocation(NamedTuple):
    """Arguments of the command that started this process, and the worker that it is, if it is one."""

    arguments: tuple[str, ...]
    worker: Worker | None


def worker_of_environment() -> Worker | None:
    """Return the worker that this process is; None if no supervisor has started it.

    Raises:
        ConfigError: somebody else has set the variable.
    """
    value = os.environ.pop(VARIABLE, None)
    if value is None:
        return None
    try:
        number, listen, metrics, follows = map(int, value.split(":"))
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            raise ValueError(number)
        os.set_inheritable(number, False)
    except (OSError, ValueError, OverflowError):
        raise ConfigError(f"{VARIABLE} is {value!r}: remove it, 'iris run --workers' alone sets it") from None
    return Worker(number, Place(listen, metrics, bool(follows)))
