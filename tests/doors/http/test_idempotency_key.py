"""``Idempotency-Key`` at the HTTP door, shown by curl: a request with one is done once for each client."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import iris.aio
from iris.doors import grant
from tests.support.bridges import open_aio_bridge
from tests.support.doors import Place, with_door

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: apt install curl")


class Bank:
    """A service that counts what it has done; an order to ``wait`` ends on demand."""

    def __init__(self) -> None:
        self.done: list[tuple[object, str | None]] = []
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    def service(self) -> iris.Service:
        service = iris.Service("bank", outcomes=iris.Outcomes(keep=3600))

        @service.request
        async def pay(request: iris.Request) -> object:
            if request.payload == "wait":
                self.begun.set()
                await self.go_on.wait()
            if request.payload == "fail":
                raise iris.RemoteError("no_money", "there is none")
            self.done.append((request.payload, request.idempotency_key))
            return len(self.done)

        return service


async def curl(place: Place, path: str, body: object, *headers: str, token: str = "") -> tuple[int, Any]:
    """Post JSON; return the status, and the answer or the code of the problem."""
    sent = (f"Authorization: Bearer {token or place.token}", "Content-Type: application/json", *headers)
    options = [part for header in sent for part in ("-H", header)]
    process = await asyncio.create_subprocess_exec(
        *("curl", "-sS", "-w", "\n%{http_code}", "-d", json.dumps(body), *options, place.url + path),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    text, _, status = out.decode().rpartition("\n")
    answer: Any = json.loads(text)
    return int(status), answer if int(status) == 200 else answer["code"]


@with_door()
async def test_a_request_with_a_key_is_done_once_for_each_client(place: Place, tmp_path: Path) -> None:
    key = 'Idempotency-Key: "order-7"'
    other = grant(place.tokens, "other", call=(">",))
    place.clients.reload()
    bank = Bank()
    async with (
        iris.aio.open_node("bridge") as serving,
        open_aio_bridge(serving, topics=["x"], directory=tmp_path / "log"),
        iris.aio.open_node("bank") as member,
        member.join("bank", bank.service()),
    ):
        await place.node.wait_for("bank")
        address = "/request/bank?timeout=40"
        assert [await curl(place, address, "30", key) for _ in range(3)] == [(200, 1)] * 3
        assert await curl(place, address, "31", key) == (422, "key_reused")
        assert await curl(place, address, "31", key, token=other) == (200, 2)
        assert await curl(place, address, "30", 'Idempotency-Key: "a \\"b\\" \\\\"') == (200, 3)
        assert [key for _, key in bank.done] == ["web/order-7", "other/order-7", 'web/a "b" \\']
        # A failure is an outcome as well.
        failing = 'Idempotency-Key: "f"'
        assert [await curl(place, address, "fail", failing) for _ in range(2)] == [(502, "no_money")] * 2
        # One that comes while the first is at work gets its outcome, or runs out of time.
        slow = 'Idempotency-Key: "slow"'
        first = asyncio.ensure_future(curl(place, address, "wait", slow))
        await bank.begun.wait()  # whose time is over ends the work, if it is the first
        again = asyncio.ensure_future(curl(place, address, "wait", slow))
        assert await curl(place, "/request/bank?timeout=1", "wait", slow) == (504, "timeout")
        bank.go_on.set()
        assert [await first, await again] == [(200, 4)] * 2
        assert len(bank.done) == 4


@pytest.mark.parametrize(
    "keys",
    [
        ("order-7",),
        ('""',),
        ('"a" "b"',),
        ('"a";b=1',),
        ('"a\\x"',),
        ('"a', ),
        ('"\u00e4"',),
        ('"a"', '"b"'),
        ('"' + "x" * 253 + '"',),
    ],
)  # fmt: skip
@with_door()
async def test_what_is_no_key_is_refused(place: Place, keys: tuple[str, ...]) -> None:
    told = [f"Idempotency-Key: {key}" for key in keys]
    assert await curl(place, "/request/greeters", "x", *told) == (400, "malformed")


@with_door()
async def test_where_nothing_is_done_once_a_key_is_refused(place: Place) -> None:
    for path in ("/survey/greeters", "/broadcast/greeters", "/publish/news.a"):
        assert await curl(place, path, "x", 'Idempotency-Key: "a"') == (400, "malformed")
    assert await curl(place, "/request/greeters", "x", 'Idempotency-Key: "a"') == (400, "no_outcomes")
    assert not place.counted.told
