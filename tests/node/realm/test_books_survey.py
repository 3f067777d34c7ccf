"""Losses of the nodes of a realm since the last look: each loss once, also where an answer was missing."""

from __future__ import annotations

from collections.abc import Sequence

from trio.testing import MockClock

import iris
from iris.kernel.names import NodeId
from iris.node.realm import BooksSurvey
from iris.patterns.books import BookRow, Loss, compare_losses
from tests.support.stages import open_stage


async def _lose(shop: iris.Node, count: int) -> None:
    """Have so many events dropped for want of room."""
    async with shop.subscribe(
        "meters.hall", limits=iris.SubscriptionLimits(events=1), overflow="drop_newest"
    ) as meters:
        for _ in range(count + 1):
            await shop.publish("meters.hall", b"x", headers={"a": "b"})  # so that each is a run of its own
        await shop.books("meters.hall", settle=0.1)
        await anext(meters)


def _told(losses: Sequence[tuple[NodeId, Loss]]) -> list[tuple[str, str, int]]:
    return [(loss.name, loss.reason, loss.count) for _, loss in losses]


async def test_a_node_that_is_silent_for_a_while_does_not_tell_of_its_losses_again(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        shop = await stage.node("shop")
        desk = await stage.node("desk")
        survey = BooksSurvey(desk, settle=0.0, timeout=0.3)
        await _lose(shop, 5)
        assert await survey.losses() == [], "what was lost before"
        await _lose(shop, 2)
        assert _told(await survey.losses()) == [("meters.hall", "dropped", 2)]
        stage.network.memory.partition({"shop"}, {"desk"})
        assert await survey.losses() == []
        assert shop.id in (await survey.collect()).silent, "the cut was not noticed"
        await _lose(shop, 3)
        stage.network.memory.heal()
        while (await survey.collect()).silent:
            pass
        assert _told(await survey.losses()) == [("meters.hall", "dropped", 3)]
        assert await survey.losses() == []


def test_a_column_that_goes_back_is_not_told_of_again_when_it_returns() -> None:
    def row(lost: int, doubt: int) -> BookRow:
        return BookRow(
            pattern="event", name="a", receiver=None, sent=9, received=0, expired=0, refused=0,
            lost={"dropped": lost} if lost else {}, in_doubt=doubt, waiting=9 - lost - doubt,
        )  # fmt: skip

    known: dict[str, int] = {}
    told: list[list[tuple[str, int]]] = []
    for lost, doubt in ((1, 5), (1, 0), (2, 5), (2, 7)):
        found, after = compare_losses(row(lost, doubt), known)
        known = dict(after)
        told.append([(loss.reason, loss.count) for loss in found])
    assert told == [[("in doubt", 5), ("dropped", 1)], [], [("dropped", 1)], [("in doubt", 2)]]
