"""The child of a fork keeps none of its parent's connections."""

from __future__ import annotations

import pytest
import trio

from iris.kernel.transport.port import Refused
from tests.support.forks import forked
from tests.support.transports import SCHEMES, Notified, ignore, open_transports, receive, waiting


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_a_child_keeps_neither_the_port_of_its_parent_nor_its_connections(url: str) -> None:
    async with open_transports(3) as (parent, peer, caller):
        (bound,) = await parent.listen([url])
        (other,) = await peer.listen(["tcp://127.0.0.1:0"])
        broken = trio.Event()
        to_parent = await peer.dial(bound, Notified(broken.set))
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
