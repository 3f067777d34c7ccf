"""A fleet of sensors, for asyncio: each publishes what it measures, and does what its twin says.

The twins are one document: "desired.NAME" is what the office wants of a sensor, "reported.NAME" what that sensor does.
A sensor that was away, or is started anew, finds there what was wanted meanwhile.

Run it: python fleet.py hall, python fleet.py store, in terminals of their own; then
    iris sub 'readings.>'
    iris state set twins desired.hall '{"period": 0.2}' --json-payload
"""

import asyncio
import random
import sys

import iris.aio


class Sensor:
    """A sensor, and how often it measures."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.period = 5.0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        async with (
            iris.aio.open_node("sensors") as node,
            node.state("twins") as twins,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self.follow(twins))
            tasks.create_task(self.measure(node))

    async def follow(self, twins: iris.aio.SharedState) -> None:
        async for change in twins.watch(f"desired.{self.name}"):
            match change.value:
                case {"period": int() | float() as period} if period > 0:
                    self.period = period
                    self._changed.set()
                    twins[f"reported.{self.name}"] = {"period": period}

    async def measure(self, node: iris.aio.Node) -> None:
        while True:
            await node.publish(f"readings.{self.name}", {"degrees": round(random.gauss(20, 2), 1)}, key=self.name)
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), self.period)
            except TimeoutError:
                continue


if __name__ == "__main__":
    asyncio.run(Sensor(sys.argv[1]).run())
