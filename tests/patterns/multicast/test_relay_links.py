"""A relay that is linked to nobody of a part links to one of them, and to the next where nothing comes of that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

from iris.kernel.config import Config
from iris.kernel.wire import kinds
from iris.patterns.books import Tally
from iris.patterns.multicast.relay import RelayPlan
from tests.support.meshes import Fleet, open_meshes

PART = ("silent", "gone", "following")


@asynccontextmanager
async def open_part() -> AsyncIterator[tuple[Fleet, Tally]]:
    """Open a sender that is linked to all, has given a message to a relay, and that one is linked to no other."""
    config = Config(relay_fan_out=1)
    async with (
        open_meshes("sender", "relay", *PART, config=config, linked=False) as fleet,
        trio.open_nursery() as tasks,
    ):
        sender, tally = fleet["sender"], Tally()
        for name in ("relay", *PART):
            await sender.mesh.connect([fleet[name].url], expected=fleet[name].id)
            tasks.start_soon(fleet[name].relays.run)
        fleet.directory.alive = {fleet["silent"].id, fleet["following"].id}
        receivers = tuple(fleet[name].id for name in ("relay", *PART))
        sender.relays.send(RelayPlan(receivers, (receivers,)), kinds.Cancel(1), tally)
        yield fleet, tally
        tasks.cancel_scope.cancel()


async def test_the_next_is_linked_where_the_first_is_silent(autojump_clock: MockClock) -> None:
    async with open_part() as (fleet, tally):
        begun = fleet.directory.begun
        await trio.sleep(0.2)
        assert begun == [fleet["silent"].id]
        await trio.sleep(0.2)
        assert begun == [fleet["silent"].id, fleet["following"].id]
        await fleet.link("following", "silent", "gone")
        await fleet["relay"].mesh.connect([fleet["following"].url], expected=fleet["following"].id)
        await trio.sleep(0.5)
        assert (tally.handed_over, tally.lost) == (4, {})


async def test_a_part_that_nobody_links_to_is_counted_as_lost(autojump_clock: MockClock) -> None:
    async with open_part() as (fleet, tally):
        await trio.sleep(3.0)
        assert fleet.directory.begun == [fleet["silent"].id, fleet["following"].id], "each once"
        assert fleet["relay"].relays.tally.lost == {"no link": 3}
        assert (tally.handed_over, tally.lost) == (1, {"not reached by a relay": 3})
