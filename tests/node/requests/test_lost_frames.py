"""Requests whose frames are lost while their member lives: every one has an outcome, and repeats carry what is left."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import iris
from iris.cluster.mesh.peer import Peer
from iris.kernel import wire
from iris.kernel.config import MIB
from iris.kernel.wire import kinds
from iris.patterns.multicast.answers import StopRules
from iris.patterns.multicast.survey import Surveys
from tests.support.meshes import MeshNode, open_meshes
from tests.support.messages import raw


class Store:
    """A service that takes so many seconds, and notes what it ran and what time it was given."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.ran: list[object] = []
        self.given: list[float] = []
        self.service = iris.Service("store")
        self.service.request(self.serve)

    async def serve(self, request: iris.Request) -> object:
        self.ran.append(request.payload)
        self.given.append(request.deadline - trio.current_time())
        await trio.sleep(self.seconds)
        return request.payload


class Outcomes:
    """Outcomes of callers, with their times."""

    def __init__(self) -> None:
        self.of: dict[object, tuple[str, float]] = {}

    async def ask(self, shop: MeshNode, payload: object, timeout: float, *, idempotent: bool = False) -> None:
        try:
            await shop.request("store", payload, timeout=timeout, idempotent=idempotent)
        except iris.IrisError as error:
            self.of[payload] = (type(error).__name__, trio.current_time())
        else:
            self.of[payload] = ("reply", trio.current_time())


@pytest.mark.parametrize("timeout", [math.inf, 3600.0])
@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_a_request_whose_frames_were_lost_ends_in_unknown_when_the_link_is_back(
    autojump_clock: MockClock, lost: str, timeout: float
) -> None:
    store, outcomes = Store(1.0), Outcomes()
    async with open_meshes("shop", "store", linked=True) as fleet, trio.open_nursery() as nursery:
        shop, member = fleet["shop"], fleet["store"]
        async with member.serve(store.service):
            began = trio.current_time()
            if lost == "request":
                fleet.network.loss = 1.0
            nursery.start_soon(outcomes.ask, shop, "plain", timeout)
            await trio.sleep(0.5)
            fleet.network.loss = 1.0
            await trio.sleep(1)
            fleet.network.loss = 0.0
            assert outcomes.of == {}
            (member if lost == "reply" else shop).break_connections()
            await trio.sleep(1)
            assert outcomes.of["plain"][0] == "Unknown"
            assert outcomes.of["plain"][1] - began < 2
            assert store.ran == (["plain"] if lost == "reply" else [])
            assert shop.requests.tally.lost == {"Unknown": 1}


async def test_what_runs_and_what_waits_at_the_member_is_waited_for(autojump_clock: MockClock) -> None:
    store, outcomes = Store(2.0), Outcomes()
    async with open_meshes("shop", "store") as fleet, trio.open_nursery() as nursery:
        shop, member = fleet["shop"], fleet["store"]
        async with member.serve(store.service, concurrency=1):
            for payload in ("runs", "waits"):
                nursery.start_soon(outcomes.ask, shop, payload, math.inf)
                await trio.sleep(0.1)
            for node in (shop, member):
                node.break_connections()
            nursery.start_soon(outcomes.ask, shop, "comes between", math.inf)
            await trio.sleep(10)
    assert {payload: outcome for payload, (outcome, _) in outcomes.of.items()} == {
        "runs": "reply", "waits": "reply", "comes between": "reply"
    }  # fmt: skip
    assert store.ran == ["runs", "waits", "comes between"]


@pytest.mark.parametrize("seed", range(6))
async def test_without_a_deadline_every_request_over_a_lossy_network_ends_and_none_runs_twice(
    autojump_clock: MockClock, seed: int
) -> None:
    store, outcomes = Store(0.01), Outcomes()
    async with open_meshes("shop", "store", seed=seed) as fleet:
        shop, member = fleet["shop"], fleet["store"]
        async with member.serve(store.service), trio.open_nursery() as nursery:
            fleet.network.loss = 0.2
            for number in range(60):
                nursery.start_soon(outcomes.ask, shop, number, math.inf)
                await trio.sleep(0.005)
            fleet.network.loss = 0.0
            await shop.request("store", "the last shows what is missing", timeout=5)
            shop.mesh.post(member.id, kinds.Ping(1), 0)
    told = Counter(outcome for outcome, _ in outcomes.of.values())
    assert sum(told.values()) == 60
    assert set(told) == {"reply", "Unknown"}, "nothing was lost: the test shows nothing"
    assert max(Counter(store.ran).values()) == 1
    assert {payload for payload, (outcome, _) in outcomes.of.items() if outcome == "reply"} <= set(store.ran)


async def test_a_request_that_is_sent_once_more_carries_the_time_that_is_left(autojump_clock: MockClock) -> None:
    store, outcomes = Store(), Outcomes()
    async with open_meshes("shop", "store") as fleet, trio.open_nursery() as nursery:
        shop, member = fleet["shop"], fleet["store"]
        async with member.serve(store.service):
            fleet.network.loss = 1.0
            nursery.start_soon(lambda: outcomes.ask(shop, "again", 10.0, idempotent=True))
            nursery.start_soon(lambda: outcomes.ask(shop, "too late", 2.5, idempotent=True))
            await trio.sleep(2.0)
            fleet.network.loss = 0.0
            shop.break_connections()
            await trio.sleep(0.3)
    assert sorted(map(str, store.ran)) == ["again", "too late"]
    assert sorted(store.given) == [pytest.approx(0.5, abs=0.1), pytest.approx(8.0, abs=0.1)]
    assert {outcome for outcome, _ in outcomes.of.values()} == {"reply"}


async def test_a_request_whose_time_is_over_is_not_sent_once_more(autojump_clock: MockClock) -> None:
    """Its caller is woken, and has not run yet."""
    store, outcomes = Store(), Outcomes()
    async with open_meshes("shop", "store") as fleet, trio.open_nursery() as nursery:
        shop, member = fleet["shop"], fleet["store"]
        async with member.serve(store.service):
            fleet.network.loss = 1.0
            nursery.start_soon(lambda: outcomes.ask(shop, "over", 1.0, idempotent=True))
            await trio.sleep(0.5)
            fleet.network.loss = 0.0
            waiter = next(iter(shop.requests._waiting.values()))
            waiter.call.deadline = trio.current_time()
            posted = shop.peer(member).link.statistics().posted
            shop.requests.frames_lost(shop.peer(member))
            assert shop.peer(member).link.statistics().posted == posted
    assert outcomes.of["over"][0] == "RequestTimeout"
    assert store.ran == []


async def test_the_member_says_of_what_it_does_not_have_that_it_is_not_there(autojump_clock: MockClock) -> None:
    """Of what runs and of what somebody else asked it says nothing; a number that is none is refused."""
    store = Store(5.0)
    said: list[wire.Message] = []
    async with open_meshes("shop", "other", "store") as fleet, trio.open_nursery() as nursery:
        shop, other, member = fleet["shop"], fleet["other"], fleet["store"]

        def note(_: Peer, message: wire.Message) -> None:
            said.append(message)

        other.mesh.receivers.own[kinds.Failure] = note
        async with member.serve(store.service):
            nursery.start_soon(partial(shop.request, "store", 1, timeout=60))  # number 1
            await trio.sleep(0.1)
            other.mesh.post(member.id, kinds.Awaited(1), 0)
            await trio.sleep(0.1)
            other.mesh.post(member.id, raw(kinds.Awaited, "1"), 0)
            shop.mesh.post(member.id, kinds.Awaited(1), 0)
            await trio.sleep(0.1)
            assert said == [kinds.Failure(1, "not_here", "", 0)]
            assert member.mesh.refusals == {"RemoteProtocolError": 1}
            nursery.cancel_scope.cancel()


async def test_a_reply_that_finds_no_room_is_told_to_be_dropped(autojump_clock: MockClock) -> None:
    """Many large ones at the same moment; without a deadline the callers of those dropped would wait for ever."""
    store = iris.Service("store")
    released = trio.Event()

    @store.request
    async def much(_: iris.Request) -> bytes:
        await released.wait()
        return bytes(MIB)

    told: Counter[str] = Counter()
    config = iris.Config(link_bytes=4 * MIB)
    async with open_meshes("shop", "store", config=config, capacity=2) as fleet:
        shop, member = fleet["shop"], fleet["store"]

        async def ask() -> None:
            try:
                await shop.request("store", b"", timeout=math.inf)
            except iris.RemoteError as error:
                told[error.code] += 1
            else:
                told["reply"] += 1

        async with member.serve(store), trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(ask)
            await trio.sleep(0.1)
            released.set()
        assert sum(told.values()) == 16
        assert set(told) == {"reply", "reply_dropped"}
        assert member.mesh.refusals == {"reply without room on the link": told["reply_dropped"]}


class Hanging:
    """A service whose handlers wait until they are cancelled, or let go."""

    def __init__(self) -> None:
        self.running: set[object] = set()
        self.ended: Counter[str] = Counter()
        self.released = trio.Event()
        self.service = iris.Service("store")
        self.service.request(self.hang)

    async def hang(self, request: iris.Request) -> object:
        self.running.add(request.payload)
        try:
            await self.released.wait()
        except trio.Cancelled:
            self.ended["cancelled"] += 1
            raise
        else:
            self.ended["done"] += 1
        finally:
            self.running.remove(request.payload)
        return request.payload


async def test_a_cancellation_that_was_lost_is_made_up_for_when_the_link_is_back(autojump_clock: MockClock) -> None:
    store, outcomes = Hanging(), Outcomes()
    async with open_meshes("shop", "store") as fleet, trio.open_nursery() as nursery:
        shop, member = fleet["shop"], fleet["store"]
        async with member.serve(store.service):
            nursery.start_soon(outcomes.ask, shop, "goes on", math.inf)
            async with trio.open_nursery() as given_up:
                given_up.start_soon(outcomes.ask, shop, "given up", math.inf)
                await trio.sleep(0.4)
                fleet.network.loss = 1.0
                given_up.cancel_scope.cancel()
            await trio.sleep(1)
            fleet.network.loss = 0.0
            assert store.running == {"goes on", "given up"}, "the cancellation was not lost: the test shows nothing"
            shop.break_connections()
            await trio.sleep(1)
            assert store.running == {"goes on"}
            store.released.set()
            await trio.sleep(1)
    assert outcomes.of["goes on"][0] == "reply"
    assert store.ended == {"cancelled": 1, "done": 1}


async def test_what_a_dead_caller_has_asked_is_cancelled(autojump_clock: MockClock) -> None:
    store, outcomes = Hanging(), Outcomes()
    async with open_meshes("shop", "store", config=iris.Config()) as fleet:
        shop, member = fleet["shop"], fleet["store"]
        async with member.serve(store.service, concurrency=2), trio.open_nursery() as nursery:
            nursery.start_soon(outcomes.ask, shop, "plain", math.inf)
            nursery.start_soon(lambda: outcomes.ask(shop, "idempotent", math.inf, idempotent=True))
            await trio.sleep(0.1)
            nursery.start_soon(outcomes.ask, shop, "waits", math.inf)
            await trio.sleep(0.1)
            assert store.running == {"plain", "idempotent"}
            fleet.network.partition(["shop"], ["store"])
            member.mesh.drop(shop.id, "presumed dead")
            await trio.sleep(0.01)
            assert store.running == {"idempotent"}
            await trio.sleep(61)
            assert store.running == set()
            assert store.ended == {"cancelled": 2}
            (membership,) = member.memberships
            now = membership.statistics()
            assert (now.received, now.cancelled, now.expired) == (3, 2, 1)
            fleet.network.heal()
            nursery.cancel_scope.cancel()


async def test_a_caller_that_was_held_for_dead_gets_the_reply_to_what_it_repeats(autojump_clock: MockClock) -> None:
    store, outcomes = Hanging(), Outcomes()
    async with open_meshes("shop", "store") as fleet, trio.open_nursery() as nursery:
        shop, member = fleet["shop"], fleet["store"]
        async with member.serve(store.service):
            nursery.start_soon(lambda: outcomes.ask(shop, "idempotent", 600.0, idempotent=True))
            nursery.start_soon(outcomes.ask, shop, "plain", 600.0)
            await trio.sleep(0.1)
            member.mesh.drop(shop.id, "presumed dead")
            shop.break_connections()
            await trio.sleep(1)
            await member.mesh.connect([shop.url], expected=shop.id)
            await trio.sleep(100)
            assert store.running == {"idempotent"}, "its own deadline counts again"
            assert outcomes.of["plain"][0] == "Unknown"
            store.released.set()
            await trio.sleep(1)
            assert outcomes.of["idempotent"][0] == "reply"
    assert store.ended == {"cancelled": 1, "done": 1}


async def test_what_runs_for_somebody_who_asked_elsewhere_is_cancelled(autojump_clock: MockClock) -> None:
    """The word of a member counts for itself; a number that is none is refused."""
    said: list[wire.Message] = []
    async with open_meshes("shop", "other", "store") as fleet, trio.open_nursery() as nursery:
        shop, other, member = fleet["shop"], fleet["other"], fleet["store"]

        def note(_: Peer, message: wire.Message) -> None:
            said.append(message)

        other.mesh.receivers.own[kinds.Cancel] = note
        async with member.serve(Hanging().service):
            nursery.start_soon(partial(shop.request, "store", 1, timeout=60))  # number 1
            await trio.sleep(0.1)
            for number in (1, 2, "1"):
                other.mesh.post(shop.id, raw(kinds.Running, number), 0)
                await trio.sleep(0.1)
            member.mesh.post(shop.id, kinds.Running(1), 0)
            await trio.sleep(0.1)
            assert said == [kinds.Cancel(1), kinds.Cancel(2)]
            assert len(member.serving.in_progress) == 1
            assert shop.mesh.refusals == {"RemoteProtocolError": 1}
            nursery.cancel_scope.cancel()


async def test_headers_count_where_messages_wait_for_a_link(autojump_clock: MockClock) -> None:
    """Many small messages with large headers would else be one frame that nobody takes."""
    store = Store()
    headers = {"token": "x" * 8000}
    async with open_meshes("shop", "store") as fleet, trio.open_nursery() as nursery:
        shop, member = fleet["shop"], fleet["store"]
        async with member.serve(store.service) as membership:
            shop.break_connections()
            for _ in range(500):
                nursery.start_soon(partial(shop.request, "store", b"", timeout=60, headers=headers))
                nursery.start_soon(partial(shop.broadcasts.broadcast, "store", b"", headers=headers))
            await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            # Requests wait for the link; broadcasts for credit of the member, but for the first ones.
            assert shop.peer(member).link.statistics().bytes_waiting > 500 * 8000
            await trio.sleep(10)
            statistics = membership.statistics()
            assert (len(store.ran), statistics.broadcasts_received) == (500, 500)


@pytest.mark.parametrize("lost", ["question", "answer"])
async def test_a_survey_of_many_without_a_deadline_ends_when_frames_were_lost(
    autojump_clock: MockClock, lost: str
) -> None:
    store = Store(1.0)
    config = iris.Config(relay_above=2)
    async with open_meshes("shop", "a", "b", "c", config=config) as fleet, AsyncExitStack() as stack:
        shop, members = fleet["shop"], [fleet[name] for name in "abc"]
        for member in members:
            await stack.enter_async_context(member.serve(store.service))
        surveys = Surveys(shop.mesh, shop.requests, fleet.directory, shop.relays, config)
        rules = StopRules(timeout=math.inf)
        if lost == "question":
            fleet.network.loss = 1.0
        async with surveys.open("store", b"", rules, None, None, None, timeout=math.inf) as answers:
            await trio.sleep(0.5)
            fleet.network.loss = 1.0
            await trio.sleep(1)
            fleet.network.loss = 0.0
            for node in (shop, *members):
                node.break_connections()
            with trio.fail_after(10):
                assert [answer async for answer in answers] == []
        assert answers.ended_by == "all"
        assert [type(error) for error in answers.errors.values()] == 3 * [iris.Unknown]
        assert len(store.ran) == (0 if lost == "question" else 3)
