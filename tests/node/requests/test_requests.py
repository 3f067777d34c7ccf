"""Requests as callers and handlers see them: what goes through, what comes back, and what every failure looks like."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import open_stage


def make_store() -> iris.Service:
    """A service that echoes, reports its state, sleeps and fails."""
    store = iris.Service("store")

    @store.request
    async def give_back(request: iris.Request) -> object:
        return request.payload

    @store.request("tell")
    async def tell(request: iris.Request) -> object:
        left = request.deadline - trio.current_time()
        return [request.cluster, request.operation, dict(request.headers), request.sender.cluster, left]

    @store.request("sleep")
    async def sleep(request: iris.Request) -> object:
        await trio.sleep(request.payload)
        return "slept"

    @store.request("fail")
    async def fail(request: iris.Request) -> object:
        match request.payload:
            case "value":
                raise ValueError("nothing there")
            case "remote":
                raise iris.RemoteError("out_of_stock", "come back tomorrow")
            case "iris":
                raise iris.NotAllowed("not you")
            case "group":
                raise ExceptionGroup("several", [KeyError("a"), KeyError("b")])
            case "unencodable":
                return object()
            case "large":
                return bytes(2 * 1024 * 1024)
            case _:
                return math.nan

    return store


class Hanging:
    """A service whose handler waits until it is let go, and notes when each run began and ended."""

    def __init__(self, name: str = "store") -> None:
        self.service = iris.Service(name)
        self.began: list[float] = []
        self.ended: list[float] = []
        self.released = trio.Event()
        self.service.request(self.hang)

    async def hang(self, request: iris.Request) -> object:
        self.began.append(trio.current_time())
        try:
            await self.released.wait()
        finally:
            self.ended.append(trio.current_time())
        return request.payload


async def test_a_payload_of_every_type_arrives_as_itself(autojump_clock: MockClock) -> None:
    payloads: list[object] = [
        b"", b"\x00\xff", None, True, False, 0, -1, 2**63 - 1, -(2**63), 0.5, math.inf, "", "Grüße", [],
        [1, [2, [b"3"]]], {}, {"a": {"b": [None]}}, bytes(1024 * 1024),
    ]  # fmt: skip
    async with open_stage() as stage:
        _, shop = await stage.pair(make_store())
        for payload in payloads:
            reply = await shop.request("store", payload)
            assert (type(reply), reply) == (type(payload), payload)
        assert shop.statistics().requests.answered == len(payloads)


async def test_a_handler_sees_who_asks_what_and_how_long(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        _, shop = await stage.pair(make_store())
        headers = {"trace": "00-ab", "ü": ""}
        *told, left = await shop.request("store", operation="tell", headers=headers, timeout=2.5)
        assert told == ["store", "tell", headers, "shop"]
        assert 2.4 < left < 2.502


async def test_a_handler_refuses_by_the_cluster_of_the_sender_and_not_by_the_one_that_serves(
    autojump_clock: MockClock,
) -> None:
    salaries = iris.Service("salaries")

    @salaries.request
    async def look_up(request: iris.Request) -> object:
        await trio.lowlevel.checkpoint()
        assert request.cluster == "salaries"
        if request.sender.cluster != "accounting":
            raise iris.RemoteError("not_yours", request.sender.cluster)
        return 4200

    async with open_stage() as stage:
        await stage.member(salaries)
        for caller in ("accounting", "shop"):
            node = await stage.node(caller)
            await node.wait_for("salaries")
            if caller == "accounting":
                assert await node.request("salaries", "ann") == 4200
            else:
                with pytest.raises(iris.RemoteError, match=r"^not_yours: shop$"):
                    await node.request("salaries", "ann")


async def test_a_key_stays_with_its_member_until_that_one_is_gone(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        for index in range(3):
            named = iris.Service("store")

            @named.request
            async def which(_: iris.Request, host: str = f"store-{index}") -> object:
                await trio.lowlevel.checkpoint()
                return host

            await stage.member(named, f"store-{index}")
        shop = await stage.node("shop")
        await shop.wait_for("store", members=3)
        keys = [f"customer {number}" for number in range(30)]
        before = {key: {await shop.request("store", key=key) for _ in range(4)} for key in keys}
        assert all(len(hosts) == 1 for hosts in before.values())
        homes = {key: hosts.pop() for key, hosts in before.items()}
        assert set(homes.values()) == {"store-0", "store-1", "store-2"}
        stage.crash("store-1")
        for key in keys:
            host = await shop.request("store", key=key, options=iris.RequestOptions(idempotent=True))
            assert host != "store-1" if homes[key] == "store-1" else host == homes[key]


@pytest.mark.parametrize(
    ("payload", "code", "text"),
    [
        ("value", "error", "ValueError: nothing there"),
        ("remote", "out_of_stock", "come back tomorrow"),
        ("iris", "NotAllowed", "not you"),
        ("group", "error", "several"),
        ("unencodable", "LocalProtocolError", "object"),
        ("large", "PayloadTooLarge", "2097152"),
    ],
)
async def test_what_goes_wrong_in_a_handler_reaches_the_caller_without_a_traceback(
    autojump_clock: MockClock, payload: str, code: str, text: str
) -> None:
    async with open_stage() as stage:
        member, shop = await stage.pair(make_store())
        with pytest.raises(iris.RemoteError) as caught:
            await shop.request("store", payload, operation="fail")
        assert caught.value.code == code
        assert text in caught.value.message
        assert "Traceback" not in str(caught.value)
        assert member.statistics().services["store"].failed == 1
        assert await shop.request("store", 1) == 1


@pytest.mark.parametrize(
    ("payload", "headers", "error"),
    [
        (bytes(1024 * 1024 + 1), None, iris.PayloadTooLarge),
        ("x" * (1024 * 1024 + 1), None, iris.PayloadTooLarge),
        (b"", {"a": "x" * 9000}, iris.PayloadTooLarge),
        (b"", {"a": 1}, iris.LocalProtocolError),
        (object(), None, iris.LocalProtocolError),
        ({1: 2}, None, iris.LocalProtocolError),
        (2**64, None, iris.LocalProtocolError),
        ("\ud800", None, iris.LocalProtocolError),
    ],
)
async def test_what_cannot_be_sent_is_refused_before_it_is_sent(
    autojump_clock: MockClock, payload: object, headers: dict[str, str] | None, error: type[Exception]
) -> None:
    async with open_stage() as stage:
        member, shop = await stage.pair(make_store())
        with pytest.raises(error):
            await shop.request("store", payload, headers=headers)
        assert shop.statistics().requests.sent == 0
        assert member.statistics().services["store"].received == 0


async def test_at_the_deadline_the_caller_gets_an_error_and_the_handler_is_cancelled(autojump_clock: MockClock) -> None:
    hanging = Hanging()
    async with open_stage() as stage:
        member, shop = await stage.pair(hanging.service)
        began = trio.current_time()
        with pytest.raises(iris.RequestTimeout, match=r"'store' within 0\.3 s"):
            await shop.request("store", timeout=0.3)
        assert trio.current_time() == pytest.approx(began + 0.3)
        await trio.sleep(0.01)
        assert [moment - began for moment in hanging.ended] == [pytest.approx(0.3, abs=0.002)]
        service = member.statistics().services["store"]
        assert service.expired + service.cancelled == 1
        assert shop.statistics().requests.expired == 1


async def test_a_request_that_expired_in_the_queue_is_never_run(autojump_clock: MockClock) -> None:
    hanging = Hanging()
    async with open_stage() as stage:
        member, shop = await stage.pair(hanging.service, limits=iris.Limits(concurrency=1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shop.request, "store", 1)
            await trio.sleep(0.01)
            with pytest.raises(iris.RequestTimeout):
                await shop.request("store", 2, timeout=0.1)
            await trio.sleep(0.01)
            hanging.released.set()
        assert len(hanging.began) == 1
        assert member.statistics().services["store"].received == 2


async def test_cancelling_the_caller_stops_the_handler_within_two_round_trips(autojump_clock: MockClock) -> None:
    hanging = Hanging()
    async with open_stage(latency=(0.001, 0.001)) as stage:
        member, shop = await stage.pair(hanging.service)
        with trio.move_on_after(0.1) as scope:
            await shop.request("store", timeout=math.inf)
        assert scope.cancelled_caught
        cancelled = trio.current_time()
        await trio.sleep(0.05)
        assert len(hanging.ended) == 1
        assert hanging.ended[0] <= cancelled + 0.004
        assert shop.statistics().requests.expired == 1
        service = member.statistics().services["store"]
        assert service.cancelled + service.expired == 1, "the scope's end is the request's deadline as well"


async def test_a_request_in_a_scope_that_is_over_is_cancelled_like_any_wait(autojump_clock: MockClock) -> None:
    """Else a caller that tries again after each ``RequestTimeout`` would do so for ever, and nobody else would run."""
    async with open_stage() as stage:
        member, shop = await stage.pair(make_store())
        for deadline in (trio.current_time() - 1, math.inf):
            with trio.CancelScope(deadline=deadline) as scope:
                if deadline == math.inf:
                    scope.cancel()
                await shop.request("store", 1)
            assert scope.cancelled_caught
        assert shop.statistics().requests.expired == 2
        assert member.statistics().services["store"].received == 0


async def test_a_nested_request_has_what_is_left_and_stops_with_the_first_caller(autojump_clock: MockClock) -> None:
    hanging = Hanging("back")
    front = iris.Service("front")
    lefts: list[float] = []
    async with open_stage(latency=(0.001, 0.001)) as stage:
        await stage.member(hanging.service)
        middle = await stage.node("front")
        shop = await stage.node("shop")

        @front.request
        async def pass_on(request: iris.Request) -> object:
            lefts.append(request.deadline - trio.current_time())
            await trio.sleep(0.1)
            return await middle.request("back", request.payload, timeout=60)

        async with middle.join("front", front):
            await shop.wait_for("front")
            began = trio.current_time()
            with pytest.raises(iris.RequestTimeout):
                await shop.request("front", timeout=0.3)
            await trio.sleep(0.01)
            assert 0.29 < hanging.ended[0] - began <= 0.3 + 1e-9
            with trio.move_on_after(0.2):
                await shop.request("front", timeout=60)
            cancelled = trio.current_time()
            await trio.sleep(0.05)
            assert hanging.ended[1] <= cancelled + 0.004
            assert 0.29 < lefts[0] < 0.3
            await trio.sleep(0.2)
            assert middle.statistics().requests.waiting == 0


async def test_nested_requests_and_surveys_have_the_priority_of_the_request_that_is_served(
    autojump_clock: MockClock,
) -> None:
    """As members see it: by the flags of what arrives, in the handler and in its tasks."""
    front, back = iris.Service("front"), iris.Service("back")
    seen: list[tuple[object, int]] = []
    async with open_stage() as stage:
        member = await stage.member(back)
        middle = await stage.node("front")
        shop = await stage.node("shop")

        @back.request
        async def note(request: iris.Request) -> None:
            (job,) = stage.parts[member.id].patterns.serving.in_progress
            seen.append((request.payload, job.priority))

        @front.request
        async def pass_on(request: iris.Request) -> None:
            await middle.request("back", "nested")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(middle.request, "back", "in a task")
            async with middle.survey("back", "surveyed") as answers:
                assert len([answer async for answer in answers]) == 1
            await middle.request("back", "otherwise", options=iris.RequestOptions(priority="low"))

        async with middle.join("front", front):
            await shop.wait_for("front")
            await shop.wait_for("back")
            for priority in ("high", "low", "normal", None):
                await shop.request("front", options=iris.RequestOptions(priority=priority))
            await shop.request("back", "unserved")
    expected: list[tuple[object, int]] = []
    for number in (1, 2, 0, 0):
        expected += [("nested", number), ("in a task", number), ("surveyed", number), ("otherwise", 2)]
    assert seen == [*expected, ("unserved", 0)]


async def test_requests_from_a_worker_thread_have_the_priority_of_the_request_that_is_served() -> None:
    """In real time: a virtual clock would run on while the thread is at work."""
    front, back = iris.Service("front"), iris.Service("back")
    seen: list[tuple[object, int]] = []
    async with open_stage() as stage:
        member = await stage.member(back)
        middle = await stage.node("front")
        shop = await stage.node("shop")

        @back.request
        async def note(request: iris.Request) -> None:
            (job,) = stage.parts[member.id].patterns.serving.in_progress
            seen.append((request.payload, job.priority))

        @front.request(thread=True)
        def pass_on(request: iris.Request) -> None:
            trio.from_thread.run(middle.request, "back", "from a thread")

        async with middle.join("front", front):
            await shop.wait_for("front")
            await middle.wait_for("back")
            await shop.request("front", options=iris.RequestOptions(priority="high"))
            await shop.request("front")
    assert seen == [("from a thread", 1), ("from a thread", 0)]


async def test_a_member_that_asks_itself_does_not_hand_its_priority_to_the_next_request(
    autojump_clock: MockClock,
) -> None:
    """A request to the own node begins a worker from within the asking task, with all that this task inherits."""
    service = iris.Service("own")
    seen: list[tuple[object, int]] = []
    async with open_stage() as stage:
        node = await stage.node("own")

        @service.request
        async def ask_oneself(request: iris.Request) -> None:
            (priority,) = {
                job.priority
                for job in stage.parts[node.id].patterns.serving.in_progress
                if job.payload == request.payload
            }
            seen.append((request.payload, priority))
            if request.payload == b"first":
                await node.request("own", b"second")

        async with node.join("own", service):
            await node.request("own", b"first", options=iris.RequestOptions(priority="high"))
            await node.request("own", b"first")
    assert seen == [(b"first", 1), (b"second", 1), (b"first", 0), (b"second", 0)]


async def test_beyond_its_queue_a_member_refuses_at_once_and_says_when_to_come_back(autojump_clock: MockClock) -> None:
    hanging = Hanging()
    outcomes: Counter[str] = Counter()
    async with open_stage() as stage:
        member, shop = await stage.pair(hanging.service, limits=iris.Limits(concurrency=2, queue=3))

        async def ask() -> None:
            began = trio.current_time()
            try:
                await shop.request("store")
            except iris.Overloaded as error:
                outcomes["refused"] += error.retry_after >= 0.1 and trio.current_time() - began < 0.01
            else:
                outcomes["served"] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(ask)
            await trio.sleep(1)
            assert outcomes == {"refused": 4}
            statistics = member.statistics().services["store"]
            assert (statistics.running, statistics.queued, statistics.refused) == (2, 3, 4)
            hanging.released.set()
        assert outcomes == {"refused": 4, "served": 5}
        assert shop.statistics().requests.refused == 4
        await shop.request("store")


async def test_an_overloaded_member_is_passed_over(autojump_clock: MockClock) -> None:
    hanging = Hanging()
    async with open_stage() as stage:
        busy = await stage.member(hanging.service, "busy", limits=iris.Limits(concurrency=1, queue=1))
        free = await stage.node("store", "free")
        shop = await stage.node("shop")
        await shop.wait_for("store")
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(shop.request, "store")
            await trio.sleep(0.1)
            async with free.join("store", make_store()):
                await shop.wait_for("store", members=2)
                for number in range(50):
                    assert await shop.request("store", number) == number
            hanging.released.set()
        assert busy.statistics().services["store"].served == 2
        assert shop.statistics().requests.refused == 0


async def test_a_crash_leaves_the_outcome_of_other_requests_unknown(autojump_clock: MockClock) -> None:
    hanging = Hanging()
    async with open_stage() as stage:
        _, shop = await stage.pair(hanging.service)
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(iris.Unknown, match="never or once"):
                    await shop.request("store", timeout=60)

            nursery.start_soon(ask)
            await trio.sleep(0.1)
            stage.crash("store")
        assert len(hanging.began) == 1
        assert shop.statistics().requests.lost == {"Unknown": 1}
        with pytest.raises(iris.NoSuchCluster):
            await shop.request("store")
        assert shop.statistics().requests.sent == 1


async def test_a_member_that_has_just_left_did_not_run_the_request(autojump_clock: MockClock) -> None:
    async with open_stage(latency=(0.05, 0.05)) as stage:
        leaving = await stage.node("store")
        shop = await stage.node("shop")
        async with leaving.join("store", make_store()):
            await shop.wait_for("store")
        assert shop.members("store"), "the news has come already: the test shows nothing"
        with pytest.raises(iris.NotSent, match="no longer serves"):
            await shop.request("store")
        assert shop.statistics().requests.refused == 1


async def test_a_handler_that_outlives_the_draining_is_cut_off_and_counted(autojump_clock: MockClock) -> None:
    hanging = Hanging()
    async with open_stage() as stage:
        leaving = await stage.node("store", config=iris.Config(drain_timeout=0.5))
        shop = await stage.node("shop")
        async with trio.open_nursery() as nursery:
            async with leaving.join("store", hanging.service, limits=iris.Limits(concurrency=1)) as membership:
                await shop.wait_for("store")

                async def ask(error: type[Exception]) -> None:
                    with pytest.raises(error):
                        await shop.request("store", timeout=60)

                nursery.start_soon(ask, iris.Unknown)
                await trio.sleep(0.01)
                nursery.start_soon(ask, iris.NotSent)
                await trio.sleep(0.01)
                began = trio.current_time()
            assert trio.current_time() - began == pytest.approx(0.5, abs=0.01)
        service = membership.statistics()
        assert (service.received, service.cancelled, service.running, service.queued) == (2, 2, 0, 0)
        assert (len(hanging.began), len(hanging.ended)) == (1, 1)


async def test_a_value_stands_in_the_place_of_an_error_and_is_counted(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        member = await stage.node("store")
        shop = await stage.node("shop")
        assert await shop.request("nobody", fallback="none") == "none"
        async with member.join("store", make_store()):
            await shop.wait_for("store")
            assert await shop.request("store", "here", fallback="none") == "here"
            assert await shop.request("store", "remote", operation="fail", fallback="none") == "none"
            assert await shop.request("store", 9, operation="sleep", timeout=1, fallback=0) == 0
            with pytest.raises(iris.RemoteError):
                await shop.request("store", "remote", operation="fail", fallback=None)
            with pytest.raises(iris.LocalProtocolError):
                await shop.request("store", object(), fallback="none")
            with trio.move_on_after(1) as scope:
                await shop.request("store", 9, operation="sleep", fallback=0)
            assert scope.cancelled_caught
        found = shop.statistics()
        assert found.fallbacks == {"NoSuchCluster": 1, "RemoteError": 1, "RequestTimeout": 1}
        assert found.requests.answered == 3, "also those whose handler raised"
