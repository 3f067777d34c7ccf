"""A bridge where files are used up for a while: it is refused, or waits, and goes on; nothing is called damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import iris
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network
from tests.attacks.test_machine_files import none_left

pytestmark = pytest.mark.long


async def test_a_bridge_that_has_no_file_left_for_a_segment_says_so_and_goes_on_when_there_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_network() as network, network.open_node("bridge") as node, network.open_node("desk") as desk:  # noqa: SIM117
        async with open_bridge(node, topics=["jobs"], directory=tmp_path / "log"):
            with none_left():
                with pytest.raises(iris.RequestTimeout, match="no room"):
                    await desk.publish_confirmed("jobs", 1, timeout=2)
                await trio.sleep(1)
            said = [record.message for record in caplog.records if "until there is room" in record.message]
            assert len(said) == 1
            assert "Too many open files" in said[0]
            with trio.fail_after(20):
                await desk.publish_confirmed("jobs", 2, timeout=10)
                found: list[object] = []
                async with desk.bridge().consume("jobs", group="g", start="earliest") as log:
                    async for batch in log:
                        async with batch:
                            found += [event.payload for event in batch]
                        if 2 in found:
                            break
            assert found == [1, 2], "who was told of no confirmation may find it stored"


async def test_who_reads_a_bridge_that_has_no_file_left_reads_on_when_there_is_one(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("bridge") as node, network.open_node("desk") as desk:
        async with open_bridge(node, topics=["jobs"], directory=tmp_path / "log"):
            for number in range(3):
                await desk.publish_confirmed("jobs", number)
        async with open_bridge(node, topics=["jobs"], directory=tmp_path / "log"):
            found: list[object] = []

            async def read() -> None:
                async with desk.bridge().consume("jobs", group="g", start="earliest") as log:
                    async for batch in log:
                        async with batch:
                            found.extend(event.payload for event in batch)
                        if 2 in found:
                            break

            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    with none_left():
                        nursery.start_soon(read)
                        await trio.sleep(2)
                        assert not found
            assert found == [0, 1, 2]
