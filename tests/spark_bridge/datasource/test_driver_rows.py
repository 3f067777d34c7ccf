"""Rows that Spark hands to its driver: they come with the commit, put together, in their order."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest
import trio

from iris.kernel.config import MIB
from iris.kernel.errors import ConfigError, NotAllowed, RemoteError
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.datasource.sink import DriverRows, Staged, abort_parts, commit_parts
from iris.spark_bridge.staging.staging import StagedPart
from iris.testing import Rights, open_network
from tests.support.arrivals import stored
from tests.support.staged import open_pair, part, staged_files, written


async def test_few_rows_come_with_the_commit_and_are_stored_and_told_once(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (bridge, client),
        network.open_node("listener") as node,
        node.subscribe("out.*") as events,
    ):
        carried = {part(0): written(["a"]).getvalue(), part(1): written([]).getvalue()}
        assert await client.commit("bridge", "q", 0, [part(1), part(0)], carried) == 1
        assert await client.commit("bridge", "q", 0, [part(1), part(0)], carried) is None
        assert stored(bridge.store) == [b"a"]
        assert not (tmp_path / "staged" / "q").exists()
        with trio.fail_after(60):
            assert (await anext(events)).payload == b"a"


async def test_parts_that_are_staged_and_parts_that_are_not_keep_their_order(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(1), written(["b"]))
        carried = {part(2): written(["c"]).getvalue(), part(0): written(["a"]).getvalue()}
        assert await client.commit("bridge", "q", 0, [part(1), part(2), part(0)], carried) == 3
        assert stored(bridge.store) == [b"a", b"b", b"c"]
        assert staged_files(tmp_path) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "rows of partition 0"),
        (b"nonsense", "rows of partition 0"),
        (written(["a"]).getvalue()[:-40], "rows of partition 0"),
        (written(["a"], topic="not a topic").getvalue(), "not a topic"),
        ("text", r"parts\[\d\]\[2\]: Expected `bytes"),
    ],
)
async def test_rows_with_a_commit_are_looked_at_like_those_that_are_staged(
    tmp_path: Path, data: bytes, message: str
) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        good = written(["good"]).getvalue()
        with pytest.raises(RemoteError, match=message):
            await client.commit("bridge", "q", 0, [part(0), part(1)], {part(0): data, part(1): good})
        assert stored(bridge.store) == []


async def test_rows_with_a_commit_need_the_right_to_publish_them(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, _):
        network.credential("analysts", Rights(publishes=("out.y",), subscribes=()))
        async with network.open_node("analysts") as node:
            client = BridgeClient(node, "bridge", patience=5)
            with pytest.raises(NotAllowed, match=r"publish on 'out\.x'"):
                await client.commit("bridge", "q", 0, [part(0)], {part(0): written(["a"]).getvalue()})
        assert stored(bridge.store) == []


async def test_a_driver_stages_what_is_too_much_for_its_commit(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        text = "x" * 60_000
        many = [DriverRows(part(number), written([f"{number:02d}{text}"]).getvalue()) for number in range(20)]
        await client.stage("bridge", part(20), written(["last"]))
        await commit_parts(client, staged=[Staged("bridge", part(20))], carried=many)
        found = stored(bridge.store)
        assert [value[:2] for value in found[:-1]] == [b"%02d" % number for number in range(20)]
        assert found[-1] == b"last"
        few = [DriverRows(part(0, batch=1), written(["few"]).getvalue())]
        await commit_parts(client, staged=[], carried=few)
        assert stored(bridge.store)[-1] == b"few"


async def test_listeners_get_what_came_with_a_commit_once_and_in_its_order(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (bridge, client),
        network.open_node("listener") as node,
        node.subscribe("out.*") as events,
    ):
        parts = {part(1): written(["c"]).getvalue(), part(0): written(["a", "b"], key="k").getvalue()}
        for count in (3, None):
            assert await client.commit("bridge", "q", 0, list(parts), parts) == count
        await client.commit("bridge", "q", 1, [part(0, batch=1)], {part(0, batch=1): written(["last"]).getvalue()})
        with trio.fail_after(60):
            heard = [await anext(events) for _ in range(4)]
        assert [(event.payload, event.key) for event in heard] == [
            (b"a", "k"),
            (b"b", "k"),
            (b"c", None),
            (b"last", None),
        ]
        assert bridge.statistics().unannounced == 0


class Asked:
    """A client that counts what is asked through it."""

    def __init__(self, client: BridgeClient) -> None:
        self.client = client
        self.parts: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.client, name)

    async def stage(self, address: str, part: StagedPart, file: IO[bytes]) -> None:
        self.parts.append(("stage", part.partition))
        await self.client.stage(address, part, file)

    async def commit(
        self, address: str, query: str, batch: int, parts: list[StagedPart], rows: dict[StagedPart, bytes]
    ) -> int | None:
        self.parts.append(("commit", len(parts)))
        return await self.client.commit(address, query, batch, parts, rows)


@pytest.mark.parametrize(("size", "requests"), [(60_000, [("stage", 0), ("commit", 1)]), (10, [("commit", 1)])])
async def test_what_many_tasks_gave_to_the_driver_takes_few_requests_and_few_chunks(
    tmp_path: Path, size: int, requests: list[tuple[str, int]]
) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        asked = Asked(client)
        values = [f"{number:03d}{'x' * size}" for number in range(100)]
        carried = [DriverRows(part(number), written([value]).getvalue()) for number, value in enumerate(values)]
        await commit_parts(asked, staged=[], carried=carried)  # type: ignore[arg-type] # does all that a client does
        assert asked.parts == requests
        assert stored(bridge.store) == [value.encode() for value in values]
        (state,) = bridge.store.shards()
        chunks = bridge.store.reader.read(0, state.epoch, 0, 100, max_bytes=64 * MIB)
        assert len(chunks) <= 1 + 100 * size // (900 * 1024)


async def test_rows_keep_their_order_however_their_tasks_sent_them(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        asked = Asked(client)
        carried: list[DriverRows] = []
        staged: list[Staged] = []
        for number in range(40):
            data = written([f"{number:02d}{'x' * 60_000}"])
            if number % 10 == 5:
                await client.stage("bridge", part(number), data)
                staged.append(Staged("bridge", part(number)))
            else:
                carried.append(DriverRows(part(number), data.getvalue()))
        await commit_parts(asked, staged=staged, carried=carried[::-1])  # type: ignore[arg-type] # as above
        assert sorted(asked.parts) == [("commit", 9), *(("stage", number) for number in (0, 6, 16, 26, 36))]
        assert [int(value[:2]) for value in stored(bridge.store)] == list(range(40))
        assert staged_files(tmp_path) == []


async def test_what_the_driver_staged_for_its_tasks_goes_with_a_batch_that_is_given_up(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        carried = [DriverRows(part(number), written(["x" * 60_000]).getvalue()) for number in range(10)]
        carried.append(DriverRows(part(10), written(["a"], topic="not a topic").getvalue()))
        with pytest.raises(RemoteError, match="not a topic"):
            await commit_parts(client, staged=[], carried=carried)
        assert staged_files(tmp_path) != []
        await abort_parts(client, staged=[], carried=carried)
        assert staged_files(tmp_path) == []
        assert stored(bridge.store) == []


async def test_a_stream_is_not_written_where_a_member_that_is_away_would_not_be_missed(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path / "a", member="a", shards=[0]) as (bridge, client),
    ):
        rows = written(["a"]).getvalue()
        with pytest.raises(ConfigError, match=r"do not say how many they are.* start them with --of, or .* delivery"):
            await commit_parts(client, staged=[], carried=[DriverRows(part(0), rows)])
        assert stored(bridge.store) == []
        job = StagedPart(query="job-1", batch=0, partition=0, attempt=0)
        await commit_parts(client, staged=[], carried=[DriverRows(job, rows)])
        assert stored(bridge.store) == [b"a"], "a job does not come back"
