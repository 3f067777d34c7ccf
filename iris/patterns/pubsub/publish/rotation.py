"""Load balancing inside a group: randomized round robin with the power of two choices (sans-IO).

Each member has one turn in each round.  The turns are the group's and not a topic's: of 300 topics with one event each,
every one of three workers gets 100.  The order is drawn anew for each round: with a fixed order, two topics that
alternate would each have one worker only.

A member with much more outstanding than another one, drawn at random, passes its turn to that one (the power of two
choices).  So a slow worker gets what it can do, and the others the rest.  One that drops or refuses events looks idle:
it has its own turns, and none of others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar, final

_SLACK: Final = 64
"""Events that a member may have outstanding more than twice as many as another one.  Members report what they have
received every 100 ms at most, so that quick ones seem to have some outstanding as well."""

MAX_ROTATIONS: Final = 4096
"""Sets of members whose turns are shared by topics.  Others choose patterns and topics, and so how many sets there are:
beyond this, all are forgotten and topics that are looked up later share turns anew."""

T = TypeVar("T")


@final
class Rotation(Generic[T]):
    """Round robin among the members of a group.

    Args:
        members: members, at least one, each once.
        rng: source of the order of each round.
    """

    __slots__ = ("_draw", "_next", "_order", "members")

    def __init__(self, members: Sequence[T], rng: random.Random) -> None:
        self.members: Final = tuple(members)
        self._draw = rng.random  # ``shuffle`` and ``randrange`` take ten times as long
        self._order = list(members)
        self._next = len(self._order)

    def next_receiver(
        self, fit: Callable[[T], bool], outstanding: Callable[[T], int], turns_away: Callable[[T], bool]
    ) -> T:
        """Return the member whose turn it is.

        Args:
            fit: returns whether a member may have a turn; the others are passed over, if any is fit.
            outstanding: returns how much a member was given and has not settled yet.
            turns_away: returns whether a member has dropped or refused some of what it was given last.
        """
        order = self._order
        if len(order) == 1:
            return order[0]
        for _ in range(2):  # what is left of this round, and if nobody of that is fit, another one
            for at in range(self._next, len(order)):
                if fit(order[at]):
                    order[at], order[self._next] = order[self._next], order[at]
                    self._next += 1
                    return self._relieved(order[self._next - 1], fit, outstanding, turns_away)
            for at in range(len(order) - 1, 0, -1):
                other = int(self._draw() * (at + 1))
                order[at], order[other] = order[other], order[at]
            self._next = 0
        self._next = 1
        return order[0]

    def _relieved(
        self, member: T, fit: Callable[[T], bool], outstanding: Callable[[T], int], turns_away: Callable[[T], bool]
    ) -> T:
        """Return the member for the turn of another one: that one itself, unless it is busy and this one is not."""
        busy = outstanding(member)
        if busy > _SLACK:
            at = int(self._draw() * (len(self._order) - 1))
            other = self._order[at if at < self._next - 1 else at + 1]
            if busy > 2 * outstanding(other) + _SLACK and fit(other) and not turns_away(other):
                return other
        return member
