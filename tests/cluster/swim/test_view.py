"""The view: who is live, who is gone, and hashes that show whether two views agree."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.swim.records import MemberState
from iris.cluster.swim.view import View
from tests.support.membership import node, record
from tests.support.population import Population

steps = st.lists(
    st.tuples(st.sampled_from(["join", "renew", "die", "leave", "forget"]), st.integers(1, 6)), max_size=40
)


def walk(view: View, some: list[tuple[str, int]]) -> None:
    for step, number in some:
        member = view.find(node(number))
        if member is None:
            if step == "join":
                view.add(record(number), 0.0)
        elif step == "renew":
            view.renew(member, record(number, incarnation=member.record.incarnation + 1))
            member.state = MemberState.ALIVE
        elif step == "die":
            view.bury(member, MemberState.DEAD, 0.0)
        elif step == "leave":
            view.bury(member, MemberState.LEFT, 0.0)
        elif step == "forget" and not member.live:
            view.forget(node(number))


@given(steps)
def test_the_hashes_depend_only_on_who_is_live_at_which_incarnation(some: list[tuple[str, int]]) -> None:
    view = View(record(0))
    walk(view, some)
    afresh = View(record(0))
    for one in sorted(view.records(), key=lambda record: record.node):
        afresh.add(one, 0.0)
    assert view.hashes() == afresh.hashes()
    assert sorted(view.live) == sorted(afresh.live)
    assert view.size == len(view.live) + 1
    assert {member.record.node for member in view.gone_members()}.isdisjoint(view.live)


@given(steps)
def test_a_view_that_shares_its_population_is_the_same_view(some: list[tuple[str, int]]) -> None:
    population = Population([record(number) for number in range(4)])
    shared, whole = population.view(record(0)), population.whole_view(record(0))
    walk(shared, some)
    walk(whole, some)
    assert shared.hashes() == whole.hashes()
    assert shared.live == whole.live
    assert list(shared.records()) == list(whole.records())
    assert list(shared.gone) == list(whole.gone)
    assert population.view(record(1)).hashes() == population.whole_view(record(1)).hashes()


def test_one_incarnation_more_changes_one_bucket() -> None:
    view, other = View(record(0)), View(record(0))
    view.add(record(5), 0.0)
    other.add(record(5, incarnation=2), 0.0)
    different = [at for at in range(256) if view.hashes()[at * 8 : at * 8 + 8] != other.hashes()[at * 8 : at * 8 + 8]]
    assert different == [5]


def test_this_node_is_hashed_but_not_listed() -> None:
    view = View(record(0))
    before = view.hashes()
    view.set_own(record(0, incarnation=2))
    assert view.hashes() != before
    assert view.live == []
    assert view.find(node(0)) is None


@pytest.mark.parametrize("count", [0, 1, 3, 9, 10, 50])
def test_picked_members_are_different_live_and_not_excluded(count: int) -> None:
    view = View(record(0))
    for number in range(1, 13):
        view.add(record(number), 0.0)
    for number in (11, 12):
        member = view.find(node(number))
        assert member is not None
        view.bury(member, MemberState.DEAD, 0.0)
    random = Random(1)
    for _ in range(50):
        picked = view.pick(random, count, [node(1), node(2)])
        assert len(picked) == len(set(picked)) == min(count, 8)
        assert set(picked) <= {node(number) for number in range(3, 11)}


def test_every_live_member_is_picked_sooner_or_later() -> None:
    view = View(record(0))
    for number in range(1, 11):
        view.add(record(number), 0.0)
    random = Random(2)
    assert {one for _ in range(100) for one in view.pick(random, 2)} == set(view.live)


def test_one_of_the_gone_is_drawn() -> None:
    view = View(record(0))
    assert view.random_gone(Random(1)) is None
    for number in (1, 2, 3):
        view.bury(view.add(record(number), 0.0), MemberState.DEAD, 0.0)
    random = Random(1)
    assert {view.random_gone(random) for _ in range(50)} == {node(1), node(2), node(3)}
