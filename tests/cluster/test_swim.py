"""The membership machine by itself: what it does with each message, each silence and each lie."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.cluster.effects import Changed, Effect, Load, Rejected, Route, Send, Synchronized
from iris.cluster.gossip import Accusation, Claim, Evidence, Renewal, Update, encode_update, updates_untrusted
from iris.cluster.records import MAX_COUNTER, ClusterEntry, MemberState, NodeRecord
from iris.cluster.swim import KINDS, Swim
from iris.kernel import kinds
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError
from iris.kernel.ids import NodeId
from tests.support.membership import HashTrust, machine, near, node, record, sends

ALIVE, SUSPECT, DEAD, LEFT = MemberState


def gossip(swim: Swim, *updates: Update, sender: int = 1, now: float = 0.0) -> list[Effect]:
    return swim.receive((kinds.GOSSIP, tuple(map(encode_update, updates))), node(sender), now)


def knowing(*numbers: int, config: Config | None = None) -> Swim:
    """Return machine 0 that has just heard of these."""
    swim = machine(0, config=config)
    gossip(swim, *(record(number) for number in numbers), sender=numbers[0])
    return swim


def claim(about: int, witness: int, evidence: Evidence = Evidence.SILENT, *, incarnation: int = 1) -> Claim:
    bare = Claim(node=node(about), incarnation=incarnation, witness=node(witness), evidence=evidence)
    return dataclasses.replace(bare, signature=HashTrust(node(witness)).sign(bare.statement()))


def run(swim: Swim, until: float, *, deaf: bool = True) -> list[tuple[float, Effect]]:
    """Let time pass; unless ``deaf`` every probe is answered at once."""
    seen: list[tuple[float, Effect]] = []
    while swim.deadline <= until:
        now = swim.deadline
        effects = swim.expire(now)
        seen.extend((now, effect) for effect in effects)
        if not deaf:
            for send in sends(effects, kinds.PROBE):
                answer = (kinds.PROBE_ANSWER, send.message[1], 0, ())
                seen.extend((now, effect) for effect in swim.receive(answer, send.node, now))
    return seen


def changes(effects: list[Effect]) -> list[tuple[NodeId, MemberState, str]]:
    return [(e.node, e.state, e.evidence) for e in effects if isinstance(e, Changed)]


def updates_in(send: Send) -> list[Update]:
    return updates_untrusted(send.message[-1])


def told(effects: list[Effect], then: Swim | None = None) -> list[Update]:
    """Return every update that is sent to anybody, once each; also in the gossip that ``then`` sends next."""
    if then is not None:
        effects = [*effects, *(effect for _, effect in run(then, then._ground.now + 0.11))]
    seen: list[Update] = []
    for send in sends(effects):
        if isinstance(send.message[-1], tuple) and send.message[0] != kinds.JOIN:
            seen.extend(update for update in updates_in(send) if update not in seen)
    return seen


# -- joining ------------------------------------------------------------------------------------------------


def test_a_joining_node_learns_everybody_and_everybody_of_it() -> None:
    contact, joining = machine(0), machine(9)
    gossip(contact, record(1), record(2))
    (ask,) = joining.join([node(0)], 0.0)
    assert isinstance(ask, Send)
    effects = contact.receive(ask.message, node(9), 0.0)
    assert (node(9), ALIVE, "") in changes(effects)
    assert any(isinstance(update, NodeRecord) and update.node == node(9) for update in told(effects, contact))
    seen: list[Effect] = []
    for answer in sends(effects, kinds.STATE):
        assert answer.node == node(9)
        seen += joining.receive(answer.message, node(0), 0.0)
    assert {name for name, state, _ in changes(seen) if state is ALIVE} == {node(0), node(1), node(2)}
    assert [effect for effect in seen if isinstance(effect, Synchronized)] == [Synchronized(node=node(0))]
    assert len(sends(seen, kinds.SYNC)) == 1, "then it tells what only it knew"


def test_what_a_joining_node_learns_it_does_not_pass_on() -> None:
    joining = machine(9)
    joining.join([node(0)], 0.0)
    state = (kinds.STATE, True, tuple(encode_update(record(number)) for number in range(3)))
    effects = joining.receive(state, node(0), 0.0)
    assert told(effects) == []
    assert joining.settled


def test_a_contact_that_does_not_answer_is_asked_again_and_others_in_turn() -> None:
    joining = machine(9)
    effects = [*joining.join([node(1), node(2)], 0.0), *(effect for _, effect in run(joining, 4.0))]
    asked = [send.node for send in sends(effects, kinds.JOIN)]
    assert asked[:2] == [node(1), node(2)]
    assert set(asked[2:]) == {node(1), node(2)}
    assert len(asked) >= 5


def test_nobody_joins_in_another_nodes_name() -> None:
    swim = machine(0)
    effects = swim.receive((kinds.JOIN, record(2).as_tuple()), node(1), 0.0)
    assert [e.reason for e in effects if isinstance(e, Rejected)] == ["it joins in another node's name"]
    assert swim.state(node(2)) is None
    assert sends(effects, kinds.STATE) == []


def test_the_whole_state_is_not_sent_to_the_same_node_twice_in_a_moment() -> None:
    swim = machine(0)
    join = (kinds.JOIN, record(1).as_tuple())
    assert len(sends(swim.receive(join, node(1), 0.0), kinds.STATE)) == 1
    assert sends(swim.receive(join, node(1), 0.1), kinds.STATE) == []
    assert len(sends(swim.receive(join, node(1), 0.7), kinds.STATE)) == 1


def test_a_sender_without_a_record_is_asked_for_it() -> None:
    swim = machine(0)
    effects = swim.receive((kinds.GOSSIP, ()), node(5), 0.0)
    (ask,) = sends(effects, kinds.WANTED)
    assert (ask.node, ask.message[1]) == (node(5), bytes.fromhex(node(5)))
    assert sends(swim.receive((kinds.GOSSIP, ()), node(5), 0.1), kinds.WANTED) == []
    other = machine(5)
    (answer,) = sends(other.receive(ask.message, node(0), 0.0), kinds.STATE)
    assert changes(swim.receive(answer.message, node(5), 0.2)) == [(node(5), ALIVE, "")]


def test_more_members_than_the_limit_are_refused() -> None:
    swim = knowing(1, 2, config=Config(member_limit=2))
    effects = gossip(swim, record(3))
    assert [e.reason for e in effects if isinstance(e, Rejected)] == ["more members than member_limit"]
    assert swim.state(node(3)) is None


# -- records ------------------------------------------------------------------------------------------------


def test_a_record_that_its_subject_did_not_sign_changes_nothing() -> None:
    swim = knowing(1)
    forged = dataclasses.replace(record(1, incarnation=2, leaving=True), signature=record(1).signature)
    effects = gossip(swim, forged, sender=2)
    assert any(isinstance(e, Rejected) and e.sender == node(2) for e in effects)
    assert swim.state(node(1)) is ALIVE
    assert swim.statistics().rejected == {"a record that its subject did not sign": 1}


def test_the_same_offence_is_reported_once_and_counted_each_time() -> None:
    swim = knowing(1)
    forged = dataclasses.replace(record(2), signature=b"")
    reported = [e for _ in range(3) for e in gossip(swim, forged) if isinstance(e, Rejected)]
    assert len(reported) == 1
    assert swim.statistics().rejected["a record that its subject did not sign"] == 3


def test_a_node_id_belongs_to_the_key_that_first_spoke_for_it() -> None:
    """Another credential of the realm cannot take over a living member's id."""

    class TwoKeys:
        def sign(self, statement: bytes) -> bytes:
            return HashTrust(node(0)).sign(statement)

        def verify(self, record: NodeRecord, statement: bytes, signature: bytes) -> bool:
            return HashTrust(NodeId(record.node + record.proof.decode())).sign(statement) == signature

    def signed_by(proof: str, incarnation: int) -> NodeRecord:
        bare = NodeRecord(node=node(1), name="databases", proof=proof.encode(), incarnation=incarnation)
        return dataclasses.replace(bare, signature=HashTrust(NodeId(node(1) + proof)).sign(bare.statement()))

    swim = machine(0)
    swim._ground.trust = TwoKeys()  # type: ignore[misc]
    gossip(swim, signed_by("first", 1))
    assert swim.state(node(1)) is ALIVE
    gossip(swim, signed_by("second", 2))
    held = swim.record(node(1))
    assert held is not None
    assert held.proof == b"first"


def test_a_renewal_stands_for_the_known_record_or_else_the_whole_one_is_asked_for() -> None:
    swim = knowing(1)
    good = Renewal(node=node(1), incarnation=2, signature=record(1, incarnation=2).signature)
    assert changes(gossip(swim, good)) == [(node(1), ALIVE, "")]
    other = Renewal(node=node(1), incarnation=3, signature=record(1, incarnation=3, site="moved").signature)
    effects = gossip(swim, other, sender=2)
    assert changes(effects) == []
    assert node(2) in [send.node for send in sends(effects, kinds.WANTED)]
    unknown = Renewal(node=node(8), incarnation=3, signature=b"")
    assert bytes.fromhex(node(8)) in [send.message[1] for send in sends(gossip(swim, unknown), kinds.WANTED)]


facts = st.lists(
    st.builds(
        record,
        st.integers(1, 3),
        incarnation=st.integers(1, 3),
        leaving=st.booleans(),
        site=st.sampled_from(["", "eu", "us"]),
    ),
    max_size=5,
)


@given(facts)
@settings(max_examples=60)
def test_records_in_any_order_and_repetition_end_in_the_same_view(some: list[NodeRecord]) -> None:
    ends: set[tuple[object, ...]] = set()
    for order in itertools.islice(itertools.permutations(some), 24):
        swim = machine(0)
        for one in (*order, *order[:2]):
            gossip(swim, one, sender=9)
        view = swim._ground.view
        ends.add((view.hashes(), *((n, swim.state(node(n)), swim.record(node(n))) for n in (1, 2, 3))))
    assert len(ends) == 1


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


def test_another_process_with_this_nodes_key_is_reported_and_not_fought() -> None:
    swim = knowing(1)
    effects = gossip(swim, record(0, incarnation=5, site="elsewhere"))
    assert [e.reason for e in effects if isinstance(e, Rejected)] == ["another process uses this node's id and key"]
    assert swim.own.incarnation == 1


def test_every_update_is_sent_at_least_twelve_times_and_then_no_more() -> None:
    swim = knowing(*range(1, 30))
    sent = [
        update
        for _, effect in [*((0.0, e) for e in swim.update_self(0.0, interest_version=1)), *run(swim, 10.0, deaf=False)]
        if isinstance(effect, Send) and effect.message[0] != kinds.SYNC
        for update in updates_in(effect)
        if isinstance(update, NodeRecord) and update.node == node(0)
    ]
    assert len(sent) == 12
    assert swim.settled


# -- leaving ------------------------------------------------------------------------------------------------


def test_a_leaving_node_tells_a_dozen_at_once() -> None:
    swim = knowing(*range(1, 30))
    run(swim, 3.0, deaf=False)
    effects = swim.leave(3.0)
    farewells = [s.node for s in sends(effects, kinds.GOSSIP) if any(u == swim.own for u in updates_in(s))]
    assert len(set(farewells)) >= 12
    assert swim.own.leaving
    assert swim.leave(3.1) == [] or swim.own.incarnation == 2, "leaving twice is leaving once"


def test_who_left_stays_away_unless_it_says_otherwise() -> None:
    swim = knowing(1, 2)
    effects = gossip(swim, record(1, incarnation=2, leaving=True), sender=2)
    assert changes(effects) == [(node(1), LEFT, "")]
    assert changes(gossip(swim, record(1), sender=2)) == []
    assert changes(gossip(swim, claim(1, 2), sender=2)) == []
    assert changes(gossip(swim, record(1, incarnation=3), sender=2)) == [(node(1), ALIVE, "")]


def test_who_left_is_forgotten_after_a_while() -> None:
    swim = knowing(1, 2, config=Config(dead_retention=60.0))
    gossip(swim, record(1, incarnation=2, leaving=True), sender=2)
    run(swim, 50.0, deaf=False)
    assert swim.state(node(1)) is LEFT
    run(swim, 100.0, deaf=False)
    assert swim.state(node(1)) is None


def test_a_leaving_node_probes_nobody_and_refutes_nothing() -> None:
    swim = knowing(1, 2)
    swim.leave(0.0)
    gossip(swim, claim(0, 1, incarnation=2))
    assert swim.own.incarnation == 2
    later = [effect for _, effect in run(swim, 5.0)]
    assert {send.message[0] for send in sends(later)} <= {kinds.GOSSIP}
    assert swim.settled


# -- probes -------------------------------------------------------------------------------------------------


def test_a_probe_is_answered_with_the_queue_delay() -> None:
    swim = knowing(1)
    swim.queue_delay = 0.25
    (answer,) = sends(swim.receive((kinds.PROBE, 7, 0, 1, ()), node(1), 0.0), kinds.PROBE_ANSWER)
    assert (answer.node, answer.message[1:3]) == (node(1), (7, 250_000))


def test_an_answer_tells_load_and_round_trip() -> None:
    swim = knowing(1)
    ((sent, probe),) = ((t, s) for t, e in run(swim, 0.5) for s in sends([e], kinds.PROBE))
    effects = swim.receive((kinds.PROBE_ANSWER, probe.message[1], 30_000, ()), node(1), 0.6)
    (load,) = (effect for effect in effects if isinstance(effect, Load))
    assert (load.node, load.queue_delay) == (node(1), 0.03)
    assert near(load.round_trip, 0.6 - sent)


def test_an_answer_from_somebody_else_is_no_answer() -> None:
    swim = knowing(1, 2)
    (probe, *_) = (s for _, e in run(swim, 0.5) for s in sends([e], kinds.PROBE))
    other = node(2) if probe.node == node(1) else node(1)
    effects = swim.receive((kinds.PROBE_ANSWER, probe.message[1], 0, ()), other, 0.6)
    assert not any(isinstance(effect, Load) for effect in effects)


def test_a_silent_member_is_asked_twice_helpers_ask_it_its_route_closes_it_is_suspected_and_dies() -> None:
    swim = knowing(1)
    gossip(swim, record(2), sender=1)
    seen: list[tuple[float, Effect]] = []
    while swim.deadline <= 20.0:
        now = swim.deadline
        effects = swim.expire(now)
        for send in sends(effects, kinds.PROBE):
            if send.node == node(2):
                effects += swim.receive((kinds.PROBE_ANSWER, send.message[1], 0, ()), node(2), now)
        for send in sends(effects, kinds.PROBE_REQUEST):
            effects += swim.receive((kinds.PROBE_REPORT, send.message[1], 1, ()), node(2), now)
        seen.extend((now, effect) for effect in effects)
    about = [(t, e) for t, e in seen if not isinstance(e, Load | Rejected | Synchronized) and e.node == node(1)]
    first = next(t for t, e in about if isinstance(e, Send) and e.message[0] == kinds.PROBE)
    asked = [t for t, e in seen if isinstance(e, Send) and e.message[0] == kinds.PROBE_REQUEST]
    assert near(asked[0], first + 0.25)
    (closed,) = ((t, e) for t, e in about if isinstance(e, Route))
    assert near(closed[0], first + 0.5)
    assert closed[1] == Route(node=node(1), open=False, evidence="silent")
    states = [(t, e.state) for t, e in about if isinstance(e, Changed)]
    assert [state for _, state in states] == [SUSPECT, DEAD]
    assert near(states[0][0], first + 0.5)
    # One witness of the two that would be needed (this node and the other one): the longest suspicion.
    assert near(states[1][0], first + 0.5 + 6.0)


def test_a_member_that_a_helper_reaches_is_not_suspected_but_gets_no_work_from_here() -> None:
    swim = knowing(1, 2)
    seen: list[Effect] = []
    while swim.deadline <= 5.0:
        now = swim.deadline
        effects = swim.expire(now)
        for send in sends(effects, kinds.PROBE):
            if send.node == node(2):
                effects += swim.receive((kinds.PROBE_ANSWER, send.message[1], 0, ()), node(2), now)
        for send in sends(effects, kinds.PROBE_REQUEST):
            effects += swim.receive((kinds.PROBE_REPORT, send.message[1], 0, ()), node(2), now)
        seen += effects
    assert changes(seen) == []
    assert [e for e in seen if isinstance(e, Route)] == [Route(node=node(1), open=False, evidence="silent")]
    # It goes on being asked, and its first answer opens the route.
    pings: list[Send] = []
    while not pings:
        pings = [s for s in sends(swim.expire(swim.deadline), kinds.PROBE) if s.node == node(1)]
    (probe,) = pings
    effects = swim.receive((kinds.PROBE_ANSWER, probe.message[1], 0, ()), node(1), swim._ground.now)
    assert Route(node=node(1), open=True) in effects


def test_a_doubted_member_is_probed_at_once_and_routed_out_half_a_second_later() -> None:
    swim = knowing(*range(1, 20))
    run(swim, 2.0, deaf=False)
    (probe,) = sends(swim.doubt(node(5), 2.0), kinds.PROBE)
    assert probe.node == node(5)
    assert swim.doubt(node(5), 2.01) == [], "one probe at a time"
    closed: list[float] = []
    while swim.deadline <= 3.0:
        now = swim.deadline
        effects = swim.expire(now)
        for send in sends(effects, kinds.PROBE):
            if send.node != node(5):
                swim.receive((kinds.PROBE_ANSWER, send.message[1], 0, ()), send.node, now)
        closed += [now for effect in effects if isinstance(effect, Route) and effect.node == node(5)]
    assert len(closed) == 1
    assert near(closed[0], 2.5)


def test_doubts_are_bounded() -> None:
    swim = knowing(*range(1, 60), config=Config(doubts=4))
    probed = [s for number in range(1, 60) for s in sends(swim.doubt(node(number), 0.0), kinds.PROBE)]
    assert len(probed) <= 5


def test_doubting_the_unknown_and_the_dead_does_nothing() -> None:
    swim = knowing(1)
    gossip(swim, record(1, incarnation=2, leaving=True))
    assert swim.doubt(node(1), 0.0) == []
    assert swim.doubt(node(7), 0.0) == []


def test_a_helper_probes_and_reports_either_way() -> None:
    swim = knowing(1, 2)
    request = (kinds.PROBE_REQUEST, 77, bytes.fromhex(node(2)), ())
    (probe,) = (s for s in sends(swim.receive(request, node(1), 0.0), kinds.PROBE))
    assert probe.node == node(2)
    effects = swim.receive((kinds.PROBE_ANSWER, probe.message[1], 0, ()), node(2), 0.01)
    assert [(s.node, s.message[1:3]) for s in sends(effects, kinds.PROBE_REPORT)] == [(node(1), (77, 0))]
    swim.receive(request, node(1), 0.02)
    reports = [(t, s) for t, e in run(swim, 0.6) for s in sends([e], kinds.PROBE_REPORT)]
    assert [s.message[1:3] for _, s in reports] == [(77, 1)]
    assert reports[0][0] < 0.02 + Config().probe_timeout, "before the asker gives up"
    swim.receive(request, node(1), 1.0)
    effects = swim.refused(node(2), 1.01)
    assert [s.message[1:3] for s in sends(effects, kinds.PROBE_REPORT)] == [(77, 2)]


def test_probes_for_others_are_bounded() -> None:
    swim = knowing(1, 2)
    requests = ((kinds.PROBE_REQUEST, number, bytes.fromhex(node(2)), ()) for number in range(1000))
    assert sum(len(sends(swim.receive(r, node(1), 0.0), kinds.PROBE)) for r in requests) == 256


def test_a_member_with_a_long_queue_is_asked_again_each_interval() -> None:
    swim = knowing(*range(1, 40))
    probed: list[float] = []
    while swim.deadline <= 10.0:
        now = swim.deadline
        for send in sends(swim.expire(now), kinds.PROBE):
            delay = 900_000 if send.node == node(5) and now < 8.0 else 0
            probed += [now] if send.node == node(5) else []
            swim.receive((kinds.PROBE_ANSWER, send.message[1], delay, ()), send.node, now)
        if not probed and now > 1.0:
            for send in sends(swim.doubt(node(5), now), kinds.PROBE):
                probed.append(now)
                swim.receive((kinds.PROBE_ANSWER, send.message[1], 900_000, ()), send.node, now)
    assert len([at for at in probed if at < 8.0]) > 10
    assert len([at for at in probed if at > 9.0]) <= 1


# -- broken links -------------------------------------------------------------------------------------------


def test_a_broken_link_closes_the_route_at_once_and_accuses_only_if_it_stays_broken() -> None:
    swim = knowing(1, 2, 3)
    effects = swim.refused(node(1), 1.0)
    assert [e for e in effects if isinstance(e, Route)] == [Route(node=node(1), open=False, evidence="refused")]
    assert changes(effects) == []
    (ping,) = sends(effects, kinds.PROBE)
    effects = swim.receive((kinds.PROBE_ANSWER, ping.message[1], 0, ()), node(1), 1.02)
    assert Route(node=node(1), open=True) in effects
    assert changes([e for _, e in run(swim, 1.1)]) == [], "it was redialled: nobody is accused"


def test_three_refused_witnesses_end_a_life_in_under_a_second() -> None:
    swim = knowing(*range(1, 30))
    swim.refused(node(1), 1.0)
    seen = run(swim, 1.1, deaf=True)
    assert (node(1), SUSPECT, "refused") in changes([e for _, e in seen])
    gossip(swim, claim(1, 2, Evidence.REFUSED), claim(1, 3, Evidence.REFUSED), sender=2, now=1.1)
    dead = [t for t, e in run(swim, 5.0) if isinstance(e, Changed) and e.node == node(1) and e.state is DEAD]
    assert len(dead) == 1
    assert near(dead[0], 1.05 + Config().refused_grace)


def test_without_other_witnesses_helpers_are_asked() -> None:
    swim = knowing(*range(1, 30))
    swim.refused(node(1), 1.0)
    asked = [(t, s) for t, e in run(swim, 1.3) for s in sends([e], kinds.PROBE_REQUEST)]
    ours = [t for t, s in asked if s.message[2] == bytes.fromhex(node(1))]
    assert len(ours) == 3
    assert near(ours[0], 1.15)


def test_of_two_nodes_the_one_that_is_left_decides_alone() -> None:
    swim = knowing(1)
    swim.refused(node(1), 1.0)
    seen = run(swim, 3.0)
    states = [(t, e.state) for t, e in seen if isinstance(e, Changed)]
    assert [state for _, state in states] == [SUSPECT, DEAD]
    assert near(states[0][0], 1.05)
    assert near(states[1][0], 1.45)


def test_refusals_by_the_unknown_and_the_dead_change_nothing() -> None:
    swim = knowing(1)
    assert swim.refused(node(9), 0.0) == []
    gossip(swim, record(1, incarnation=2, leaving=True))
    assert swim.refused(node(1), 0.0) == []


# -- suspicion ----------------------------------------------------------------------------------------------


def test_one_witness_makes_a_suspect_and_closes_no_route() -> None:
    swim = knowing(*range(1, 10))
    effects = gossip(swim, claim(5, 1))
    assert changes(effects) == [(node(5), SUSPECT, "silent")]
    assert not any(isinstance(e, Route) for e in effects)
    assert claim(5, 1) in told(effects, swim), "it is passed on"


def test_two_witnesses_close_the_route_and_three_shorten_the_suspicion() -> None:
    swim = knowing(*range(1, 10))
    gossip(swim, claim(5, 1))
    effects = gossip(swim, claim(5, 2))
    assert [e for e in effects if isinstance(e, Route)] == [Route(node=node(5), open=False, evidence="silent")]
    gossip(swim, claim(5, 3))
    dead = [t for t, e in run(swim, 20.0, deaf=False) if isinstance(e, Changed) and e.state is DEAD]
    assert near(dead[0], 1.5)


def test_a_refutation_ends_the_suspicion_and_stops_the_claims() -> None:
    swim = knowing(*range(1, 10))
    gossip(swim, claim(5, 1), claim(5, 2))
    effects = gossip(swim, Renewal(node=node(5), incarnation=2, signature=record(5, incarnation=2).signature))
    assert changes(effects) == [(node(5), ALIVE, "")]
    assert Route(node=node(5), open=True) in effects
    later = run(swim, 20.0, deaf=False)
    assert not any(isinstance(e, Changed) for _, e in later)
    assert not any(isinstance(u, Claim) for u in told([e for _, e in later]))
    assert swim.statistics().refuted == 1


@pytest.mark.parametrize(
    "bad",
    [
        dataclasses.replace(claim(5, 2), signature=HashTrust(node(1)).sign(claim(5, 2).statement())),
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
        forged = dataclasses.replace(claim(5, 2), signature=HashTrust(node(1)).sign(b""))
        effects = gossip(swim, claim(5, 1), claim(5, 1, Evidence.REFUSED), forged, sender=1, now=now)
        effects += gossip(swim, Accusation(node=node(5), incarnation=1), sender=1, now=now)
        effects += swim.receive((kinds.DIGEST, bytes(range(256)), b""), node(1), now)
        assert not any(isinstance(effect, Route) for effect in effects)
    assert swim.state(node(5)) is SUSPECT
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


def test_an_accuser_without_end_gets_four_refutations_a_second() -> None:
    swim = knowing(*range(1, 10))
    for moment in range(1000):
        now = moment * 0.01
        while swim.deadline <= now:
            swim.expire(swim.deadline)
        swim.receive((kinds.PROBE, 1, 2, swim.own.incarnation, ()), node(1), now)
    assert 35 <= swim.own.incarnation <= 42


def test_a_prober_that_holds_this_node_suspect_gets_the_refutation_with_the_answer() -> None:
    swim = knowing(*range(1, 10))
    effects = swim.receive((kinds.PROBE, 3, 1, 1, ()), node(1), 0.0)
    (answer,) = sends(effects, kinds.PROBE_ANSWER)
    assert any(
        isinstance(u, NodeRecord | Renewal) and u.node == node(0) and u.incarnation == 2 for u in updates_in(answer)
    )
    assert sends(effects, kinds.SYNC) == []


def test_a_prober_that_holds_this_node_dead_is_compared_with() -> None:
    swim = knowing(*range(1, 10))
    effects = swim.receive((kinds.PROBE, 3, 2, 1, ()), node(1), 0.0)
    assert [send.node for send in sends(effects, kinds.SYNC)] == [node(1)]


def test_a_prober_that_is_behind_gets_the_whole_record() -> None:
    swim = knowing(1)
    swim.update_self(0.0, site="eu")
    run(swim, 10.0, deaf=False)
    (answer,) = sends(swim.receive((kinds.PROBE, 3, 0, 1, ()), node(1), 10.0), kinds.PROBE_ANSWER)
    assert swim.own in updates_in(answer)


# -- the dead -----------------------------------------------------------------------------------------------


def dead_member() -> Swim:
    swim = knowing(1, 2, 3, 4, 5)
    gossip(swim, claim(5, 1), claim(5, 2), claim(5, 3))
    run(swim, 1.6, deaf=False)
    assert swim.state(node(5)) is DEAD
    return swim


def test_old_words_do_not_raise_the_dead_but_its_own_new_one_does() -> None:
    swim = dead_member()
    assert changes(gossip(swim, record(5), now=1.7)) == []
    assert changes(gossip(swim, record(5, site="eu"), now=1.7)) == []
    assert changes(gossip(swim, record(5, incarnation=2), now=1.7)) == [(node(5), ALIVE, "")]
    assert swim.state(node(5)) is ALIVE


def test_the_dead_are_tried_again_for_ever() -> None:
    swim = dead_member()
    tried = [t for t, e in run(swim, 600.0, deaf=True) for s in sends([e], kinds.PROBE) if s.node == node(5)]
    assert tried[-1] > 550.0
    assert len(tried) > 50


def test_a_dead_one_that_speaks_is_told_so() -> None:
    swim = dead_member()
    effects = swim.receive((kinds.GOSSIP, ()), node(5), 1.7)
    (probe,) = sends(effects, kinds.PROBE)
    assert (probe.node, probe.message[2:4]) == (node(5), (2, 1))


def test_contradictions_between_views_are_put_to_their_subject() -> None:
    swim = dead_member()
    other = machine(1)
    gossip(other, record(0), *(record(number) for number in (2, 3, 4, 5)), sender=0)
    run(other, 1.95, deaf=False)
    (digest,) = sends(other.receive((kinds.SYNC, swim._ground.view.hashes()), node(0), 2.0), kinds.DIGEST)
    (hint,) = sends(swim.receive(digest.message, node(1), 2.0), kinds.GOSSIP)
    assert updates_in(hint) == [Accusation(node=node(5), incarnation=1)]
    effects = other.receive(hint.message, node(0), 2.0)
    assert changes(effects) == [], "the other side does not believe it"
    assert Accusation(node=node(5), incarnation=1) in told(effects, other)
    assert other.state(node(5)) is ALIVE
    subject = machine(5)
    gossip(subject, record(1), sender=1)
    gossip(subject, Accusation(node=node(5), incarnation=1), now=2.0)
    assert subject.own.incarnation == 2


def test_the_gone_are_bounded_and_the_one_gone_longest_is_forgotten_first() -> None:
    swim = knowing(*range(1, 9), config=Config(gone_limit=3, synchronize_interval=1.0))
    for number in range(1, 8):
        gossip(swim, record(number, incarnation=2, leaving=True), sender=8, now=number * 0.01)
    run(swim, 3.0, deaf=False)
    assert [number for number in range(1, 8) if swim.state(node(number)) is LEFT] == [5, 6, 7]


# -- this very process --------------------------------------------------------------------------------------


def test_a_stall_of_this_process_makes_nobody_a_suspect() -> None:
    swim = knowing(*range(1, 10))
    gossip(swim, claim(5, 1), claim(5, 2), claim(5, 3))
    run(swim, 1.2, deaf=False)
    effects = swim.expire(61.2)
    assert changes(effects) == []
    assert swim.statistics().stalls == 1
    refutation = Renewal(node=node(5), incarnation=2, signature=record(5, incarnation=2).signature)
    assert changes(gossip(swim, refutation, now=61.3)) == [(node(5), ALIVE, "")]


def test_a_clock_that_goes_back_stops_nothing() -> None:
    swim = knowing(*range(1, 10))
    run(swim, 5.0, deaf=False)
    gossip(swim, record(11), now=-100.0)
    assert swim.state(node(11)) is ALIVE
    assert swim.deadline < 6.0
    assert run(swim, 6.0, deaf=False)


def test_the_deadline_is_always_ahead_of_what_was_done() -> None:
    swim = machine(0)
    for _ in range(200):
        now = swim.deadline
        assert now < math.inf
        swim.expire(now)
        assert swim.deadline > now


# -- hostile input ------------------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 3),
    st.just(MAX_COUNTER + 1),
    st.sampled_from([b"", bytes(16), bytes.fromhex(node(1)), bytes(24), bytes(2048), "x", 0.5, (), ((),)]),
)
updates = st.lists(
    st.one_of(
        st.sampled_from([encode_update(u) for u in (record(1), record(0), claim(1, 2), claim(0, 1))]),
        st.sampled_from([encode_update(Accusation(node=node(0), incarnation=1))]),
        scalars,
        st.lists(scalars, max_size=5).map(tuple),
    ),
    max_size=3,
).map(tuple)
messages = st.tuples(
    st.sampled_from([*KINDS, 0, 0x1F]), st.lists(st.one_of(scalars, updates), max_size=5).map(tuple)
).map(lambda parts: (parts[0], *parts[1]))


@given(st.lists(st.tuples(messages, st.integers(0, 4)), max_size=12))
@settings(max_examples=300)
def test_whatever_is_received_nothing_is_raised_and_nobody_dies_of_it(
    some: list[tuple[tuple[object, ...], int]],
) -> None:
    swim = knowing(1, 2, 3)
    now = 0.0
    for message, sender in some:
        now += 0.05
        swim.receive(message, node(sender), now)
        while swim.deadline <= now:
            swim.expire(swim.deadline)
    assert swim.statistics().deaths == 0
    assert swim.state(node(3)) is ALIVE


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_number_of_fields_that_it_says(kind: int) -> None:
    swim = knowing(1)
    for fields in range(8):
        effects = swim.receive((kind, *([None] * fields)), node(1), 0.0)
        reasons = [e.reason for e in effects if isinstance(e, Rejected)]
        assert ("no message of membership has this form" in swim.statistics().rejected) or fields == KINDS[kind]
        assert reasons != [] or fields != 0
