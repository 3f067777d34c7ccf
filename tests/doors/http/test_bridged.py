"""The HTTP door: programs that take jobs, read the log and hold leases of the bridge behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

import iris
import iris.aio
from iris.doors import withdraw
from iris.doors.clients import ClientLimits
from tests.doors.http.program import Program
from tests.support.bridges import open_aio_bridge
from tests.support.doors import Place, with_door

RIGHTS = {
    "take": ("jobs", "jobs.>"),
    "publish": ("jobs", "orders.>"),
    "read": ("billing/orders.>", "orders.tea"),
    "lease": ("door/leader", "greeters/>"),
}


@asynccontextmanager
async def at(place: Place, path: str) -> AsyncGenerator[Program]:
    """Connect to an address of the door."""
    url = "ws://{}:{}/{}".format(*place.address, path)
    async with connect(url, additional_headers=place.bearer, max_queue=None, ping_interval=None) as socket:
        yield Program(socket)


@asynccontextmanager
async def bridged(
    tmp_path: Path, place: Place, *, topics: tuple[str, ...] = ("jobs", "orders.>")
) -> AsyncGenerator[None]:
    """Have a bridge that the door sees."""
    async with (
        iris.aio.open_node("bridge") as node,
        open_aio_bridge(node, topics=list(topics), directory=tmp_path / "log"),
    ):
        await place.node.wait_for("bridge", timeout=60)
        yield


async def put(place: Place, payload: Any, query: str = "") -> None:
    answer = await place.post(f"/put/jobs?timeout=40{query}", payload)
    assert answer.status == 204, answer.body


async def status(place: Place) -> dict[str, int]:
    answer = await place.fetch("GET", "/queue/jobs?timeout=40")
    assert answer.status == 200, answer.body
    found: dict[str, int] = answer.json()
    return found


async def until_status(place: Place, **wanted: int) -> None:
    while not wanted.items() <= (await status(place)).items():
        await asyncio.sleep(0.05)


@with_door(rights=RIGHTS)
async def test_jobs_are_put_taken_done_failed_and_given_back(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place):
        await put(place, {"n": 1}, "&key=k")
        await put(place, b"\n\x00", "&key=k")
        async with at(place, "take/jobs?attempts=2&backoff=0.01") as program:
            assert await program.next() == {"type": "ready", "queue": "jobs", "limit": 16, "max_message": 1 << 20}
            first = await program.next()
            assert first.pop("timestamp") > 1e9
            assert first == {
                "type": "job", "id": 1, "attempt": 1, "key": "k", "headers": {}, "sender": "door",
                "payload": {"n": 1},
            }  # fmt: skip
            await program.send("extend", id=1)
            await program.send("commit", id=1)
            assert await program.next() == {"type": "committed", "id": 1}
            second = await program.next()
            assert (second["id"], second["payload"], second["attempt"]) == (2, b"\n\x00", 1)
            await program.send("release", id=2)
            assert (await program.next())["attempt"] == 1
            await program.send("fail", id=3, detail="no tea")
            again = await program.next()
            assert (again["id"], again["attempt"]) == (4, 2)
            await program.send("fail", id=4, detail="still none", permanent=True)
            for late in ("commit", "extend", "fail", "release"):
                await program.send(late, id=2)
            await until_status(place, done=1, dead=1, in_hand=0)
            await program.send("drain")
            assert await program.ending() == (1000, "")
        await place.until_held(0)


@with_door(rights=RIGHTS)
async def test_jobs_of_a_program_that_is_lost_are_given_to_another_one(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place):
        async with at(place, "take/jobs?backoff=0.01&limit=2") as lost:
            assert (await lost.next())["type"] == "ready"
            for number in range(3):
                await put(place, number)
            assert [(await lost.next())["payload"] for _ in range(2)] == [0, 1]
            lost.socket.transport.abort()
            await lost.socket.wait_closed()
        async with at(place, "take/jobs?backoff=0.01") as kept:
            assert (await kept.next())["type"] == "ready"
            attempts: dict[int, int] = {}
            while len(attempts) < 3:
                message = await kept.next()
                if message["type"] == "job":
                    attempts[message["payload"]] = message["attempt"]
                    await kept.send("commit", id=message["id"])
            assert attempts == {0: 2, 1: 2, 2: 1}
            await until_status(place, done=3, in_hand=0)
    await place.until_held(0)


@with_door(rights=RIGHTS)
async def test_a_job_whose_lease_has_ended_is_another_ones(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place):
        await put(place, 1)
        async with at(place, "take/jobs?lease=0.2&backoff=0.01&limit=1") as program:
            await program.next()
            first = await program.next()
            again = await program.next()
            assert (first["id"], first["attempt"], again["id"], again["attempt"]) == (1, 1, 2, 2)
            await program.send("extend", id=1)
            answer = await program.next()
            assert (answer["type"], answer["id"], answer["code"]) == ("error", 1, "lease_lost")
    await place.until_held(0)


@with_door(rights=RIGHTS)
async def test_a_door_that_closes_lets_programs_finish(place: Place, tmp_path: Path) -> None:
    """One that has a job finishes it; one that has none ends at once."""
    async with bridged(tmp_path, place):
        await put(place, 1)
        async with at(place, "take/jobs") as program:
            await program.next()
            job = await program.next()
            async with at(place, "take/jobs") as idle:
                await idle.next()
                closing = asyncio.create_task(place.door._bridge.close())
                assert await idle.next() == {"type": "drain"}
                assert await idle.ending() == (1000, "")
            assert await program.next() == {"type": "drain"}
            await program.send("commit", id=job["id"])
            assert await program.next() == {"type": "committed", "id": 1}
            assert await program.ending() == (1000, "")
            await closing
        await until_status(place, done=1)


@with_door(rights=RIGHTS, limits=ClientLimits(bytes=70_000))
async def test_what_programs_have_counts_among_their_clients_bytes(place: Place, tmp_path: Path) -> None:
    """What finds no room goes back, and no attempt is counted: the program that has something gets it later."""
    async with bridged(tmp_path, place):
        await put(place, b"x" * 40_000)
        await put(place, b"y" * 40_000)
        async with at(place, "take/jobs") as program:
            await program.next()
            for letter in (b"x", b"y"):
                job = await program.next()
                assert (job["payload"][:1], job["attempt"]) == (letter, 1)
                if letter == b"x":
                    async with at(place, "take/jobs") as other:
                        await other.next()
                        assert (await other.ending())[0] == 4429
                await program.send("commit", id=job["id"])
                assert (await program.next())["type"] == "committed"
        await until_status(place, done=2)
    await place.until_held(0)


@with_door(rights=RIGHTS, limits=ClientLimits(bytes=3_000_000))
async def test_batches_that_find_no_room_come_when_there_is_some(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place):
        for letter in (b"x", b"y"):
            await publish(place, letter * 600_000)
        async with at(place, "read?topic=orders.tea&group=billing") as program:
            await program.next()
            assert [one[:1] for one in await commit_all(program, 2)] == [b"x", b"y"]
    await place.until_held(0)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("take/others", 4403),
        ("take/jobs?dead=others", 4403),
        ("take/jobs?limit=0", 4400),
        ("take/jobs?lease=0", 4400),
        ("take/jobs?bridge=others", 4400),
        ("read?topic=others", 4403),
        ("read?topic=orders.tea&group=others", 4403),
        ("read?topic=orders.tea&topic=orders.%3E", 4403),
        ("read?topic=orders.tea&start=yesterday", 4400),
        ("read?topic=orders.tea&start=2026-01-01", 4400),
        pytest.param("read?topic=orders.tea&start=" + "9" * 5000, 4400, id="an offset of 5000 digits"),
        ("read?topic=orders.tea&until=then", 4400),
        ("read?topic=orders.tea&limit=65", 4400),
        ("read", 4400),
        ("lease/others/leader", 4403),
        ("lease/door/scheduler", 4403),
        ("lease/leader", 4403),
        ("lease/door/leader?ttl=0", 4400),
        ("lease/door/leader?timeout=51", 4400),
        ("lease/greeters/leader", 4403),
    ],
)
@with_door(rights=RIGHTS)
async def test_what_a_token_or_the_rules_do_not_permit_is_refused(
    place: Place, tmp_path: Path, path: str, status: int
) -> None:
    """The last one: the token has the right, but the door is no member of that cluster."""
    async with bridged(tmp_path, place), at(place, path) as program:
        code, reason = await program.ending()
        assert code == status, reason
    await place.until_held(0)


@with_door(rights=RIGHTS)
async def test_by_http_nothing_is_done_without_the_right(place: Place) -> None:
    assert (await place.post("/put/others", 1)).status == 403
    assert (await place.fetch("GET", "/queue/others")).status == 403
    assert (await place.post("/put/jobs", 1, {**place.bearer, "idempotency-key": '"1"'})).status == 400
    assert (await place.post("/put/jobs?priority=10", 1)).status == 400


@pytest.mark.parametrize(("method", "path"), [("POST", "put/a.+"), ("GET", "queue/a.+")])
@with_door(rights={"publish": ("a.>",), "take": ("a.>",)})
async def test_a_name_that_no_queue_can_have_is_named(place: Place, method: str, path: str) -> None:
    refused = await place.fetch(method, f"/{path}")
    assert (refused.status, refused.json()["code"]) == (400, "malformed")
    assert refused.json()["detail"].startswith("name is 'a.+': use a topic, tokens joined by dots")


@pytest.mark.parametrize("path", ["take/jobs?wait=0.1", "read?topic=orders.tea&wait=0.1", "lease/door/leader?wait=0.1"])
@with_door(rights=RIGHTS)
async def test_without_a_bridge_there_is_an_error(place: Place, path: str) -> None:
    async with at(place, path) as program:
        code, reason = await program.ending()
        assert (code, reason.split(":")[0]) == (4503, "no_bridge")
    answer = await place.post("/put/jobs", 1)
    assert (answer.status, answer.json()["code"]) == (503, "not_sent")
    answer = await place.fetch("GET", "/queue/jobs")
    assert (answer.status, answer.json()["code"]) == (503, "no_bridge")


@with_door(rights=RIGHTS)
async def test_a_bridge_that_stays_away_ends_what_is_open(place: Place, tmp_path: Path) -> None:
    place.door._bridge._patience = 0.1
    async with bridged(tmp_path, place):
        taking, reading = at(place, "take/jobs"), at(place, "read?topic=orders.tea")
        one, other = await taking.__aenter__(), await reading.__aenter__()
        assert [(await program.next())["type"] for program in (one, other)] == ["ready", "ready"]
    for program in (one, other):
        code, reason = await program.ending()
        assert (code, reason.split(":")[0]) == (4503, "no_bridge")


@with_door(rights=RIGHTS)
async def test_a_token_that_is_withdrawn_ends_what_is_open(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place), at(place, "take/jobs") as program:
        await program.next()
        withdraw(place.tokens, "web")
        place.clients.reload()
        assert (await program.ending())[0] == 4401


@with_door(rights=RIGHTS)
async def test_what_is_no_message_ends_it(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place):
        for path in ("take/jobs", "read?topic=orders.tea", "lease/door/leader"):
            for message in (
                '{"type":"reply","id":1}',
                "1",
                '{"type":"commit","id":"1"}',
                '{"type":"fail","id":null}',
            ):
                async with at(place, path) as program:
                    await program.next()
                    await program.socket.send(message)
                    assert (await program.ending())[0] == 4400
    await place.until_held(0)


async def publish(place: Place, *payloads: Any) -> None:
    for payload in payloads:
        answer = await place.post("/publish/orders.tea?confirm=true&timeout=40", payload)
        assert answer.status == 204, answer.body


async def batch_of(program: Program) -> tuple[list[Any], dict[str, Any]]:
    """Read a batch: the payloads of its events, and what ends it."""
    payloads: list[Any] = []
    while (message := await program.next())["type"] == "event":
        assert message["topic"] == "orders.tea"
        payloads.append(message["payload"])
    return payloads, message


async def commit_all(program: Program, count: int) -> list[Any]:
    """Read and commit so many events."""
    found: list[Any] = []
    while len(found) < count:
        payloads, batch = await batch_of(program)
        assert (batch["type"], batch["events"]) == ("batch", len(payloads))
        found += payloads
        await program.send("commit", id=batch["id"])
        assert await program.next() == {"type": "committed", "id": batch["id"]}
    return found


@with_door(rights=RIGHTS)
async def test_a_group_goes_on_where_it_was(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place):
        await publish(place, {"n": 1}, b"2")
        path = "read?topic=orders.%3E&group=billing&limit=1"
        async with at(place, path) as program:
            assert await program.next() == {"type": "ready", "limit": 1, "max_message": 1 << 20}
            assert await commit_all(program, 2) == [{"n": 1}, b"2"]
            await publish(place, 3)
            assert (await batch_of(program))[0] == [3]
        async with at(place, path) as program:
            await program.next()
            assert await commit_all(program, 1) == [3]
            await program.send("drain")
            assert await program.ending() == (1000, "")
        async with at(place, "read?topic=orders.tea&until=now") as program:
            await program.next()
            payloads: list[Any] = []
            kinds = set[str]()
            while kinds != {"event", "batch", "committed", "end"}:
                message = await program.next()
                kinds.add(message["type"])
                if message["type"] == "event":
                    payloads.append(message["payload"])
                elif message["type"] == "batch":
                    await program.send("commit", id=message["id"])
            assert payloads == [{"n": 1}, b"2", 3]
            assert await program.ending() == (1000, "")
    await place.until_held(0)


@with_door(rights=RIGHTS)
async def test_a_program_has_as_many_batches_as_it_takes(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place), at(place, "read?topic=orders.tea&limit=1") as program:
        await program.next()
        await publish(place, 1)
        payloads, batch = await batch_of(program)
        assert payloads == [1]
        await publish(place, 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await program.next()
        await program.send("commit", id=batch["id"])
        assert await program.next() == {"type": "committed", "id": batch["id"]}
        assert (await batch_of(program))[0] == [2]
    await place.until_held(0)


async def granted(program: Program) -> int:
    message = await program.next()
    assert (message["type"], message["ttl"]) == ("granted", 1)
    await program.send("renew")
    renewed = await program.next()
    assert renewed["type"] == "renewed"
    assert 0 < renewed["left"] <= 1
    token: int = message["token"]
    return token


@with_door(rights=RIGHTS)
async def test_a_lease_is_one_programs_and_its_token_grows(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place):
        async with at(place, "lease/door/leader?ttl=1") as one:
            first = await granted(one)
            async with at(place, "lease/door/leader?ttl=1&timeout=0.1") as other:
                assert (await other.ending())[0] == 4504
            await one.send("release")
            assert await one.ending() == (1000, "")
        async with at(place, "lease/door/leader?ttl=1") as other:
            assert await granted(other) > first


@with_door(rights=RIGHTS)
async def test_the_lease_of_a_program_that_is_lost_ends_by_its_time_and_no_sooner(place: Place, tmp_path: Path) -> None:
    """And so does that of one that renews it no more."""
    async with bridged(tmp_path, place), at(place, "lease/door/leader?ttl=1") as one:
        await granted(one)
        began = asyncio.get_running_loop().time()
        one.socket.transport.abort()
        async with at(place, "lease/door/leader?ttl=1&timeout=40") as other:
            await granted(other)
            assert asyncio.get_running_loop().time() - began > 0.5
            code, reason = await other.ending()
            assert (code, reason.split(":")[0]) == (4409, "lease_lost")


@with_door(rights={**RIGHTS, "serve": ("orders",)})
async def test_a_request_with_a_key_is_done_once_by_the_programs_that_serve(place: Place, tmp_path: Path) -> None:
    """One whose program has gone is in doubt; one that no program has begun is none the worse for it."""

    def ask(key: str) -> asyncio.Task[Any]:
        options = iris.RequestOptions(idempotency_key=key)
        return asyncio.create_task(place.member.request("orders", 1, timeout=40, wait=40, options=options))

    async with bridged(tmp_path, place):
        await place.member.wait_for("bridge", timeout=60)
        async with at(place, "serve/orders?keep=60") as program:
            assert (await program.next())["type"] == "ready"
            async with at(place, "serve/orders?keep=61") as other:
                assert (await other.ending())[0] == 4400
            asking = ask("a")
            request = await program.next()
            assert (request["key"], request["payload"]) == ("a", 1)
            await program.send("reply", id=request["id"], payload="done")
            assert (await asking, await ask("a")) == ("done", "done")
            asking = ask("b")
            assert (await program.next())["key"] == "b"
        async with at(place, "serve/orders?keep=60") as program:
            assert (await program.next())["type"] == "ready"
            with pytest.raises(iris.Unknown):
                await asking
            await program.send("drain")
            assert await program.ending() == (1000, "")
            asking = ask("c")
        async with at(place, "serve/orders?keep=60") as program:
            assert (await program.next())["type"] == "ready"
            request = await program.next()
            assert request["key"] == "c"
            await program.send("reply", id=request["id"], payload="late")
            assert await asking == "late"


@with_door(rights=RIGHTS, limits=ClientLimits(bytes=128 << 20))
async def test_one_client_does_not_use_up_the_bridge(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place), contextlib.AsyncExitStack() as stack:
        for _ in range(32):
            program = await stack.enter_async_context(at(place, "read?topic=orders.tea"))
            assert (await program.next())["type"] == "ready"
        async with at(place, "take/jobs") as program:
            assert (await program.ending())[0] == 4429


@pytest.mark.parametrize("ends", ["its token is withdrawn", "it breaks the rules"])
@with_door(rights=RIGHTS)
async def test_the_lease_of_a_program_that_is_ended_ends_by_its_time_and_no_sooner(
    place: Place, tmp_path: Path, ends: str
) -> None:
    """The program is told at once; until it has read that it believes that it has the lease."""
    async with bridged(tmp_path, place), at(place, "lease/door/leader?ttl=2") as program:
        message = await program.next()
        assert message["type"] == "granted"
        await program.send("renew")
        left = (await program.next())["left"]
        began = asyncio.get_running_loop().time()
        if ends == "it breaks the rules":
            await program.send("what")
        else:
            withdraw(place.tokens, "web")
            place.clients.reload()
        assert (await program.ending())[0] in (4400, 4401)
        async with place.node.bridge("bridge").lease("leader", ttl=1, timeout=40) as lease:
            assert asyncio.get_running_loop().time() - began > left - 0.1
            assert lease.token > message["token"]


@with_door(rights=RIGHTS, send_buffer=1)
async def test_renewals_whose_answers_are_not_read_end_the_program(place: Place, tmp_path: Path) -> None:
    async with bridged(tmp_path, place), place.dial(SO_RCVBUF=1) as (reader, writer):
        upgrade = ("upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13")
        key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
        writer.write(place.head("GET", "/lease/door/leader?ttl=60", *upgrade, key))
        await reader.readuntil(b"granted")
        assert isinstance(writer.transport, asyncio.Transport)
        writer.transport.pause_reading()
        renew = b'{"type":"renew"}'
        frame = bytes((0x81, 0x80 | len(renew))) + bytes(4) + renew
        while place.door.statistics().programs:
            if writer.transport.get_write_buffer_size() < 65_536:
                writer.write(64 * frame)
            await asyncio.sleep(0.001)
        writer.transport.abort()


@with_door(rights={**RIGHTS, "rate": 1.0})
async def test_what_programs_say_counts_as_their_token_has_a_rate(place: Place, tmp_path: Path) -> None:
    """They get the next job, or batch, when they may say more."""
    async with bridged(tmp_path, place):
        async with place.node.bridge("bridge").queue("jobs") as jobs:
            for number in range(4):
                await jobs.put(number, timeout=40)
        async with at(place, "take/jobs?limit=1") as program:
            await program.next()
            began = asyncio.get_running_loop().time()
            for number in range(4):
                job = await program.next()
                assert job["payload"] == number
                await program.send("commit", id=job["id"])
                assert (await program.next())["type"] == "committed"
        assert asyncio.get_running_loop().time() - began > 0.9
        assert place.door.statistics().paused


@with_door(rights={"serve": (">",)}, bridge="stores")
async def test_no_program_serves_the_bridge_of_the_door(place: Place) -> None:
    """Also if it has another name than others: who asks it takes its answers for those of a bridge."""
    for cluster in ("stores", "stores.one"):
        async with at(place, f"serve/{cluster}") as program:
            assert (await program.ending())[0] == 4403
    async with at(place, "serve/store") as program:
        assert (await program.next())["type"] == "ready"
