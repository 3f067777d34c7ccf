"""A child of a fork that lives and does nothing."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def forked() -> Iterator[None]:
    """Have a child for the length of the block, which does nothing."""
    ours, its = socket.socketpair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of threads
        child = os.fork()
    if not child:
        ours.close()
        its.send(b"1")  # it has closed what it does not keep
        its.recv(1)
        os._exit(0)
    its.close()
    try:
        ours.recv(1)
        yield
    finally:
        ours.close()
        os.waitpid(child, 0)
