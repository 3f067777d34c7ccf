"""Whatever goes wrong on the way, nobody pays twice."""

from contextlib import suppress

import till

import iris
import iris.testing


@iris.testing.simulate(seeds=200, hours=0.05, faults=iris.testing.CHAOS)
async def test_nobody_pays_twice(world: iris.testing.World) -> None:
    till.charges.clear()
    world.start("one", till.serve)
    world.start("other", till.serve)
    async with iris.open_node("shop") as shop:
        async for number in world.every(0.3):
            with suppress(iris.DeliveryError):  # then it is unknown whether it is paid
                await shop.request("till", f"order {number}", options=iris.RequestOptions(idempotent=True))
        iris.testing.check_at_most_once(till.charges)
        await world.wait_healed()
        await iris.testing.check_answers(shop, "till", "last order")
