"""Children of forks."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def bare_fork() -> int:
    """Fork as ``os.fork`` does, also beside threads, of which Python 3.12 and later warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def fork(work: Callable[[], bool]) -> int:
    """Fork; return the number of a child that does ``work`` and ends with 0 if that is true, else with 1."""
    child = bare_fork()
    if not child:
        status = 2
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return child


def in_child(check: Callable[[], bool]) -> bool:
    """Fork; return what ``check`` says in the child."""
    status = os.waitstatus_to_exitcode(os.waitpid(fork(check), 0)[1])
    assert status in (0, 1)
    return status == 0


@contextmanager
def forked() -> Iterator[None]:
    """Have a child for the length of the block, which does nothing."""
    ours, its = socket.socketpair()

    def wait() -> bool:
        ours.close()
        its.send(b"1")  # it has closed what it does not keep
        return its.recv(1) == b""

    child = fork(wait)
    its.close()
    try:
        ours.recv(1)
        yield
    finally:
        ours.close()
        os.waitpid(child, 0)
