"""Documents: ``settled`` where two members have drawn one number."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.patterns.state import SharedState
from iris.testing import open_network
from tests.support.states import draw


@pytest.mark.long
@pytest.mark.parametrize(("first", "second"), [(3, 3), (5, 2), (2, 5), (1, 200), (200, 1)])
async def test_settled_waits_for_what_another_one_with_the_same_number_has_hidden(
    autojump_clock: MockClock, first: int, second: int
) -> None:
    async with (
        open_network() as network,
        network.open_node("prices", host="one") as a,
        network.open_node("prices", host="two") as b,
        network.open_node("prices", host="three") as c,
        a.state("prices") as one,
        b.state("prices") as two,
        c.state("prices") as three,
    ):
        states: list[SharedState] = [one, two, three]
        for index, state in enumerate((one, two)):
            draw(state, 7, 100 + index)
        for number in range(max(first, second)):
            if number < first:
                one[f"one.{number}"] = number
            if number < second:
                two[f"two.{number}"] = number
            await trio.lowlevel.checkpoint()
        for state, name, count in ((one, "one", first), (two, "two", second)):
            await state.settled(3, timeout=60)
            for other in states:
                assert [other.get(f"{name}.{number}") for number in range(count)] == [*range(count)]
