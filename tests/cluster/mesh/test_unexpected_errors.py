"""An error that nobody expects, while what a peer has sent is handled: it costs that peer its link, and nobody else."""

from __future__ import annotations

import errno
import logging

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh.peer import Peer, PeerObserver
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import Message
from tests.support.mesh_cases import MARK, Marks, mark, settle
from tests.support.meshes import MeshNode, PeerLog, open_meshes

BUG = kinds.Wanted
"""A kind of message that a bug is in: ()."""


def fail(peer: Peer, message: Message) -> None:
    raise ZeroDivisionError("a bug")


def unexpected(node: MeshNode) -> dict[str, int]:
    return {reason: count for reason, count in node.mesh.refusals.items() if reason.startswith("unexpected error")}


async def test_it_costs_the_peer_its_link_and_is_logged_and_counted(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_meshes("a", "villain", "honest") as fleet:
        fleet.has_bugs = True
        a, villain, honest = fleet["a"], fleet["villain"], fleet["honest"]
        a.mesh.register(BUG, fail)
        marks = Marks(a)
        villain.mesh.post(a.id, MARK(1), 0)
        villain.mesh.post(
            a.id,
            BUG(b""),
            0,
        )
        villain.mesh.post(a.id, MARK(2), 0)
        mark(honest, a, 3)
        await settle()
        assert marks.received in ([1, 3], [3, 1])
        assert a.log.of(villain.id)[:2] == ["up", "down"]
        assert a.log.of(honest.id) == ["up"]
        assert unexpected(a) == {"unexpected error: message of kind Wanted": 1}
        (record,) = [record for record in caplog.records if record.exc_info]
        assert record.name == "iris"
        assert record.levelno == logging.ERROR
        assert "ZeroDivisionError: a bug" in caplog.text
        await fleet.link("a", "villain")
        mark(villain, a, 4)
        await settle()
        assert marks.received[-1] == 4


async def test_one_in_what_a_node_says_to_itself_is_logged_and_counted_and_nothing_else(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_meshes("a") as fleet:
        fleet.has_bugs = True
        a = fleet["a"]
        a.mesh.register(BUG, fail)
        marks = Marks(a)
        for message in (BUG(b""), MARK(1)):
            a.mesh.post(a.id, message, 0)
        await settle()
        assert marks.received == [1]
        assert unexpected(a) == {"unexpected error: message of kind Wanted": 1}
        assert "ZeroDivisionError: a bug" in caplog.text


async def test_one_before_a_message_is_read_costs_the_link_too(autojump_clock: MockClock) -> None:
    class BrokenFilter:
        fails = False

        def examine(self, peer: Peer, batch: bytes | memoryview) -> bool:
            if self.fails:
                raise ZeroDivisionError("a bug")
            return False

    frames = BrokenFilter()
    async with open_meshes("villain") as fleet, fleet.open_node("a", frames=frames) as a:
        fleet.has_bugs = True
        await fleet.link()
        villain = fleet["villain"]
        frames.fails = True
        mark(villain, a, 1)
        await settle()
        assert a.log.of(villain.id)[:2] == ["up", "down"]
        assert unexpected(a) == {"unexpected error: frame": len(a.log.of(villain.id)) // 2}


async def test_one_in_a_handshake_is_counted_and_the_node_lives(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_meshes("a", "honest", linked=False) as fleet:
        fleet.has_bugs = True
        a, honest = fleet["a"], fleet["honest"]

        def receive(frame: bytes, index: int) -> None:
            raise ZeroDivisionError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(a.mesh._handshakes, "receive_init_untrusted", receive)
            with trio.move_on_after(1), pytest.raises(Exception, match="connection"):
                await honest.mesh.connect([a.url])
        assert unexpected(a) == {"unexpected error: frame of a stranger": 1}
        await fleet.link()
        assert set(a.mesh.peers) == {honest.id}


async def test_nothing_is_taken_from_a_peer_behind_its_goodbye(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        marks = Marks(a)
        for message in (MARK(1), kinds.Goodbye("for now"), MARK(2), kinds.Goodbye("again")):
            b.peer(a).link.post(message, 0)
        await settle()
        assert marks.received == [1]
        assert a.log.of(b.id)[:2] == ["up", "down"]
        assert a.log.reasons == ["it said goodbye: for now"]


async def test_one_in_what_several_peers_have_told_is_counted_and_the_node_goes_on(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_meshes("a") as fleet:
        fleet.has_bugs = True
        a = fleet["a"]
        for _ in range(3):
            with a.mesh.survive("membership"):
                raise ZeroDivisionError("a bug")
        assert unexpected(a) == {"unexpected error: membership": 3}
        assert caplog.text.count("ZeroDivisionError: a bug") == 1  # so that nobody can fill the log
        await trio.sleep(20)
        with a.mesh.survive("membership"):
            raise ZeroDivisionError("a bug")
        assert caplog.text.count("ZeroDivisionError: a bug") == 2


async def test_messages_that_cannot_be_encoded_cost_the_link_and_not_the_node(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "honest") as fleet:
        fleet.has_bugs = True
        a, b, honest = fleet["a"], fleet["b"], fleet["honest"]
        marks = Marks(honest)
        for numbers in ((2**64,), (1, 2**64)):  # alone, within post; and with others, by the flusher
            for number in numbers:
                a.mesh.post(b.id, MARK(number), 0)
            mark(a, honest, 1)
            await settle()
            await fleet.link("a", "b")
        assert a.log.of(b.id)[:4] == ["up", "down"] * 2
        assert a.log.of(honest.id) == ["up"]
        assert marks.received == [1, 1]
        assert unexpected(a) == {"unexpected error: messages to a peer": 2}


async def test_one_that_a_node_cannot_say_to_itself_is_lost_alone(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        fleet.has_bugs = True
        a = fleet["a"]
        marks = Marks(a)
        for number in (2**64, 1):
            a.mesh.post(a.id, MARK(number), 0)
            await settle()
        assert marks.received == [1]
        assert unexpected(a) == {"unexpected error: messages to this node": 1}
        assert a.mesh.own.link.statistics().lost == 1


class BrokenObserver(PeerObserver):
    """Fails whatever becomes of peers."""

    def fail(self, *_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    peer_connected = frames_lost = peer_unreachable = peer_refused = peer_removed = fail


async def test_an_observer_that_fails_keeps_what_becomes_of_peers_from_no_other_one(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        fleet.has_bugs = True
        a, b = fleet["a"], fleet["b"]
        log = PeerLog()
        for node in (a, b):
            node.mesh.observe(BrokenObserver())
        a.mesh.observe(log)
        await fleet.link()
        b.break_connections()
        await trio.sleep(1)
        a.mesh.drop(b.id, "a trial")
        assert [what for what in log.of(b.id) if what != "refused"] == ["up", "reset", "down"]
        assert a.mesh.refusals["unexpected error: what becomes of peers, in BrokenObserver"] >= 3


async def test_an_observer_that_comes_later_is_told_of_those_that_are_linked(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        log = PeerLog()
        fleet["a"].mesh.observe(log)
        assert log.of(fleet["b"].id) == ["up"]
