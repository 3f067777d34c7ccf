"""Probes: members that answer, members that do not, and the meaning of a broken link."""

from __future__ import annotations

import pytest

from iris.cluster.swim.context import Changed, Effect, LoadReport, Rejected, Routable, Send, Synchronized
from iris.cluster.swim.gossip import Accusation, Evidence
from iris.cluster.swim.records import MemberState
from iris.kernel.config import Config
from iris.kernel.wire import kinds
from tests.support.membership import Links, Work, changes, claim, gossip, knowing, near, node, record, run, sends
from tests.support.messages import fields_of


def test_a_probe_is_answered_with_the_queue_delay() -> None:
    work = Work()
    work.queue_delay = 0.25
    swim = knowing(1, work=work)
    (answer,) = sends(swim.receive(kinds.Probe(7, 0, 1, ()), node(1), 0.0), kinds.ProbeAnswer)
    assert (answer.node, fields_of(answer.message)[0:2]) == (node(1), (7, 250_000))


def test_an_answer_tells_load_and_round_trip() -> None:
    swim = knowing(1)
    ((sent, probe),) = ((t, s) for t, e in run(swim, 0.5) for s in sends([e], kinds.Probe))
    effects = swim.receive(kinds.ProbeAnswer(fields_of(probe.message)[0], 30_000, ()), node(1), 0.6)
    (load,) = (effect for effect in effects if isinstance(effect, LoadReport))
    assert (load.node, load.queue_delay) == (node(1), 0.03)
    assert near(load.round_trip, 0.6 - sent)


def test_an_answer_from_somebody_else_is_no_answer() -> None:
    swim = knowing(1, 2)
    (probe, *_) = (s for _, e in run(swim, 0.5) for s in sends([e], kinds.Probe))
    other = node(2) if probe.node == node(1) else node(1)
    effects = swim.receive(kinds.ProbeAnswer(fields_of(probe.message)[0], 0, ()), other, 0.6)
    assert not any(isinstance(effect, LoadReport) for effect in effects)


def test_a_silent_member_is_asked_twice_helpers_ask_it_its_route_closes_it_is_suspected_and_dies() -> None:
    swim = knowing(1)
    gossip(swim, record(2), sender=1)
    seen: list[tuple[float, Effect]] = []
    while swim.deadline <= 20.0:
        now = swim.deadline
        effects = swim.expire(now)
        for send in sends(effects, kinds.Probe):
            if send.node == node(2):
                effects += swim.receive(kinds.ProbeAnswer(fields_of(send.message)[0], 0, ()), node(2), now)
        for send in sends(effects, kinds.ProbeRequest):
            effects += swim.receive(kinds.ProbeReport(fields_of(send.message)[0], 1, ()), node(2), now)
        seen.extend((now, effect) for effect in effects)
    about = [(t, e) for t, e in seen if not isinstance(e, LoadReport | Rejected | Synchronized) and e.node == node(1)]
    first = next(t for t, e in about if isinstance(e, Send) and isinstance(e.message, kinds.Probe))
    asked = [t for t, e in seen if isinstance(e, Send) and isinstance(e.message, kinds.ProbeRequest)]
    assert near(asked[0], first + 0.25)
    (closed,) = ((t, e) for t, e in about if isinstance(e, Routable))
    assert near(closed[0], first + 0.5)
    assert closed[1] == Routable(node=node(1), open=False, evidence="silent")
    states = [(t, e.state) for t, e in about if isinstance(e, Changed)]
    assert [state for _, state in states] == [MemberState.SUSPECT, MemberState.DEAD]
    assert near(states[0][0], first + 0.5)
    # One witness of the two that would be needed (this node and the other one): the longest suspicion.
    assert near(states[1][0], first + 0.5 + 6.0)


def test_a_member_that_a_helper_reaches_is_not_suspected_but_gets_no_work_from_here() -> None:
    swim = knowing(1, 2)
    seen: list[Effect] = []
    while swim.deadline <= 5.0:
        now = swim.deadline
        effects = swim.expire(now)
        for send in sends(effects, kinds.Probe):
            if send.node == node(2):
                effects += swim.receive(kinds.ProbeAnswer(fields_of(send.message)[0], 0, ()), node(2), now)
        for send in sends(effects, kinds.ProbeRequest):
            effects += swim.receive(kinds.ProbeReport(fields_of(send.message)[0], 0, ()), node(2), now)
        seen += effects
    assert changes(seen) == []
    assert [e for e in seen if isinstance(e, Routable)] == [Routable(node=node(1), open=False, evidence="silent")]
    # It goes on being asked, and its first answer opens the route.
    pings: list[Send] = []
    now = 0.0
    while not pings:
        now = swim.deadline
        pings = [s for s in sends(swim.expire(now), kinds.Probe) if s.node == node(1)]
    (probe,) = pings
    effects = swim.receive(kinds.ProbeAnswer(fields_of(probe.message)[0], 0, ()), node(1), now)
    assert Routable(node=node(1), open=True) in effects


def test_a_doubted_member_is_probed_at_once_and_routed_out_half_a_second_later() -> None:
    swim = knowing(*range(1, 20))
    run(swim, 2.0, deaf=False)
    (probe,) = sends(swim.doubt(node(5), 2.0), kinds.Probe)
    assert probe.node == node(5)
    assert swim.doubt(node(5), 2.01) == [], "one probe at a time"
    closed: list[float] = []
    while swim.deadline <= 3.0:
        now = swim.deadline
        effects = swim.expire(now)
        for send in sends(effects, kinds.Probe):
            if send.node != node(5):
                swim.receive(kinds.ProbeAnswer(fields_of(send.message)[0], 0, ()), send.node, now)
        closed += [now for effect in effects if isinstance(effect, Routable) and effect.node == node(5)]
    assert len(closed) == 1
    assert near(closed[0], 2.5)


def test_doubts_are_bounded() -> None:
    swim = knowing(*range(1, 60), config=Config(doubts=4))
    probed = [s for number in range(1, 60) for s in sends(swim.doubt(node(number), 0.0), kinds.Probe)]
    assert len(probed) <= 5


def test_a_helper_probes_and_reports_either_way() -> None:
    swim = knowing(1, 2)
    request = kinds.ProbeRequest(77, bytes.fromhex(node(2)), ())
    (probe,) = (s for s in sends(swim.receive(request, node(1), 0.0), kinds.Probe))
    assert probe.node == node(2)
    effects = swim.receive(kinds.ProbeAnswer(fields_of(probe.message)[0], 0, ()), node(2), 0.01)
    assert [(s.node, fields_of(s.message)[0:2]) for s in sends(effects, kinds.ProbeReport)] == [(node(1), (77, 0))]
    swim.receive(request, node(1), 0.02)
    reports = [(t, s) for t, e in run(swim, 0.6) for s in sends([e], kinds.ProbeReport)]
    assert [fields_of(s.message)[0:2] for _, s in reports] == [(77, 1)]
    assert reports[0][0] < 0.02 + Config().probe_timeout, "before the asker gives up"
    swim.receive(request, node(1), 1.0)
    effects = swim.refused(node(2), 1.01)
    assert [fields_of(s.message)[0:2] for s in sends(effects, kinds.ProbeReport)] == [(77, 2)]


def test_who_has_left_is_asked_for_somebody_else_in_a_form_that_is_understood() -> None:
    swim = knowing(1, 2)
    gossip(swim, record(2, incarnation=2, leaving=True), sender=2)
    effects = swim.receive(kinds.ProbeRequest(77, bytes.fromhex(node(2)), ()), node(1), 0.1)
    (probe,) = sends(effects, kinds.Probe)
    assert fields_of(probe.message)[1:3] == (int(MemberState.DEAD), 2)


def test_probes_for_others_are_bounded() -> None:
    swim = knowing(1, 2)
    requests = (kinds.ProbeRequest(number, bytes.fromhex(node(2)), ()) for number in range(1000))
    assert sum(len(sends(swim.receive(r, node(1), 0.0), kinds.Probe)) for r in requests) == 256


def test_a_member_with_a_long_queue_is_asked_again_each_interval() -> None:
    swim = knowing(*range(1, 40))
    probed: list[float] = []
    while swim.deadline <= 10.0:
        now = swim.deadline
        for send in sends(swim.expire(now), kinds.Probe):
            delay = 900_000 if send.node == node(5) and now < 8.0 else 0
            probed += [now] if send.node == node(5) else []
            swim.receive(kinds.ProbeAnswer(fields_of(send.message)[0], delay, ()), send.node, now)
        if not probed and now > 1.0:
            for send in sends(swim.doubt(node(5), now), kinds.Probe):
                probed.append(now)
                swim.receive(kinds.ProbeAnswer(fields_of(send.message)[0], 900_000, ()), send.node, now)
    assert len([at for at in probed if at < 8.0]) > 10
    assert len([at for at in probed if at > 9.0]) <= 1


def test_a_broken_link_closes_the_route_at_once_and_accuses_only_if_it_stays_broken() -> None:
    swim = knowing(1, 2, 3)
    effects = swim.refused(node(1), 1.0)
    assert [e for e in effects if isinstance(e, Routable)] == [Routable(node=node(1), open=False, evidence="refused")]
    assert changes(effects) == []
    (ping,) = sends(effects, kinds.Probe)
    effects = swim.receive(kinds.ProbeAnswer(fields_of(ping.message)[0], 0, ()), node(1), 1.02)
    assert Routable(node=node(1), open=True) in effects
    assert changes([e for _, e in run(swim, 1.1)]) == [], "it was redialled: nobody is accused"


def test_three_refused_witnesses_end_a_life_in_under_a_second() -> None:
    swim = knowing(*range(1, 30))
    swim.refused(node(1), 1.0)
    seen = run(swim, 1.1, deaf=True)
    assert (node(1), MemberState.SUSPECT, "refused") in changes([e for _, e in seen])
    gossip(swim, claim(1, 2, Evidence.REFUSED), claim(1, 3, Evidence.REFUSED), sender=2, now=1.1)
    dead = [
        t for t, e in run(swim, 5.0) if isinstance(e, Changed) and e.node == node(1) and e.state is MemberState.DEAD
    ]
    assert len(dead) == 1
    assert near(dead[0], 1.05 + Config().refused_grace)


def test_without_other_witnesses_helpers_are_asked() -> None:
    swim = knowing(*range(1, 30))
    swim.refused(node(1), 1.0)
    asked = [(t, s) for t, e in run(swim, 1.3) for s in sends([e], kinds.ProbeRequest)]
    ours = [t for t, s in asked if fields_of(s.message)[1] == bytes.fromhex(node(1))]
    assert len(ours) == 3
    assert near(ours[0], 1.15)


def test_of_two_nodes_the_one_that_is_left_decides_alone() -> None:
    swim = knowing(1)
    swim.refused(node(1), 1.0)
    seen = run(swim, 3.0)
    states = [(t, e.state) for t, e in seen if isinstance(e, Changed)]
    assert [state for _, state in states] == [MemberState.SUSPECT, MemberState.DEAD]
    assert near(states[0][0], 1.05)
    assert near(states[1][0], 1.45)


def test_a_member_behind_a_broken_link_is_asked_twice_before_it_is_accused() -> None:
    swim = knowing(1, 2, 3)
    (first,) = sends(swim.refused(node(1), 1.0), kinds.Probe)
    again = [s for _, e in run(swim, 1.04) for s in sends([e], kinds.Probe) if s.node == node(1)]
    assert fields_of(again[-1].message)[0] == fields_of(first.message)[0], "the answer to either will do"
    effects = swim.receive(kinds.ProbeAnswer(fields_of(first.message)[0], 0, ()), node(1), 1.045)
    assert Routable(node=node(1), open=True) in effects
    assert changes([e for _, e in run(swim, 1.2)]) == []


def test_a_second_report_of_the_same_broken_link_changes_nothing() -> None:
    swim = knowing(1, 2, 3)
    swim.refused(node(1), 1.0)
    assert not any(isinstance(e, Routable | Changed) for e in swim.refused(node(1), 1.01))
    suspected = [t for t, e in run(swim, 1.2) if isinstance(e, Changed)]
    assert len(suspected) == 1
    assert near(suspected[0], 1.05)


def test_those_heard_lately_are_asked_for_help_first() -> None:
    swim = knowing(*range(1, 40))
    for number in (5, 6, 7):
        gossip(swim, sender=number)
    swim.doubt(node(20), 0.0)
    asked = {s.node for _, e in run(swim, 0.26) for s in sends([e], kinds.ProbeRequest)}
    assert len(asked) == 3
    assert asked <= {node(number) for number in (1, 5, 6, 7)}


def test_a_link_that_only_broke_closes_the_route_and_accuses_nobody() -> None:
    swim = knowing(1, 2, 3)
    effects = swim.broken(node(1), 1.0)
    assert [e for e in effects if isinstance(e, Routable)] == [Routable(node=node(1), open=False, evidence="broken")]
    (ping,) = sends(effects, kinds.Probe)
    later = [e for _, e in run(swim, 1.2)]
    assert [fields_of(s.message)[0] for s in sends(later, kinds.Probe) if s.node == node(1)] == [
        fields_of(ping.message)[0]
    ], "once more"
    assert changes(later) == []
    again = swim.broken(node(1), 1.2)
    (ping,) = sends(again, kinds.Probe)
    assert Routable(node=node(1), open=True) in swim.receive(
        kinds.ProbeAnswer(fields_of(ping.message)[0], 0, ()), node(1), 1.21
    )


def test_a_link_that_broke_and_is_then_refused_is_evidence_from_the_refusal_on() -> None:
    swim = knowing(1, 2, 3)
    swim.broken(node(1), 1.0)
    run(swim, 1.1)
    swim.refused(node(1), 1.1)
    suspected = [t for t, e in run(swim, 1.2) if isinstance(e, Changed)]
    assert len(suspected) == 1
    assert near(suspected[0], 1.15)


@pytest.mark.parametrize("report", ["doubt", "refused", "broken"])
def test_reports_of_the_unknown_and_of_the_dead_change_nothing(report: str) -> None:
    swim = knowing(1)
    assert getattr(swim, report)(node(9), 0.0) == []
    gossip(swim, record(1, incarnation=2, leaving=True))
    assert getattr(swim, report)(node(1), 0.0) == []


def test_a_member_that_has_just_come_is_given_no_work_when_it_is_silent_but_is_not_suspected() -> None:
    swim = knowing(1, 2)
    gossip(swim, record(3), now=10.0)
    seen = run(swim, 14.9)
    assert node(3) in {effect.node for _, effect in seen if isinstance(effect, Routable) and not effect.open}
    assert node(3) not in {about for about, state, _ in changes([e for _, e in seen]) if state is MemberState.SUSPECT}
    later = {about for about, state, _ in changes([e for _, e in run(swim, 60.0)]) if state is MemberState.SUSPECT}
    assert node(3) in later


def test_who_has_come_back_from_the_dead_has_just_come() -> None:
    swim = knowing(1)
    run(swim, 30.0)
    assert swim.state(node(1)) is MemberState.DEAD
    back = 30.1
    gossip(swim, record(1, incarnation=9), now=back)
    seen = [effect for _, effect in run(swim, back + 4.9)]
    assert swim.state(node(1)) is MemberState.ALIVE
    assert not any(state is MemberState.SUSPECT for _, state, _ in changes(seen))


def test_while_nobody_is_gone_a_node_is_woken_up_for_its_probes_alone() -> None:
    swim, config = knowing(1, 2), Config()
    run(swim, 2.0, deaf=False)
    woken, since = 0, 2.0
    while swim.deadline <= since + 60 * config.probe_interval:
        now = swim.deadline
        effects = swim.expire(now)
        woken += not sends(effects, kinds.Sync)
        for probe in sends(effects, kinds.Probe):
            swim.receive(kinds.ProbeAnswer(fields_of(probe.message)[0], 0, ()), probe.node, now + 0.001)
    assert 59 <= woken <= 61


def test_the_dead_are_tried_for_as_long_as_somebody_is_gone() -> None:
    swim, config = knowing(1), Config()
    seen = run(swim, 60.0)
    died = next(t for t, e in seen if isinstance(e, Changed) and e.state is MemberState.DEAD)
    tried = [t for t, e in seen if isinstance(e, Send) and isinstance(e.message, kinds.Probe) and t > died]
    assert tried[0] < died + 0.5 + 2.1 * config.lost_interval
    assert 10 <= len(tried) <= (60 - died) / config.lost_interval
    swim.receive(kinds.State(False, (record(1, incarnation=2).as_update(),)), node(1), 60.0)
    assert swim.state(node(1)) is MemberState.ALIVE
    back = [t for t, e in run(swim, 65.0, deaf=False) if isinstance(e, Send) and isinstance(e.message, kinds.Probe)]
    assert 6 <= len(back) <= 11, "an ordinary member again"
    assert swim.state(node(1)) is MemberState.ALIVE


def test_probes_and_gossip_travel_to_those_that_a_link_is_kept_to() -> None:
    links = Links()
    links.kept = {node(number) for number in (2, 3, 5, 7)}
    swim = knowing(*range(1, 10), links=links)
    gossip(swim, record(10), sender=2)
    seen = [send for _, effect in run(swim, 4.0, deaf=False) for send in sends([effect])]
    assert {send.node for send in seen if isinstance(send.message, kinds.Probe)} == links.kept
    assert {send.node for send in seen if isinstance(send.message, kinds.Gossip)} == links.kept


def test_a_member_that_a_link_is_kept_to_from_now_on_is_probed_instead_of_others() -> None:
    links = Links()
    links.kept = {node(1)}
    swim = knowing(1, 2, 3, links=links)
    links.kept = {node(2)}
    probes = [send for _, effect in run(swim, 3.0, deaf=False) for send in sends([effect], kinds.Probe)]
    assert [send.node for send in probes[:3]] == [node(2), node(2), node(2)]


def test_a_new_member_that_no_link_is_kept_to_is_not_probed() -> None:
    links = Links()
    links.kept = {node(1)}
    swim = knowing(1, links=links)
    gossip(swim, record(2), sender=1)
    probes = [send for _, effect in run(swim, 5.0, deaf=False) for send in sends([effect], kinds.Probe)]
    assert {send.node for send in probes} == {node(1)}


def test_views_are_compared_with_anybody_whoever_a_link_is_kept_to() -> None:
    links = Links()
    links.kept = {node(1)}
    swim = knowing(*range(1, 6), links=links)
    compared = {send.node for _, effect in run(swim, 400.0, deaf=False) for send in sends([effect], kinds.Sync)}
    assert compared == {node(number) for number in range(1, 6)}


def test_who_is_held_dead_by_somebody_is_probed_though_no_round_comes_to_it() -> None:
    links = Links()
    links.kept = {node(1)}
    swim = knowing(1, 2, 3, links=links)
    accusation = Accusation(node=node(2), incarnation=1)
    assert [send.node for send in sends(gossip(swim, accusation), kinds.Probe)] == [node(2)]
    assert not sends(gossip(swim, accusation), kinds.Probe)
    seen = [effect for _, effect in run(swim, 30.0) if isinstance(effect, Changed) and effect.node == node(2)]
    assert seen[-1].state is MemberState.DEAD


def test_who_is_held_dead_by_somebody_is_left_to_the_rounds_that_come_to_it() -> None:
    swim = knowing(1, 2)
    assert not sends(gossip(swim, Accusation(node=node(2), incarnation=1)), kinds.Probe)
