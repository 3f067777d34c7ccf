"""A batch that Spark repeats is found in the log, whatever has become of the bridge's members meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from iris.spark_bridge.admin import read_events
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.datasource.sink import DriverRows, Staged, commit_parts, stage_part
from iris.spark_bridge.staging import new_part
from iris.testing import Network, open_network
from tests.support import bridge_members
from tests.support.staged import written

QUERIES: Final = [f"q{number}" for number in range(8)]


open_members = partial(bridge_members.open_members, topics=["out.>"])


@asynccontextmanager
async def open_writer(network: Network) -> AsyncIterator[BridgeClient]:
    """Open the client of a driver that begins anew: it has nothing that an earlier one knew."""
    async with network.open_node("bridge") as node:
        yield BridgeClient(node, "bridge", patience=20)


async def write(client: BridgeClient, batch: int, *, staged: bool = False) -> list[int | None]:
    """Commit this batch of each query; return what the bridge says of it."""
    answers: list[int | None] = []
    for query in QUERIES:
        part = new_part(query=query, batch=batch, partition=0)
        rows = written([f"{query} {batch}"])
        if staged:
            messages = [Staged(await stage_part(client, part=part, file=rows), part)]
            answers.append(await commit_parts(client, staged=messages, carried=[]))
        else:
            answers.append(await commit_parts(client, staged=[], carried=[DriverRows(part, rows.getvalue())]))
    return answers


async def check_once(client: BridgeClient, batches: int) -> None:
    found = Counter([event["value"] async for event in read_events(client)])
    assert found == {f"{query} {batch}": 1 for query in QUERIES for batch in range(batches)}


async def test_after_members_were_started_under_other_names(tmp_path: Path) -> None:
    async with open_network() as network:
        for turn, names in enumerate((["0", "1", "2"], ["z", "1", "2"], ["z", "y", "x"], ["m", "n", "l"])):
            async with (
                open_members(network, tmp_path, names, of=3),
                open_writer(network) as client,
            ):
                if turn:
                    assert await write(client, turn - 1) == [None] * len(QUERIES)
                assert await write(client, turn, staged=turn % 2 == 1) == [1] * len(QUERIES)
                await check_once(client, turn + 1)


async def test_rows_that_were_staged_at_a_member_that_has_another_name_now_are_committed(tmp_path: Path) -> None:
    staged: list[Staged] = []
    async with open_network() as network:
        async with open_members(network, tmp_path, ["0", "1"], of=2), open_writer(network) as client:
            for query in QUERIES:
                part = new_part(query=query, batch=0, partition=0)
                staged.append(Staged(await stage_part(client, part=part, file=written([f"{query} 0"])), part))
        async with open_members(network, tmp_path, ["z", "y"], of=2), open_writer(network) as client:
            for message in staged:
                assert await commit_parts(client, staged=[message], carried=[]) == 1
            await check_once(client, 1)
