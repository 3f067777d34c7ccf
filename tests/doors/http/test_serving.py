"""The HTTP door: programs that serve a cluster by WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

import iris
import iris.aio
from iris.doors import grant, withdraw
from iris.doors.clients import ClientLimits
from iris.patterns.request import DRAINING
from iris.patterns.service import Unserved
from tests.doors.http.program import Program
from tests.support.door_messages import check
from tests.support.doors import Place, Run, with_door
from tests.support.walks import Calls, documented
from tests.support.walks import check as check_walk

PROTOCOL = Subprotocol("iris.serve.1")
RIGHTS = {"call": (">",), "serve": ("orders", "others")}


class Server(Program):
    """A program that serves; what it receives is as the pages say."""

    async def next(self) -> dict[str, Any]:
        read = await super().next()
        check("door", read)
        return read

    async def send_bytes(self, payload: bytes, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}).encode() + b"\n" + payload)


@asynccontextmanager
async def dialled(place: Place, path: str = "orders", token: str | None = None) -> AsyncGenerator[Server]:
    url = f"ws://{place.address[0]}:{place.address[1]}/serve/{path}"
    bearer = {"authorization": f"Bearer {token or place.token}"}
    async with connect(
        url, additional_headers=bearer, subprotocols=[PROTOCOL], max_queue=None, ping_interval=None
    ) as socket:
        yield Server(socket)


@asynccontextmanager
async def serving(place: Place, path: str = "orders", token: str | None = None) -> AsyncGenerator[Server]:
    async with dialled(place, path, token) as program:
        ready = await program.next()
        assert ready["type"] == "ready"
        await place.member.wait_for(path.partition("?")[0])
        yield program


async def serve_all(program: Server, seconds: float = 0.0) -> None:
    """Answer every request by its payload, each after a while."""

    async def answer(asked: dict[str, Any]) -> None:
        await asyncio.sleep(seconds)
        await program.send("reply", id=asked["id"], payload=asked["payload"])

    async with asyncio.TaskGroup() as tasks:
        while True:
            asked = await program.next()
            if asked["type"] == "request":
                tasks.create_task(answer(asked))


@with_door(rights=RIGHTS)
async def test_a_program_answers_requests(place: Place) -> None:
    async with serving(place) as program:
        asking = asyncio.create_task(
            place.member.request("orders", {"tea": 2}, operation="price", headers={"trace": "7"}, timeout=3)
        )
        asked = await program.next()
        assert 2 < asked.pop("timeout") <= 3
        assert asked == {
            "type": "request", "id": 1, "sender": "greeters", "node": str(place.member.id),
            "headers": {"trace": "7"}, "operation": "price", "payload": {"tea": 2},
        }  # fmt: skip
        await program.send("reply", id=1, payload=[3.5])
        assert await asking == [3.5]
        asking = asyncio.create_task(place.member.request("orders", b"\n\x00"))
        asked = await program.next()
        assert (asked["payload"], "operation" in asked) == (b"\n\x00", False)
        await program.send_bytes(b"\n\n", "reply", id=asked["id"])
        assert await asking == b"\n\n"


@with_door(rights=RIGHTS)
async def test_the_documented_walk_is_the_way_that_a_request_takes(place: Place) -> None:
    calls = Calls()

    async def ask(program: Program, payload: str) -> None:
        asking = asyncio.create_task(place.member.request("orders", payload))
        asked = await program.next()
        await program.send("reply", id=asked["id"], payload=payload)
        assert await asking == payload

    async with serving(place) as program:
        await ask(program, "first")
        with calls.noted():
            await ask(program, "second")
    check_walk(documented("The walk of a request that a program serves"), calls)


@with_door(rights=RIGHTS)
async def test_an_error_reaches_its_caller_and_a_reply_to_nobody_nobody(place: Place) -> None:
    async with serving(place) as program:
        await program.send("reply", id=99, payload=1)
        await program.send("done", id=99)
        await program.send("close", id=99)
        asking = asyncio.create_task(place.member.request("orders", 1, timeout=60))
        asked = await program.next()
        await program.send("error", id=asked["id"], code="no-tea", detail="there is none")
        with pytest.raises(iris.RemoteError, match="no-tea: there is none"):
            await asking
        await program.send("reply", id=asked["id"], payload="late")
        asking = asyncio.create_task(place.member.request("orders", 2, timeout=60))
        asked = await program.next()
        await program.send("reply", id=asked["id"], payload=2)
        assert await asking == 2


@with_door(rights=RIGHTS)
async def test_who_waits_no_more_is_told_to_the_program(place: Place) -> None:
    """By its own will, and because the time is over."""
    async with serving(place) as program:
        asking = asyncio.create_task(place.member.request("orders", 1, timeout=60))
        asked = await program.next()
        asking.cancel()
        assert await program.next() == {"type": "cancel", "id": asked["id"]}
        asking = asyncio.create_task(place.member.request("orders", 1, timeout=1))
        asked = await program.next()
        with pytest.raises(iris.RequestTimeout):
            await asking
        assert await program.next() == {"type": "cancel", "id": asked["id"]}


@with_door(rights=RIGHTS)
async def test_a_program_has_as_many_requests_as_it_takes(place: Place) -> None:
    async with serving(place, "orders?capacity=2") as program, asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(place.member.request("orders", number, timeout=60))
        first = [await program.next(), await program.next()]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await program.next()
        for asked in first:
            await program.send("reply", id=asked["id"], payload=None)
        for _ in range(3):
            asked = await program.next()
            await program.send("reply", id=asked["id"], payload=None)


@with_door(rights=RIGHTS)
async def test_a_broadcast_and_a_survey_reach_every_program(place: Place) -> None:
    async with serving(place) as one, serving(place) as other:
        await place.member.broadcast("orders", {"all": True})
        for program in (one, other):
            told = await program.next()
            assert (told["type"], told["sender"], told["payload"]) == ("broadcast", "greeters", {"all": True})
            await program.send("done", id=told["id"])
        async with asyncio.TaskGroup() as tasks:
            serve = [tasks.create_task(serve_all(program)) for program in (one, other)]
            async with place.member.survey("orders", 7, timeout=60) as answers:
                assert [(one.member, one.payload) async for one in answers] == [(place.node.id, 7)] * 2
                assert (answers.expected, answers.missing, answers.errors) == (2, (), {})
            for task in serve:
                task.cancel()
        counted = place.node.statistics().services["orders"]
        assert (counted.received, counted.served, counted.programs) == (2, 2, 2)


@with_door(rights=RIGHTS)
async def test_a_program_that_is_silent_fails_or_goes_costs_a_survey_its_own_answer(place: Place) -> None:
    async with serving(place) as silent, serving(place) as fails, serving(place) as answers_it:
        while place.member._inner._membership.weight("orders", place.node.id) != 3:
            await asyncio.sleep(0.01)
        async with place.member.survey("orders", 7, timeout=3) as answers:
            asked = await fails.next()
            await fails.send("error", id=asked["id"], code="no-tea")
            asked = await answers_it.next()
            await answers_it.send("reply", id=asked["id"], payload=1)
            assert [one.payload async for one in answers] == [1]
        assert answers.ended_by in {"deadline", "all"}  # the member may be the first to say that the time is over
        assert (answers.expected, answers.missing) == (3, (place.node.id,))
        assert isinstance(answers.errors[place.node.id], iris.RemoteError)
        asked, told = await silent.next(), await silent.next()
        assert (asked["type"], told) == ("request", {"type": "cancel", "id": asked["id"]})

        async with place.member.survey("orders", 8, timeout=60) as answers:
            asked = await fails.next()
            await fails.socket.close()
            for program in (silent, answers_it):
                asked = await program.next()
                await program.send("reply", id=asked["id"], payload=2)
            assert [one.payload async for one in answers] == [2, 2]
        assert (answers.ended_by, answers.expected, answers.missing) == ("all", 3, (place.node.id,))
        assert isinstance(answers.errors[place.node.id], iris.Unknown)


@with_door(rights=RIGHTS)
async def test_a_survey_over_a_tree_counts_every_program(place: Place) -> None:
    async with (
        serving(place) as one, serving(place) as other, place.member.join("orders", iris.Service("orders")),
        iris.aio.open_node("asking", config=iris.Config(relay_above=1)) as asking, asyncio.TaskGroup() as tasks,
    ):  # fmt: skip
        serve = [tasks.create_task(serve_all(program)) for program in (one, other)]
        await asking.wait_for("orders", members=2)
        async with asking.survey("orders", 7, timeout=60) as answers:
            assert [one.payload async for one in answers] == [7, 7]
        assert (answers.ended_by, answers.expected, answers.missing) == ("all", 3, (place.member.id,))
        for task in serve:
            task.cancel()


@with_door(rights=RIGHTS)
async def test_a_survey_ends_with_as_many_programs_as_it_counts(place: Place) -> None:
    async with serving(place) as one, serving(place) as other:
        async with place.member.survey("orders", 7, timeout=60, count=1) as answers:
            asked = await one.next()
            await one.send("reply", id=asked["id"], payload=1)
            assert [one.payload async for one in answers] == [1]
        assert (answers.ended_by, answers.expected) == ("count", 2)
        asked, told = await other.next(), await other.next()
        assert (asked["type"], told["type"]) == ("request", "cancel")


@with_door(rights=RIGHTS)
async def test_a_program_that_is_not_done_with_broadcasts_misses_some(place: Place) -> None:
    async with serving(place) as slow, serving(place) as quick:
        for number in range(70):
            await place.member.broadcast("orders", number)
        for number in range(70):
            told = await quick.next()
            assert told["payload"] == number
            await quick.send("done", id=told["id"])
        while place.door.statistics().unheard < 6:
            await asyncio.sleep(0.01)
        waited = [await slow.next() for _ in range(64)]
        assert [one["payload"] for one in waited] == list(range(64))
        for one in waited:
            await slow.send("done", id=one["id"])
        while place.clients.named("web").statistics().bytes:
            await asyncio.sleep(0.01)
        await place.member.broadcast("orders", "again")
        assert (await slow.next())["payload"] == "again"


@with_door(rights=RIGHTS)
async def test_a_tunnel_goes_both_ways_by_credit(place: Place) -> None:
    async with serving(place) as program, place.member.open_tunnel("orders", headers={"a": "b"}) as tunnel:
        opened = await program.next()
        number = opened["id"]
        assert (opened["type"], opened["credit"], opened["sender"]) == ("tunnel", 16, "greeters")
        assert opened["headers"] == {"a": "b"}
        await tunnel.send(1)
        await tunnel.send(b"\n")
        await program.send("credit", id=number, credit=1)
        assert await program.next() == {"type": "data", "id": number, "payload": 1}
        await program.send("data", id=number, payload={"one": 1})
        await program.send_bytes(b"\n\n", "data", id=number)
        assert [await tunnel.receive(), await tunnel.receive()] == [{"one": 1}, b"\n\n"]
        await program.send("credit", id=number, credit=5)
        assert (await program.next())["payload"] == b"\n"
        for _ in range(8):
            await program.send("data", id=number, payload=0)
            await tunnel.receive()
        assert await program.next() == {"type": "credit", "id": number, "credit": 8}
        await tunnel.send_eof()
        assert await program.next() == {"type": "eof", "id": number}
        await program.send("data", id=number, payload="last")
        await program.send("eof", id=number)
        assert [payload async for payload in tunnel] == ["last"]


@with_door(rights=RIGHTS)
async def test_a_tunnel_breaks_by_either_end(place: Place) -> None:
    async with serving(place) as program:
        async with place.member.open_tunnel("orders") as tunnel:
            opened = await program.next()
            await program.send("close", id=opened["id"])
            assert [payload async for payload in tunnel] == []
        async with broken_tunnel(place, "no-tea: there is none") as tunnel:
            asked = await program.next()
            await program.send("close", id=asked["id"], code="no-tea", detail="there is none")
            await tunnel.receive()
        async with place.member.open_tunnel("orders") as tunnel:
            asked = await program.next()
            tunnel.abort()
            closed = await program.next()
            assert (closed["type"], closed["id"], closed["code"]) == ("close", asked["id"], "not_delivered")
        async with broken_tunnel(place, "is gone") as tunnel:
            await program.next()
            await program.socket.close()
            await tunnel.receive()


@asynccontextmanager
async def broken_tunnel(place: Place, breaks: str) -> AsyncGenerator[iris.aio.Tunnel]:
    with pytest.raises(iris.TunnelBroken, match=breaks):
        async with place.member.open_tunnel("orders") as tunnel:
            yield tunnel


@with_door(rights=RIGHTS)
async def test_a_program_drains_and_is_let_go(place: Place) -> None:
    async with serving(place) as program, serving(place) as other, asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(place.member.request("orders", n, timeout=60)) for n in range(2)]
        mine, theirs = await program.next(), await other.next()
        await program.send("drain")
        while place.door.statistics().programs != 1:
            await asyncio.sleep(0.01)
        more = tasks.create_task(place.member.request("orders", 3, timeout=60))
        third = await other.next()
        for one in (theirs, third):
            await other.send("reply", id=one["id"], payload="other")
        await program.send("reply", id=mine["id"], payload="mine")
        assert await program.ending() == (1000, "")
        assert {await one for one in asking} == {"mine", "other"}
        assert await more == "other"
        assert place.door.statistics().programs == 1


def test_a_door_that_closes_has_programs_finish(run: Run) -> None:
    asking: list[asyncio.Task[Any]] = []

    async def work(place: Place) -> None:
        async def finish(program: Server, asked: dict[str, Any]) -> None:
            async with program.socket:
                assert await program.next() == {"type": "drain"}
                await program.send("reply", id=asked["id"], payload="done")
                assert await program.ending() == (1000, "")

        url = f"ws://{place.address[0]}:{place.address[1]}/serve/orders"
        program = Server(await connect(url, additional_headers=place.bearer))
        await program.next()
        await place.member.wait_for("orders")
        asking.append(asyncio.create_task(place.member.request("orders", 1, timeout=60)))
        asked = await program.next()
        asking.append(asyncio.create_task(finish(program, asked)))

    async def main(place: Place) -> None:
        await work(place)

    run(main, rights=RIGHTS)
    assert asking[0].result() == "done"
    asking[1].result()


@with_door(rights=RIGHTS)
async def test_what_a_program_had_is_answered_when_it_is_gone(place: Place) -> None:
    async with serving(place, "orders?capacity=1") as dying:
        unsafe = asyncio.create_task(place.member.request("orders", 1, timeout=60))
        await dying.next()
        waiting = asyncio.create_task(place.member.request("orders", 2, timeout=60))
        await until_queued(place, 1)
        async with serving(place, "orders?capacity=1") as other:
            asked = await other.next()  # what has not begun goes to another, whatever it is
            assert asked["payload"] == 2
            await other.send("reply", id=asked["id"], payload=2)
            assert await waiting == 2
            dying.socket.transport.abort()
            with pytest.raises(iris.Unknown):
                await unsafe
            options = iris.RequestOptions(idempotent=True)
            safe = asyncio.create_task(place.member.request("orders", 3, timeout=60, options=options))
            await other.next()
            other.socket.transport.abort()
            async with serving(place) as third:
                asked = await third.next()
                await third.send("reply", id=asked["id"], payload=3)
                assert await safe == 3


@with_door(rights=RIGHTS)
async def test_where_all_programs_drain_requests_go_to_other_members(place: Place) -> None:
    service = iris.Service("orders")

    @service.request
    async def serve(_: iris.Request) -> object:
        return "member"

    async with serving(place) as program, iris.aio.open_node("orders") as other:
        mine = asyncio.create_task(place.member.request("orders", 1, timeout=60))
        first = await program.next()
        await program.send("drain")
        while place.door.statistics().programs:
            await asyncio.sleep(0.01)
        async with other.join("orders", service):
            while len(place.member.members("orders")) < 2:
                await asyncio.sleep(0.01)
            replies = await asyncio.gather(*(place.member.request("orders", n, timeout=20) for n in range(20)))
        assert replies == ["member"] * 20
        await program.send("reply", id=first["id"], payload="finished")
        assert await mine == "finished"


@with_door(rights=RIGHTS, send_buffer=4096)
async def test_tunnels_to_one_that_does_not_read_leave_nothing(place: Place) -> None:
    async with place.dial(SO_RCVBUF=4096) as (reader, writer):
        writer.write(
            place.head(
                "GET", "/serve/orders", "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13",
                "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
            )
        )  # fmt: skip
        await reader.readuntil(b"\r\n\r\n")
        await place.member.wait_for("orders")
        most = 0
        for _ in range(200):
            async with place.member.open_tunnel("orders", headers={"a": "x" * 8000}) as tunnel:
                tunnel.abort()
            most = max(most, place.clients.named("web").statistics().bytes)
        assert 0 < most < 40 * 16 * 8200, "what waits to be written is counted, and forgotten with its tunnel"
        program = next(iter(place.door._clusters._clusters["orders"]._places)).program
        assert sum(len(one.data) for one in program._out) < 40 * 8200  # type: ignore[attr-defined, misc]
    await place.until_held(0)


@pytest.mark.parametrize("name", ["*", ">", "a%20b", "x" * 129])
@with_door(rights={"serve": (">",)})
async def test_what_is_no_name_is_refused(place: Place, name: str) -> None:
    async with dialled(place, name) as program:
        code, reason = await program.ending()
        assert (code, "not a cluster name" in reason or "may not serve" in reason) == (4403, True), (code, reason)


async def until_queued(place: Place, count: int) -> None:
    while service_of(place).queued != count:
        await asyncio.sleep(0.005)


def service_of(place: Place) -> Any:
    return place.node.statistics().services["orders"]


@pytest.mark.parametrize("name", ["iris.nodes", "iris.nodes.drain", "iris.door", "bridge", "bridge.primary-0"])
@with_door(rights={"serve": (">",)})
async def test_no_right_is_one_to_serve_for_iris_itself(place: Place, name: str) -> None:
    async with serving(place, "bridges"), dialled(place, name) as program:  # the former is none of those
        assert await program.ending() == (4403, f"not_allowed: client web may not serve {name!r}")
    with pytest.raises(iris.ConfigError, match="a name of Iris itself"):
        grant(place.tokens, "other", serve=("orders", name))


@with_door(rights=RIGHTS)
async def test_without_the_right_nobody_serves(place: Place) -> None:
    caller = grant(place.tokens, "caller", call=(">",), publish=(">",), subscribe=(">",))
    place.clients.reload()
    for path, token, code, text in [
        ("orders", caller, 4403, "not_allowed: client caller may not serve"),
        ("greeters", None, 4403, "not_allowed: client web may not serve"),
        ("orders?capacity=0", None, 4400, "malformed"), ("orders?capacity=1025", None, 4400, "malformed"),
        ("orders?limit=1", None, 4400, "no option here"), ("acme/orders", None, 4403, "not_allowed"),
    ]:  # fmt: skip
        async with dialled(place, path, token) as program:
            closed, reason = await program.ending()
            assert (closed, text in reason) == (code, True), (path, closed, reason)
    with pytest.raises(InvalidStatus) as caught:
        async with dialled(place, token="wrong"):
            pass
    assert caught.value.response.status_code == 401
    assert "orders" not in place.member.clusters()


@with_door(rights=RIGHTS)
async def test_a_token_that_is_taken_away_ends_what_serves(place: Place) -> None:
    async with serving(place) as program:
        asking = asyncio.create_task(place.member.request("orders", 1, timeout=60))
        await program.next()
        withdraw(place.tokens, "web")
        place.clients.reload()
        code, reason = await program.ending()
        assert (code, reason.partition(":")[0]) == (4401, "ended")
        with pytest.raises(iris.Unknown):
            await asking
        while place.member.members("orders"):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("sent", "code", "text"),
    [
        ("[]", 4400, "a message is a map"), ("{", 4400, "no JSON"), ('{"type":"more"}', 4400, "no message of type"),
        ('{"type":"reply","payload":1}', 4400, "an id is"), ('{"type":"reply","id":1}', 4400, "has a payload"),
        ('{"type":"reply","id":true,"payload":1}', 4400, "an id is"), ('{"type":"error","id":1}', 4400, "has a code"),
        ('{"type":"error","id":1,"code":"a b"}', 4400, "has a code"), (b'{"type":"reply","id":1}', 4400, "a line feed"),
        ('{"type":"reply","id":1,"payload":"!","encoding":"base64"}', 4400, "no base64"),
        ("[" * 10_000, 4400, "nested too deeply"), ("x" * (1 << 21), 1009, ""),
    ],
)  # fmt: skip
@with_door(rights=RIGHTS)
async def test_what_cannot_be_read_ends_the_program_and_nobody_else(
    place: Place, sent: Any, code: int, text: str
) -> None:
    async with serving(place) as honest, dialled(place) as liar:
        await liar.next()
        await liar.socket.send(sent)
        closed, reason = await liar.ending()
        assert (closed, text in reason) == (code, True), (closed, reason)
        asking = asyncio.create_task(place.member.request("orders", 1, timeout=60))
        asked = await honest.next()
        await honest.send("reply", id=asked["id"], payload=1)
        assert await asking == 1


@with_door(rights=RIGHTS, limits=ClientLimits(bytes=1_000_000))
async def test_what_is_kept_for_a_program_is_counted_and_bounded(place: Place) -> None:
    async with serving(place) as program:
        asking = asyncio.create_task(place.member.request("orders", b"x" * 600_000, timeout=60))
        await program.next()
        held = place.clients.named("web").statistics().bytes
        assert 600_000 < held < 601_000
        with pytest.raises(iris.Overloaded):
            await place.member.request("orders", b"x" * 600_000, timeout=60)
        await program.send("reply", id=1, payload="x" * 100_000)
        with pytest.raises(iris.RemoteError, match="too_many_bytes"):
            await asking
        assert place.clients.named("web").statistics().bytes == 0


def test_one_that_answers_nothing_gets_one_request_at_a_time(run: Run) -> None:
    async def work(place: Place) -> None:
        async with serving(place) as silent:
            while service_of(place).concurrency != 1:  # on a busy machine some may come late, and count for nothing
                with pytest.raises(iris.RequestTimeout):
                    await place.member.request("orders", 0, timeout=0.2)
            async with serving(place) as lively, asyncio.TaskGroup() as tasks:
                serve = tasks.create_task(serve_all(lively))
                done = [tasks.create_task(asked(place, n)) for n in range(50)]
                assert [await one for one in done].count(False) <= 1
                serve.cancel()
            for _ in range(3):
                assert (await silent.next())["type"] == "request"
                assert (await silent.next())["type"] == "cancel"

    async def asked(place: Place, number: int) -> bool:
        try:
            return bool(await place.member.request("orders", number, timeout=3) == number)
        except iris.RequestTimeout:
            return False

    run(work, rights=RIGHTS)


@with_door(rights=RIGHTS)
async def test_programs_share_the_requests(place: Place) -> None:
    """By capacity, when all of it is used.  ``benchmarks.door_programs`` has members in Python beside them."""
    counts = Counter[str]()

    async def count(program: Server, name: str) -> None:
        async def answer(asked: dict[str, Any]) -> None:
            counts[name] += 1
            await asyncio.sleep(0.2)
            await program.send("reply", id=asked["id"], payload=None)

        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(answer(await program.next()))

    async def ask() -> None:
        for _ in range(10):
            await place.member.request("orders", 1, timeout=60)

    async with (
        serving(place, "orders?capacity=8") as large, serving(place, "orders?capacity=4") as small,
        asyncio.TaskGroup() as tasks,
    ):  # fmt: skip
        serve = [tasks.create_task(count(large, "large")), tasks.create_task(count(small, "small"))]
        async with asyncio.TaskGroup() as callers:
            for _ in range(12):
                callers.create_task(ask())
        for task in serve:
            task.cancel()
    assert counts.total() == 120
    assert 1.4 < counts["large"] / counts["small"] < 2.6, counts


@with_door(rights=RIGHTS)
async def test_callers_know_for_how_many_a_member_stands(place: Place) -> None:
    def drawn() -> str:
        return repr(place.member._inner._membership.picker("orders"))

    async with serving(place):
        assert "1 members, 1 of them" in drawn()
        async with serving(place), serving(place):
            while "1 members, 3 of them" not in drawn():
                await asyncio.sleep(0.01)
            async with iris.aio.open_node("late") as late:
                await late.wait_for("orders")
                while "3 of them" not in repr(late._inner._membership.picker("orders")):
                    await asyncio.sleep(0.01)
        while "1 members, 1 of them" not in drawn():
            await asyncio.sleep(0.01)


def test_a_program_that_is_gone_is_asked_once(run: Run) -> None:
    """Its connection may have ended before the door has noticed it everywhere: as by nng, within a turn of the loop."""

    class Gone:
        capacity = 1
        asked = 0

        async def ask(self, request: Any) -> object:
            self.asked += 1
            assert self.asked < 9, "the door asks it again and again, and does nothing else"
            raise Unserved(DRAINING)

        async def broadcast(self, _: iris.Message, /) -> bool:
            return False

        async def talk(self, tunnel: iris.aio.Tunnel, /) -> None:
            pass

        def drain(self) -> None:
            pass

        end = drain

    async def work(place: Place) -> None:
        gone = Gone()
        async with place.door._clusters.joined("orders") as served:
            with served.having(gone):
                await place.member.wait_for("orders")
                with pytest.raises(iris.IrisError) as refused:
                    await place.member.request("orders", 1, timeout=0.5)
                assert not isinstance(refused.value, iris.RemoteError), refused.value
                assert gone.asked == 1
                async with serving(place) as program:
                    asking = asyncio.create_task(place.member.request("orders", 2, timeout=60))
                    asked = await program.next()
                    await program.send("reply", id=asked["id"], payload=3)
                    assert await asking == 3

    run(work, rights=RIGHTS)
