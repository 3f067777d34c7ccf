"""Rights at a bridge that become less while something is in progress, and groups and memory of those who read."""

from __future__ import annotations

import io
import tracemalloc
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import IrisError, RemoteError
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.datasource.sink import DriverRows, Staged, commit_parts, stage_part
from iris.spark_bridge.staging import new_part
from iris.testing import open_network
from tests.attacks.test_rights_changing import open_narrowing
from tests.support.bridge_members import open_member
from tests.support.staged import written

pytestmark = pytest.mark.long


async def test_a_read_that_is_open_ends_where_the_rights_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.spark_bridge.server.operations._READ_BYTES", 65536)
    async with open_narrowing(tmp_path, "reader") as (node, member, reader, narrow):
        for number in range(400):
            await (node.publish_confirmed if number % 50 == 49 else node.publish)("secret.a", bytes(30_000))
        (state,) = member.states.values()
        question = {"shard": state.id, "start": 0, "end": state.next, "topics": ["secret.>"]}
        async with reader.open_tunnel("bridge", operation="read") as tunnel:
            await tunnel.send(question)
            size = len(await tunnel.receive())
            await narrow()
            error: dict[str, Any] | None = None
            with trio.fail_after(30), suppress(trio.EndOfChannel, IrisError):
                while error is None:
                    message: dict[str, Any] | bytes = await tunnel.receive()
                    if isinstance(message, dict):
                        error = message
                    else:
                        size += len(message)
        assert error is None or error["error"] == "NotAllowed"
        assert size < 8_000_000, "what was in progress in the window of the tunnel, and no more"


async def test_what_was_staged_with_rights_that_are_gone_is_not_committed(tmp_path: Path) -> None:
    async with open_narrowing(tmp_path, "writer") as (_, member, writer, narrow):
        client = BridgeClient(writer, "bridge", patience=5)
        part = new_part(query="q", batch=0, partition=0)
        rows = written(["x"], topic="secret.out")
        staged = [Staged(await stage_part(client, part=part, file=rows), part)]
        await narrow()
        with pytest.raises(IrisError, match="does not permit to publish"):
            await commit_parts(client, staged=staged, carried=[])
        assert sum(state.next for state in member.states.values()) == 0


@pytest.mark.parametrize("operation", ["peek", "purge", "queue", "pin", "move"])
async def test_what_a_queue_has_is_for_nobody_whose_rights_are_gone(tmp_path: Path, operation: str) -> None:
    async with open_narrowing(tmp_path, "worker") as (node, member, worker, narrow):
        await node.publish_confirmed("secret.jobs", "x")
        (state,) = member.states.values()
        payload = {"group": "queue/secret.jobs", "most": 8, "start": {state.id: 0}, "offsets": {state.id: 0}}
        await worker.request("bridge", payload, operation="peek")
        await narrow()
        with pytest.raises(RemoteError, match="NotAllowed"):
            await worker.request("bridge", payload, operation=operation)
        found = await node.request("bridge", {"group": "queue/secret.jobs"}, operation="queue")
        assert found["waiting"] == 1


async def test_consumers_that_read_nothing_take_little_and_hold_nobody_up(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path),
        network.open_node("desk") as desk,
        trio.open_nursery() as nursery,
    ):
        await desk.wait_for("bridge")
        for number in range(600):
            await (desk.publish_confirmed if number % 20 == 19 else desk.publish)("a.b", bytes(20_000))

        async def stall(number: int) -> None:
            async with desk.open_tunnel("bridge", operation="consume") as tunnel:
                await tunnel.send({"group": f"g{number}", "topics": ["a.>"], "start": "earliest"})
                await tunnel.receive()
                await trio.sleep_forever()

        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(40):
            nursery.start_soon(stall, number)
        await trio.sleep(3)
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert taken < 40 * 5_000_000  # of 12 MB that each could be sent, at both ends
        with trio.fail_after(20):
            async with desk.bridge().consume("a.>", group="quick", start="earliest") as events:
                assert len(await anext(events)) > 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("step", [-7200.0, 7200.0, -86_400.0])
async def test_a_consumer_by_time_finds_its_place_whatever_the_clock_did(tmp_path: Path, step: float) -> None:
    ahead = 0.0

    def wall() -> float:
        return 1.8e9 + trio.current_time() + ahead

    async with (
        open_network() as network,
        open_member(network, tmp_path, wall_clock=wall),
        network.open_node("desk") as desk,
    ):
        await desk.wait_for("bridge")
        for number in range(3):
            await desk.publish_confirmed("a", number)
            await trio.sleep(0.01)
        ahead += step
        for number in range(3, 6):
            await desk.publish_confirmed("a", number)
            await trio.sleep(0.01)
        async with desk.bridge().consume("a", group="all", start="earliest") as events:
            found = list(await anext(events))
            while len(found) < 6:
                found += list(await anext(events))
        stamps = [event.timestamp for event in found]
        assert stamps == sorted(stamps)
        for number in (0, 2, 3, 5):
            start = datetime.fromtimestamp(stamps[number], UTC)
            async with desk.bridge().consume("a", group=f"g{number}", start=start) as events:
                with trio.fail_after(20):
                    assert (await anext(events))[0].payload == number


@pytest.mark.parametrize("place", ["at", "commit", "offsets"])
async def test_offsets_of_shards_that_are_not_there_take_no_room(tmp_path: Path, place: str) -> None:
    async with open_network() as network, open_member(network, tmp_path) as member, network.open_node("desk") as desk:
        await desk.wait_for("bridge")
        await desk.publish_confirmed("a", 1)
        (state,) = member.states.values()
        many = {f"{number}@{'ab' * 8}": number for number in range(20_000)}
        if place == "offsets":
            await desk.request("bridge", {"group": "g", "start": {state.id: 0} | many}, operation="pin")
            await desk.request("bridge", {"group": "g", "offsets": many}, operation="move")
        else:
            async with desk.open_tunnel("bridge", operation="consume") as tunnel:
                terms = {"group": "g", "topics": ["a"], "start": "earliest"}
                await tunnel.send(terms | ({"at": many} if place == "at" else {}))
                await tunnel.receive()
                with suppress(trio.EndOfChannel), trio.fail_after(20):
                    await tunnel.send({"commit": {state.id: 1} | many, "taken": 0})
                    while "committed" not in (message := await tunnel.receive()):
                        assert "error" not in message
                    assert message["committed"] == {state.id: 1}
        (cursor,) = [one for one in member.store.cursors.all() if one.group == "g"]
        assert cursor.offsets.keys() <= {state.id}


async def test_a_batch_that_is_repeated_with_other_partitions_and_late_attempts_is_there_once(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path) as member,
        network.open_node("bridge", host="driver") as driver,
    ):
        await driver.wait_for("bridge")
        client = BridgeClient(driver, "bridge", patience=5)
        first = [DriverRows(new_part(query="q", batch=0, partition=at), written([f"{at}"]).getvalue()) for at in (0, 1)]
        assert await commit_parts(client, staged=[], carried=first) == 2
        again = [
            DriverRows(new_part(query="q", batch=0, partition=at), written([f"{at}"]).getvalue()) for at in (0, 1, 2)
        ]
        assert await commit_parts(client, staged=[], carried=again) is None
        late = new_part(query="q", batch=0, partition=1)
        address = await stage_part(client, part=late, file=io.BytesIO(written(["late"]).getvalue()))
        assert await commit_parts(client, staged=[Staged(address, late)], carried=[]) is None
        assert sum(state.next for state in member.states.values()) == 2
