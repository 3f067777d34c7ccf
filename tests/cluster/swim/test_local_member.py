"""Statements of a node about itself, down to its goodbye."""

from __future__ import annotations

import pytest

from iris.cluster.swim.context import Effect, Send
from iris.cluster.swim.records import ClusterEntry, MemberState, NodeRecord
from iris.cluster.swim.swim import Swim
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError
from iris.kernel.wire import kinds
from tests.support.membership import (
    HashTrust,
    Links,
    changes,
    claim,
    gossip,
    knowing,
    machine,
    node,
    record,
    run,
    sends,
    told,
    updates_in,
)


def test_changes_of_this_node_are_signed_counted_and_told() -> None:
    swim = knowing(1)
    effects = swim.update_self(0.0, clusters=[ClusterEntry(name="caches")], interest_version=4)
    own = swim.own
    assert (own.incarnation, own.interest_version, own.clusters[0].name) == (2, 4, "caches")
    assert HashTrust(node(0)).verify(own, own.statement(), own.signature)
    assert own in told([*effects, *(effect for _, effect in run(swim, 0.5))])
    swim.update_self(1.0, interest_version=4)
    assert swim.own.incarnation == 2, "nothing has changed"


def test_a_record_beyond_its_limits_is_refused_before_anything_changes() -> None:
    swim = machine(0)
    with pytest.raises(ConfigError, match="65 clusters"):
        swim.update_self(0.0, clusters=[ClusterEntry(name=f"c{number}") for number in range(65)])
    assert swim.own.incarnation == 1


def _told_of_itself(swim: Swim, effects: list[Effect]) -> list[Send]:
    return [
        effect
        for effect in effects
        if isinstance(effect, Send) and type(effect.message) is not kinds.Sync
        if any(isinstance(update, NodeRecord) and update == swim.own for update in updates_in(effect))
    ]


def test_every_update_is_sent_at_least_twelve_times_and_then_no_more() -> None:
    swim = knowing(*range(1, 300))
    effects = swim.update_self(0.0, interest_version=1)
    assert len(_told_of_itself(swim, [*effects, *(e for _, e in run(swim, 10.0, deaf=False))])) == 12
    assert swim.settled


def test_a_change_is_told_to_each_linked_member_at_once_and_then_only_rides_along() -> None:
    links = Links()
    swim = knowing(*range(1, 30), links=links)
    run(swim, 10.0, deaf=False)
    links.unlinked = {node(7)}
    effects = swim.update_self(10.0, interest_version=1)
    assert {send.node for send in _told_of_itself(swim, effects)} == {node(n) for n in range(1, 30) if n != 7}
    assert swim.settled
    later = [effect for _, effect in run(swim, 20.0, deaf=False)]
    assert [type(send.message) for send in _told_of_itself(swim, later)] == [kinds.Probe] * 4
    assert not sends(later, kinds.Gossip)


def test_a_leaving_node_tells_a_dozen_at_once() -> None:
    swim = knowing(*range(1, 30))
    run(swim, 3.0, deaf=False)
    effects = swim.leave(3.0)
    farewells = [s.node for s in sends(effects, kinds.Gossip) if any(u == swim.own for u in updates_in(s))]
    assert len(set(farewells)) >= 12
    assert swim.own.leaving
    assert swim.leave(3.1) == [] or swim.own.incarnation == 2, "leaving twice is leaving once"


def test_who_left_stays_away_unless_it_says_otherwise() -> None:
    swim = knowing(1, 2)
    effects = gossip(swim, record(1, incarnation=2, leaving=True), sender=2)
    assert changes(effects) == [(node(1), MemberState.LEFT, "")]
    assert changes(gossip(swim, record(1), sender=2)) == []
    assert changes(gossip(swim, claim(1, 2), sender=2)) == []
    assert changes(gossip(swim, record(1, incarnation=3), sender=2)) == [(node(1), MemberState.ALIVE, "")]


def test_who_left_is_forgotten_after_a_while() -> None:
    swim = knowing(1, 2, config=Config(dead_retention=60.0))
    gossip(swim, record(1, incarnation=2, leaving=True), sender=2)
    run(swim, 50.0, deaf=False)
    assert swim.state(node(1)) is MemberState.LEFT
    run(swim, 100.0, deaf=False)
    assert swim.state(node(1)) is None


def test_a_leaving_node_probes_nobody_and_refutes_nothing() -> None:
    swim = knowing(1, 2)
    swim.leave(0.0)
    gossip(swim, claim(0, 1, incarnation=2))
    assert swim.own.incarnation == 2
    later = [effect for _, effect in run(swim, 5.0)]
    assert {type(send.message) for send in sends(later)} <= {kinds.Gossip}
    assert swim.settled
