"""Sharding: what belongs together stays together."""

from __future__ import annotations

from collections import Counter

from iris.patterns.pubsub.subscribe.events import EventRun
from iris.spark_bridge.server.sharding import Sharding
from tests.support.arrivals import fake_event


def shard_of(sharding: Sharding, event: EventRun) -> int:
    ((shard,), _) = sharding.split([event])
    return shard


def test_a_key_goes_to_one_shard_whoever_publishes_it() -> None:
    sharding = Sharding([0, 1, 2])
    for key in map(str, range(50)):
        events = [fake_event(key=key, topic=topic, publisher=p * 32) for topic in "xy" for p in "ab"]
        assert len(sharding.split(events)[0]) == 1


def test_events_without_key_keep_the_order_of_publisher_and_topic() -> None:
    sharding = Sharding([0, 1, 2])
    events = [fake_event(b"%d" % n, topic="t", publisher="a" * 32) for n in range(10)]
    assert list(sharding.split(events)[0].values()) == [events]


def test_shards_get_about_the_same() -> None:
    sharding = Sharding([0, 1, 2, 3])
    counts = Counter(shard_of(sharding, fake_event(key=str(n))) for n in range(4000))
    assert set(counts) == {0, 1, 2, 3}
    assert min(counts.values()) > 800


def test_a_new_shard_takes_keys_and_moves_no_others() -> None:
    before, after = Sharding([0, 1]), Sharding([0, 1, 2])
    for n in range(500):
        event = fake_event(key=str(n))
        assert shard_of(after, event) in (shard_of(before, event), 2)


def test_other_processes_find_the_same_shard() -> None:
    assert [shard_of(Sharding([0, 1, 2]), fake_event(key=key)) for key in "abcdef"] == [2, 1, 2, 2, 2, 0]


def test_with_one_shard_nothing_is_divided() -> None:
    events = [fake_event(key="a"), fake_event(key="b")]
    assert Sharding([7]).split(events) == ({7: events}, [])


def test_members_that_divide_the_shards_divide_the_events() -> None:
    whole, one, other = Sharding([0, 1, 2]), Sharding([0, 2], of=3), Sharding([1], of=3)
    events = [fake_event(key=str(n)) for n in range(100)]
    parts, _ = whole.split(events)
    mine, theirs = one.split(events)
    assert mine == {shard: parts[shard] for shard in (0, 2)}
    assert theirs == parts[1]
    assert other.split(events)[0] == {1: theirs}
    assert [event for event in events if other.owns(event.key, event.publisher, event.topic)] == theirs
