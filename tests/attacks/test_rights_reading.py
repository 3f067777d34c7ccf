"""Readers of a bridge that want something else each time: what is remembered for them is bounded for all together."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from iris.spark_bridge.log import TopicFilter
from iris.spark_bridge.log.topics import filter as topic_filter
from iris.spark_bridge.server import operations
from iris.testing import Rights, open_network
from tests.support.bridge_members import open_member


async def test_what_readers_want_takes_a_bounded_place_however_many_topics_it_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_MATCHED", 1000)
    async with open_network() as network:
        network.credential("evil", Rights(publishes=("public.>",), subscribes=("public.>",)))
        async with open_member(network, tmp_path, topics=["public.>"]) as bridge, network.open_node("evil") as evil:
            await evil.wait_for("bridge", timeout=60)
            for number in range(200):
                await (evil.publish_confirmed if number % 50 == 49 else evil.publish)(f"public.{number}", b"")
            (state,) = bridge.states.values()
            asked = {"known": {state.id: 0}, "timeout": 0, "limit": 1000}
            for number in range(40):
                wanted = ["public.>", f"public.x{number}"]
                found = await evil.request("bridge", {**asked, "topics": wanted}, operation="offsets")
                assert found[state.id][4] == 200
            kept = [thing for thing in gc.get_objects() if type(thing) is TopicFilter]
            assert sum(one.remembered for one in kept) <= 1000 + 400


def test_a_filter_remembers_so_many_topics_and_answers_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_filter, "_REMEMBERED", 10)
    wanted = TopicFilter(["a.*", "b.7"])
    many = [f"{first}.{number}" for first in "abc" for number in range(30)]
    for topics in (many[:5], many, many[25:35], many[::-1], many[:9], many):
        expected = [topic for topic in topics if topic.startswith("a.") or topic == "b.7"]
        assert wanted.choose(topics) == expected
        assert wanted.remembered <= 10
