"""The draw of the members that a node keeps a link to."""

from __future__ import annotations

from collections import Counter
from random import Random

from iris.cluster.membership.partners import PARTNERS, Partners
from tests.support.membership import node


def partners_of(seed: int, **clusters: int) -> tuple[Partners, dict[str, range]]:
    """Partners that have met so many members of each cluster, in that order, and drawn."""
    partners, first = Partners(Random(seed)), 1
    members: dict[str, range] = {}
    for cluster, size in clusters.items():
        members[cluster] = range(first, first + size)
        for number in members[cluster]:
            partners.meet(node(number), cluster, settled=False)
        first += size
    partners.fill(())
    return partners, members


def test_few_are_all_partners() -> None:
    partners, members = partners_of(1, web=5)
    assert set(partners) == {node(number) for number in members["web"]}
    assert partners.missing == PARTNERS - 5


def test_of_many_each_is_drawn_as_often() -> None:
    drawn = Counter(node for seed in range(600) for node in partners_of(seed, web=40)[0])
    assert sum(drawn.values()) == 600 * PARTNERS
    assert len(drawn) == 40
    assert max(drawn.values()) < 2 * min(drawn.values())


def test_who_makes_up_members_is_not_all_that_others_hear_by() -> None:
    """A crowd of one cluster that is thirty times as large as the other takes no more than its half of the draw."""
    for settled in (False, True):
        own = 0
        for seed in range(200):
            partners, members = partners_of(seed, web=64)
            for number in range(1000, 3000):
                partners.meet(node(number), "liar", settled=settled)
            partners.fill(())
            if not settled:
                partners, members = partners_of(seed, liar=2000, web=64)
            own += len({node(number) for number in members["web"]}.intersection(partners))
        assert own / 200 > 0.4 * PARTNERS


def test_those_that_dial_are_half_of_the_partners_at_most() -> None:
    partners = Partners(Random(1))
    for number in range(1, 41):
        partners.meet(node(number), "web", settled=False)
    callers = {node(number) for number in range(1, 11)}
    assert partners.fill(callers)
    assert PARTNERS // 2 <= len(callers.intersection(partners)) < PARTNERS


def test_newcomers_are_drawn_like_all_others() -> None:
    """Whoever has come first is drawn as often as whoever came last, when all have come after the start."""
    drawn: Counter[bool] = Counter()
    for seed in range(400):
        partners, _ = partners_of(seed, web=20)
        for number in range(21, 41):
            partners.meet(node(number), "web", settled=True)
        drawn.update(one in {node(n) for n in range(21, 41)} for one in partners)
    assert 0.8 < drawn[True] / drawn[False] < 1.25


def test_in_the_place_of_one_that_is_gone_another_one_is_drawn() -> None:
    partners, _ = partners_of(1, web=40)
    gone = next(iter(partners))
    partners.forget(gone)
    assert partners.missing == 1
    assert partners.fill(())
    assert partners.missing == 0
    assert gone not in partners
