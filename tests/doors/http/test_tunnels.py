"""The HTTP door: tunnels by WebSocket, throttled by credits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from iris.doors import withdraw
from iris.doors.http import HttpLimits
from tests.support.doors import Place, with_door


def open_tunnel(place: Place, path: str = "greeters", token: str | None = None) -> connect:
    host, port = place.address
    protocols = [Subprotocol("iris.tunnel.1"), Subprotocol(f"iris.token.{token or place.token}")]
    return connect(f"ws://{host}:{port}/tunnel/{path}", subprotocols=protocols, proxy=None)


async def say(socket: ClientConnection, **told: Any) -> None:
    await socket.send(json.dumps(told))


async def hear(socket: ClientConnection) -> Any:
    """Return the next message that is no credit."""
    while True:
        message = await socket.recv()
        if isinstance(message, bytes):
            return message
        told = json.loads(message)
        if "credit" not in told:
            return told


async def ending(socket: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed):  # noqa: PT012
        while True:
            await socket.recv()
    assert socket.close_code is not None
    return socket.close_code, socket.close_reason or ""


@with_door()
async def test_payloads_go_both_ways_until_both_have_ended(place: Place) -> None:
    async with open_tunnel(place) as socket:
        assert socket.subprotocol == "iris.tunnel.1"
        assert json.loads(await socket.recv()) == {"credit": 16}
        await say(socket, credit=100)
        for _ in range(20):  # more than is lent at first
            for payload in (b"\x00", {"payload": {"a": 1}}, {"payload": "eA==", "encoding": "msgpack"}):
                if isinstance(payload, bytes):
                    await socket.send(payload)
                else:
                    await say(socket, **payload)
                heard = await hear(socket)
                assert heard == ({"payload": 120} if "eA==" in str(payload) else payload)
        await say(socket, eof=True)
        assert await hear(socket) == {"eof": True}
        assert await ending(socket) == (1000, "")
    while place.counted.tunnels != ["finished"]:
        await asyncio.sleep(0.01)


@with_door()
async def test_a_client_gets_as_many_as_it_lends(place: Place) -> None:
    async with open_tunnel(place, "greeters?operation=count") as socket:
        await say(socket, credit=3)
        assert [await hear(socket) for _ in range(3)] == [{"payload": number} for number in range(3)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await hear(socket)
        await say(socket, eof=True)
        await say(socket, credit=97)
        assert [await hear(socket) for _ in range(97)] == [{"payload": number} for number in range(3, 100)]
        assert await hear(socket) == {"eof": True}
        assert (await ending(socket))[0] == 1000


@with_door()
async def test_a_client_that_goes_away_breaks_the_tunnel(place: Place) -> None:
    """``run`` bounds the wait for the end of the handler, and asserts that no task is left."""
    async with open_tunnel(place) as socket:
        await socket.recv()
        await socket.close()
    while place.counted.tunnels != ["broken"]:
        await asyncio.sleep(0.01)


WRONG: list[tuple[str | bytes, int, str]] = [
    ("", 4400, "no JSON"), ("{", 4400, "no JSON"), ("1", 4400, "expected a map"),
    ('{"payload": ' + "[" * 900 + "]" * 900 + "}", 4400, "nested"),
    ('{"credit": 0}', 4400, "whole number"), ('{"credit": true}', 4400, "whole number"),
    ('{"credit": 1e400}', 4400, "no JSON"), ('{"credit": 1048577}', 4400, "may be lent"),
    ('{"eof": true, "payload": 1}', 4400, "expected a map"), ('{"payload": 1, "encoding": "x"}', 4400, "encoding"),
    ('{"payload": "\\ud800"}', 4400, "not allowed"), (b"x" * 2001, 1009, ""),
]  # fmt: skip


@with_door(door_limits=HttpLimits(body=2000))
async def test_a_client_that_breaks_the_rules_loses_its_tunnel_alone(place: Place) -> None:
    async with open_tunnel(place) as honest:
        await say(honest, credit=1)
        for wrong, code, text in WRONG:
            async with open_tunnel(place) as socket:
                await socket.recv()
                await socket.send(wrong)
                closed, reason = await ending(socket)
                assert (closed, text in reason) == (code, True), (wrong[:60], closed, reason)
        async with open_tunnel(place) as socket:
            for _ in range(100):  # of which as many as were lent go through while nothing is taken
                await socket.send(b"x" * 1000)
            await say(socket, eof=True)
            await socket.send(b"x")
            assert (await ending(socket))[0] in (4400, 4429)
        await honest.send(b"still")
        assert await hear(honest) == b"still"


@with_door(patched={"iris.doors.clients._REREAD": 0.01})
async def test_a_tunnel_ends_with_its_token(place: Place) -> None:
    following = asyncio.ensure_future(place.clients.follow())
    async with open_tunnel(place) as socket:
        await say(socket, credit=9)
        await socket.send(b"x")
        assert await hear(socket) == b"x"
        withdraw(place.tokens, "web")
        assert await ending(socket) == (4401, "ended: the token has ended, or the door closes")
    following.cancel()


@with_door(rights={"call": ("greeters", "greeters2")})
async def test_who_may_not_or_finds_nobody_is_told(place: Place) -> None:
    for path, code, text in [
        ("greeters2", 4404, "no_such_cluster"), ("others", 4403, "may not call"),
        ("greeters?operation=none", 4404, "no_such_operation"), ("greeters?limit=1", 4400, "no option here"),
        ("greeters?prefer_site=a%20b", 4400, "site"), ("greeters?key=k&operation=none", 4404, "no_such_operation"),
    ]:  # fmt: skip
        async with open_tunnel(place, path) as socket:
            closed, reason = await ending(socket)
            assert (closed, text in reason) == (code, True), (path, closed, reason)
    with pytest.raises(InvalidStatus) as caught:
        async with open_tunnel(place, token="wrong"):
            pass
    assert caught.value.response.status_code == 401
    assert json.loads(caught.value.response.body)["code"] == "wrong_token"
