"""Reports of a relay count within the bounds of what it received: accounting balances, whatever it reports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.kernel.wire import kinds
from iris.patterns.books import Tally
from iris.patterns.multicast.relay import RelayPlan
from tests.support.meshes import Fleet, MeshNode, open_meshes
from tests.support.messages import raw

BEHIND = 2
"""Nodes behind the relay."""


class Books:
    """A sender, and a relay that takes what it is given, hands nothing on, and reports what the test says."""

    def __init__(self, fleet: Fleet) -> None:
        self.sender, self.relay, self.other = fleet["sender"], fleet["relay"], fleet["other"]
        self.tally = Tally()
        ids = tuple(fleet[name].id for name in ("relay", "other", "third"))
        self._tree = RelayPlan(ids, (ids,))
        self.relay.mesh._receivers.own[kinds.Relay] = lambda peer, message: None

    async def send(self, count: int = 1) -> None:
        for _ in range(count):
            self.sender.relays.send(self._tree, kinds.Broadcast("crowd", None, b"x", 0), self.tally)
        await trio.sleep(0.1)

    async def report(self, *pairs: object, reporter: MeshNode | None = None, origin: object = None) -> None:
        named = bytes.fromhex(self.sender.id) if origin is None else origin
        message = raw(kinds.Relayed, named, pairs)
        (reporter or self.relay).mesh.post(self.sender.id, message, 100)
        await trio.sleep(0.1)

    @property
    def handed_over(self) -> int:
        return self.tally.handed_over

    @property
    def lost(self) -> dict[str, int]:
        return dict(self.tally.lost)

    @property
    def waiting(self) -> int:
        statistics = self.tally.statistics()
        ended = (
            statistics.answered
            + statistics.handed_over
            + statistics.expired
            + statistics.refused
            + sum(statistics.lost.values())
        )
        assert 0 <= ended <= statistics.sent, statistics
        assert statistics.waiting == statistics.sent - ended
        return statistics.waiting


@asynccontextmanager
async def open_books() -> AsyncIterator[Books]:
    async with open_meshes("sender", "relay", "other", "third") as fleet:
        yield Books(fleet)


@pytest.mark.parametrize(
    ("numbers", "handed_over", "lost"),
    [
        (((1, 0),), 3, {}),
        (((1, 1),), 2, {"not reached by a relay": 1}),
        (((1, 2),), 1, {"not reached by a relay": 2}),
        (((1, 99),), 1, {"not reached by a relay": 2}),
        (((1, 2**62),), 1, {"not reached by a relay": 2}),
        (((1, 0), (1, 2)), 3, {}),
        (((1, 2), (1, 0)), 1, {"not reached by a relay": 2}),
    ],
)
async def test_a_report_settles_what_the_relay_was_given_once_and_within_its_bounds(
    autojump_clock: MockClock, numbers: tuple[tuple[int, int], ...], handed_over: int, lost: dict[str, int]
) -> None:
    async with open_books() as books:
        await books.send()
        assert (books.handed_over, books.waiting) == (1, BEHIND), "the relay has it, those behind are in its hand"
        await books.report(*numbers)
        assert (books.handed_over, books.lost, books.waiting) == (handed_over, lost, 0)


@pytest.mark.parametrize("numbers", [((7, 0),), ((0, 0),), ((2**62, 1),), ()])
async def test_a_report_of_what_it_was_not_given_settles_nothing(
    autojump_clock: MockClock, numbers: tuple[tuple[int, int], ...]
) -> None:
    async with open_books() as books:
        await books.send()
        await books.report(*numbers)
        assert (books.handed_over, books.waiting) == (1, BEHIND)
        assert not books.sender.mesh.refusals


async def test_nobody_settles_what_another_one_has_in_hand(autojump_clock: MockClock) -> None:
    async with open_books() as books:
        await books.send()
        await books.report((1, 0), reporter=books.other)
        await books.report((1, 2), origin=bytes.fromhex(books.other.id))
        assert (books.handed_over, books.waiting) == (1, BEHIND)
        await books.report((1, 0))
        assert (books.handed_over, books.waiting) == (3, 0)


@pytest.mark.parametrize(
    ("numbers", "origin"),
    [
        (((1,),), None),
        (((1, 0, 2),), None),
        (((1, None),), None),
        ((("1", 0),), None),
        (((1.0, 0),), None),
        (((1, 0),), "text"),
        (((1, 0),), b""),
        (((1, True),), None),
        (((1, -5),), None),
        (((-1, 2),), None),
        (((1, 2**62 + 1),), None),
        (((2**64 - 1, 1),), None),
    ],
)
async def test_a_malformed_report_is_refused_counted_and_settles_nothing(
    autojump_clock: MockClock, numbers: tuple[object, ...], origin: object
) -> None:
    async with open_books() as books:
        await books.send()
        await books.report(*numbers, origin=origin)
        assert books.sender.mesh.refusals == {"RemoteProtocolError": 1}
        assert (books.handed_over, books.waiting) == (1, BEHIND)
        await books.report((1, 0))
        assert books.waiting == 0, "the link goes on"


@pytest.mark.parametrize("reported", [0, 3, 10])
async def test_what_a_relay_has_in_hand_when_it_ends_is_lost_with_it(autojump_clock: MockClock, reported: int) -> None:
    async with open_books() as books:
        await books.send(10)
        await books.report(*[(number, 0) for number in range(1, reported + 1)])
        books.sender.mesh.drop(books.relay.id, "it was killed")
        await trio.sleep(1)
        lost = BEHIND * (10 - reported)
        assert books.lost == ({"relay lost": lost} if lost else {})
        assert (books.handed_over, books.waiting) == (30 - lost, 0)


async def test_a_relay_that_is_not_linked_is_passed_over_and_if_nobody_is_everything_is_counted_as_lost(
    autojump_clock: MockClock,
) -> None:
    async with open_books() as books:
        books.sender.mesh.drop(books.relay.id, "it was killed")
        await books.send()
        assert books.lost.keys() <= {"not reached by a relay", "no link"}
        await trio.sleep(1)
        for node in list(books.sender.mesh.peers):
            books.sender.mesh.drop(node, "it was killed")
        before = sum(books.lost.values())
        await books.send()
        assert sum(books.lost.values()) >= before + 3
        assert books.lost["no link"] >= 3


REPORTS = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5) | st.just(2**62)), max_size=6),
    max_size=12,
)


@settings(max_examples=15)
@given(REPORTS)
def test_no_sequence_of_reports_unbalances_the_books(reports: list[list[tuple[int, int]]]) -> None:
    async def main() -> None:
        async with open_books() as books:
            await books.send(10)
            settled: dict[int, int] = {}
            for numbers in reports:
                await books.report(*numbers)
                for number, missed in numbers:
                    if 1 <= number <= 10:
                        settled.setdefault(number, min(missed, BEHIND))
                assert sum(books.lost.values()) == sum(settled.values())
                assert books.waiting == BEHIND * (10 - len(settled))
                assert books.handed_over == 10 + BEHIND * len(settled) - sum(settled.values())

    trio.run(main, clock=MockClock(autojump_threshold=0))
