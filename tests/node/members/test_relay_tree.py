"""Broadcasts over a relay tree: everybody once and in order, no matter who dies on the way, or lies."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import pytest
import trio
import trio.testing
from msgspec.structs import replace
from trio.testing import MockClock

import iris
from iris.cluster.sites import reach_all
from iris.kernel import wire
from iris.kernel.wire import kinds
from iris.patterns.multicast.tree import claim
from iris.patterns.priority import PriorityName
from tests.support.meshes import MeshNode, open_meshes
from tests.support.stages import IN_FLIGHT, Stage, open_stage

NARROW = iris.Config(relay_above=4, relay_fan_out=2)
"""Trees of three hops with a dozen members."""


class Crowd:
    """A cluster whose members record what they receive."""

    def __init__(self) -> None:
        self.told: dict[str, list[object]] = defaultdict(list)
        self.senders: Counter[str] = Counter()

    async def start(self, stage: Stage, count: int, config: iris.Config) -> dict[str, iris.Node]:
        hosts = [f"member-{index}" for index in range(count)]
        return {host: await stage.member(self.service(host), host, config=config) for host in hosts}

    def service(self, host: str) -> iris.Service:
        crowd = iris.Service("crowd")

        async def note(message: iris.Message) -> None:
            self.told[host].append(message.payload)
            self.senders[message.sender.cluster] += 1

        crowd.broadcast(note)
        return crowd


async def test_every_member_of_a_large_cluster_is_told_once_in_order_and_by_whom(autojump_clock: MockClock) -> None:
    crowd = Crowd()
    async with open_stage() as stage:
        members = await crowd.start(stage, 12, NARROW)
        shop = await stage.node("shop", config=NARROW)
        await shop.wait_for("crowd", members=12)
        await reach_all(shop._reach, "crowd", 5.0)
        await trio.sleep(IN_FLIGHT)  # who was linked just now would be told by the sender itself
        for number in range(20):
            await shop.broadcast("crowd", number)
        await trio.sleep(IN_FLIGHT)
        assert dict(crowd.told) == {host: list(range(20)) for host in members}
        assert crowd.senders == {"shop": 240}
        assert shop.statistics().broadcasts.handed_over == 240
        links = shop.statistics().links
        assert sum(links[member.id].sent > 20 for member in members.values()) == 2, "the sender told others itself"
        relayed = sum(member.statistics().relayed.handed_over for member in members.values())
        assert relayed == 20 * (10 + 6), "ten are behind the first two, six behind the next four"


async def test_a_member_that_broadcasts_to_its_large_cluster_is_told_once_as_well(autojump_clock: MockClock) -> None:
    crowd = Crowd()
    async with open_stage() as stage:
        members = await crowd.start(stage, 9, NARROW)
        await members["member-4"].wait_for("crowd", members=9)
        await members["member-4"].broadcast("crowd", "x")
        await trio.sleep(IN_FLIGHT)
        assert dict(crowd.told) == {host: ["x"] for host in members}


async def test_a_small_cluster_is_told_without_relays(autojump_clock: MockClock) -> None:
    crowd = Crowd()
    async with open_stage() as stage:
        members = await crowd.start(stage, NARROW.relay_above, NARROW)
        shop = await stage.node("shop", config=NARROW)
        await shop.wait_for("crowd", members=4)
        await shop.broadcast("crowd", 1)
        await trio.sleep(IN_FLIGHT)
        assert sum(member.statistics().relayed.sent for member in members.values()) == 0
        last = await stage.member(crowd.service("last"), "last", config=NARROW)
        await shop.wait_for("crowd", members=5)
        await shop.broadcast("crowd", 2)
        await trio.sleep(IN_FLIGHT)
        assert sum(member.statistics().relayed.sent for member in (*members.values(), last)) == 3
        assert dict(crowd.told) == {host: [1, 2] for host in members} | {"last": [2]}


async def test_a_relay_that_dies_takes_at_most_its_branch_along_and_everything_is_counted(
    autojump_clock: MockClock,
) -> None:
    crowd = Crowd()
    async with open_stage() as stage:
        members = await crowd.start(stage, 12, NARROW)
        shop = await stage.node("shop", config=NARROW)
        await shop.wait_for("crowd", members=12)
        for number in range(2):  # those that were linked just now got the first one directly
            await shop.broadcast("crowd", number)
            await trio.sleep(IN_FLIGHT)
        relay = max(members, key=lambda host: members[host].statistics().relayed.sent)
        for number in range(2, 40):
            await shop.broadcast("crowd", number)
            if number == 20:
                stage.crash(relay)
        await trio.sleep(3)
        statistics = shop.statistics().broadcasts
        assert statistics.waiting == 0
        assert 0 < statistics.lost["relay lost"] <= 5 * 39
        for host in members:
            assert len(set(crowd.told[host])) == len(crowd.told[host]), "told twice"
        unharmed = [host for host in members if crowd.told[host] == list(range(40))]
        assert len(unharmed) >= 5, "the other branch is not affected"
        crowd.told.clear()
        await shop.wait_for("crowd", members=11)
        await trio.sleep(2)
        await shop.broadcast("crowd", "after")
        await trio.sleep(IN_FLIGHT)
        assert dict(crowd.told) == {host: ["after"] for host in members if host != relay}


async def test_a_lossy_network_loses_broadcasts_but_never_doubles_or_forgets_one(autojump_clock: MockClock) -> None:
    crowd = Crowd()
    async with open_stage(seed=5) as stage:
        members = await crowd.start(stage, 9, NARROW)
        shop = await stage.node("shop", config=NARROW)
        await shop.wait_for("crowd", members=9)
        stage.network.memory.loss = 0.05
        for number in range(100):
            await shop.broadcast("crowd", number)
            await trio.sleep(0.01)
        stage.network.memory.loss = 0
        for number in range(100, 110):  # shows every gap
            await shop.broadcast("crowd", number)
            await trio.sleep(0.1)
        await trio.sleep(2)
        told = [crowd.told[host] for host in members]
        assert all(len(set(numbers)) == len(numbers) for numbers in told)
        assert all(set(range(100, 110)) <= set(numbers) for numbers in told)
        assert sum(map(len, told)) < 110 * 9, "nothing was lost: the test shows nothing"
        assert shop.statistics().broadcasts.waiting == 0


# -- surveys -------------------------------------------------------------------------------------------------


class Caches:
    """A cluster whose members answer with their host, fail, or work until they are stopped."""

    def __init__(self) -> None:
        self.behaviour: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        self.stopped: list[str] = []

    async def start(self, stage: Stage, count: int) -> dict[str, iris.Node]:
        hosts = [f"cache-{index:02}" for index in range(count)]
        return {host: await stage.member(self.service(host), host, config=NARROW) for host in hosts}

    def service(self, host: str) -> iris.Service:
        service = iris.Service("cache")

        async def answer(request: iris.Request) -> object:
            self.asked[host] += 1
            match self.behaviour.get(host):
                case "fail":
                    raise ValueError("empty")
                case "slow":
                    await trio.sleep(12)
                    return host
                case "hang":
                    try:
                        await trio.sleep_forever()
                    finally:
                        self.stopped.append(host)
                case _:
                    return [host, request.payload, request.sender.cluster]

        service.request(answer)
        service.request("other")(answer)
        return service


async def shop_and_caches(stage: Stage, caches: Caches, count: int) -> tuple[iris.Node, dict[str, iris.Node]]:
    members = await caches.start(stage, count)
    shop = await stage.node("shop", config=NARROW)
    await shop.wait_for("cache", members=count)
    return shop, members


@pytest.mark.parametrize("operation", [None, "other"])
async def test_a_survey_of_a_large_cluster_goes_over_the_tree_and_gathers_every_answer(
    autojump_clock: MockClock, operation: str | None
) -> None:
    caches = Caches()
    async with open_stage() as stage:
        shop, members = await shop_and_caches(stage, caches, 9)
        posted = {node: link.posted for node, link in shop.statistics().links.items()}
        async with shop.survey("cache", "full?", operation=operation) as answers:
            gathered = {answer.member: answer.payload async for answer in answers}
        assert gathered == {member.id: [host, "full?", "shop"] for host, member in members.items()}
        assert (answers.missing, answers.errors, answers.ended_by) == ((), {}, "all")
        assert caches.asked == dict.fromkeys(members, 1)
        now = shop.statistics().links
        told = [host for host, member in members.items() if now[member.id].posted > posted[member.id]]
        assert len(told) <= 3, "the asker told more than those at the top of the tree"
        assert shop.statistics().requests.answered == 9


async def test_a_survey_over_the_tree_tells_who_is_missing_and_why_and_stops_them(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        shop, members = await shop_and_caches(stage, caches, 9)
        caches.behaviour |= {"cache-00": "hang", "cache-01": "fail", "cache-02": "hang"}
        began = trio.current_time()
        async with shop.survey("cache", 1, timeout=0.5) as answers:
            assert len([answer async for answer in answers]) == 6
        assert trio.current_time() - began == pytest.approx(0.5)
        assert answers.ended_by == "deadline"
        assert set(answers.missing) == {members[f"cache-0{number}"].id for number in range(3)}
        assert isinstance(answers.errors[members["cache-00"].id], iris.RequestTimeout)
        with pytest.raises(iris.RemoteError, match="ValueError: empty"):
            raise answers.errors[members["cache-01"].id]
        await trio.sleep(0.01)
        assert sorted(caches.stopped) == ["cache-00", "cache-02"]
        assert shop.statistics().requests.expired == 2


@pytest.mark.parametrize("hanging", [2, 8])
async def test_stopping_a_survey_over_the_tree_stops_few_members_and_many(
    autojump_clock: MockClock, hanging: int
) -> None:
    """Few members are reached one by one, many over the tree."""
    caches = Caches()
    async with open_stage() as stage:
        shop, members = await shop_and_caches(stage, caches, 9)
        hosts = sorted(members)[:hanging]
        caches.behaviour |= dict.fromkeys(hosts, "hang")
        async with shop.survey("cache", 1, timeout=60, count=9 - hanging) as answers:
            assert len([answer async for answer in answers]) == 9 - hanging
        left = trio.current_time()
        assert answers.ended_by == "count"
        assert len(answers.missing) == hanging
        await trio.sleep(0.01)
        begun = [host for host in hosts if caches.asked[host]]  # one deep in the tree may not have been asked yet
        assert sorted(caches.stopped) == begun
        assert len(begun) >= hanging - 2
        assert trio.current_time() - left < 0.02
        assert shop.statistics().requests.expired == hanging


async def test_a_quiet_survey_over_the_tree_ends(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        shop, _ = await shop_and_caches(stage, caches, 8)
        caches.behaviour["cache-03"] = "hang"
        async with shop.survey("cache", 1, timeout=60, quiet=0.3) as answers:
            assert len([answer async for answer in answers]) == 7
        assert answers.ended_by == "quiet"


async def test_members_that_die_while_they_are_surveyed_are_missing_and_those_behind_them_are_not_asked_twice(
    autojump_clock: MockClock,
) -> None:
    caches = Caches()
    async with open_stage() as stage:
        shop, members = await shop_and_caches(stage, caches, 9)
        caches.behaviour["cache-05"] = "hang"
        async with shop.survey("cache", 1, timeout=3) as answers:
            gathered = [(await anext(answers)).member for _ in range(8)]
            stage.crash("cache-05")
            assert [answer async for answer in answers] == []
        assert set(gathered) == {member.id for host, member in members.items() if host != "cache-05"}
        assert answers.missing == (members["cache-05"].id,)
        assert isinstance(answers.errors[members["cache-05"].id], iris.Unknown)
        assert caches.asked == dict.fromkeys(members, 1)


async def test_a_survey_without_a_deadline_ends_when_a_relay_dies_with_it_in_hand(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        shop, members = await shop_and_caches(stage, caches, 9)
        posted = {node: link.posted for node, link in shop.statistics().links.items()}
        caches.behaviour = dict.fromkeys(members, "slow")
        with trio.fail_after(20):
            async with shop.survey("cache", 1, timeout=math.inf) as answers:
                await trio.testing.wait_all_tasks_blocked()
                links = shop.statistics().links
                relay = next(host for host, member in members.items() if links[member.id].posted > posted[member.id])
                stage.crash(relay)
                gathered = {answer.member async for answer in answers}
        asked = {members[host].id for host in caches.asked}
        assert 0 < len(gathered) < 8, "the relay handed it on: the test shows nothing"
        assert gathered == asked - {members[relay].id}
        assert set(answers.missing) == {member.id for member in members.values()} - gathered
        assert answers.ended_by == "all"
        assert all(isinstance(answers.errors[member], iris.Unknown) for member in answers.missing)
        text = "does not have the request, and no reply has come: it ran never or once"
        assert sum(text in str(error) for error in answers.errors.values()) == 8 - len(gathered)


async def test_members_that_take_their_time_are_not_taken_for_lost(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        shop, members = await shop_and_caches(stage, caches, 9)
        caches.behaviour = dict.fromkeys(members, "slow")
        async with shop.survey("cache", 1, timeout=math.inf) as answers:
            assert {answer.member async for answer in answers} == {member.id for member in members.values()}
        assert (answers.errors, caches.asked) == ({}, dict.fromkeys(members, 1))


@pytest.mark.parametrize("count", [2, 7])
async def test_a_survey_has_the_priority_that_it_is_given(autojump_clock: MockClock, count: int) -> None:
    priorities: dict[PriorityName | None, int] = {None: 0, "normal": 0, "high": 1, "low": 2}
    caches = Caches()
    async with open_stage() as stage:
        shop, members = await shop_and_caches(stage, caches, count)
        caches.behaviour |= dict.fromkeys(members, "hang")
        for priority, number in priorities.items():
            async with shop.survey("cache", 1, timeout=60, priority=priority):
                await trio.sleep(0.1)
                seen = [
                    job.priority
                    for member in members.values()
                    for job in stage.parts[member.id].patterns.serving.in_progress
                ]
                assert seen == [number] * count
            await trio.sleep(IN_FLIGHT)


async def test_a_member_of_a_large_cluster_that_surveys_it_answers_as_well(autojump_clock: MockClock) -> None:
    caches = Caches()
    async with open_stage() as stage:
        _, members = await shop_and_caches(stage, caches, 9)
        await members["cache-04"].wait_for("cache", members=9)
        async with members["cache-04"].survey("cache", 1) as answers:
            assert {answer.member async for answer in answers} == {member.id for member in members.values()}
        assert caches.asked == dict.fromkeys(members, 1)


# -- who lies ------------------------------------------------------------------------------------------------


def relayed(origin: MeshNode, number: int, body: bytes = b"", *, late: int = 0) -> kinds.Relay:
    """A broadcast of ``origin``, or another body, signed by it ``late`` seconds ago."""
    at = int(origin.mesh.wall_clock()) - late
    body = body or wire.encode_batch([kinds.Broadcast("crowd", None, b"payload", 0)])
    bare = kinds.Relay(bytes.fromhex(origin.id), number, at, b"", body, b"")
    return replace(bare, signature=origin.mesh.identity.sign(claim(bare)))


@pytest.mark.parametrize(
    ("lie", "refusal"),
    [
        ("body", "relayed message with a wrong signature"),
        ("number", "relayed message with a wrong signature"),
        ("origin", "relayed message with a wrong signature"),
        ("unknown origin", "relayed message of a node that is not linked"),
        ("own", "relayed message of a node that is not linked"),
        ("again", "relayed message came again"),
        ("old", "relayed message of another time"),
        ("of the future", "relayed message of another time"),
        ("date", "relayed message with a wrong signature"),
        ("kind", "message of kind Relay"),
        ("junk", "message of kind Relay"),
    ],
)
async def test_a_relay_that_lies_is_refused_and_counted(autojump_clock: MockClock, lie: str, refusal: str) -> None:
    told: list[tuple[str, object]] = []
    crowd = iris.Service("crowd")

    @crowd.broadcast
    async def note(message: iris.Message) -> None:
        told.append((message.sender.cluster, message.payload))

    async with open_meshes("shop", "liar", "member") as fleet:
        shop, liar, member = fleet["shop"], fleet["liar"], fleet["member"]
        async with member.serve(crowd):
            genuine = relayed(shop, 1)
            match lie:
                case "body":
                    forged = replace(genuine, body=wire.encode_batch([kinds.Broadcast("crowd", None, b"forged", 0)]))
                case "number":
                    forged = replace(genuine, number=2)
                case "origin":
                    forged = replace(genuine, origin=bytes.fromhex(liar.id))
                case "unknown origin":
                    forged = replace(genuine, origin=genuine.origin[::-1])
                case "own":
                    forged = relayed(member, 1)
                case "again":
                    liar.mesh.post(member.id, genuine, 0)
                    forged = genuine
                case "old":
                    forged = relayed(shop, 1, late=62)
                case "of the future":
                    forged = relayed(shop, 1, late=-62)
                case "date":
                    forged = replace(relayed(shop, 1, late=62), at=genuine.at)
                case "kind":
                    forged = relayed(shop, 1, wire.encode_batch([kinds.Goodbye("crowd")]))
                case _:
                    forged = relayed(shop, 1, b"\x01")
            liar.mesh.post(member.id, forged, 0)
            await trio.sleep(0.1)
            assert told == ([("shop", b"payload")] if lie == "again" else [])
            assert member.mesh.refusals == {refusal: 1}
            liar.mesh.post(member.id, relayed(shop, 9), 0)
            await trio.sleep(0.1)
            assert told[-1] == ("shop", b"payload"), "the genuine one is taken"


async def test_what_others_were_told_is_not_told_to_who_starts_later(autojump_clock: MockClock) -> None:
    """A member that starts later has seen no number: only the date shows that the message was not for it."""
    told: list[object] = []
    crowd = iris.Service("crowd")

    async def note(message: iris.Message) -> None:
        told.append(message.payload)

    crowd.broadcast(note)
    async with open_meshes("shop", "liar", "late") as fleet:
        kept = relayed(fleet["shop"], 1)
        await trio.sleep(62)
        async with fleet["late"].serve(crowd):
            fleet["liar"].mesh.post(fleet["late"].id, kept, 0)
            await trio.sleep(0.1)
            assert told == []
            assert fleet["late"].mesh.refusals == {"relayed message of another time": 1}


async def test_names_behind_a_node_that_cannot_be_right_are_counted_as_lost(autojump_clock: MockClock) -> None:
    async with open_meshes("shop", "member") as fleet:
        shop, member = fleet["shop"], fleet["member"]
        async with member.serve(iris.Service("crowd")):
            behind = bytes.fromhex(member.id + shop.id + shop.id[::-1])
            shop.mesh.post(member.id, replace(relayed(shop, 1), behind=behind), 0)
            await trio.sleep(0.1)
            assert member.relays.tally.lost == {"no link": 1}
            assert member.relays.tally.sent == 1
