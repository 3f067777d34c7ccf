"""Reverse connections at a port that strangers know: half tokens, guesses, doubles, and ends at every step."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import iris.testing
from iris.kernel.transport.port import OutgoingConnection
from iris.kernel.transport.sp import ANSWER, GREETING
from tests.support.transports import check_idle, ignore, open_transports, receive, waiting

TOKEN: Final = "00ff" * 8
URL: Final = "tcp://127.0.0.1:0"


class Observed:
    """Who is told of connections, as a node is."""

    def connection_opened(self, connection: int, address: str | None) -> None:
        """See ``ConnectionObserver``."""

    def connection_closed(self, connection: int) -> None:
        """See ``ConnectionObserver``."""

    def connections_refused(self, count: int) -> None:
        """See ``ConnectionObserver``."""


def come(url: str, said: bytes) -> socket.socket:
    """Connect as a stranger, and say something."""
    connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
    connection.sendall(said)
    return connection


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def send(way: OutgoingConnection, frame: bytes) -> None:
    while not way.send_nowait(frame):
        await way.wait_writable()


async def test_strangers_with_half_and_guessed_tokens_keep_nobody_out_and_get_nothing() -> None:
    async with open_transports(2) as (office, home):
        (url,) = await office.listen([URL])
        home.observe(Observed())
        office.observe(Observed())
        (await home.dial(url, ignore)).close()
        halves = [come(url, ANSWER + TOKEN[:31].encode()) for _ in range(100)]
        guesses = [come(url, ANSWER + secrets.token_hex(16).encode()) for _ in range(100)]
        incoming = home.dial_reverse(url, TOKEN, ignore)
        async with waiting(home), waiting(office):
            outgoing = await office.accept_reverse(TOKEN, ignore)
        doubles = [come(url, ANSWER + TOKEN.encode()) for _ in range(20)]
        for number in range(20):
            await send(outgoing, b"%d" % number)
            assert await receive(home) == b"%d" % number
        for stranger in (*guesses, *doubles):
            stranger.settimeout(5)
            assert await trio.to_thread.run_sync(_rest, stranger) == b"", "it is closed without a word"
        assert office.statistics().unauthenticated <= 100
        for stranger in (*halves, *guesses, *doubles):
            stranger.close()
        outgoing.close()
        incoming.close()
        async with waiting(home), waiting(office):
            while office.statistics().unauthenticated or home.statistics().reported:  # noqa: ASYNC110
                await trio.sleep(0.01)
        check_idle(home)
        check_idle(office)


def _rest(connection: socket.socket) -> bytes:
    try:
        return connection.recv(len(GREETING))
    except ConnectionResetError:
        return b""


@pytest.mark.long
async def test_an_end_at_every_step_leaves_nothing() -> None:
    async with open_transports(2) as (office, home):
        (url,) = await office.listen([URL])
        home.observe(Observed())
        office.observe(Observed())
        (await home.dial(url, ignore)).close()
        async with waiting(home), waiting(office):
            await trio.sleep(0.05)
        before = descriptors()
        for step in range(60):
            token = f"{step:032x}"
            incoming = home.dial_reverse(url, token, ignore)
            way: OutgoingConnection | None = None
            async with waiting(home), waiting(office):
                with trio.move_on_after(step % 30 * 0.001):
                    way = await office.accept_reverse(token, ignore)
                if step < 30:
                    incoming.close()
                if way is not None:
                    way.close()
                await trio.sleep(0.002 * (step % 3))
            incoming.close()
        async with waiting(home), waiting(office), trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = trio.current_time() + 5
            while descriptors() > before:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert descriptors() <= before
        check_idle(home)
        check_idle(office)


async def test_who_listens_for_good_keeps_nothing_of_the_addresses_of_others() -> None:
    """A member may come by another address each time."""
    peers: list[Any] = [SimpleNamespace(reached=f"tcp://10.0.0.1:{number}") for number in range(1, 1000)]
    async with iris.testing.open_network() as network, network.open_parts("office") as (_, parts):
        await wait_all_tasks_blocked()
        assert parts.reception._is_fixed
        for peer in peers:
            parts.reception.peer_connected(peer)
        assert len(parts.reception._unseen) == 0
