"""The balancer's choice of a member."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.balancing.balancer import Balancer
from iris.cluster.balancing.locality import AtSite, SiteOrder
from iris.kernel.names import NodeId
from tests.support.membership import node


def balancer(count: int, *, site: str = "", sites: tuple[str, ...] = ("",), seed: int = 1) -> Balancer:
    made = Balancer(Random(seed), order=SiteOrder(site))
    for number in range(count):
        made.add(node(number), sites[number % len(sites)])
    return made


def answer(of: Balancer, member: NodeId, latency: float, *, ok: bool = True, times: int = 1) -> None:
    for _ in range(times):
        of.started(member)
        of.finished(member, latency, ok=ok)


def picks(of: Balancer, count: int = 1000) -> Counter[NodeId | None]:
    return Counter(of.pick() for _ in range(count))


def test_whether_there_is_another_member_is_told_without_a_draw() -> None:
    one, two = balancer(2), balancer(2)
    for _ in range(3):
        assert two.has_other({node(0)})
        assert not two.has_other({node(0), node(1)})
    assert [one.pick() for _ in range(50)] == [two.pick() for _ in range(50)]
    two.suspend(node(1))
    assert not two.has_other({node(0)})


def test_equal_members_get_equal_work() -> None:
    seen = picks(balancer(10), 10_000)
    assert len(seen) == 10
    assert all(800 < count < 1200 for count in seen.values())


@pytest.mark.parametrize("at_a_time", [1, 8, 40])
def test_a_member_that_stands_for_several_gets_as_much_as_these_would(at_a_time: int) -> None:
    """Whether few requests are in progress or many, each of which takes as long at any member."""
    made = balancer(3)
    made.weigh(node(2), 2)
    counts, going = Counter[NodeId](), list[NodeId]()
    for _ in range(8000):
        member = made.pick()
        assert member is not None
        counts[member] += 1
        made.started(member)
        going.append(member)
        if len(going) >= at_a_time:
            made.finished(going.pop(0), 0.01, ok=True)
    shares = counts[node(0)], counts[node(1)], counts[node(2)] / 2
    assert max(shares) < 1.2 * min(shares), counts
    made.weigh(node(2), 1)
    assert "3 members, 3 of them" in repr(made)


def test_outstanding_requests_drive_work_elsewhere() -> None:
    two = balancer(2)
    for member in (node(0), node(1)):
        answer(two, member, 0.01, times=50)
    two.started(node(0))
    assert picks(two, 10) == {node(1): 10}
    for _ in range(2):
        two.started(node(1))
    assert picks(two, 10) == {node(0): 10}


def test_a_slow_member_gets_little_but_not_nothing() -> None:
    ten = balancer(10)
    seen: Counter[NodeId | None] = Counter()
    for _ in range(5000):
        member = ten.pick()
        assert member is not None
        seen[member] += 1
        answer(ten, member, 0.1 if member == node(0) else 0.01)
    assert 5 < seen[node(0)] < 60
    assert max(seen.values()) < 700


def test_a_member_that_was_slow_is_found_out_to_be_fast_again() -> None:
    two = balancer(2)
    answer(two, node(0), 5.0, times=20)
    answer(two, node(1), 0.01, times=20)
    seen: Counter[NodeId | None] = Counter()
    for _ in range(1000):
        member = two.pick()
        assert member is not None
        seen[member] += 1
        answer(two, member, 0.01)
    assert seen[node(0)] > 300


def test_a_member_that_fails_fast_is_an_outlier_and_each_failure_keeps_it_out_longer() -> None:
    pauses: list[int] = []
    for failures in (1, 3, 6):
        two = balancer(2)
        for member in (node(0), node(1)):
            answer(two, member, 0.01, times=50)
        answer(two, node(0), 0.0001, ok=False, times=failures)
        pause = 0
        while two.pick() != node(0):
            pause += 1
        pauses.append(pause)
    assert 20 < pauses[0] < pauses[1] < pauses[2] < 200


def test_a_member_that_always_failed_is_tried_again_after_some_200_draws() -> None:
    two = balancer(2)
    answer(two, node(1), 0.01, times=50)
    answer(two, node(0), 3600.0, ok=False, times=100)
    assert picks(two, 200)[node(0)] >= 1


@pytest.mark.parametrize(
    ("outstanding", "delay", "tried"), [(1, 0.5, True), (2, 0.0, True), (2, 0.5, False), (6, 0.0, False)]
)
def test_a_slow_member_is_tried_as_often_as_others_unless_work_waits_everywhere(
    outstanding: int, delay: float, tried: bool
) -> None:
    ten = balancer(10)
    for number in range(10):
        answer(ten, node(number), 0.01 if number else 0.1, times=50)
        for _ in range(outstanding):
            ten.started(node(number))
        ten.gray(node(number), delay)
    assert (picks(ten, 2000)[node(0)] > 0) is tried


def test_who_is_gone_with_a_queue_leaves_none_behind() -> None:
    two = balancer(2)
    for _ in range(3):
        for number in range(2):
            two.gray(node(number), 0.5)
            two.gray(node(number), 0.6)
        assert two._queues == 2
        two.remove(node(0))
        two.remove(node(1))
        assert two._queues == 0
        two.add(node(0))
        two.add(node(1))


def test_a_queue_that_was_reported_once_counts_less_each_time_that_its_member_is_passed_over_for_it() -> None:
    two = balancer(2)
    answer(two, node(0), 0.1, times=50)
    answer(two, node(1), 0.01, times=50)
    two.gray(node(0), 0.02)
    two.started(node(1))
    seen = [two.pick() for _ in range(100)]
    assert set(seen[:20]) == {node(1)}
    assert node(0) in seen[20:]


def test_a_site_that_said_it_is_full_is_no_more_as_soon_as_it_says_otherwise() -> None:
    two = balancer(2, site="eu", sites=("eu", "us"))
    answer(two, node(0), 0.1, times=50)
    answer(two, node(1), 0.001, times=50)
    two.gray(node(0), 0.3)
    assert node(1) in picks(two, 10), "what was reported of the other one fades meanwhile"
    two.gray(node(0), two._scores[node(0)].delay)
    assert picks(two, 50) == {node(0): 50}


def shares(members: Balancer, seconds: float, *, rate: float, since: float, failing: bool = False) -> Counter[NodeId]:
    """Have requests come at a rate, each answered after 10 ms; member 0 fails on demand."""
    seen: Counter[NodeId] = Counter()
    for number in range(int(seconds * rate)):
        now = since + number / rate
        member = members.pick(now=now)
        assert member is not None
        seen[member] += 1
        members.started(member)
        ok = not (failing and member == node(0))
        members.finished(member, 0.01, ok=ok, answered=ok, now=now + 0.01)
    return seen


def stand_still(members: Balancer, *, requests: int, timeout: float) -> None:
    """Have a member leave requests unanswered that came at once."""
    for _ in range(requests):
        members.started(node(0))
    for _ in range(requests):
        members.finished(node(0), timeout, ok=False, answered=False, now=timeout)


@pytest.mark.parametrize("requests", [1, 3, 20])
@pytest.mark.parametrize("rate", [1.0, 10.0, 1000.0])
def test_a_member_that_hung_has_its_share_again_as_soon_as_its_route_is_open(requests: int, rate: float) -> None:
    five = balancer(5)
    for number in range(5):
        answer(five, node(number), 0.01, times=50)
    five.suspend(node(0))
    stand_still(five, requests=requests, timeout=5.0)
    five.resume(node(0))
    seen = shares(five, 300 / rate, rate=rate, since=10.0)
    assert 30 < seen[node(0)] < 90


@pytest.mark.parametrize("requests", [1, 3, 20])
@pytest.mark.parametrize("rate", [1.0, 10.0, 1000.0])
def test_a_member_that_hung_unnoticed_has_its_share_again_after_seconds(requests: int, rate: float) -> None:
    five = balancer(5)
    for number in range(5):
        answer(five, node(number), 0.01, times=50)
    stand_still(five, requests=requests, timeout=0.5)
    shares(five, 3.0, rate=rate, since=0.5)
    seen = shares(five, 300 / rate, rate=rate, since=3.5)
    assert 30 < seen[node(0)] < 90


def test_a_member_that_fails_and_fails_is_tried_ever_more_rarely() -> None:
    two = balancer(2)
    stand_still(two, requests=4, timeout=0.5)
    first = shares(two, 60.0, rate=2.0, since=0.5, failing=True)[node(0)]
    later = shares(two, 600.0, rate=2.0, since=60.5, failing=True)[node(0)]
    assert 4 <= first <= 8
    assert 20 <= later <= 45, "of 1,200 requests"


@pytest.mark.parametrize("requests", [4, 5, 20])
def test_a_trial_that_was_never_sent_is_made_up_for(requests: int) -> None:
    two = balancer(2)
    stand_still(two, requests=requests, timeout=0.5)
    assert [two.pick(now=2.0), two.pick(now=2.1)] == [node(0), node(1)]
    assert two.pick(now=3.5) == node(0)


@pytest.mark.parametrize("requests", [4, 5, 20])
def test_a_trial_that_takes_long_is_the_only_one(requests: int) -> None:
    two = balancer(2)
    stand_still(two, requests=requests, timeout=0.5)
    assert two.pick(now=2.0) == node(0)
    two.started(node(0))
    assert {two.pick(now=2.0 + number) for number in range(1, 20)} == {node(1)}


def test_a_gray_member_gets_nothing_while_there_are_others() -> None:
    two = balancer(2)
    two.gray(node(0), 1.5)
    assert picks(two) == {node(1): 1000}
    two.gray(node(1), 2.0)
    assert set(picks(two)) == {node(0)}, "both are gray: the lesser evil"
    two.gray(node(0), 0.0)
    two.gray(node(1), 0.0)
    assert set(picks(two)) == {node(0), node(1)}


def test_a_reported_queue_counts_as_latency() -> None:
    two = balancer(2)
    two.gray(node(0), 0.05)
    assert picks(two)[node(1)] == 1000


def test_the_own_site_is_asked_first() -> None:
    four = balancer(4, site="eu", sites=("eu", "us"))
    assert set(picks(four)) == {node(0), node(2)}


@pytest.mark.parametrize("how", ["suspended", "full"])
def test_other_sites_are_asked_when_the_own_is_gone_or_full(how: str) -> None:
    four = balancer(4, site="eu", sites=("eu", "us"))
    for member in (node(0), node(2)):
        if how == "full":
            four.gray(member, 0.3)
        else:
            four.suspend(member)
    seen = picks(four)
    assert seen[node(1)] + seen[node(3)] > (999 if how == "suspended" else 750)


def test_retries_go_to_those_not_tried_and_to_other_sites_rather_than_nowhere() -> None:
    four = balancer(4, site="eu", sites=("eu", "us"))
    assert four.pick(exclude={node(0)}) == node(2)
    assert four.pick(exclude={node(0), node(2)}) in (node(1), node(3))
    assert four.pick(exclude={node(0), node(1), node(2), node(3)}) is None


def test_a_preferred_member_is_taken_while_it_can_be() -> None:
    four = balancer(4, site="eu", sites=("eu", "us"))
    assert four.pick(prefer=node(1)) == node(1), "even at another site"
    assert four.pick(prefer=node(1), exclude=[node(1)]) != node(1)
    four.gray(node(1), 2.0)
    assert four.pick(prefer=node(1)) != node(1)
    four.gray(node(1), 0.0)
    four.suspend(node(1))
    assert four.pick(prefer=node(1)) != node(1)
    assert four.pick(prefer=node(99)) is not None


def test_a_key_has_the_same_member_for_every_asker_at_every_site() -> None:
    ours = balancer(8, site="eu", sites=("eu", "us"), seed=1)
    theirs = balancer(8, site="us", sites=("eu", "us"), seed=2)
    keys = [f"key {number}" for number in range(500)]
    assert [ours.pick(key=key) for key in keys] == [theirs.pick(key=key) for key in keys]
    assert len({ours.pick(key=key) for key in keys}) == 8


def test_only_the_keys_of_a_lost_member_move_and_they_come_back() -> None:
    eight = balancer(8)
    keys = [f"key {number}" for number in range(500)]
    before = {key: eight.pick(key=key) for key in keys}
    eight.suspend(node(3))
    during = {key: eight.pick(key=key) for key in keys}
    assert {key for key in keys if during[key] != before[key]} == {key for key in keys if before[key] == node(3)}
    eight.resume(node(3))
    assert {key: eight.pick(key=key) for key in keys} == before


def test_load_moves_no_key() -> None:
    eight = balancer(8)
    member = eight.pick(key="k")
    assert member is not None
    eight.gray(member, 5.0)
    answer(eight, member, 9.0, times=20)
    assert eight.pick(key="k") == member
    assert eight.pick(key="k", exclude=[member]) not in (None, member)
    assert eight.pick(key="k") == member


def test_sites_are_asked_in_the_order_that_was_given() -> None:
    made = Balancer(Random(1), order=SiteOrder("eu", {"us": 1, "eu": 2, "far": 16}))
    for number, (site, distance) in enumerate([("eu", 0), ("us", 3), ("ap", 1), ("far", 1)]):
        made.add(node(number), site, distance)
    expected = [1, 0, 2, 3]
    for number in expected:
        assert picks(made, 20) == {node(number): 20}
        made.suspend(node(number))


def test_a_preferred_site_is_asked_until_work_waits_there() -> None:
    made = balancer(6, site="eu", sites=("eu", "us", "ap"))
    assert picks(made).keys() == {node(0), node(3)}
    assert {made.pick(prefer=AtSite("us")) for _ in range(100)} == {node(1), node(4)}
    assert made.pick(prefer=AtSite("us"), exclude=[node(1)]) == node(4)
    made.suspend(node(1))
    assert {made.pick(prefer=AtSite("us")) for _ in range(100)} == {node(4)}
    made.gray(node(4), 0.3)
    assert {made.pick(prefer=AtSite("us")) for _ in range(100)} == {node(0), node(3)}
    assert {made.pick(prefer=AtSite("nowhere")) for _ in range(100)} == {node(0), node(3)}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "suspend", "resume", "gray", "start", "finish", "fail", "pick"]),
            st.integers(0, 4),
        ),
        max_size=60,
    )
)
def test_whatever_happens_only_reachable_members_are_picked(steps: list[tuple[str, int]]) -> None:
    one = Balancer(Random(1), order=SiteOrder("eu"))
    reachable: dict[NodeId, bool] = {}
    for step, number in steps:
        member = node(number)
        if step == "add" and member not in reachable:
            one.add(member, "eu" if number % 2 else "us")
            reachable[member] = True
        elif step == "gray":
            one.gray(member, number * 0.4)
        elif step == "start":
            one.started(member)
        elif step in ("finish", "fail"):
            one.finished(member, number * 0.1, ok=step == "finish")
        elif member in reachable:
            if step == "remove":
                one.remove(member)
                del reachable[member]
            elif step in ("suspend", "resume"):
                (one.suspend if step == "suspend" else one.resume)(member)
                reachable[member] = step == "resume"
        can = {member for member, open_ in reachable.items() if open_}
        for picked in (one.pick(), one.pick(key="k"), one.pick(prefer=member), one.pick(prefer=AtSite("us"))):
            assert picked in can if can else picked is None
        assert (one.pick(exclude=[member]) is None) == (can <= {member})


def test_a_trial_looks_at_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 members of which 1,000 fail, one after the other would cost a caller a tenth of its time."""
    many = balancer(1000)
    silent = {node(number) for number in range(100)}
    many.pick()
    for member in silent:
        many.started(member)
        many.finished(member, 0.5, ok=False, answered=False, now=0.0)
    looked: list[str] = []
    plain = Balancer._arrange

    def arrange(of: Balancer) -> None:
        looked.append("at all")
        plain(of)

    monkeypatch.setattr(Balancer, "_arrange", arrange)
    tried: Counter[NodeId | None] = Counter()
    for tick in range(3000):
        now = 1.0 + tick / 100
        chosen = many.pick(now=now)
        assert chosen is not None
        tried[chosen] += 1
        well = chosen not in silent
        many.started(chosen)
        many.finished(chosen, 0.01 if well else 0.5, ok=well, answered=well, now=now)
    assert all(tried[member] > 1 for member in silent), "each of them is tried, and again"
    assert len(looked) <= 100, "when a circuit opens, and not with each trial"
    assert len(many._trials) <= 2 * 1000 + 64


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["pick", "fail", "silent", "well", "suspend", "resume", "exclude"]),
            st.integers(0, 4),
            st.floats(0.0, 3.0),
        ),
        max_size=120,
    )
)
def test_whoever_failed_and_can_be_asked_is_tried_when_its_time_has_come(
    steps: list[tuple[str, int, float]],
) -> None:
    five = balancer(5)
    suspended: set[NodeId] = set()
    now = 0.0
    for what, number, seconds in steps:
        now += seconds
        member = node(number)
        match what:
            case "suspend":
                five.suspend(member)
                suspended.add(member)
            case "resume":
                five.resume(member)
                suspended.discard(member)
            case "pick" | "exclude":
                exclude = {member} if what == "exclude" else set[NodeId]()
                due = [
                    score.node
                    for score in five._scores.values()
                    if score.due <= now and not score.suspended and score.node not in exclude
                    and not (score.tried and score.outstanding)
                ]  # fmt: skip
                picked = five.pick(now=now, exclude=exclude)
                assert picked is None or picked not in exclude | suspended
                if due:
                    assert picked in due, "what the heap says is what a look at all says"
            case _:
                five.started(member)
                five.finished(member, 0.5, ok=what == "well", answered=what == "well", now=now)
