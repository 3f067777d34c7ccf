"""Events of one publisher over changing routes: in order whatever overtakes what, complete if nothing is lost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.pubsub.tree.reorder import LATE, MISROUTED, PATIENCE, ReorderBuffer
from iris.patterns.pubsub.tree.topology import END, Child, RelayedEvents, TreeRole
from tests.support.messages import arrived, fields_of

CHILD = Child(NodeId("c" * 32), 0b10)
ME = 0b01


def direct(number: int) -> kinds.Events:
    return kinds.Events("t", number, 0, None, None, None, (b"x",), ())


class Desk:
    """A publisher's two channels to a node, each in order, and what the node makes of them."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.room = 1_000_000
        """Bodies that have waited and may still be received in this frame."""
        self.handed_on: list[int] = []
        self.refused: Counter[str] = Counter()
        self.ended_trees: list[int] = []
        self.incoming = ReorderBuffer(self)
        self.linked: deque[TreeRole | kinds.EventRoute | int] = deque()
        self.treed: deque[RelayedEvents] = deque()
        self.now = 0.0
        self._published = self._turn = self._tree = self._number = 0
        self._over = 0

    def receive(self, message: wire.Message) -> None:
        self.taken.append(fields_of(message)[1])

    def receive_body(self, body: bytes) -> None:
        self.taken.append(int(body))

    def may_receive(self, body: bytes) -> bool:
        self.room -= 1
        return self.room >= 0

    def receive_waiting(self, body: bytes) -> None:
        self.receive_body(body)

    def ended(self, tree: int) -> None:
        self.ended_trees.append(tree)

    def forward(self, relayed: RelayedEvents, children: tuple[Child, ...]) -> None:
        assert children == (CHILD,)
        self.handed_on.append(relayed.number)

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    # -- the publisher

    def publish(self) -> None:
        self._published += 1
        if self._over:
            self.post(b"%d" % self._published)
        else:
            self.linked.append(self._published)

    def post(self, body: bytes, mask: int = ME) -> None:
        self._number += 1
        self.treed.append(RelayedEvents(NodeId("5" * 32), self._over, self._number, mask, body, b"s" * 64))

    def turn(self, *, to_tree: bool, wait: bool = True) -> None:
        if to_tree:
            self._tree += 1
            self.linked.append(TreeRole(self._tree, ME, (CHILD,)))
        if self._over:
            self.post(END)
        waits = bool(self._over) and wait
        self._over, self._number = (self._tree if to_tree else 0), 0
        self._turn += 1
        self.linked.append(kinds.EventRoute(self._turn, self._over, waits))

    # -- the network

    def carry_linked(self) -> None:
        match self.linked.popleft():
            case TreeRole() as role:
                self.incoming.receive_role(role)
            case kinds.EventRoute() as way:
                self.incoming.receive_route(way, self.now)
            case number if self.incoming.is_waiting:
                self.incoming.receive_direct(direct(number), self.now)
            case number:
                self.taken.append(number)

    def carry_treed(self) -> None:
        self.incoming.receive_relayed(self.treed.popleft(), self.now)

    def expire_at_once(self) -> bool:
        """Do what is due at once, with room for two bodies that have waited; return whether something was."""
        if self.incoming.deadline > self.now:
            return False
        self.room = 2
        self.incoming.expire(self.now)
        return True

    def carry_all(self) -> None:
        while self.linked:
            self.carry_linked()
        while self.treed:
            self.carry_treed()


STEPS = ["publish", "publish", "publish", "tree", "direct", "linked", "treed", "little", "next"]
steps = st.lists(st.sampled_from(STEPS), max_size=80)


@given(steps)
def test_with_two_channels_that_lose_nothing_everything_comes_in_order(script: list[str]) -> None:
    desk = Desk()
    published = 0
    for step in script:
        match step:
            case "publish":
                desk.publish()
                published += 1
            case "tree" | "direct":
                desk.turn(to_tree=step == "tree")
            case "linked" if desk.linked:
                desk.carry_linked()
            case "treed" if desk.treed:
                desk.carry_treed()
            case "little":
                desk.room = 1
            case "next":
                desk.expire_at_once()
            case _:
                pass
    desk.carry_all()
    while desk.expire_at_once():
        pass
    assert desk.taken == list(range(1, published + 1))
    assert not desk.incoming.is_waiting
    assert not desk.refused


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            ["publish", "publish", "tree", "direct", "broken", "linked", "treed", "lose", "later", "reset"]
        ),
        max_size=100,
    )
)
def test_whatever_is_lost_or_late_nothing_comes_out_of_order_or_twice_and_nothing_waits_for_ever(
    script: list[str],
) -> None:
    desk = Desk()
    for step in script:
        match step:
            case "publish":
                desk.publish()
            case "tree" | "direct":
                desk.turn(to_tree=step == "tree")
            case "broken":
                desk.turn(to_tree=False, wait=False)
            case "linked" if desk.linked:
                desk.carry_linked()
            case "treed" if desk.treed:
                desk.carry_treed()
            case "lose" if desk.treed:
                desk.treed.popleft()
            case "later":
                desk.now += PATIENCE / 2
                desk.incoming.expire(desk.now)
            case "reset":
                desk.incoming.reset(desk.now)
            case _:
                pass
        assert desk.taken == sorted(set(desk.taken))
    desk.carry_all()
    for _ in range(4 * len(script)):
        desk.now += PATIENCE
        desk.incoming.expire(desk.now)
    assert not desk.incoming.is_waiting
    assert desk.incoming.deadline > desk.now
    before = len(desk.taken)
    desk.turn(to_tree=False, wait=False)
    desk.publish()
    desk.carry_all()
    assert len(desk.taken) == before + 1, "what comes after all that is taken at once"
    assert desk.taken == sorted(set(desk.taken))


def test_the_end_that_does_not_come_is_waited_for_so_long() -> None:
    desk = Desk()
    desk.turn(to_tree=True)
    desk.publish()
    desk.carry_all()
    desk.turn(to_tree=False)
    desk.treed.clear()
    desk.publish()
    desk.carry_all()
    assert (desk.taken, desk.incoming.is_waiting, desk.incoming.deadline) == ([1], True, PATIENCE)
    desk.incoming.expire(PATIENCE - 0.01)
    assert desk.taken == [1]
    desk.incoming.expire(PATIENCE)
    assert (desk.taken, desk.incoming.is_waiting) == ([1, 2], False)


def test_what_comes_over_a_tree_that_was_left_is_dropped_and_counted() -> None:
    desk = Desk()
    desk.turn(to_tree=True)
    desk.publish()
    desk.turn(to_tree=False, wait=False)
    desk.carry_all()
    assert (desk.taken, desk.refused) == ([], {LATE: 2})


def test_what_repeats_is_dropped_and_counted() -> None:
    desk = Desk()
    desk.turn(to_tree=True)
    desk.publish()
    desk.treed.append(desk.treed[0])
    desk.carry_all()
    assert (desk.taken, desk.refused) == ([1], {LATE: 1})


def test_what_comes_over_a_tree_that_is_never_announced_is_dropped_after_a_while() -> None:
    desk = Desk()
    desk.turn(to_tree=True)
    desk.publish()
    desk.linked.clear()
    desk.carry_all()
    desk.incoming.expire(PATIENCE)
    assert (desk.taken, desk.refused) == ([], {MISROUTED: 1})
    assert desk.incoming.deadline > PATIENCE * 10


def test_a_word_whose_tree_was_told_of_in_frames_that_are_lost_counts_when_it_is_said_again() -> None:
    desk = Desk()
    desk.turn(to_tree=True)
    role = desk.linked.popleft()
    way = desk.linked[0]
    desk.publish()
    desk.carry_all()
    assert desk.taken == []
    desk.linked += (role, way)
    desk.carry_all()
    assert desk.taken == [1]


def test_what_is_for_nodes_behind_goes_on_at_once_and_is_not_taken_here() -> None:
    desk = Desk()
    desk.turn(to_tree=True)
    desk.carry_all()
    desk.post(b"9", mask=CHILD.mask)
    desk.carry_all()
    assert (desk.handed_on, desk.taken) == ([1], [])


def test_more_than_may_wait_is_waited_for_no_longer() -> None:
    desk = Desk()
    desk.turn(to_tree=True)
    desk.turn(to_tree=False)
    desk.treed.clear()
    desk.carry_all()
    assert desk.incoming.is_waiting
    message = direct(1)
    desk.incoming.receive_direct(replace(message, payloads=(bytes(17 * 2**20),)), desk.now)
    assert (desk.taken, desk.incoming.is_waiting) == ([1], False)


def empty(number: int) -> kinds.Events:
    return kinds.Events("t", number, 0, None, None, None, (b"",) * 500, ())


def packed(number: int) -> kinds.Events:
    return replace(direct(number), payloads=(wire.encode_payload(["x" * 100_000], 10**6),))


def labelled(number: int) -> kinds.Events:
    return replace(direct(number), headers=("name", "x" * 16_000) * 4)


@pytest.mark.parametrize("make", [empty, packed, labelled, direct])
def test_what_waits_is_weighed_with_all_that_it_holds(make: Callable[[int], wire.Message]) -> None:
    desk = Desk()
    desk.turn(to_tree=True)
    desk.turn(to_tree=False)
    desk.treed.clear()
    desk.carry_all()
    for number in range(1, 100_000):
        desk.incoming.receive_direct(make(number), desk.now)
        if not desk.incoming.is_waiting:
            assert len(desk.taken) == number <= 16 * 2**20 / 64
            return
    raise AssertionError("it would wait without end")


def test_words_alone_are_not_kept_without_end() -> None:
    desk = Desk()
    desk.turn(to_tree=True)
    desk.turn(to_tree=False)
    desk.treed.clear()
    desk.carry_all()
    held: list[int] = []
    for turn in range(10, 200_000):
        desk.incoming.receive_route(kinds.EventRoute(turn, 0, wait=True), desk.now)
        held.append(len(desk.incoming._behind))
    assert max(held) < 16 * 2**20 / 64


def test_a_message_of_any_depth_can_wait() -> None:
    desk = Desk()
    desk.turn(to_tree=True)
    desk.turn(to_tree=False)
    desk.treed.clear()
    desk.carry_all()
    headers: Any = ()
    for _ in range(5000):
        headers = (headers,)
    desk.incoming.receive_direct(replace(direct(1), headers=headers), desk.now)
    assert desk.incoming.is_waiting
    assert desk.incoming._behind_bytes > 5000 * 256


def test_more_than_may_come_early_is_dropped_and_counted() -> None:
    desk = Desk()
    body = bytes(9 * 2**20)
    for number in (1, 2):
        early = RelayedEvents(NodeId("5" * 32), 1, number, ME, body, b"s" * 64)
        desk.incoming.receive_relayed(early, desk.now)
    assert desk.refused == {MISROUTED: 1}


def test_of_trees_that_are_never_used_only_some_are_remembered() -> None:
    desk = Desk()
    for tree in range(1, 1000):
        desk.incoming.receive_role(TreeRole(tree, ME, ()))
    assert len(desk.incoming._roles) == 32


@pytest.mark.parametrize("change", [{0: 0}, {0: "1"}, {1: -1}, {1: True}, {2: 1}, {2: None}])
def test_a_malformed_word_is_refused(change: dict[int, object]) -> None:
    fields: list[object] = [1, 2, True]
    for index, value in change.items():
        fields[index] = value
    with pytest.raises(RemoteProtocolError):
        arrived(kinds.EventRoute, *fields)
