"""A register that loses an update is not linearizable."""

import pytest
import trio
from counter import serve

import iris
import iris.testing


@pytest.mark.iris(seeds=200, hours=0.01)
async def test_no_update_is_lost(iris_world: iris.testing.World) -> None:
    iris_world.start("server", serve)
    counted = []

    async def add(node: iris.Node) -> None:
        await trio.sleep(iris_world.random.uniform(0, 1))
        counted.append(await node.request("counter", 1, operation="add"))

    async with iris.open_node("desk") as node:
        await node.wait_for("counter", timeout=30)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(add, node)
        iris.testing.check_at_most_once(counted)  # each has brought the count to another number
        assert await node.request("counter", None, operation="read") == 5
