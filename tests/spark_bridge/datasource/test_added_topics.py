"""A topic that a query is given on a checkpoint of before begins at its earliest event, and no event comes twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.datasource import reader, source
from iris.spark_bridge.datasource.inline_source import InlineStreamReader
from iris.spark_bridge.datasource.options import SourceOptions, parse_source_options
from iris.spark_bridge.datasource.source import IrisStreamReader
from iris.testing import open_network
from tests.spark_bridge.datasource.test_losses import InThread
from tests.support.bridge_members import open_member


class Query:
    """A query with a checkpoint: what Spark asks, and the rows that it gets."""

    def __init__(self) -> None:
        self.checkpoint: list[dict[str, Any]] = []
        self.rows: list[str] = []
        self.batches: list[list[str]] = []

    def run(self, given: Mapping[str, str], *, most: int = 100, repeat: bool = False) -> None:
        """Start anew, as after a change of the options, and read what is there; ``most`` batches."""
        stream = IrisStreamReader(parse_source_options({**given, "localFiles": "false"}, streaming=True))
        if not self.checkpoint:
            self.checkpoint.append(stream.initialOffset())
        if repeat:
            assert self.read(stream, *self.checkpoint[-2:]) == self.batches[-1]
        for _ in range(most):
            start = json.loads(json.dumps(self.checkpoint[-1]))
            end = stream.latestOffset(start, stream.getDefaultReadLimit())
            if end == start:
                return
            self.batches.append(self.read(stream, start, end))
            self.rows += self.batches[-1]
            self.checkpoint.append(end)

    def read(self, stream: IrisStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        begin, stop = json.loads(json.dumps(start)), json.loads(json.dumps(end))
        batches = [batch for part in stream.partitions(begin, stop) for batch in stream.read(part)]
        return [value.decode() for batch in batches for value in batch.column("value").to_pylist()]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_FIRST_POLL", 0.0)


async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    async with open_network() as network, open_member(network, tmp_path), network.open_node("reader") as other:
        portal = Streaming(BridgeClient(other, "bridge", patience=5))

        def portal_to(_: object) -> Streaming:
            return portal

        for module in (source, reader):
            monkeypatch.setattr(module, "portal_to", portal_to)

        async def publish(*topics: str) -> None:
            for topic in topics:
                counts[topic] += 1
                await other.publish_confirmed(topic, f"{topic}{counts[topic]}")

        counts: Counter[str] = Counter()
        await act(publish)


class Streaming(InThread):
    """A portal through which ranges are read as well."""

    def stream(self, make: Any) -> Any:
        async def gather() -> list[Any]:
            return [part async for part in make(self._client)]

        yield from trio.from_thread.run(gather)


TWO = {"maxOffsetsPerTrigger": "2"}


@pytest.mark.parametrize(
    ("before", "after", "limit"),
    [
        ({"subscribe": "a"}, {"subscribe": "a,b"}, {}),
        ({"subscribe": "a"}, {"subscribe": ">"}, TWO),
        ({"subscribe": "a"}, {}, TWO),
        ({"subscribePattern": "a"}, {"subscribePattern": "a|b"}, TWO),
        ({"subscribePattern": "a"}, {"subscribe": "b,a"}, {}),
        ({"subscribe": "a", "startingOffsets": "latest"}, {"subscribe": "a,b", "startingOffsets": "latest"}, TWO),
    ],
)
async def test_what_was_stored_on_it_before_is_read_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, str],
    after: dict[str, str],
    limit: dict[str, str],
) -> None:
    query = Query()

    async def act(publish: Any) -> None:
        await publish("a", "b", "b", "a", "b")
        await trio.to_thread.run_sync(lambda: query.run(before | limit))
        old = 0 if "startingOffsets" in before else 2
        assert query.rows == ["a1", "a2"][:old]
        await publish("b", "a", "b")
        # The last batch is repeated with the topics that it had, and the next ones have all.
        again = bool(query.batches)
        run = lambda: query.run(after | limit, repeat=again)  # noqa: E731
        await trio.to_thread.run_sync(run)
        await publish("a", "b")
        await trio.to_thread.run_sync(lambda: query.run(after | limit, repeat=True))
        wanted = [f"b{n}" for n in range(1, 7)] + [f"a{n}" for n in range(3 - old, 5)]
        assert Counter(query.rows) == Counter(wanted)
        if limit:
            assert max(map(len, query.batches)) <= 2
        assert "before" not in query.checkpoint[-1], "it is over"

    await scene(tmp_path, monkeypatch, act)


async def test_topics_that_are_added_while_others_are_still_read_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query()

    async def act(publish: Any) -> None:
        options = {"maxOffsetsPerTrigger": "1"}
        await publish(*"abcabcabc")
        await trio.to_thread.run_sync(lambda: query.run({"subscribe": "a"} | options))
        await trio.to_thread.run_sync(lambda: query.run({"subscribe": "a,b"} | options, most=1))
        assert query.rows == ["a1", "a2", "a3", "b1"]
        await trio.to_thread.run_sync(lambda: query.run({"subscribe": "a,b,c"} | options, most=1, repeat=True))
        await publish(*"abc")
        await trio.to_thread.run_sync(lambda: query.run({"subscribe": "a,b,c"} | options, repeat=True))
        assert Counter(query.rows) == Counter(f"{topic}{n}" for topic in "abc" for n in range(1, 5))

    await scene(tmp_path, monkeypatch, act)


async def test_fewer_topics_and_a_checkpoint_of_before_this_go_on_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query()

    async def act(publish: Any) -> None:
        await publish("a", "b")
        await trio.to_thread.run_sync(lambda: query.run({"subscribe": "a,b"}))
        await publish("a", "b")
        await trio.to_thread.run_sync(lambda: query.run({"subscribe": "b"}))
        assert query.rows == ["a1", "b1", "b2"]
        query.checkpoint[-1].pop("topics")
        await publish("a", "b")
        await trio.to_thread.run_sync(lambda: query.run({"subscribe": "a,b"}))
        assert query.rows == ["a1", "b1", "b2", "a3", "b3"]

    await scene(tmp_path, monkeypatch, act)


async def test_a_query_without_workers_reads_them_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(publish: Any) -> None:
        def read(stream: InlineStreamReader, start: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
            batches, end = stream.read(start)
            return [value.decode() for batch in batches for value in batch.column("value").to_pylist()], end

        await publish("a", "b", "b")
        first = InlineStreamReader(IrisStreamReader(SourceOptions(topics=("a",), local_files=False)), 1)
        start = await trio.to_thread.run_sync(first.initialOffset)
        rows, end = await trio.to_thread.run_sync(read, first, start)
        assert rows == ["a1"]
        second = InlineStreamReader(IrisStreamReader(SourceOptions(topics=("a", "b"), local_files=False)), 1)
        for wanted in (["b1"], ["b2"], []):
            rows, end = await trio.to_thread.run_sync(read, second, end)
            assert rows == wanted

    await scene(tmp_path, monkeypatch, act)
