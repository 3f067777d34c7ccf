"""Limits on how often one peer can have a revocation list sent to it, or verified."""

from __future__ import annotations

import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.cluster.membership.revocation import LOCAL_LOOK, LOOK, RevocationExchange
from iris.cluster.membership.revocation_pacing import RevocationPacing
from iris.cluster.mesh.peer import Peer
from iris.kernel import wire
from iris.kernel.errors import AuthenticationError
from iris.kernel.names import NodeId
from iris.kernel.tasks.background import open_background
from iris.kernel.wire import kinds
from iris.security.identity.revocation import NewestRevocations, RevocationList, issue_revocations
from tests.support.meshes import Fleet, open_meshes
from tests.support.messages import fields_of
from tests.support.realms import WALL

A, B = NodeId("aa" * 16), NodeId("bb" * 16)


def test_the_first_list_goes_at_once_and_the_next_one_waits_for_its_turn() -> None:
    turns = RevocationPacing()
    assert turns.next_list(A, b"one", 10.0) == 0
    assert turns.next_list(B, b"one", 10.0) == 0, "each peer has its own turns"
    assert turns.next_list(A, b"two", 10.25) == 0.75
    assert turns.next_list(A, b"two", 11.0) == 0


def test_the_same_list_is_repeated_ever_less_often() -> None:
    turns = RevocationPacing()
    sent = [now for now in range(60) if turns.next_list(A, b"one", float(now)) == 0]
    assert sent == [0, 1, 2, 3, 13, 23, 33, 43, 53]
    assert turns.next_list(A, b"two", 60.0) == 0, "a new one does not wait for that"


def test_who_has_shown_a_list_is_not_sent_that_one() -> None:
    turns = RevocationPacing()
    assert turns.may_show(A, 0.0)
    turns.shown(A, b"one")
    assert turns.next_list(A, b"one", 0.0) is None
    assert turns.next_list(A, b"two", 0.0) == 0
    turns.shown(B, b"one")
    assert turns.next_list(B, b"one", 0.0) == 0, "nothing is remembered of who was not let show it"


def test_lists_of_one_peer_are_looked_at_twice_a_second_after_a_burst() -> None:
    turns = RevocationPacing()
    assert sum(turns.may_show(A, 0.0) for _ in range(100)) == 16
    assert sum(turns.may_show(A, 10.0) for _ in range(100)) == 16
    assert sum(turns.may_show(A, 10.0 + second / 10) for second in range(100)) in (19, 20)
    assert turns.may_show(B, 10.0)


@given(st.lists(st.tuples(st.sampled_from([b"one", b"two", b"three"]), st.floats(0.0, 3.0)), max_size=60))
def test_no_peer_gets_more_than_one_list_a_second(asked: list[tuple[bytes, float]]) -> None:
    turns, now, sent = RevocationPacing(), 0.0, list[float]()
    for signed, pause in asked:
        now += pause
        wait = turns.next_list(A, signed, now)
        assert wait is not None
        assert 0 <= wait <= 10
        if wait == 0:
            sent.append(now)
    assert all(later - earlier >= 0.999 for earlier, later in itertools.pairwise(sent))


def test_the_memory_of_turns_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.cluster.membership.revocation_pacing._REMEMBERED", 3)
    turns, signed = RevocationPacing(), bytes(100_000)
    references = sys.getrefcount(signed)
    for number in range(10):
        turns.next_list(NodeId(f"{number:032x}"), signed, 0.0)
        assert len(turns) <= 3
    assert sys.getrefcount(signed) == references, "lists are not kept for each peer"


@asynccontextmanager
async def open_revoking(fleet: Fleet, *names: str) -> AsyncIterator[list[RevocationExchange]]:
    async with open_background() as nursery:
        yield [exchange(fleet, name, nursery) for name in names]


def exchange(
    fleet: Fleet, name: str, nursery: trio.Nursery, path: Path | None = None, look: float = LOOK
) -> RevocationExchange:
    node, realm = fleet[name], fleet.realm.root.public
    revocations = NewestRevocations(realm)
    node.admission.refuse, node.admission.revoked = revocations.check, revocations.reason
    revoking = RevocationExchange(node.mesh, realm, revocations, path, nursery, look=look)
    node.mesh.observe(revoking)
    return revoking


def issue(fleet: Fleet, number: int) -> RevocationList:
    return issue_revocations(fleet.realm.root, number=number, issued=WALL, clusters={"gone": number}, nodes={})


async def test_few_bytes_of_a_peer_do_not_cost_many_of_this_node(autojump_clock: MockClock) -> None:
    """It shows an old list, says that frames were lost, and comes back: as often as it can."""
    async with open_meshes("a", "b", linked=False) as fleet, open_revoking(fleet, "a") as (revoking,):
        a, b = fleet["a"], fleet["b"]
        heard: list[bytes] = []

        def hear(_: Peer, message: wire.Message) -> None:
            heard.append(fields_of(message)[0])

        b.mesh.register(kinds.Revocations, hear)
        old, new = issue(fleet, 1), issue(fleet, 2)
        assert revoking.apply(old.signed)
        assert revoking.apply(new.signed)
        for _ in range(20):
            await b.mesh.connect([a.url])
            for _ in range(10):
                b.mesh.post(a.id, kinds.Revocations(old.signed), len(old.signed))
                b.mesh.post(a.id, kinds.Reset(), 0)
            await trio.sleep(0.2)
            b.mesh.drop(a.id, "to come back")
            await trio.sleep(0.1)
        assert set(heard) == {new.signed}
        assert 1 <= len(heard) <= 5, "in six seconds"
        assert a.mesh.refusals["message of kind Revocations"] > 100


async def test_a_node_that_closes_begins_nothing_for_a_peer_that_comes(autojump_clock: MockClock) -> None:
    """What it is made of ends before its links do."""
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with open_revoking(fleet, "a") as (revoking,):
            assert revoking.apply(issue(fleet, 1).signed)
            a.mesh.stop_receiving()
        revoking.peer_connected(a.mesh.peers[b.id])  # for whom the list would wait for its turn


async def test_of_many_lists_in_a_moment_a_peer_gets_the_first_and_the_last(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_revoking(fleet, "a", "b") as (first, second):
        for number in range(1, 30):
            assert first.apply(issue(fleet, number).signed)
        await trio.sleep(0.5)
        assert second.revocations.number == 1
        await trio.sleep(1)
        assert second.revocations.number == 29
        assert second.revocations.taken == 2
        assert fleet["b"].mesh.refusals == {}


async def test_a_list_does_not_go_back_to_who_told_it(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_revoking(fleet, "a", "b") as (first, second):
        assert first.apply(issue(fleet, 1).signed)
        await trio.sleep(1)
        assert second.revocations.number == 1
        assert first.revocations.not_newer == 0


async def test_who_is_revoked_while_the_handshake_goes_on_is_not_linked(autojump_clock: MockClock) -> None:
    """The last frame may wait for room; a list that comes meanwhile counts."""
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        asked: list[object] = []

        def check(peer: object) -> None:
            asked.append(peer)
            if len(asked) > 1:
                raise AuthenticationError("revoked meanwhile")

        a.admission.refuse = check
        with pytest.raises(AuthenticationError, match="meanwhile"):
            await a.mesh.connect([b.url])
        assert a.mesh.peers == {}
        assert a.mesh.statistics().sessions == 0
        await trio.sleep(200)


@pytest.mark.parametrize("pause", [LOOK, LOCAL_LOOK])
async def test_the_file_is_looked_at_as_often_as_was_said(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    async with open_meshes("a") as fleet, open_background() as nursery:
        revoking = exchange(fleet, "a", nursery, tmp_path / "list", pause)
        looked: list[float] = []

        async def note() -> None:
            looked.append(round(trio.current_time() - since, 3))
            await trio.lowlevel.checkpoint()

        monkeypatch.setattr(revoking, "look", note)  # which takes a thread, during which virtual time runs on
        since = trio.current_time()
        nursery.start_soon(revoking.run)
        await trio.sleep(3.5 * pause)
        assert looked == [pause, 2 * pause, 3 * pause]
