"""A durable group that divides events by shard: each event belongs to one member for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.errors import ConfigError, RequestTimeout
from iris.patterns.pubsub.interest import shards
from iris.patterns.pubsub.interest.shards import MAX_SHARDS, ShardMap, ShardMaps, Share, is_share, stable_hash
from iris.patterns.pubsub.publish.ack_batch import open_confirmed_events
from tests.support.meshes import MeshNode, check_tally, open_meshes

OF = 4


@pytest.mark.parametrize("value", [(1, 0), (4, 0, 3), (MAX_SHARDS, *range(MAX_SHARDS))])
def test_a_share_is_a_number_of_shards_and_some_of_them(value: tuple[int, ...]) -> None:
    assert is_share(value)


def test_groups_of_any_number_of_shards_share_what_an_event_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (7, 1, 2, MAX_SHARDS, 3, *range(100, 130))
    expected = {(of, key): ShardMap(range(of)).shard_of(key, "p", "t") for of in numbers for key in ("a", "b", None)}
    hashed: list[str] = []

    def count(text: str) -> int:
        hashed.append(text)
        return stable_hash(text)

    monkeypatch.setattr(shards, "stable_hash", count)
    maps = ShardMaps()
    assert {(of, key): maps.shard_of(of, key, "p", "t") for of, key in expected} == expected
    assert len(hashed) == 3 * MAX_SHARDS


@pytest.mark.parametrize(
    "value",
    [(), (1,), (1, 1), (1, -1), (4, 2, 2), (0, 0), (2, True), (2, "0"), (2.0, 0), [2, 0], None, (MAX_SHARDS + 1, 0)],
)
def test_anything_else_is_no_share(value: object) -> None:
    assert not is_share(value)


@asynccontextmanager
async def open_member(node: MeshNode, *shards: int, patterns: tuple[str, ...] = (">",)) -> AsyncIterator[list[object]]:
    """A member that has these shards of the group ``log``, and stores and confirms what it gets."""
    stored: list[object] = []
    async with trio.open_nursery() as nursery:
        ready = trio.Semaphore(0)

        async def run(pattern: str) -> None:
            async with node.pubsub.subscribe(pattern, durable=True, group="log", share=Share(OF, shards)) as events:
                ready.release()
                while True:
                    batch = await events.receive_batch()
                    stored.extend(event.payload for event in batch)
                    await events.confirm(batch)

        for pattern in patterns:
            nursery.start_soon(run, pattern)
        for _ in patterns:
            await ready.acquire()
        yield stored
        nursery.cancel_scope.cancel()


def keys() -> Iterator[tuple[str, int]]:
    """Yield keys, each with the shard that it belongs to."""
    known = ShardMap(range(OF))
    for number in range(100):
        yield str(number), known.shard_of(str(number), "any publisher", "any topic")


async def confirm(node: MeshNode, key: str, timeout: float = 5.0) -> None:
    await node.pubsub.confirming.publish("t", key, key=key, timeout=timeout, headers=None)


async def test_each_event_goes_to_who_has_its_shard(autojump_clock: MockClock) -> None:
    async with (
        open_meshes("a", "b", "c") as fleet,
        open_member(fleet["b"], 0, 2) as first,
        open_member(fleet["c"], 1, 3) as second,
    ):
        for key, _ in keys():
            await confirm(fleet["a"], key)
            await fleet["a"].pubsub.publish("t", f"u{key}", key=key, headers=None, within=None, retain=False)
        await trio.sleep(1)
        for member, shards in ((first, (0, 2)), (second, (1, 3))):
            wanted = [key for key, shard in keys() if shard in shards]
            assert member == [text for key in wanted for text in (key, f"u{key}")]
        check_tally(fleet["a"].pubsub.publishing.tally)


async def test_a_topic_without_keys_stays_in_the_order_of_its_publisher(autojump_clock: MockClock) -> None:
    async with (
        open_meshes("a", "b", "c") as fleet,
        open_member(fleet["b"], 0, 1) as first,
        open_member(fleet["c"], 2, 3) as second,
    ):
        mesh = fleet["a"]
        async with open_confirmed_events(mesh.pubsub.confirming, mesh.mesh.config, 5.0) as events:
            for number in range(3000):
                await events.publish(f"t.{number % 7}", number)
        assert sorted([*first, *second]) == list(range(3000))  # type: ignore[type-var]  # numbers
        for topic in range(7):
            found = [[n for n in member if isinstance(n, int) and n % 7 == topic] for member in (first, second)]
            assert sorted(found) == [[], list(range(topic, 3000, 7))]


async def test_a_member_with_several_patterns_gets_an_event_once(autojump_clock: MockClock) -> None:
    async with (
        open_meshes("a", "b") as fleet,
        open_member(fleet["b"], 0, 1, 2, 3, patterns=(">", "t", "*")) as stored,
    ):
        for key, _ in keys():
            await confirm(fleet["a"], key)
        assert sorted(stored) == sorted(key for key, _ in keys())  # type: ignore[type-var]  # text


async def test_members_on_one_node_get_the_events_of_their_own_shards(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with open_member(b, 0, 2) as even, open_member(b, 1, 3) as odd:
            for key, _ in keys():
                await confirm(a, key)
            assert [int(str(key)) for key in even] == [int(key) for key, shard in keys() if shard % 2 == 0]
            assert [int(str(key)) for key in odd] == [int(key) for key, shard in keys() if shard % 2]


async def test_while_a_member_is_away_its_events_wait_and_go_to_nobody_else(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c", "d") as fleet, open_member(fleet["b"], 0, 1) as first:
        a = fleet["a"]
        async with open_member(fleet["c"], 2, 3):
            for key, _ in keys():
                await confirm(a, key)
        first.clear()
        async with trio.open_nursery() as nursery:
            for key, _ in keys():
                nursery.start_soon(confirm, a, key)
            await trio.sleep(1)
            assert sorted(first) == sorted(key for key, shard in keys() if shard < 2)  # type: ignore[type-var]
            async with open_member(fleet["d"], 2, 3) as again:  # another node took the place
                await trio.sleep(1)
                assert not nursery.child_tasks
                assert sorted(again) == sorted(key for key, shard in keys() if shard >= 2)  # type: ignore[type-var]
        assert len(first) + len(again) == 100


async def test_a_shard_that_nobody_has_costs_the_timeout(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_member(fleet["b"], 0, 1):
        key = next(key for key, shard in keys() if shard == 2)
        with pytest.raises(RequestTimeout):
            await confirm(fleet["a"], key, timeout=1)


async def test_an_unconfirmed_event_of_a_shard_that_nobody_has_is_lost_and_counted(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_member(fleet["b"], 0, 1) as stored:
        pubsub = fleet["a"].pubsub
        for key, _ in keys():
            await pubsub.publish("t", key, key=key, headers=None, within=None, retain=False)
        await trio.sleep(1)
        lost = sum(shard >= 2 for _, shard in keys())
        assert len(stored) == 100 - lost
        assert check_tally(pubsub.publishing.tally).lost["nobody has the shard"] == lost


@contextmanager
def refused(message: str) -> Iterator[None]:
    with pytest.raises(ConfigError, match=message):
        yield


async def test_a_share_that_makes_no_sense_is_refused() -> None:
    async with open_meshes("a") as fleet:
        subscribe = fleet["a"].pubsub.subscribe
        for no_share in ((2, (1,)), Share(2, 1)):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            with refused("with a tuple of shards"):
                async with subscribe("t", durable=True, group="g", share=no_share):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
                    pass
        with refused("different whole numbers"):
            async with subscribe("t", durable=True, group="g", share=Share(2, (2,))):
                pass
        for durable, group in ((True, None), (False, "g")):
            with refused("only a durable group"):
                async with subscribe("t", share=Share(2, (1,)), durable=durable, group=group):
                    pass
