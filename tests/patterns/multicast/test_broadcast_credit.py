"""The credit of broadcasts, machine against machine: no member is overrun, no sender waits for what will not come."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.multicast.broadcast_credit import INITIAL, OVERHEAD, Flow, ReceiveWindow, ReceiveWindows, cost
from tests.support.messages import arrived

WINDOW: Final = 4 * MIB
SMALL: Final = OVERHEAD
LARGEST: Final = MIB + OVERHEAD
SENDER: Final = NodeId("5e" * 16)
MEMBERS: Final = tuple(NodeId(f"{number:02x}" * 16) for number in range(1, 4))


def credit(seen: int, queued: int, size: int, refused: int) -> kinds.BroadcastCredit:
    """Return a member's report."""
    return kinds.BroadcastCredit("cache", seen, queued, size, refused)


class World:
    """One sender and some members, with the messages in flight between them."""

    def __init__(self, members: int = 1, *, seed: int = 0, loss: float = 0.0, limit: int = 64 * MIB) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.members = MEMBERS[:members]
        self.flow = Flow()
        self.windows = {node: ReceiveWindows(WINDOW, limit) for node in self.members}
        self.waiting: dict[NodeId, deque[tuple[ReceiveWindow, int]]] = {node: deque() for node in self.members}
        self.coming: dict[NodeId, deque[tuple[int, int]]] = {node: deque() for node in self.members}
        self.reports: dict[NodeId, deque[kinds.BroadcastCredit]] = {node: deque() for node in self.members}
        self.sent = self.refused = self.taken = self.lost = 0

    def send(self, price: int = SMALL) -> bool:
        """Send a broadcast to every member, if all have credit."""
        if self.flow.choose(self.members):
            return False
        for node in self.flow.receivers:
            self.sent += 1
            if self.random.random() < self.loss:
                self.lost += 1
            else:
                self.coming[node].append((self.flow.position, price))
        self.flow.sent(price)
        return True

    def arrive(self, node: NodeId) -> None:
        position, price = self.coming[node].popleft()
        window = self.windows[node].of(SENDER)
        if self.windows[node].accept(window, position, price):
            self.waiting[node].append((window, price))
        else:
            self.refused += 1

    def take(self, node: NodeId) -> None:
        window, price = self.waiting[node].popleft()
        self.taken += 1
        if self.windows[node].consumed(window, price):
            self.tell(node)

    def tell(self, node: NodeId) -> None:
        report = self.windows[node].report(self.windows[node].of(SENDER), "cache")
        if self.random.random() >= self.loss:
            self.reports[node].append(report)

    def hear(self, node: NodeId) -> None:
        self.flow.receive(node, self.reports[node].popleft())

    def ask(self, node: NodeId) -> None:
        """Ask a member after a long wait, or a loss that was noticed: everything before it has come or is lost."""
        while self.coming[node]:
            self.arrive(node)
        end = self.flow.windows[node].end
        if self.windows[node].ask(self.windows[node].of(SENDER), self.flow.position if end is None else end):
            self.tell(node)

    def queued(self, node: NodeId) -> int:
        return sum(price for _, price in self.waiting[node])

    def steps(self) -> list[tuple[str, NodeId]]:
        """Return the steps that can happen next."""
        return [
            *(("arrive", node) for node in self.members if self.coming[node]),
            *(("take", node) for node in self.members if self.waiting[node]),
            *(("hear", node) for node in self.members if self.reports[node]),
        ]


def test_a_broadcast_costs_its_bytes_and_four_kibibytes() -> None:
    assert cost(b"x" * 100, None) == 4 * KIB + 100
    assert cost(b"", ("name", "value")) > 4 * KIB
    assert WINDOW // cost(b"", None) == 1024


def test_a_sender_begins_with_64_small_broadcasts_and_one_that_exceeds_the_window_is_sent_alone() -> None:
    world = World()
    assert [world.send() for _ in range(65)] == [True] * 64 + [False]
    assert World().send(LARGEST)
    large = World()
    large.send(LARGEST)
    assert not large.send()


def test_a_member_reports_at_half_a_window_and_not_before() -> None:
    world = World()
    (node,) = world.members
    for _ in range(64):
        world.send()
        world.arrive(node)
    taken = 0
    while not world.reports[node]:
        world.take(node)
        taken += 1
    assert taken == 32
    world.hear(node)
    assert sum(world.send() for _ in range(2000)) == 1024 - 32, "the window, but for what waits"


@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([0.0, 0.02, 0.2]))
def test_whatever_is_lost_no_member_is_overrun_and_everything_gets_through(
    seed: int, members: int, loss: float
) -> None:
    world = World(members, seed=seed, loss=loss)
    to_send = 600
    while to_send or world.steps():
        steps = world.steps()
        if to_send and (not steps or world.random.random() < 0.4):
            price = world.random.choice((SMALL, SMALL, SMALL, SMALL + 1000, LARGEST))
            if world.send(price):
                to_send -= 1
            elif not steps:  # everything came to rest: the sender asks, and that gets through in the end
                for node in world.members:
                    world.ask(node)
        else:
            what, node = world.random.choice(steps)
            getattr(world, what)(node)
        for node in world.members:
            assert world.queued(node) < WINDOW + LARGEST
    assert world.refused == 0
    assert world.taken + world.lost == world.sent == 600 * members


def test_who_is_passed_over_misses_what_is_sent_meanwhile_and_comes_back_when_half_of_its_window_is_free() -> None:
    world = World(2)
    stuck, busy = world.members
    while world.send():
        for node in world.members:
            world.arrive(node)
        world.take(busy)
        if world.reports[busy]:
            world.hear(busy)
    assert world.flow.choose(world.members) == [stuck]
    world.ask(stuck)
    assert not world.reports[stuck], "there is nothing to report yet"
    world.flow.pass_over(stuck)
    for _ in range(1000):
        assert world.send()
        world.arrive(busy)
        world.take(busy)
        while world.reports[busy]:
            world.hear(busy)
    assert not world.coming[stuck]
    assert (world.flow.passed_over, world.flow.receivers) == ((stuck,), (busy,))
    world.take(stuck)
    world.hear(stuck)  # it was asked, and reports as soon as it can
    world.flow.choose(world.members)
    assert world.flow.receivers == (stuck, busy), "the report brings the whole window, of which little is taken"
    assert world.flow.windows[stuck].limit == world.flow.position + WINDOW - 63 * SMALL
    for _ in range(200):
        assert world.send()
        for node in world.members:
            world.arrive(node)
            world.take(node)
            while world.reports[node]:
                world.hear(node)
    assert world.refused == 0


def test_what_was_on_its_way_when_a_member_was_passed_over_counts_until_it_is_there() -> None:
    world = World()
    (node,) = world.members
    flow = world.flow
    while world.send():
        pass
    flow.pass_over(node)
    assert flow.choose(world.members) == []
    assert flow.passed_over == (node,)
    for _ in range(100):
        flow.sent(SMALL)
    for report in (
        credit(seen=32 * SMALL, queued=32 * SMALL, size=INITIAL, refused=0),
        credit(64 * SMALL, 33 * SMALL, INITIAL, 0),
    ):
        flow.receive(node, report)
        assert flow.choose(world.members) == []
        assert flow.passed_over == (node,), "less than half is free"
    flow.receive(node, credit(64 * SMALL, 32 * SMALL, INITIAL, 0))
    assert flow.choose(world.members) == []
    assert len(flow.passed_over) == 0
    assert flow.windows[node].limit == flow.position + 32 * SMALL
    flow.receive(node, credit(64 * SMALL, 16 * SMALL, INITIAL, 0))  # it has seen nothing of what follows yet
    assert flow.windows[node].limit == flow.position + 48 * SMALL


def test_a_member_that_leaves_and_comes_back_is_not_held_to_what_it_did_not_get() -> None:
    world = World(2)
    first, second = world.members
    for _ in range(10):
        world.send()
    world.flow.choose((first,))
    for _ in range(1000):
        world.flow.sent(SMALL)
    assert world.flow.choose((second,)) == []
    assert world.flow.windows[second].limit == world.flow.position + 54 * SMALL
    assert world.flow.left() == [first]
    world.flow.forget([first])
    assert world.flow.choose((first, second)) == []
    assert world.flow.windows[first].limit == world.flow.position + INITIAL


def test_a_member_that_was_passed_over_and_left_begins_anew() -> None:
    world = World()
    (node,) = world.members
    while world.send():
        pass
    world.flow.pass_over(node)
    world.flow.choose(())
    assert world.flow.windows == {}
    assert world.flow.choose((node,)) == []
    assert world.flow.receivers == (node,)


@given(st.lists(st.tuples(*(st.integers(0, 2**62 - 1) | st.integers(0, 100) for _ in range(4))), max_size=8))
def test_a_member_that_reports_what_it_likes_confuses_only_what_is_sent_to_itself(
    reports: list[tuple[int, int, int, int]],
) -> None:
    world = World(2)
    liar, honest = world.members
    refused = 0
    for numbers in reports:
        world.send()
        refused += world.flow.receive(liar, credit(*numbers))
        assert world.flow.windows[honest].limit == INITIAL
    assert refused >= 0
    assert world.flow.receive(liar, credit(0, 0, 0, 2**61)) <= world.flow.count


def test_the_counts_of_refused_broadcasts_are_told_once_and_begin_anew_with_the_member() -> None:
    world = World()
    (node,) = world.members
    for _ in range(10):
        world.send()
    told = [world.flow.receive(node, credit(0, 0, WINDOW, refused)) for refused in (0, 2, 2, 5, 1)]
    assert told == [0, 2, 0, 3, 1]
    assert world.flow.receive(MEMBERS[2], credit(0, 0, WINDOW, 9)) == 0, "nobody has sent it anything"


def test_each_sender_has_room_whatever_the_others_do_and_all_together_have_a_bound() -> None:
    limit = 64 * MIB
    windows = ReceiveWindows(WINDOW, limit)
    floods = [windows.of(NodeId(f"{number:032x}")) for number in range(40)]
    taken = 0
    for _ in range(2000):  # they heed no credit
        for flood in floods:
            taken += SMALL * windows.accept(flood, 0, SMALL)
    assert taken <= limit
    assert all(flood.queued <= WINDOW for flood in floods)
    honest = windows.of(SENDER)
    assert all(windows.accept(honest, position, SMALL) for position in range(64)), "what every sender begins with"
    assert sum(flood.refused for flood in floods) + taken // SMALL == 80_000


def test_grants_shrink_with_the_number_of_senders_so_that_all_of_them_find_room() -> None:
    windows = ReceiveWindows(WINDOW, 64 * MIB)
    senders = [windows.of(NodeId(f"{number:032x}")) for number in range(100)]
    assert windows.report(senders[0], "cache").size == WINDOW
    for sender in senders:
        assert windows.accept(sender, 0, SMALL)
    sizes = [windows.report(sender, "cache").size for sender in senders]
    assert set(sizes) == {64 * MIB // 2 // 100}
    for sender, size in zip(senders, sizes, strict=True):
        while sender.queued < size:
            assert windows.accept(sender, 0, SMALL)


def test_a_broadcast_that_exceeds_the_room_of_all_is_taken_when_nothing_else_waits() -> None:
    windows = ReceiveWindows(WINDOW, 100)
    window = windows.of(SENDER)
    assert windows.accept(window, 0, LARGEST)
    assert not windows.accept(window, LARGEST, SMALL)
    windows.consumed(window, LARGEST)
    assert windows.accept(window, LARGEST, SMALL)


NUMBERS = (1, 2, 3, 4)


@pytest.mark.parametrize("number", [-1, 2**62 + 1, 2**64 - 1, True, None, 1.0, "1", b""])
@pytest.mark.parametrize("at", range(4))
def test_reports_with_impossible_numbers_are_refused(number: Any, at: int) -> None:
    fields: list[Any] = [*NUMBERS]
    fields[at] = number
    with pytest.raises(RemoteProtocolError):
        arrived(kinds.BroadcastCredit, "cache", *fields)


def test_reports_are_read_as_they_were_written() -> None:
    assert arrived(kinds.BroadcastCredit, "cache", *NUMBERS) == kinds.BroadcastCredit("cache", *NUMBERS)
    with pytest.raises(RemoteProtocolError):
        arrived(kinds.BroadcastCredit, 1, *NUMBERS)


def test_one_owner_with_many_nodes_leaves_room_for_the_others() -> None:
    windows = ReceiveWindows(4 * INITIAL, 64 * INITIAL)
    many = [windows.of(NodeId(f"{number:032x}"), "many") for number in range(200)]
    other = windows.of(NodeId("f" * 32), "other")
    for window in many:
        while windows.accept(window, window.seen, INITIAL // 2):
            pass
    taken = sum(window.queued for window in many)
    assert 32 * INITIAL <= taken <= 33 * INITIAL
    assert windows.accept(other, 0, INITIAL)
    for window in many:
        while window.queued:
            windows.consumed(window, INITIAL // 2)
    assert not windows.accept(other, 0, 64 * INITIAL)
    assert windows.accept(many[0], 0, INITIAL)
