"""The whole machine: stalls of its own process, clocks, and hostile input."""

from __future__ import annotations

import contextlib
import math
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.cluster.swim.gossip import Accusation, Renewal
from iris.cluster.swim.records import MemberState
from iris.cluster.swim.swim import Swim
from iris.kernel.config import Config
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import MAX_NUMBER
from tests.support.membership import Links, changes, claim, gossip, knowing, machine, near, node, record, run, sends
from tests.support.messages import arrived, raw


def test_a_stall_of_this_process_makes_nobody_a_suspect() -> None:
    swim = knowing(*range(1, 10))
    gossip(swim, claim(5, 1), claim(5, 2), claim(5, 3))
    run(swim, 1.2, deaf=False)
    effects = swim.expire(61.2)
    assert changes(effects) == []
    assert swim.statistics().stalls == 1
    refutation = Renewal(node=node(5), incarnation=2, signature=record(5, incarnation=2).signature)
    assert changes(gossip(swim, refutation, now=61.3)) == [(node(5), MemberState.ALIVE, "")]


def test_a_clock_that_goes_back_stops_nothing() -> None:
    swim = knowing(*range(1, 10))
    run(swim, 5.0, deaf=False)
    gossip(swim, record(11), now=-100.0)
    assert swim.state(node(11)) is MemberState.ALIVE
    assert swim.deadline < 6.0
    assert run(swim, 6.0, deaf=False)


def test_the_deadline_is_always_ahead_of_what_was_done() -> None:
    swim = machine(0)
    for _ in range(200):
        now = swim.deadline
        assert now < math.inf
        swim.expire(now)
        assert swim.deadline > now


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 3),
    st.just(MAX_NUMBER + 1),
    st.sampled_from([b"", bytes(16), bytes.fromhex(node(1)), bytes(24), bytes(2048), "x", 0.5, (), ((),)]),
)
updates = st.lists(
    st.one_of(
        st.sampled_from([u.as_update() for u in (record(1), record(0), claim(1, 2), claim(0, 1))]),
        st.just(Accusation(node=node(0), incarnation=1).as_update()),
        scalars,
        st.lists(scalars, max_size=5).map(tuple),
    ),
    max_size=3,
).map(tuple)
messages = st.tuples(
    st.sampled_from([raw(kind)[0] for kind in get_args(kinds.OfMembership)]),
    st.lists(st.one_of(scalars, updates), max_size=5).map(tuple),
).map(lambda parts: (parts[0], *parts[1]))


@given(st.lists(st.tuples(messages, st.integers(0, 4)), max_size=12))
@settings(max_examples=100)
def test_whatever_is_received_nothing_is_raised_and_nobody_dies_of_it(
    some: list[tuple[tuple[Any, ...], int]],
) -> None:
    swim = knowing(1, 2, 3)
    now = 0.0
    for message, sender in some:
        now += 0.05
        with contextlib.suppress(RemoteProtocolError):
            swim.receive(arrived(kinds.BY_KIND[message[0]], *message[1:]), node(sender), now)
        while swim.deadline <= now:
            swim.expire(swim.deadline)
    assert swim.statistics().deaths == 0
    assert swim.state(node(3)) is MemberState.ALIVE


@pytest.mark.parametrize("score", [0, 1, 8])
def test_a_starved_node_gossips_less_often(score: int) -> None:
    swim = knowing(*range(1, 30))
    run(swim, 5.0, deaf=False)
    swim._context.health.score = score
    assert sends(gossip(swim, record(100), now=5.01), kinds.Gossip), "what comes after a quiet while goes on at once"
    later = next(at for at, effect in run(swim, 8.0) if sends([effect], kinds.Gossip))
    assert near(later, 5.01 + Config().gossip_interval * (1 + score))


def late(swim: Swim, seconds: float) -> float:
    """Do what is due so many seconds late; return when that is."""
    now = swim.deadline + seconds
    swim.expire(now)
    return now


def test_a_node_that_is_late_gossips_less_often() -> None:
    swim = knowing(*range(1, 30))
    run(swim, 5.0, deaf=False)
    now = late(swim, 0.2) + 0.01
    assert near(swim.lateness, 0.2)
    assert sends(gossip(swim, record(100), now=now), kinds.Gossip), "what comes after a quiet while goes on at once"
    later = next(at for at, effect in run(swim, now + 8.0) if sends([effect], kinds.Gossip))
    assert later > now + Config().gossip_interval + 25 * 0.15


def test_gossip_passes_over_those_without_a_link_and_counts_nothing_as_told() -> None:
    links = Links()
    swim = knowing(*range(1, 30), links=links)
    run(swim, 5.0, deaf=False)
    linked = links.linked = {node(1), node(2)}
    effects = [*gossip(swim, record(100), now=5.01), *(effect for _, effect in run(swim, 60.0, deaf=False))]
    assert {send.node for send in sends(effects, kinds.Gossip)} == linked
    assert swim.settled
    links.linked = set()
    gossip(swim, record(101), now=61.0)
    assert not any(sends([effect], kinds.Gossip) for _, effect in run(swim, 63.0))
    assert not swim.settled


def test_nobody_who_is_being_linked_for_the_first_time_is_found_silent() -> None:
    links = Links()
    links.new = {node(1)}
    swim = knowing(*range(1, 5), links=links)
    seen = changes([effect for _, effect in run(swim, 30.0)])
    assert {about for about, state, _ in seen if state is MemberState.SUSPECT} == {node(2), node(3), node(4)}


def test_a_suspicion_lasts_longer_at_a_node_that_is_late() -> None:
    lasted: list[float] = []
    for seconds in (0.0, 0.2):
        swim = knowing(1, 2, 3, 4)
        run(swim, 5.0, deaf=False)
        for witness in (2, 3, 4):
            gossip(swim, claim(1, witness), sender=witness, now=5.01)
        ended = 0.0
        while swim.state(node(1)) is not MemberState.DEAD:
            ended = late(swim, seconds)
        lasted.append(ended - 5.01)
    assert lasted[1] > lasted[0] + 10 * 0.2 * 0.9
