"""Broadcasts and surveys of whole clusters: everybody once, and who has not answered is known."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import IN_FLIGHT, Stage, open_stage


class Caches:
    """A cluster that records what its members receive, and answers as its hosts are set to."""

    def __init__(self) -> None:
        self.told: dict[str, list[iris.Message]] = defaultdict(list)
        self.behaviour: dict[str, str] = {}
        self.ended: list[str] = []

    async def start(self, stage: Stage, count: int) -> dict[str, iris.Node]:
        """Bring up members on the hosts ``cache-0`` and so on."""
        hosts = [f"cache-{index}" for index in range(count)]
        return {host: await stage.member(self.service(host), host) for host in hosts}

    def service(self, host: str) -> iris.Service:
        service = iris.Service("cache")

        async def note(message: iris.Message) -> None:
            if self.behaviour.get(host) == "fail":
                raise ValueError("full")
            if self.behaviour.get(host) == "slow":
                await trio.sleep(0.1)
            self.told[host].append(message)

        async def answer(request: iris.Request) -> object:
            try:
                match self.behaviour.get(host):
                    case "fail":
                        raise ValueError("empty")
                    case "hang":
                        await trio.sleep_forever()
                    case _:
                        return [host, request.payload]
            finally:
                self.ended.append(host)

        service.broadcast(note)
        service.request(answer)
        service.request("named")(answer)
        return service

    def numbers(self, host: str) -> list[object]:
        return [message.payload for message in self.told[host]]


async def test_every_member_gets_each_broadcast_once_and_in_order(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        members = await caches.start(stage, 5)
        senders = [await stage.node("shop", f"shop-{index}") for index in range(2)]
        caches.behaviour["cache-1"] = "slow"
        async with trio.open_nursery() as nursery:

            async def send(sender: iris.Node) -> None:
                await sender.wait_for("cache", members=5)
                for number in range(30):
                    await sender.broadcast("cache", number, headers={"n": str(number)})

            for sender in senders:
                nursery.start_soon(send, sender)
        await trio.sleep(7)
        for host, member in members.items():
            for sender in senders:
                told = [message for message in caches.told[host] if message.sender.node == sender.id]
                assert [message.payload for message in told] == list(range(30))
                assert [dict(message.headers) for message in told] == [{"n": str(number)} for number in range(30)]
            assert member.statistics().services["cache"].broadcasts == 60
        for sender in senders:
            assert sender.statistics().broadcasts.handed_over == 150


async def test_a_member_that_broadcasts_to_its_cluster_is_told_as_well(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        members = await caches.start(stage, 2)
        await members["cache-0"].wait_for("cache", members=2)
        await members["cache-0"].broadcast("cache", "flush")
        await trio.sleep(IN_FLIGHT)
        assert caches.numbers("cache-0") == caches.numbers("cache-1") == ["flush"]


async def test_a_handler_that_fails_is_counted_and_hears_the_next_one(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        members = await caches.start(stage, 2)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=2)
        caches.behaviour["cache-0"] = "fail"
        await shop.broadcast("cache", 1)
        await trio.sleep(IN_FLIGHT)
        del caches.behaviour["cache-0"]
        await shop.broadcast("cache", 2)
        await trio.sleep(IN_FLIGHT)
        assert (caches.numbers("cache-0"), caches.numbers("cache-1")) == ([2], [1, 2])
        service = members["cache-0"].statistics().services["cache"]
        assert (service.broadcasts, service.broadcasts_failed) == (1, 1)


@pytest.mark.parametrize("way", ["drained", "cut off", "cancelled", "fails as it is cancelled"])
async def test_broadcasts_of_a_member_that_leaves_are_counted(autojump_clock: MockClock, way: str) -> None:
    cache = iris.Service("cache")

    @cache.broadcast
    async def hear(_: iris.Message) -> None:
        async def fail() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while it is cancelled")

        async with trio.open_nursery() as nursery:
            if way == "fails as it is cancelled":
                nursery.start_soon(fail)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()

    async with open_stage() as stage:
        leaving = await stage.node("cache", config=iris.Config(drain_timeout=60 if way == "drained" else 1.5))
        shop = await stage.node("shop")
        joined: list[iris.ClusterMembership] = []
        with trio.CancelScope() as scope:
            async with leaving.join("cache", cache) as membership:
                joined.append(membership)
                await shop.wait_for("cache")
                for number in range(5):
                    await shop.broadcast("cache", number)
                await trio.sleep(0.1)
                now = membership.statistics()
                assert (now.broadcasts_received, now.broadcasts_queued) == (5, 5)
                if way in ("cancelled", "fails as it is cancelled"):
                    scope.cancel()
        after = joined[0].statistics()
        counted = (after.broadcasts, after.broadcasts_failed, after.broadcasts_cancelled, after.broadcasts_queued)
        assert counted == {
            "drained": (5, 0, 0, 0), "cut off": (1, 0, 4, 0), "cancelled": (0, 0, 5, 0),
            "fails as it is cancelled": (0, 1, 4, 0),
        }[way]  # fmt: skip
        assert after.broadcasts_received == 5


async def test_a_broadcast_that_comes_when_its_member_has_left_is_counted_as_that(autojump_clock: MockClock) -> None:
    async with open_stage(latency=(0.05, 0.05)) as stage:
        leaving = await stage.node("cache")
        shop = await stage.node("shop")
        async with leaving.join("cache", Caches().service("cache")):
            await shop.wait_for("cache")
        assert shop.members("cache"), "the news has come already: the test shows nothing"
        await shop.broadcast("cache", 1)
        await trio.sleep(IN_FLIGHT)
        assert leaving.statistics().refusals == {"broadcast for a cluster that is not served here": 1}
        stage.harmless = ("not served here",)


async def test_who_joins_later_is_not_told(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        await caches.start(stage, 1)
        shop = await stage.node("shop")
        await shop.wait_for("cache")
        await shop.broadcast("cache", 1)
        await stage.member(caches.service("late"), "late")
        await shop.wait_for("cache", members=2)
        await shop.broadcast("cache", 2)
        await trio.sleep(IN_FLIGHT)
        assert (caches.numbers("cache-0"), caches.numbers("late")) == ([1, 2], [2])


async def test_what_cannot_be_broadcast_is_refused_before_anybody_is_told(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        await caches.start(stage, 1)
        shop = await stage.node("shop")
        await shop.wait_for("cache")
        with pytest.raises(iris.PayloadTooLarge):
            await shop.broadcast("cache", bytes(1024 * 1024 + 1))
        with pytest.raises(iris.LocalProtocolError):
            await shop.broadcast("cache", object())
        for payload, error in ((bytes(1024 * 1024 + 1), iris.PayloadTooLarge), (object(), iris.LocalProtocolError)):
            with pytest.raises(error):
                async with shop.survey("cache", payload):
                    pass
        assert shop.statistics().broadcasts.sent == shop.statistics().requests.sent == 0


@pytest.mark.parametrize("operation", [None, "named"])
async def test_a_survey_gathers_the_answers_of_all_members(autojump_clock: MockClock, operation: str | None) -> None:
    caches = Caches()
    async with open_stage() as stage:
        members = await caches.start(stage, 5)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=5)
        began = trio.current_time()
        async with shop.survey("cache", "how full?", operation=operation) as answers:
            gathered = {answer.member: answer.payload async for answer in answers}
        assert gathered == {member.id: [host, "how full?"] for host, member in members.items()}
        assert set(answers.asked) == gathered.keys()
        assert (answers.missing, answers.errors, answers.ended_by) == ((), {}, "all")
        assert trio.current_time() - began < 0.1


async def test_a_survey_ends_with_its_time_and_tells_who_is_missing_and_why(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        members = await caches.start(stage, 4)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=4)
        caches.behaviour |= {"cache-0": "hang", "cache-1": "fail"}
        began = trio.current_time()
        async with shop.survey("cache", 1, timeout=0.5) as answers:
            hosts = sorted([answer.payload[0] async for answer in answers])
        assert trio.current_time() - began == pytest.approx(0.5)
        assert hosts == ["cache-2", "cache-3"]
        assert answers.ended_by == "deadline"
        assert set(answers.missing) == {members["cache-0"].id, members["cache-1"].id}
        assert isinstance(answers.errors[members["cache-0"].id], iris.RequestTimeout)
        with pytest.raises(iris.RemoteError, match="ValueError: empty"):
            raise answers.errors[members["cache-1"].id]
        await trio.sleep(0.01)
        assert "cache-0" in caches.ended


async def test_leaving_a_survey_early_stops_the_members_that_are_at_work(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        members = await caches.start(stage, 3)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=3)
        caches.behaviour |= {"cache-0": "hang", "cache-1": "hang"}
        async with shop.survey("cache", 1, timeout=60) as answers:
            assert (await anext(answers)).payload == ["cache-2", 1]
        left = trio.current_time()
        await trio.sleep(0.01)
        assert sorted(caches.ended) == ["cache-0", "cache-1", "cache-2"]
        assert trio.current_time() - left < 0.02
        assert len(answers.missing) == 2
        assert members["cache-0"].statistics().services["cache"].cancelled == 1
        assert shop.statistics().requests.expired == 2


async def test_a_member_that_crashes_during_a_survey_is_missing_and_the_survey_goes_on(
    autojump_clock: MockClock,
) -> None:
    caches = Caches()
    async with open_stage() as stage:
        members = await caches.start(stage, 3)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=3)
        caches.behaviour["cache-0"] = "hang"
        began = trio.current_time()
        async with shop.survey("cache", 1, timeout=60) as answers:
            first = [(await anext(answers)).payload[0] for _ in range(2)]
            stage.crash("cache-0")
            assert [answer async for answer in answers] == []
        assert sorted(first) == ["cache-1", "cache-2"]
        assert answers.missing == (members["cache-0"].id,)
        assert isinstance(answers.errors[members["cache-0"].id], iris.Unknown)
        assert trio.current_time() - began < 5


@pytest.mark.parametrize(
    ("rule", "ended_by", "seconds"), [({"count": 2}, "count", 0.0), ({"quiet": 0.2}, "quiet", 0.2)]
)
async def test_a_survey_ends_by_its_rules_and_stops_those_at_work(
    autojump_clock: MockClock, rule: dict[str, Any], ended_by: str, seconds: float
) -> None:
    caches = Caches()
    async with open_stage() as stage:
        members = await caches.start(stage, 4)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=4)
        caches.behaviour |= {"cache-0": "hang", "cache-1": "hang"}
        began = trio.current_time()
        async with shop.survey("cache", 1, timeout=60, **rule) as answers:
            assert answers.ended_by is None
            hosts = sorted([answer.payload[0] async for answer in answers])
            assert hosts == ["cache-2", "cache-3"]
            assert answers.ended_by == ended_by
            assert set(answers.missing) == {members["cache-0"].id, members["cache-1"].id}
            assert answers.errors == {}, "nothing went wrong with them"
            assert trio.current_time() - began == pytest.approx(seconds, abs=0.02)
            await trio.sleep(0.01)
            assert sorted(caches.ended) == ["cache-0", "cache-1", "cache-2", "cache-3"]
        assert shop.statistics().requests.expired == 2


@pytest.mark.parametrize("read", [0, 1])
async def test_after_its_block_a_survey_gives_the_answers_that_had_come_and_then_an_error(
    autojump_clock: MockClock, read: int
) -> None:
    caches = Caches()
    async with open_stage() as stage:
        await caches.start(stage, 3)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=3)
        caches.behaviour["cache-0"] = "hang"
        async with shop.survey("cache", 1, timeout=60) as answers:
            await trio.sleep(0.1)
            for _ in range(read):
                await anext(answers)
        with trio.fail_after(1):
            for _ in range(2 - read):
                assert (await anext(answers)).payload[1] == 1
            for _ in range(2):
                with pytest.raises(trio.ClosedResourceError, match="within the block"):
                    await anext(answers)
        assert (answers.ended_by, len(answers.missing)) == (None, 1)


async def test_who_waits_for_answers_when_the_block_is_left_gets_the_error(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        await caches.start(stage, 1)
        shop = await stage.node("shop")
        await shop.wait_for("cache")
        caches.behaviour["cache-0"] = "hang"
        async with trio.open_nursery() as nursery:

            async def read(answers: iris.Answers) -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await anext(answers)

            with trio.fail_after(5):
                async with shop.survey("cache", 1, timeout=60) as answers:
                    nursery.start_soon(read, answers)
                    await trio.sleep(0.1)


async def test_a_survey_that_ended_in_its_block_can_be_read_to_its_end_after_it(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        await caches.start(stage, 3)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=3)
        async with shop.survey("cache", 1, timeout=60) as answers:
            await trio.sleep(0.1)
        assert len([answer async for answer in answers]) == 3
        assert answers.ended_by == "all"


async def test_of_answers_that_come_at_the_same_moment_a_survey_takes_as_many_as_it_wants(
    autojump_clock: MockClock,
) -> None:
    caches = Caches()
    async with open_stage(latency=(0.05, 0.05)) as stage:
        await caches.start(stage, 6)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=6)
        for count in (1, 3, 6):
            async with shop.survey("cache", 1, count=count) as answers:
                gathered = [answer async for answer in answers]
            assert len(gathered) == count
            assert answers.ended_by == "count"


async def test_a_survey_of_one_answer_takes_the_first_and_more_than_there_are_takes_all(
    autojump_clock: MockClock,
) -> None:
    caches = Caches()
    async with open_stage() as stage:
        await caches.start(stage, 4)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=4)
        for count, expected in ((1, 1), (9, 4)):
            async with shop.survey("cache", 1, count=count) as answers:
                gathered = [answer async for answer in answers]
            assert len(gathered) == expected
            assert len(answers.asked) - len(answers.missing) == len(gathered)


async def test_who_broadcasts_without_waiting_waits_now_and_then(autojump_clock: MockClock) -> None:
    """Links that have no turn seem to stand still, and what stands still loses its copies."""
    async with open_stage() as stage:
        caches = Caches()
        await caches.start(stage, 1)
        shop = await stage.node("shop", seeds=["cache-0"])
        await shop.wait_for("cache")
        sent = [shop._broadcast_at_once("cache", number, None) for number in range(64)]
        assert [number for number, at_once in enumerate(sent) if not at_once] == [63]


async def test_a_member_that_is_not_linked_is_in_the_errors_and_among_the_lost(autojump_clock: MockClock) -> None:
    """One that others reach, and only the caller does not."""
    async with open_stage() as stage:
        caches = Caches()
        await caches.start(stage, 1)
        stage.network.memory.partition(["shop"], ["cache-1"])
        far = await stage.member(caches.service("cache-1"), "cache-1")
        shop = await stage.node("shop", seeds=["cache-0"])
        await shop.wait_for("cache")
        await trio.sleep(3)
        assert {member.node for member in shop.members("cache")} == {stage.nodes["cache-0"].id, far.id}
        async with shop.survey("cache", 1) as answers:
            assert [answer.payload async for answer in answers] == [["cache-0", 1]]
        assert answers.ended_by == "all"
        assert (answers.expected, answers.missing) == (2, (far.id,))
        assert {node: type(error) for node, error in answers.errors.items()} == {far.id: iris.NotSent}
        await shop.broadcast("cache", 1)
        assert shop._broadcast_at_once("cache", 2, None)
        statistics = shop.statistics().broadcasts
        assert (statistics.sent, statistics.handed_over, statistics.lost) == (4, 2, {"no link": 2})
        rows = {row.receiver: row.lost for row in (await shop.books()).rows if row.pattern == "broadcast"}
        assert rows[far.id] == {"no link": 2}
        await trio.sleep(IN_FLIGHT)
        assert caches.numbers("cache-0") == [1, 2]
