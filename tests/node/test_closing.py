"""A node that is closed while others wait in its methods: each ends at once, as it says."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.testing import open_network
from tests.node.test_cancellation import COVERED
from tests.support.closing import (
    CLOSED,
    WAITS,
    WAITS_FOR_NOBODY,
    Waits,
    each_wait,
    outcome_of,
    silent_services,
    take_what_is_left,
)

SOON = 2.0
"""Virtual seconds."""

CASES = [pytest.param(wait, expected, id=name) for name, (wait, expected) in each_wait().items()]


async def hang(_: object) -> None:
    await trio.sleep_forever()


def test_every_public_method_that_waits_is_among_those_whose_node_is_closed() -> None:
    public = {(owner, name) for owner, methods in COVERED.items() for name in methods}
    waiting = {(owner, name) for owner, name, *_ in WAITS}
    assert waiting | WAITS_FOR_NOBODY == public
    assert not waiting & WAITS_FOR_NOBODY


@pytest.mark.parametrize(("wait", "expected"), CASES)
async def test_what_waits_ends_when_its_node_is_closed(autojump_clock: MockClock, wait: Waits, expected: str) -> None:
    silent, bridge, _ = silent_services(hang)
    outcomes: list[str] = []
    ended = trio.Event()

    async def use(node: iris.Node) -> None:
        outcomes.append(await outcome_of(wait, node))
        ended.set()

    async with (
        open_network() as network,
        network.open_node("member") as member,
        member.join("silent", silent),
        member.join("bridge", bridge),
        member.subscribe("held.>", overflow="wait", limits=iris.SubscriptionLimits(events=2)),
        member.subscribe_durable("kept.>"),
        trio.open_nursery() as nursery,
    ):
        async with network.open_node("caller") as node:
            await node.wait_for("bridge")
            nursery.start_soon(use, node)
            await trio.sleep(3)
            assert outcomes == [], "it waits"
        with trio.fail_after(SOON):
            await ended.wait()
        assert outcomes == [expected]


async def test_what_a_closed_node_has_left_can_be_taken(autojump_clock: MockClock) -> None:
    async with open_network() as network:
        await take_what_is_left(network.open_node("caller"))


async def test_who_waits_for_batches_is_told_when_the_block_is_left(autojump_clock: MockClock) -> None:
    async def use(batches: iris.Consumer) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await anext(batches)

    async with (
        open_network() as network,
        network.open_node("caller") as node,
        trio.open_nursery() as nursery,
        node.bridge("nobody").consume("a.>", group="g") as batches,
    ):
        nursery.start_soon(use, batches)
        await trio.sleep(1)


async def test_a_lease_that_cannot_be_renewed_as_its_node_is_closed_ends_its_block(autojump_clock: MockClock) -> None:
    *_, granting = silent_services(hang)
    outcomes: list[str] = []
    ended = trio.Event()

    async def hold(node: iris.Node) -> None:
        async with node.bridge("granting").lease("one", ttl=60):
            await trio.sleep_forever()

    async def use(node: iris.Node) -> None:
        outcomes.append(await outcome_of(hold, node))
        ended.set()

    async with (
        open_network() as network,
        network.open_node("member") as member,
        member.join("granting", granting),
        trio.open_nursery() as nursery,
    ):
        async with network.open_node("caller") as node:
            await node.wait_for("granting")
            nursery.start_soon(use, node)
            await trio.sleep(25)  # it is being renewed
        with trio.fail_after(SOON):
            await ended.wait()
        assert outcomes == [CLOSED]
