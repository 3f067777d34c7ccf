"""From a witness's word to a death, or to a refutation; and what becomes of the dead."""

from __future__ import annotations

import pytest
from msgspec import structs

from iris.cluster.swim.context import Changed, Routable, Send
from iris.cluster.swim.gossip import Accusation, Claim, Evidence, Renewal
from iris.cluster.swim.records import MemberState, NodeRecord
from iris.cluster.swim.swim import Swim
from iris.kernel.config import Config
from iris.kernel.wire import kinds
from tests.support.membership import (
    HashTrust,
    changes,
    claim,
    gossip,
    knowing,
    machine,
    near,
    node,
    record,
    run,
    said,
    sends,
    told,
    updates_in,
)
from tests.support.messages import fields_of


def test_one_witness_makes_a_suspect_and_closes_no_route() -> None:
    swim = knowing(*range(1, 10))
    effects = gossip(swim, claim(5, 1))
    assert changes(effects) == [(node(5), MemberState.SUSPECT, "silent")]
    assert not any(isinstance(e, Routable) for e in effects)
    assert claim(5, 1) in told(effects, swim), "it is passed on"


def test_two_witnesses_close_the_route_and_three_shorten_the_suspicion() -> None:
    swim = knowing(*range(1, 10))
    gossip(swim, claim(5, 1))
    effects = gossip(swim, claim(5, 2))
    assert [e for e in effects if isinstance(e, Routable)] == [Routable(node=node(5), open=False, evidence="silent")]
    gossip(swim, claim(5, 3))
    dead = [t for t, e in run(swim, 20.0, deaf=False) if isinstance(e, Changed) and e.state is MemberState.DEAD]
    assert near(dead[0], 1.5)


def test_a_refutation_ends_the_suspicion_and_stops_the_claims() -> None:
    swim = knowing(*range(1, 10))
    gossip(swim, claim(5, 1), claim(5, 2))
    effects = gossip(swim, Renewal(node=node(5), incarnation=2, signature=record(5, incarnation=2).signature))
    assert changes(effects) == [(node(5), MemberState.ALIVE, "")]
    assert Routable(node=node(5), open=True) in effects
    later = run(swim, 20.0, deaf=False)
    assert not any(isinstance(e, Changed) for _, e in later)
    assert not any(isinstance(u, Claim) for u in told([e for _, e in later]))
    assert swim.statistics().refuted == 1


@pytest.mark.parametrize(
    "bad",
    [
        structs.replace(claim(5, 2), signature=HashTrust(node(1)).sign(claim(5, 2).statement())),
        claim(5, 1, incarnation=2),
        claim(5, 1, incarnation=0),
        claim(5, 99),
        claim(5, 5),
        claim(77, 1),
    ],
    ids=["forged", "of the future", "of the past", "by a stranger", "by itself", "about a stranger"],
)
def test_claims_that_do_not_count(bad: Claim) -> None:
    swim = knowing(*range(1, 10))
    effects = gossip(swim, bad)
    assert changes(effects) == []
    assert bad not in told(effects, swim)


def test_one_member_saying_everything_it_can_kills_nobody_and_closes_no_route() -> None:
    swim = knowing(*range(1, 10))
    for moment in range(20):
        now = moment * 0.1
        forged = structs.replace(claim(5, 2), signature=HashTrust(node(1)).sign(b""))
        effects = gossip(swim, claim(5, 1), claim(5, 1, Evidence.REFUSED), forged, sender=1, now=now)
        effects += gossip(swim, Accusation(node=node(5), incarnation=1), sender=1, now=now)
        effects += swim.receive(kinds.Digest(bytes(range(256)), b""), node(1), now)
        assert not any(isinstance(effect, Routable) for effect in effects)
    assert swim.state(node(5)) is MemberState.SUSPECT
    assert swim.statistics().deaths == 0


def test_this_node_refutes_what_is_said_of_its_present_incarnation() -> None:
    swim = knowing(*range(1, 10))
    effects = gossip(swim, claim(0, 1))
    assert swim.own.incarnation == 2
    assert any(isinstance(u, Renewal) and u.node == node(0) and u.incarnation == 2 for u in told(effects, swim))
    gossip(swim, claim(0, 2))
    gossip(swim, claim(0, 2, incarnation=9))
    assert swim.own.incarnation == 2, "answered already; and nobody can know of a later one"
    assert swim.statistics().health == 1


def test_an_accuser_without_end_gets_two_refutations_a_second() -> None:
    swim = knowing(*range(1, 10))
    for moment in range(1000):
        now = moment * 0.01
        while swim.deadline <= now:
            swim.expire(swim.deadline)
        swim.receive(kinds.Probe(1, 2, swim.own.incarnation, ()), node(1), now)
    assert 18 <= swim.own.incarnation <= 22


def test_a_prober_that_holds_this_node_suspect_gets_the_refutation_with_the_answer() -> None:
    swim = knowing(*range(1, 10))
    effects = swim.receive(kinds.Probe(3, 1, 1, ()), node(1), 0.0)
    (answer,) = sends(effects, kinds.ProbeAnswer)
    assert any(
        isinstance(u, NodeRecord | Renewal) and u.node == node(0) and u.incarnation == 2 for u in updates_in(answer)
    )
    assert sends(effects, kinds.Sync) == []


def test_a_prober_that_holds_this_node_dead_is_compared_with() -> None:
    swim = knowing(*range(1, 10))
    effects = swim.receive(kinds.Probe(3, 2, 1, ()), node(1), 0.0)
    assert [send.node for send in sends(effects, kinds.Sync)] == [node(1)]


def test_a_prober_that_is_behind_gets_the_whole_record() -> None:
    swim = knowing(1)
    swim.update_self(0.0, site="eu")
    run(swim, 10.0, deaf=False)
    (answer,) = sends(swim.receive(kinds.Probe(3, 0, 1, ()), node(1), 10.0), kinds.ProbeAnswer)
    assert swim.own in updates_in(answer)


def dead_member() -> Swim:
    swim = knowing(1, 2, 3, 4, 5)
    gossip(swim, claim(5, 1), claim(5, 2), claim(5, 3))
    run(swim, 1.6, deaf=False)
    assert swim.state(node(5)) is MemberState.DEAD
    return swim


def test_old_words_do_not_raise_the_dead_but_its_own_new_one_does() -> None:
    swim = dead_member()
    assert changes(gossip(swim, record(5), now=1.7)) == []
    assert changes(gossip(swim, record(5, site="eu"), now=1.7)) == []
    assert changes(gossip(swim, record(5, incarnation=2), now=1.7)) == [(node(5), MemberState.ALIVE, "")]
    assert swim.state(node(5)) is MemberState.ALIVE


def test_the_dead_are_tried_again_for_ever() -> None:
    swim = dead_member()
    tried = [t for t, e in run(swim, 600.0, deaf=True) for s in sends([e], kinds.Probe) if s.node == node(5)]
    assert tried[-1] > 550.0
    assert len(tried) > 50


def test_a_dead_one_that_speaks_is_told_so() -> None:
    swim = dead_member()
    effects = swim.receive(kinds.Gossip(()), node(5), 1.7)
    (probe,) = sends(effects, kinds.Probe)
    assert (probe.node, fields_of(probe.message)[1:3]) == (node(5), (2, 1))


def test_contradictions_between_views_are_put_to_their_subject() -> None:
    swim = dead_member()
    other = machine(1)
    gossip(other, record(0), *(record(number) for number in (2, 3, 4, 5)), sender=0)
    run(other, 1.95, deaf=False)
    swim._census.synchronize(node(1))
    (digest,) = sends(other.receive(kinds.Sync(swim._context.view.hashes()), node(0), 2.0), kinds.Digest)
    (hint,) = sends(swim.receive(said(digest), node(1), 2.0), kinds.Gossip)
    assert updates_in(hint) == [Accusation(node=node(5), incarnation=1)]
    effects = other.receive(said(hint), node(0), 2.0)
    assert changes(effects) == [], "the other side does not believe it"
    assert Accusation(node=node(5), incarnation=1) in told(effects, other)
    assert other.state(node(5)) is MemberState.ALIVE
    subject = machine(5)
    gossip(subject, record(1), sender=1)
    gossip(subject, Accusation(node=node(5), incarnation=1), now=2.0)
    assert subject.own.incarnation == 2


def test_the_gone_are_bounded_and_the_one_gone_longest_is_forgotten_first() -> None:
    swim = knowing(*range(1, 9), config=Config(gone_limit=3, synchronize_interval=1.0))
    for number in range(1, 8):
        gossip(swim, record(number, incarnation=2, leaving=True), sender=8, now=number * 0.01)
    run(swim, 3.0, deaf=False)
    assert [number for number in range(1, 8) if swim.state(node(number)) is MemberState.LEFT] == [5, 6, 7]


def test_whoever_has_heard_no_contradiction_asks_the_suspect_before_it_concludes() -> None:
    swim = knowing(*range(1, 10))
    gossip(swim, claim(5, 1), claim(5, 2), claim(5, 3))
    seen = run(swim, 1.49)
    asked = [
        (time, effect.message)
        for time, effect in seen
        if isinstance(effect, Send) and effect.node == node(5) and isinstance(effect.message, kinds.Probe)
    ]
    assert len(asked) >= 2
    assert all(fields_of(message)[1:3] == (int(MemberState.SUSPECT), 1) for _, message in asked)
    assert asked[0][0] >= 0.4, "by then nearly everybody has heard a contradiction"


def test_a_member_whose_contradiction_was_lost_on_its_way_says_it_again_when_asked() -> None:
    swim = knowing(*range(1, 10))
    gossip(swim, claim(5, 1), claim(5, 2), claim(5, 3))
    states: list[MemberState] = []
    while swim.deadline <= 5.0:
        now = swim.deadline
        effects = swim.expire(now)
        for send in sends(effects, kinds.Probe):
            news = (record(5, incarnation=2),) if send.node == node(5) else ()
            answer = kinds.ProbeAnswer(fields_of(send.message)[0], 0, tuple(update.as_update() for update in news))
            effects += swim.receive(answer, send.node, now + 0.001)
        states += [e.state for e in effects if isinstance(e, Changed) and e.node == node(5)]
    assert states == [MemberState.ALIVE]


def test_a_lone_witness_makes_others_ask_for_as_long_as_they_wait_and_no_more() -> None:
    swim = knowing(*range(1, 10))
    gossip(swim, claim(5, 1))
    seen = run(swim, 30.0, deaf=False)
    asked = [t for t, e in seen if isinstance(e, Send) and e.node == node(5) and isinstance(e.message, kinds.Probe)]
    death = next(t for t, e in seen if isinstance(e, Changed) and e.node == node(5) and e.state is MemberState.DEAD)
    assert near(death, 6.0)
    assert len([t for t in asked if t < death]) >= 4
    assert max(t for t in asked if t < death) > 5.0
