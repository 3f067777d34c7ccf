"""What the child of a fork keeps of its parent's connections: nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from iris.kernel.transport.port import Refused
from tests.support.transports import SCHEMES, ignore, open_transports, receive, waiting


@contextmanager
def forked() -> Iterator[None]:
    """Have a child for the length of the block, which does nothing."""
    ours, its = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        its.send(b"1")
        its.recv(1)
        os._exit(0)
    its.close()
    assert ours.recv(1) == b"1", "it goes on, and what is to be done in a child is done"
    try:
        yield
    finally:
        ours.close()
        os.waitpid(child, 0)


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_a_child_keeps_neither_the_port_of_its_parent_nor_its_connections(url: str) -> None:
    async with open_transports(3) as (parent, peer, caller):
        (bound,) = await parent.listen([url])
        (other,) = await peer.listen(["tcp://127.0.0.1:0"])
        broken = trio.Event()
        to_parent = await peer.dial(bound, broken.set)
        of_parent = await parent.dial(other, ignore)
        to_parent.send_nowait(b"1")
        of_parent.send_nowait(b"2")
        assert (await receive(parent), await receive(peer)) == (b"1", b"2")
        stack = forked()
        await trio.to_thread.run_sync(stack.__enter__)
        try:
            parent.close()  # as if it had died: the child lives
            with trio.fail_after(30):
                async with waiting(peer):
                    await broken.wait()
            with pytest.raises(Refused):
                await caller.dial(bound, ignore)
        finally:
            stack.__exit__(None, None, None)
            to_parent.close()
            of_parent.close()
