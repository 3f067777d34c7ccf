"""Reverse connections that are waited for, without a network: who gets which, and what comes to nobody."""

from __future__ import annotations

import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from iris.kernel.errors import NotSent
from iris.kernel.transport.reverse_accept import PendingReverseTable
from iris.kernel.transport.websocket import PUSH, ClientUpgrade, ServerUpgrade, WebSocketListener

TOKEN = "ab" * 16


def connection() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    far.setblocking(False)
    return near, far


def framing() -> object:
    asked = ServerUpgrade(100)
    asked.receive(ClientUpgrade("ws://h:1/", PUSH, 100).request)
    return asked.accept(PUSH)


async def test_a_token_is_claimed_once_and_given_to_who_waits() -> None:
    tokens = PendingReverseTable()
    near, far = connection()
    with near, far:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                assert (await tokens.wait(TOKEN))[0] is near

            assert tokens.claim(TOKEN) is None
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            awaited = tokens.claim(TOKEN)
            assert awaited is not None
            assert tokens.claim(TOKEN) is None
            with pytest.raises(NotSent):
                await tokens.wait(TOKEN)
            awaited.hand_over(near, framing())  # type: ignore[arg-type]
        assert tokens.claim(TOKEN) is None


@pytest.mark.parametrize("is_there", [False, True])
async def test_what_comes_to_nobody_is_closed(is_there: bool) -> None:
    """Also if it has come just when the wait was given up."""
    tokens = PendingReverseTable()
    near, far = connection()
    with far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tokens.wait, TOKEN)
            await wait_all_tasks_blocked()
            awaited = tokens.claim(TOKEN)
            assert awaited is not None
            nursery.cancel_scope.cancel()
            if is_there:
                awaited.hand_over(near, framing())  # type: ignore[arg-type]
        if not is_there:
            awaited.hand_over(near, framing())  # type: ignore[arg-type]
        assert far.recv(1) == b""
        assert not tokens._awaited


async def test_who_has_lost_his_place_before_he_was_seen_has_not_used_the_token_up() -> None:
    tokens = PendingReverseTable()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tokens.wait, TOKEN)
        await wait_all_tasks_blocked()
        awaited = tokens.claim(TOKEN)
        assert awaited is not None
        awaited.is_claimed = False
        assert tokens.claim(TOKEN) is awaited
        nursery.cancel_scope.cancel()


async def test_who_asks_for_another_kind_of_connection_does_not_use_the_token_up() -> None:
    tokens = PendingReverseTable()
    door = WebSocketListener(100, tokens)
    door.paths.add("/iris")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tokens.wait, TOKEN)
        await wait_all_tasks_blocked()
        for kind, is_taken in (("pull.sp.nanomsg.org", False), (PUSH, True), (PUSH, False)):
            near, far = connection()
            with near, far:
                near.setblocking(False)
                far.send(ClientUpgrade(f"ws://h:1/iris/{TOKEN}", kind, 100).request)
                greeting = door.greet()
                greeting.receive(near)
                assert far.recv(100).startswith(b"HTTP/1.1 101 " if is_taken else b"HTTP/1.1 40")
                assert (greeting.awaited is not None) == is_taken
        nursery.cancel_scope.cancel()
