"""Real nng understands what nodes send over TCP and Unix sockets, and they understand it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pynng
import pytest
import trio

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import NotSent
from tests.support.ports import free_port
from tests.support.transports import ignore, open_transports, receive, waiting

FRAMES = [bytes([size % 251]) * size for size in (1, 7, 8, 9, 1023, 1024, 1025, 64 * KIB, 256 * KIB, MIB, 2)]
"""No empty one: pynng receives none."""


@pytest.fixture(params=["tcp", "ipc"])
def free(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return an address at which nobody listens."""
    if request.param == "ipc":
        return f"ipc://{tmp_path}/nng"
    return f"tcp://127.0.0.1:{free_port()}"


async def test_a_push_of_nng_sends_to_a_node(free: str) -> None:
    async with open_transports() as (transport,):
        (url,) = await transport.listen([free])
        with pynng.Push0(send_buffer_size=len(FRAMES) + 1) as push:
            push.dial(url, block=True)
            for frame in (b"", *FRAMES):
                push.send(frame)
            assert [await receive(transport) for _ in (b"", *FRAMES)] == [b"", *FRAMES]


async def test_a_node_sends_to_a_pull_of_nng(free: str) -> None:
    with pynng.Pull0(recv_max_size=2 * MIB, recv_timeout=60_000) as pull:
        pull.listen(free)
        async with open_transports() as (transport,):
            way = await transport.dial(free, ignore)

            async def send() -> None:
                for frame in FRAMES:
                    while not way.send_nowait(frame):
                        await way.wait_writable()

            async with waiting(transport), trio.open_nursery() as nursery:
                nursery.start_soon(send)
                received = [await trio.to_thread.run_sync(pull.recv) for _ in FRAMES]
            assert received == FRAMES
            way.close()


async def test_sockets_of_nng_that_are_no_pull_and_push_are_none_for_a_node(free: str) -> None:
    async with open_transports() as (transport,):
        with pynng.Rep0(recv_max_size=KIB) as rep:
            rep.listen(free)
            with pytest.raises(NotSent, match="does not greet as a node does"):
                await transport.dial(free, ignore)
    async with open_transports() as (transport,):
        (url,) = await transport.listen([free])
        with pynng.Req0(recv_max_size=KIB) as req, pytest.raises(pynng.NNGException):
            req.dial(url, block=True)


@pytest.mark.skipif(shutil.which("nngcat") is None, reason="nngcat is not installed: apt install nng-utils")
async def test_nngcat_sends_to_a_node(free: str) -> None:
    async with open_transports() as (transport,):
        (url,) = await transport.listen([free])
        await trio.run_process(["nngcat", "--push", "--dial", url, "--data", "by hand"])
        assert await receive(transport) == b"by hand"
