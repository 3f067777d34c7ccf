"""Watches beside comparisons that are merged in steps: what a watch shows is what the document has, in the end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedCounter, SharedMap, SharedSet
from iris.patterns.state.watch import Changes, StateWatch
from tests.support.states import EDITS, LoneDocument, edit, merging, replica, send

Shown = dict[tuple[str, str], Any]


def follow(one: Replica) -> Changes:
    changes = Changes(one)
    document = one._document
    assert isinstance(document, LoneDocument)
    document.following.append(changes)
    return changes


async def look(watch: StateWatch, shown: Shown, most: int = 1_000_000) -> None:
    """Take changes until none is there, or so many were."""
    for _ in range(most):
        with trio.move_on_after(1) as scope:
            change = await anext(watch)
            if change.removed:
                shown.pop((change.kind, change.key), None)
            else:
                shown[change.kind, change.key] = change.value
        if scope.cancelled_caught:
            return


def there(one: Replica) -> Shown:
    values = SharedMap(one, "")
    contents = one.contents
    seen: Shown = {("value", key): value for key, value in values.items()}
    seen |= {("counter", key): SharedCounter(one, "", key).value for key in contents.names("counter")}
    return seen | {(kind, name): None for kind in ("map", "set") for name in contents.names(kind)}


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.patterns.state.replica.AT_A_TIME", 3)


async def test_what_came_while_a_long_comparison_was_merged_is_known_when_it_goes(autojump_clock: object) -> None:
    one, other, third = replica(1), replica(2), replica(3)
    watch, shown = StateWatch(">", follow(one)), Shown()
    SharedMap(third, "").update({f"{number}": number for number in range(9)})
    steps = merging(third, one)
    next(steps)
    SharedMap(other, "")["k"] = 1
    SharedSet(other, "", "s").add(1)
    send(other, one)
    await look(watch, shown)
    assert set(shown) == {("value", "k"), ("set", "s")}
    for _ in steps:
        pass
    del SharedMap(other, "")["k"]
    SharedSet(other, "", "s").discard(1)
    send(other, one)
    await look(watch, shown)
    assert shown == there(one)
    assert ("value", "k") not in shown


async def test_a_watch_that_begins_while_a_long_comparison_is_noted_knows_what_it_shows(autojump_clock: object) -> None:
    one, third = replica(1), replica(3)
    changes = follow(one)
    SharedMap(third, "").update({f"{number}": number for number in range(9)})
    third.pop_edits()
    steps = merging(third, one)
    while not SharedMap(one, ""):
        next(steps)
    watch, shown = StateWatch(">", changes), Shown()
    await look(watch, shown)
    for _ in steps:
        pass
    for key in sorted(SharedMap(third, ""))[1:]:
        del SharedMap(third, "")[key]
    send(third, one)
    await look(watch, shown)
    assert shown == there(one) == {("value", "0"): 0}


async def test_a_key_that_goes_and_is_set_while_a_long_comparison_is_noted_is_known_when_it_goes(
    autojump_clock: object,
) -> None:
    one, third = replica(1), replica(3)
    SharedMap(third, "").update({f"{number}": number for number in range(12)})
    third.pop_edits()
    for _ in merging(third, one):
        pass
    watch, shown = StateWatch(">", follow(one)), Shown()
    await look(watch, shown)
    assert len(shown) == 12
    SharedMap(third, "").clear()
    SharedMap(third, "")["last"] = 1
    third.pop_edits()
    steps = merging(third, one)
    while len(SharedMap(one, "")) == 12:
        next(steps)
    for number in range(12):
        SharedMap(one, "")[f"{number}"] = -1
    for _ in steps:
        pass
    SharedMap(one, "").clear()
    await look(watch, shown)
    assert shown == there(one) == {}


async def test_edits_that_come_while_a_long_comparison_is_noted_let_no_watch_go_on(autojump_clock: object) -> None:
    one, other, third = replica(1), replica(2), replica(3)
    watch, shown = StateWatch(">", follow(one)), Shown()
    await look(watch, shown)
    SharedMap(third, "").update({f"{number}": number for number in range(9)})
    steps = merging(third, one)
    while not SharedMap(one, ""):
        next(steps)
    SharedMap(other, "")["k"] = 1
    send(other, one)
    await look(watch, shown)
    assert shown == {}
    for _ in steps:
        pass
    await look(watch, shown)
    assert shown == there(one)
    assert len(shown) == 10


@pytest.mark.parametrize("seed", range(60))
async def test_watches_show_in_the_end_what_is_there(seed: int, autojump_clock: object) -> None:
    """Writes, edits that come, looks and steps of merges in any order; some look seldom, and some begin late."""
    rng = random.Random(seed)
    one, *others = (replica(100 * seed + at) for at in range(4))
    changes = follow(one)
    watches = [(StateWatch(">", changes), Shown(), often) for often in [(0.3,), (0.6, 0.05)][seed % 2]]
    steps: Iterator[None] | None = None
    for number in range(400):
        chosen = rng.choice([one, *others])
        values = SharedMap(chosen, rng.choice(["", "", "m"]))
        kind = rng.randrange(6)
        if kind == 0:
            edit(chosen, rng.randrange(EDITS), rng)
        elif kind < 3:
            values[f"k{number:03}"] = number  # later keys hide no fault of earlier ones
        elif values:
            del values[max(values)]
        for other in others:
            if rng.random() < 0.5:
                send(other, one)
        if steps is None and rng.random() < 0.2:
            steps = merging(rng.choice(others), one)
        if steps is not None and rng.random() < 0.6:
            steps = _step(steps)
        if number == 200 and seed % 3:
            watches.append((StateWatch(">", changes), Shown(), 0.3))
        for watch, shown, often in watches:
            if rng.random() < often:
                await look(watch, shown, rng.randrange(1, 5))
    while steps is not None:
        steps = _step(steps)
    for watch, shown, _ in watches:
        await look(watch, shown)
        assert shown == there(one)


def _step(steps: Iterator[None]) -> Iterator[None] | None:
    """Go one step; None after the last one."""
    for _ in steps:
        return steps
    return None
