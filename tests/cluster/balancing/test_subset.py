"""A caller asks a part of a large cluster."""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from time import process_time

import pytest

from iris.cluster.balancing.balancer import Balancer
from iris.cluster.balancing.subset import MIN_APERTURE, Aperture
from iris.kernel.names import NodeId


class Processor:
    """Processor time that passes as fast as is said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.used = 0.0

    def work(self, aperture: Aperture, *, busy: float, seconds: float, rate: int = 2000) -> None:
        """Answer so many requests per second."""
        for _ in range(int(seconds * rate)):
            self.now += 1 / rate
            self.used += busy / rate
            aperture.finished(self.now)


@pytest.mark.parametrize(("outstanding", "width"), [(0, MIN_APERTURE), (1, MIN_APERTURE), (2, 12), (3, 13), (64, 257)])
def test_four_members_for_each_request_outstanding_and_a_dozen_at_least(outstanding: int, width: int) -> None:
    assert Aperture().width(outstanding) == width


def test_it_narrows_while_the_callers_processor_is_the_limit_and_widens_when_it_waits() -> None:
    processor = Processor()
    aperture = Aperture(lambda: processor.used)
    processor.work(aperture, busy=0.99, seconds=2.0)
    assert aperture.width(64) == 17
    assert aperture.width(1) == MIN_APERTURE
    processor.work(aperture, busy=0.78, seconds=2.0)
    assert aperture.width(64) == 17, "neither"
    processor.work(aperture, busy=0.3, seconds=0.2)
    assert 17 < aperture.width(64) < 257, "by steps"
    processor.work(aperture, busy=0.7, seconds=2.0)
    assert aperture.width(64) == 257, "members that are too few leave some of the processor"


def test_a_processor_that_is_busy_with_something_else_narrows_nothing() -> None:
    processor = Processor()
    aperture = Aperture(lambda: processor.used)
    processor.work(aperture, busy=0.99, seconds=2.0, rate=500)
    assert aperture.width(64) == 257


def test_it_widens_within_a_second_however_few_requests_end() -> None:
    processor = Processor()
    aperture = Aperture(lambda: processor.used)
    processor.work(aperture, busy=0.99, seconds=2.0)
    processor.work(aperture, busy=0.1, seconds=1.0, rate=10)
    assert aperture.width(64) == 257


def test_time_in_which_nothing_was_outstanding_changes_nothing() -> None:
    processor = Processor()
    aperture = Aperture(lambda: processor.used)
    for _ in range(20):
        processor.work(aperture, busy=0.99, seconds=0.12)
        aperture.width(0)
        processor.now += 1.0
    assert aperture.width(64) == 17


def test_without_a_look_at_the_processor_nothing_is_narrowed() -> None:
    aperture = Aperture()
    Processor().work(aperture, busy=1.0, seconds=2.0)
    assert aperture.width(64) == 257


def test_each_failure_lets_one_more_in_and_these_are_taken_back() -> None:
    aperture = Aperture()
    for _ in range(100):
        aperture.failed(40)
    assert aperture.width(0) == MIN_APERTURE + 40, "no more than there are"
    Processor().work(aperture, busy=0.0, seconds=2.0)
    assert aperture.width(0) == MIN_APERTURE


# -- in the balancer ----------------------------------------------------------------------------------------


def node(number: int) -> NodeId:
    return NodeId(f"{number:032x}")


def balancer(members: int, seed: int = 1) -> Balancer:
    made = Balancer(Random(seed))
    for number in range(members):
        made.add(node(number))
    return made


def ask(of: Balancer, count: int, *, failing: frozenset[NodeId] = frozenset()) -> Counter[NodeId]:
    """Ask one after the other, each answered after a millisecond."""
    seen: Counter[NodeId] = Counter()
    for number in range(count):
        member = of.pick(now=0.001 * number)
        assert member is not None
        seen[member] += 1
        of.started(member)
        of.finished(member, 0.001, ok=member not in failing, now=0.001 * number)
    return seen


def test_one_at_a_time_goes_to_a_dozen_of_a_thousand_evenly() -> None:
    seen = ask(balancer(1000), 6000)
    assert len(seen) == MIN_APERTURE
    assert all(400 < count < 600 for count in seen.values())


def test_callers_together_ask_all_of_them() -> None:
    together: Counter[NodeId] = Counter()
    for caller in range(1000):
        together.update(ask(balancer(100, seed=caller), 100))
    assert len(together) == 100
    assert all(650 < count < 1350 for count in together.values())


def test_those_that_are_asked_stay_the_same_while_others_come_and_go() -> None:
    large = balancer(1000)
    before = set(ask(large, 1000))
    for number in range(1000, 1010):
        large.add(node(number))
    for gone in [member for member in large.nodes if member not in before][:10]:
        large.remove(gone)
    assert len(before & set(ask(large, 1000))) >= MIN_APERTURE - 1


def test_many_outstanding_have_members_of_their_own() -> None:
    large = balancer(1000)
    at = Counter[NodeId]()
    for _ in range(200):
        member = large.pick(now=0.0)
        assert member is not None
        large.started(member)
        at[member] += 1
    assert max(at.values()) <= 2
    assert len(at) > 180


def test_a_dozen_that_fail_together_are_left_behind() -> None:
    large = balancer(1000)
    first = frozenset(ask(large, 1000))
    seen = ask(large, 1000, failing=first)
    assert sum(seen[member] for member in first) < 150
    assert len(seen) > MIN_APERTURE


def test_what_stays_at_its_member_is_drawn_from_all() -> None:
    large = balancer(1000)
    assert len({large.pick() for _ in range(2000)}) > 700
    assert large.pick(exclude=[node(0)], now=0.0) != node(0)


@dataclass(slots=True)
class Slow:
    """Members that do one request at a time, asked by a caller whose processor is busy with something else."""

    members: int
    service: float
    now: float = 0.0
    ended: int = 0
    free: dict[NodeId, float] = field(default_factory=dict[NodeId, float])

    def answer(self, concurrency: int, seconds: float) -> float:
        """Return the requests per second that the caller gets done."""
        asked = Balancer(Random(1), aperture=Aperture(lambda: 0.9 * self.now))
        for number in range(self.members):
            asked.add(node(number))
        under_way: list[tuple[float, float, NodeId]] = []
        while self.now < seconds:
            while len(under_way) < concurrency:
                member = asked.pick(now=self.now)
                assert member is not None
                asked.started(member)
                self.free[member] = max(self.now, self.free.get(member, 0.0)) + self.service
                heappush(under_way, (self.free[member], self.now, member))
            self.now, began, member = heappop(under_way)
            asked.finished(member, self.now - began, ok=True, now=self.now)
            self.ended += 1
        return self.ended / seconds


@pytest.mark.parametrize("service", [0.1, 0.5])
def test_slow_members_do_not_queue_while_hundreds_have_nothing_to_do(service: float) -> None:
    assert Slow(members=1000, service=service).answer(64, seconds=10.0) > 0.8 * 64 / service


# -- what it costs ------------------------------------------------------------------------------------------


def test_ten_thousand_that_join_and_leave_at_once_cost_no_look_at_all_for_each() -> None:
    began = process_time()
    large = balancer(10_000)
    for member in list(large.nodes)[:5000]:
        large.suspend(member)
        large.remove(member)
    assert large.pick(now=0.0) is not None
    assert process_time() - began < 5.0, "40 s if each looks at all the others"
    assert repr(large) == "<Balancer over 5000 members, 5000 of them asked>"


@pytest.mark.parametrize("seed", range(5))
def test_the_order_survives_whatever_changes(seed: int) -> None:
    random = Random(seed)
    changed = balancer(40, seed)
    for number in range(400):
        known = random.choice(sorted(changed.nodes))
        match random.randrange(5):
            case 0:
                changed.add(node(100 + number))
            case 1 if len(changed.nodes) > 20:
                changed.remove(known)
            case 2:
                changed.suspend(known)
            case 3:
                changed.resume(known)
            case _:
                changed.gray(known, random.choice((0.0, 2.0)))
        picked = changed.pick(now=float(number))
        assert picked is None or picked in changed.nodes
    for known in list(changed.nodes):
        changed.resume(known)
        changed.gray(known, 0.0)
    assert set(ask(changed, 2000)) <= set(changed.nodes)
    assert {changed.pick() for _ in range(4000)} == set(changed.nodes)
