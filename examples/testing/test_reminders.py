"""A whole program, as it is: its node comes up on the network of the test."""

import asyncio

import pytest
import reminders

import iris
import iris.aio.testing

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_of_each_bill_that_is_due_there_is_a_reminder():
    due = iris.Service("due")

    @due.request
    async def bills(request: iris.Request) -> list[str]:
        return ["ada", "grace"]

    async with (
        iris.aio.testing.autojump_clock(),
        iris.aio.testing.open_network() as network,
        network.open_node("due") as office,
        office.join("due", due),
        office.subscribe("reminders.*") as sent,
        asyncio.TaskGroup() as programs,
    ):
        programs.create_task(reminders.main())
        assert {(await anext(sent)).topic for _ in range(2)} == {"reminders.ada", "reminders.grace"}
