"""Rates of a token: what its bearer sends beyond them is refused or waits, at every door, and is counted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import mqtt5
import pynng
import pytest
from mqtt5 import PublishPacket
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

import iris
import iris.aio
from iris.doors import grant
from iris.doors.clients import Clients
from iris.doors.tokens import load_tokens
from iris.kernel.errors import ConfigError
from tests.doors.mqtt.place import open_place as open_mqtt_place
from tests.doors.nng.place import open_place as open_nng_place
from tests.support.async_tests import in_realm, on_asyncio, run_in_realm
from tests.support.doors import NOW, open_place

EVERYTHING = {"call": (">",), "publish": (">",), "subscribe": (">",)}


def test_a_token_keeps_its_rates_and_others_have_none(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    grant(tokens, "slow", call=(">",), rate=5, rate_bytes=1e6)
    grant(tokens, "plain", call=(">",))
    loaded = load_tokens(tokens)
    assert (loaded["slow"].rate, loaded["slow"].rate_bytes) == (5, 1e6)
    assert (loaded["plain"].rate, loaded["plain"].rate_bytes) == (None, None)
    assert "rate" not in json.loads(tokens.read_text())["tokens"]["plain"]
    for rate in (0, -1, float("nan"), float("inf"), "many", True):
        with pytest.raises(ConfigError, match=r"rate is .*: use 0\.001 to 1e\+12 a second"):
            grant(tokens, "wrong", rate=rate)  # type: ignore[arg-type]
    tokens.write_text(tokens.read_text().replace('"rate": 5', '"rate": 0'))
    with pytest.raises(ConfigError, match="rate is 0"):
        Clients(tokens, lambda: NOW)


def test_a_token_says_how_many_subscriptions_its_bearer_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in (0, 4097, True, "7"):
        with pytest.raises(ConfigError, match="a whole number from 1 to 4096"):
            grant(tmp_path / "tokens", "wrong", subscriptions=wrong)  # type: ignore[arg-type]

    async def main() -> None:
        async with open_mqtt_place(tmp_path, rights={**EVERYTHING, "subscriptions": 66}) as place:
            assert load_tokens(place.tokens)["sensor"].subscriptions == 66
            async with place.client() as raw:
                assert await raw.follow(*(f"a/{number}" for number in range(67))) == [0] * 66 + [0x97]

    run_in_realm(tmp_path, monkeypatch, main)


@in_realm
async def test_calls_by_http_beyond_the_rate_are_refused_with_a_time(tmp_path: Path) -> None:
    async with open_place(tmp_path, rights={**EVERYTHING, "rate": 0.01}) as place:
        assert (await place.post("/request/greeters")).status == 200
        for path in ("request/greeters", "broadcast/greeters", "survey/greeters", "publish/a"):
            refused = await place.post(f"/{path}", b"x")
            assert (refused.status, refused.json()["code"]) == (429, "too_fast"), path
            assert 90 <= int(refused.headers["retry-after"]) <= 100
        assert place.door.statistics().refused[429] == 4


@in_realm
async def test_bytes_count_whatever_their_form(tmp_path: Path) -> None:
    async with open_place(tmp_path, rights={**EVERYTHING, "rate_bytes": 1000}) as place:
        assert (await place.post("/request/greeters", b"x" * 100_000)).status == 200
        refused = await place.post("/request/greeters", {})
        assert (refused.status, refused.json()["retry_after"]) == (429, pytest.approx(99, abs=2))


@in_realm
async def test_headers_count_as_bytes_do(tmp_path: Path) -> None:
    async with open_place(tmp_path, rights={**EVERYTHING, "rate_bytes": 100}) as place:
        answer = await place.fetch("POST", "/request/greeters", b"", {**place.bearer, "iris-header-note": "x" * 8000})
        assert answer.status == 200
        refused = await place.post("/request/greeters", {})
        assert (refused.status, refused.json()["retry_after"]) == (429, pytest.approx(79, abs=2))


@in_realm
async def test_user_properties_count_as_bytes_do(tmp_path: Path) -> None:
    async with open_mqtt_place(tmp_path, rights={**EVERYTHING, "rate_bytes": 1000}) as place:
        async with place.client() as raw, place.member.subscribe("a") as events:
            raw.send(PublishPacket("a", b"", user_properties=[("note", "x" * 2000)]))
            await anext(events)
            began = asyncio.get_running_loop().time()
            raw.send(PublishPacket("a", b"x"))
            await anext(events)
            assert asyncio.get_running_loop().time() - began >= 0.9, "2,004 bytes, of which 1,000 at once"
        assert place.door.statistics().paused == 1


@in_realm
async def test_tunnels_are_opened_at_the_rate(tmp_path: Path) -> None:
    async with open_place(tmp_path, rights={**EVERYTHING, "rate": 0.01}) as place:
        protocols = [Subprotocol("iris.tunnel.1"), Subprotocol(f"iris.token.{place.token}")]
        url = "ws://{}:{}/tunnel/greeters".format(*place.address)
        async with connect(url, subprotocols=protocols, proxy=None) as socket:
            await socket.recv()  # credit: it is open
            async with connect(url, subprotocols=protocols, proxy=None) as other:
                await other.wait_closed()
                assert (other.close_code, (other.close_reason or "")[:8]) == (4429, "too_fast")


@pytest.mark.parametrize("what", ["take/jobs", "read?topic=orders", "lease/door/leader", "serve/orders"])
def test_programs_open_what_they_want_at_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    rights: Any = {"call": (">",), "take": ("jobs",), "read": ("orders",), "lease": ("door/>",), "serve": ("orders",)}

    async def main() -> None:
        async with open_place(tmp_path, rights={**rights, "rate": 0.01}, bridge="bridge") as place:
            assert (await place.post("/request/greeters")).status == 200
            path, _, query = what.partition("?")
            protocols = [Subprotocol(f"iris.{path.partition('/')[0]}.1"), Subprotocol(f"iris.token.{place.token}")]
            url = "ws://{}:{}/".format(*place.address) + path + (f"?{query}" if query else "")
            async with connect(url, subprotocols=protocols, proxy=None) as socket:
                await socket.wait_closed()
                assert (socket.close_code, (socket.close_reason or "")[:8]) == (4429, "too_fast")
            refused = await place.fetch("GET", "/subscribe?topic=a")
            assert (refused.status, refused.json()["code"]) == (429, "too_fast")

    run_in_realm(tmp_path, monkeypatch, main)


@pytest.mark.parametrize("kind", ["reply", "error"])
def test_what_a_program_answers_waits_for_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    async def main() -> None:
        async with open_place(tmp_path, rights={"serve": ("orders",), "rate": 2}) as place:
            protocols = [Subprotocol("iris.serve.1"), Subprotocol(f"iris.token.{place.token}")]
            url = "ws://{}:{}/serve/orders".format(*place.address)
            async with connect(url, subprotocols=protocols, proxy=None) as socket, asyncio.TaskGroup() as tasks:
                await socket.recv()
                await place.member.wait_for("orders")
                asking = [tasks.create_task(ask(place.member)) for _ in range(5)]
                began = asyncio.get_running_loop().time()
                for _ in asking:
                    number = json.loads(await socket.recv())["id"]
                    await socket.send(json.dumps({"type": kind, "id": number, "payload": 1, "code": "no-tea"}))
                replies = await asyncio.gather(*asking)
                assert replies == [1 if kind == "reply" else "no-tea"] * 5
                assert asyncio.get_running_loop().time() - began >= 1.4, "2 at once, and 3 more in a second and a half"
            assert place.door.statistics().paused >= 2

    async def ask(node: iris.aio.Node) -> object:
        try:
            return await node.request("orders", 1, timeout=30)
        except iris.RemoteError as error:
            return error.code

    run_in_realm(tmp_path, monkeypatch, main)


@in_realm
async def test_messages_of_a_tunnel_wait_for_the_rate(tmp_path: Path) -> None:
    async with open_place(tmp_path, rights={**EVERYTHING, "rate": 10}) as place:
        protocols = [Subprotocol("iris.tunnel.1"), Subprotocol(f"iris.token.{place.token}")]
        url = "ws://{}:{}/tunnel/greeters".format(*place.address)
        loop = asyncio.get_running_loop()
        async with connect(url, subprotocols=protocols, proxy=None) as socket:
            await socket.send('{"credit": 100}')
            began, heard, sent, lent = loop.time(), 0, 0, 0
            while heard < 30:
                message = await socket.recv()
                heard += isinstance(message, bytes)
                if isinstance(message, str):
                    lent += json.loads(message)["credit"]
                while sent < min(lent, 30):
                    await socket.send(b"x")
                    sent += 1
            assert loop.time() - began >= 1.9, "10 at once, and 20 more in two seconds"
            assert place.door.statistics().paused >= 1


@in_realm
async def test_messages_of_mqtt_wait_and_all_are_published(tmp_path: Path) -> None:
    async with open_mqtt_place(tmp_path, rights={**EVERYTHING, "rate": 10}) as place:
        loop = asyncio.get_running_loop()
        async with place.client() as raw, place.member.subscribe("a") as events:
            began = loop.time()
            for _ in range(60):
                raw.send(PublishPacket("a", b"x"))
            for _ in range(60):
                await anext(events)
            assert loop.time() - began >= 1.85, "10 at once, and all but the last 32 of the others in their time"
            raw.send(mqtt5.PingReqPacket())
            assert isinstance(await raw.hear(), mqtt5.PingRespPacket)
        assert place.door.statistics().published == 60
        assert place.door.statistics().paused >= 1


@in_realm
async def test_a_will_counts_as_any_message(tmp_path: Path) -> None:
    async with open_mqtt_place(tmp_path, rights={**EVERYTHING, "rate": 0.01}) as place:
        for _ in range(3):
            async with place.dial() as raw:
                await raw.join(place.token, will=mqtt5.Will("a", payload=b"gone"))
        while place.door.statistics().published + place.door.statistics().refused[429] < 3:
            await asyncio.sleep(0.01)
        assert (place.door.statistics().published, place.door.statistics().refused[429]) == (1, 2)


@in_realm
async def test_req_and_surveyor_of_nng_are_refused_and_push_waits(tmp_path: Path) -> None:
    async with open_nng_place(tmp_path, rights={**EVERYTHING, "rate": 0.1}) as place:
        with (
            await place.socket(pynng.Req0, "req") as req,
            await place.socket(pynng.Surveyor0, "surveyor") as surveyor,
            await place.socket(pynng.Push0, "push") as push,
        ):
            await req.asend(b"greeters")
            assert await req.arecv() == b"200 bytes\n"
            await req.asend(b"greeters")
            assert (await req.arecv()).startswith(b"429 too_fast")
            await surveyor.asend(b"greeters")
            assert (await surveyor.arecv()).startswith(b"429 too_fast")
            async with place.member.subscribe("a") as events:
                await push.asend(b"a")
                await anext(events)
        assert (place.door.statistics().paused, place.door.statistics().refused[429]) == (1, 2)


@on_asyncio()
async def test_who_waits_for_the_rate_of_a_token_that_is_replaced_waits_no_more(tmp_path: Path) -> None:
    """As PUSH of nng does: its socket is the client's also under another token."""
    tokens = tmp_path / "tokens"
    grant(tokens, "slow", rate=0.001)
    clients = Clients(tokens, lambda: NOW)
    client = clients.named("slow")
    assert not await client.pace(0)
    waiting = asyncio.create_task(client.pace(0))
    await asyncio.sleep(0)
    grant(tokens, "slow", rate=100)
    clients.reload()
    async with asyncio.timeout(5):
        assert await waiting
