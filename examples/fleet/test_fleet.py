"""The fleet in memory: a minute takes a second at most, and whatever goes wrong, twins come true."""

import asyncio
from collections import Counter

import pytest
from fleet import Sensor

import iris.aio.testing
from iris.testing import CHAOS

NAMES = ("hall", "store", "roof")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_a_sensor_measures_as_often_as_its_twin_says():
    async with (
        iris.aio.testing.autojump_clock(),
        iris.aio.testing.open_network(),
        iris.aio.open_node("office") as office,
        office.subscribe("readings.*", overflow="wait") as readings,
        office.state("twins") as twins,
    ):
        twins["desired.hall"] = {"period": 20}
        sensors = [asyncio.create_task(Sensor(name).run()) for name in NAMES]
        counted: Counter[str] = Counter()
        try:
            async with asyncio.timeout(60):
                async for reading in readings:
                    counted[reading.topic] += 1
        except TimeoutError:
            assert 3 <= counted["readings.hall"] <= 5
            assert 11 <= counted["readings.roof"] <= 13
            assert twins["reported.hall"] == {"period": 20}
        for sensor in sensors:
            sensor.cancel()
        await asyncio.wait(sensors)


@pytest.mark.iris(seeds=2, hours=0.02, faults=CHAOS)
async def test_twins_come_true_whatever_goes_wrong(iris_aio_world):
    for name in NAMES:
        iris_aio_world.start(name, lambda name=name: Sensor(name).run())
    async with iris.aio.open_node("office") as office, office.state("twins") as twins:
        async for number in iris_aio_world.every(10):
            for name in NAMES:
                twins[f"desired.{name}"] = {"period": 1 + number % 7}
        await iris_aio_world.wait_healed()
        async with asyncio.timeout(60):
            async for _ in twins.watch("reported.*"):
                if all(twins.get(f"reported.{name}") == twins[f"desired.{name}"] for name in NAMES):
                    break
