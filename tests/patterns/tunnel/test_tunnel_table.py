"""All tunnels of a node: opening, refusing, forgetting, and what many of them cost."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections import Counter
from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from iris.kernel.config import KIB, Config
from iris.kernel.errors import NotSent, RemoteProtocolError, TunnelBroken
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import Message
from iris.patterns.tunnel import table as tunnel_table
from iris.patterns.tunnel.messages import CHUNK_COST, END, CloseCode, Refusal
from iris.patterns.tunnel.states import TunnelState
from iris.patterns.tunnel.tunnel import Tunnel
from tests.support.messages import fields_of, raw
from tests.support.tunnels import TunnelNode, open_nodes

SMALL = Config(tunnel_window=8192, tunnel_chunk=1024, max_payload=6000)
PEER = NodeId("ab" * 16)


def opening(number: int) -> kinds.TunnelOpen:
    return kinds.TunnelOpen(number, "c", None, None, 8192, 6000)


async def test_a_refusal_reaches_the_opener_with_its_words(autojump_clock: MockClock) -> None:
    async with open_nodes(SMALL) as (near, far):
        far.refusal = Refusal(code="not_allowed", text="members only", retry_after=0.5)
        end = near.table.open(far.node, "c", None, None)
        await end.wait(lambda: end.machine.state is not TunnelState.OPENING)
        assert end.machine.refusal == far.refusal
        assert len(near.table) == len(far.table) == 0
        assert far.table.statistics().refused == 1
        assert far.table.statistics().accepted == 0
        assert dict(near.table.statistics().ended) == {"refused": 1}


async def test_a_refusal_that_is_lost_is_repeated(autojump_clock: MockClock) -> None:
    async with open_nodes(SMALL) as (near, far):
        far.refusal = Refusal(code="not_allowed")
        far.mesh.lose = lambda _: trio.current_time() < 0.5
        end = near.table.open(far.node, "c", None, None)
        await end.wait(lambda: end.machine.state is not TunnelState.OPENING)
        assert end.machine.refusal == far.refusal
        assert far.table.statistics().refused == 1, "it was refused once and told twice"


async def test_the_windows_of_the_tunnels_of_a_node_come_from_one_budget(autojump_clock: MockClock) -> None:
    config = Config(tunnels_per_node=1000)
    node = TunnelNode("near", config)
    for number in range(1, 1001):
        node.table.receive(PEER, opening(number))
    windows = [end.machine.window for end in node.table]
    assert windows[:40] == [config.tunnel_window] * 40
    assert min(windows) == 16 * KIB
    assert sum(windows) <= 64 * config.tunnel_window + 1000 * 16 * KIB
    for _ in range(1000):
        (await node.accepted.receive()).abort("done")
    node.table.receive(PEER, opening(1001))
    assert [end.machine.window for end in node.table] == [config.tunnel_window]


async def test_messages_longer_than_their_windows_go_on_one_at_a_time_beyond_the_budget(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_table, "_FULL_WINDOWS", 1)
    config = Config(tunnel_window=16 * KIB, tunnel_chunk=1024, max_payload=100_000)
    async with open_nodes(config) as (near, far), trio.open_nursery() as nursery:
        for _ in range(8):
            here, _ = await near.open(far)
            nursery.start_soon(here.send, bytes(100_000))
        await trio.sleep(0.5)
        (peer,) = far.table._peers.values()
        held = sum(end.machine.receiving.held for end in far.table)
        assert peer.budget.held == held < 8 * 40 * KIB + 100_000
        for end in far.table:
            with trio.fail_after(60):
                await end.wait(lambda end=end: end.machine.receiving.messages > 0)  # type: ignore[misc]
        for end in far.table:
            assert end.machine.receiving.read() == (bytes(100_000), False)
        assert peer.budget.held == 0


async def test_the_next_long_message_goes_on_as_soon_as_one_is_complete(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_table, "_FULL_WINDOWS", 1)
    config = Config(tunnel_window=16 * KIB, tunnel_chunk=1024, max_payload=100_000)
    complete: list[int] = []

    async def send(here: Tunnel) -> None:
        for _ in range(2):
            await here.send(bytes(100_000))

    async def receive(number: int, there: Tunnel) -> None:
        for _ in range(2):
            await there.receive()
            complete.append(number)

    async with open_nodes(config) as (near, far):
        with trio.fail_after(config.tunnel_retry / 2):  # nobody had to ask
            tunnels = [await near.open(far) for _ in range(30)]
            async with trio.open_nursery() as nursery:
                for number, (here, there) in enumerate(tunnels):
                    nursery.start_soon(send, here)
                    nursery.start_soon(receive, number, there)
    assert set(complete[:30]) == set(range(30)), "each had its first message before any had its second"


@pytest.mark.parametrize("end", ["read", "in pieces", "closed", "aborted", "aborted by its sender"])
async def test_a_long_message_goes_on_when_the_one_before_it_is_read_or_given_up(
    end: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_table, "_FULL_WINDOWS", 1)
    config = Config(tunnel_window=16 * KIB, tunnel_chunk=1024, max_payload=100_000)
    async with open_nodes(config) as (near, far):
        here_first, there_first = await near.open(far)
        here_last, there_last = await near.open(far)
        await here_first.send(bytes(100_000))
        await here_last.send(bytes(100_000))
        await trio.testing.wait_all_tasks_blocked(0.01)
        with trio.fail_after(config.tunnel_retry / 2):  # nobody had to ask
            if end == "read":
                await there_first.receive()
            elif end == "in pieces":
                stream = there_first.as_stream()
                assert sum([len(await stream.receive_some()) for _ in range(98)]) == 100_000
            elif end == "closed":
                await there_first.aclose()
            elif end == "aborted":
                there_first.abort()
            else:
                here_first.abort()
            assert await there_last.receive() == bytes(100_000)


async def test_opening_without_a_way_leaves_nothing(autojump_clock: MockClock) -> None:
    async with open_nodes(SMALL) as (near, far):
        near.mesh.down = True
        with pytest.raises(NotSent):
            near.table.open(far.node, "c", None, None)
        assert len(near.table) == 0
        near.mesh.down = False
        await near.open(far)


async def test_an_opening_that_comes_twice_opens_one_tunnel(autojump_clock: MockClock) -> None:
    node = TunnelNode("near", SMALL)
    for number in (1, 2, 1, 5, 2, 3, 5):
        node.table.receive(PEER, opening(number))
    assert node.table.statistics().accepted == 4
    assert node.accepted.statistics().current_buffer_used == 4
    tunnel = await node.accepted.receive()
    tunnel.abort("done")
    node.mesh.posted.clear()
    node.table.receive(PEER, opening(1))
    assert node.table.statistics().accepted == 4, "not even when it has ended"
    assert [message for _, message in node.mesh.posted] == [kinds.TunnelClose(-1, int(CloseCode.ABORTED), 0, "done")]


async def test_a_node_that_comes_back_cannot_open_the_same_tunnel_again(autojump_clock: MockClock) -> None:
    node = TunnelNode("near", SMALL)
    node.table.receive(PEER, opening(1))
    node.table.node_lost(PEER, "it was given up too early")
    node.table.receive(PEER, opening(1))
    assert node.table.statistics().accepted == 1
    node.table.receive(PEER, opening(2))
    assert node.table.statistics().accepted == 2


async def test_one_node_can_open_so_many_tunnels_and_no_more(autojump_clock: MockClock) -> None:
    node = TunnelNode("near", Config(tunnels_per_node=3))
    for number in range(1, 6):
        node.table.receive(PEER, opening(number))
    assert node.table.statistics().accepted == 3
    assert node.table.statistics().refused == 2
    assert [fields_of(message)[1] for _, message in node.mesh.posted] == ["overloaded", "overloaded"]
    (await node.accepted.receive()).abort()
    for number in (6, 7):  # one place was free, and not two
        node.table.receive(PEER, opening(number))
    assert node.table.statistics().accepted == 4
    assert node.table.statistics().refused == 3


async def test_messages_about_no_tunnel_are_answered_once_each_and_goodbyes_not_at_all(
    autojump_clock: MockClock,
) -> None:
    node = TunnelNode("near", SMALL)
    node.table.receive(PEER, kinds.TunnelChunk(7, 0, 1, b"data", 0))
    node.table.receive(PEER, kinds.TunnelAccept(-7, 8192, 6000))
    node.table.receive(PEER, kinds.TunnelClose(7, 0, 0, ""))
    node.table.receive(PEER, kinds.TunnelRefuse(-7, "code", "", 0))
    assert [raw(type(message), *fields_of(message)[:2]) for _, message in node.mesh.posted] == [
        raw(kinds.TunnelClose, -7, int(CloseCode.FORGOTTEN)),
        raw(kinds.TunnelClose, 7, int(CloseCode.FORGOTTEN)),
    ]


async def test_a_mark_goes_back_whatever_becomes_of_its_chunk(autojump_clock: MockClock) -> None:
    node = TunnelNode("near", SMALL)
    node.table.receive(PEER, kinds.TunnelChunk(7, 0, 1, b"data", 3))
    assert [message for _, message in node.mesh.posted if isinstance(message, kinds.TunnelMarked)] == [
        kinds.TunnelMarked(3)
    ]


@pytest.mark.parametrize(
    "message",
    [
        kinds.TunnelChunk(0, 0, 0, b""),
        opening(-1),
        opening(10**9),
        kinds.TunnelOpen(0, "c", None, None, 4096, 1),
    ],
)
async def test_messages_that_cannot_be_about_any_tunnel_are_the_peers_error(
    message: kinds.OfTunnel, autojump_clock: MockClock
) -> None:
    node = TunnelNode("near", SMALL)
    node.table.receive(PEER, opening(1))
    with pytest.raises(RemoteProtocolError):
        node.table.receive(PEER, message)
    assert len(node.table) == 1


async def test_only_so_many_lost_nodes_are_remembered(autojump_clock: MockClock) -> None:
    node = TunnelNode("near", SMALL)
    for number in range(1100):
        peer = NodeId(f"{number:032x}")
        node.table.receive(peer, opening(1))
        node.table.node_lost(peer, "gone")
    assert len(node.table) == 0
    node.mesh.posted.clear()
    for number in range(1100):
        node.table.receive(NodeId(f"{number:032x}"), kinds.TunnelAck(1, 0, 0, 0, 0))
    codes = Counter(fields_of(message)[1] for _, message in node.mesh.posted)
    assert codes == {CloseCode.LOST: 1024, CloseCode.FORGOTTEN: 76}


async def test_tunnels_to_a_node_that_has_been_forgotten_are_numbered_on(autojump_clock: MockClock) -> None:
    """That node remembers which numbers were used, and refuses to open a tunnel for one of them."""
    near, far = TunnelNode("near", SMALL), TunnelNode("far", SMALL)

    def open_tunnel() -> None:
        near.table.open(far.node, "c", None, None)
        far.table.receive(near.node, cast("kinds.TunnelOpen", near.mesh.posted.pop()[1]))

    for _ in range(3):
        open_tunnel()
    near.table.node_lost(far.node, "gone")
    for number in range(1100):
        peer = NodeId(f"{number:032x}")
        near.table.open(peer, "c", None, None)
        near.table.node_lost(peer, "gone")
    open_tunnel()
    assert far.table.statistics().accepted == 4


async def test_a_node_that_was_given_up_and_lives_is_told_so(autojump_clock: MockClock) -> None:
    async with open_nodes(SMALL) as (near, far):
        pairs = [await near.open(far) for _ in range(100)]
        far.mesh.down = True
        far.table.node_lost(near.node, "it is dead")
        far.mesh.down = False
        near.table.link_reset(far.node)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TunnelBroken, match=r"the other end had given this node up: it is dead$"):
            await pairs[-1][0].receive()
        with pytest.raises(TunnelBroken, match=r"broke: it is dead$"):
            await pairs[-1][1].receive()
        with pytest.raises(TunnelBroken, match="there is no such tunnel here"):
            await pairs[0][0].receive()
        assert dict(near.table.statistics().ended) == {"lost": 64, "forgotten": 36}
        assert dict(far.table.statistics().ended) == {"lost": 100}


async def test_only_so_many_farewells_are_kept_for_a_peer(autojump_clock: MockClock) -> None:
    node = TunnelNode("near", SMALL)
    for number in range(1, 1101):
        node.table.receive(PEER, opening(number))
        node.accepted.receive_nowait().abort("done")
    node.mesh.posted.clear()
    for number in range(1, 1101):
        node.table.receive(PEER, kinds.TunnelAck(number, 0, 0, 0, 0))
    codes = [fields_of(message)[1] for _, message in node.mesh.posted]
    assert codes == [CloseCode.FORGOTTEN] * 76 + [CloseCode.ABORTED] * 1024


def said_back(node: TunnelNode) -> list[Message]:
    """Take what the ends of a node have for their link."""
    said: list[Message] = []
    for source in list(node.mesh.sources):
        del node.mesh.sources[source]
        while (piece := source.pop(256 * KIB, shared=False)) is not None:
            said.append(piece[0])
    return said


async def open_marked(node: TunnelNode) -> Tunnel:
    """Return a tunnel that a peer has opened, when all has been said about that."""
    node.table.receive(PEER, opening(1))
    tunnel = await node.accepted.receive()
    said_back(node)
    return tunnel


def receive_frame(node: TunnelNode, first: int = 0) -> None:
    """Receive four messages, the last of which has a mark."""
    for number in range(first, first + 4):
        node.table.receive(PEER, kinds.TunnelChunk(1, number, END, bytes(64 * KIB), 7 if number == first + 3 else 0))


async def test_to_a_task_that_waits_receipt_credit_and_mark_go_back_together(autojump_clock: MockClock) -> None:
    node = TunnelNode("near", Config())
    tunnel = await open_marked(node)

    async def read() -> None:
        async for _ in tunnel:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for turn in range(3):
            await trio.testing.wait_all_tasks_blocked()
            receive_frame(node, 4 * turn)
            assert not node.mesh.sources, "the task has its turn first"
            await trio.testing.wait_all_tasks_blocked()
            granted = node.config.tunnel_window + (turn + 1) * 4 * (64 * KIB + CHUNK_COST)
            assert said_back(node) == [kinds.TunnelMarked(7), kinds.TunnelAck(-1, 4 * turn + 4, granted, 0, 0)]
        nursery.cancel_scope.cancel()
    assert not node.mesh.posted


async def test_where_nobody_waits_they_go_back_at_once(autojump_clock: MockClock) -> None:
    node = TunnelNode("near", Config())
    await open_marked(node)
    receive_frame(node)
    window = node.config.tunnel_window
    assert said_back(node) == [kinds.TunnelMarked(7), kinds.TunnelAck(-1, 4, window, 0, 0)]


@pytest.mark.parametrize("end", ["cancel", "abort", "break", "nothing"])
async def test_a_mark_that_was_left_to_a_task_goes_back_whatever_becomes_of_that(
    autojump_clock: MockClock, end: str
) -> None:
    node = TunnelNode("near", Config())
    tunnel = await open_marked(node)

    async def read() -> None:
        with contextlib.suppress(TunnelBroken, trio.ClosedResourceError):
            await tunnel.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        receive_frame(node)
        if end == "cancel":
            nursery.cancel_scope.cancel()
        elif end == "abort":
            tunnel.abort()
        elif end == "break":
            node.table.receive(PEER, kinds.TunnelClose(1, int(CloseCode.ABORTED), 0, "over"))
    assert said_back(node)[0] == kinds.TunnelMarked(7)


async def test_tunnels_take_turns_on_their_link(autojump_clock: MockClock) -> None:
    async with open_nodes(Config(tunnel_chunk=32 * KIB)) as (near, far), trio.open_nursery() as nursery:
        near.mesh.keep_delivered = True
        pairs = [await near.open(far) for _ in range(4)]
        near.mesh.hold()
        for sender, _ in pairs:
            await sender.send(bytes(1_000_000))
        near.mesh.release()
        for _, receiver in pairs:
            nursery.start_soon(receiver.receive)
        await trio.testing.wait_all_tasks_blocked()
        order = [fields_of(message)[0] for message in near.mesh.delivered if isinstance(message, kinds.TunnelChunk)]
        assert len(order) > 120
        for end in range(8, 120):
            counts = [order[:end].count(number) for number in (1, 2, 3, 4)]
            assert max(counts) - min(counts) <= 3


@pytest.mark.parametrize(
    ("room", "marked"),
    [
        (256 * KIB, [False, False, True]),
        (128 * KIB, [False, True, True]),
        (64 * KIB, [True, True, True]),
        (16 * KIB, [False, False, False, True] * 3),
    ],
)
async def test_a_frame_has_one_mark_on_its_last_chunk(autojump_clock: MockClock, room: int, marked: list[bool]) -> None:
    async with open_nodes() as (near, far):
        sender, _ = await near.open(far)
        near.mesh.hold()
        for _ in range(3):
            await sender.send(bytes(64 * KIB))
        (source,) = near.mesh.sources
        chunks: list[Message] = []
        rest = room
        while (piece := source.pop(rest, shared=False)) is not None:
            chunks.append(piece[0])
            rest = rest - piece[1] or room
        assert [fields_of(chunk)[-1] > 0 for chunk in chunks] == marked


async def test_a_posted_message_overtakes_a_transfer(autojump_clock: MockClock) -> None:
    async with open_nodes(Config(tunnel_chunk=32 * KIB)) as (near, far):
        near.mesh.keep_delivered = True
        sender, receiver = await near.open(far)
        await sender.send(bytes(1_000_000))
        for _ in range(4):
            await trio.lowlevel.checkpoint()
        near.mesh.post(far.node, kinds.TunnelEof(99, 0), 0)
        await receiver.receive()
        place = near.mesh.delivered.index(kinds.TunnelEof(99, 0))
        assert place < 15, "it waits for the frames in progress and not for the 31 chunks of the message"


@pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.long)])
async def test_idle_tunnels_are_small_and_stay(autojump_clock: MockClock, count: int) -> None:
    async with open_nodes(Config()) as (near, far):
        await near.open(far)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        pairs: list[tuple[Tunnel, Tunnel]] = [await near.open(far) for _ in range(count)]
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert used < count * 2 * 5 * 1024, "both ends of one tunnel take less than 10 KiB"
        frames = near.mesh.frames
        await trio.sleep(60)
        assert near.mesh.frames - frames < 60, "keep-alives share frames"
        for one, other in pairs[::100]:
            await one.send(b"still here")
            assert await other.receive() == b"still here"


async def test_the_end_of_file_carries_no_mark_so_the_chunk_before_it_does(autojump_clock: MockClock) -> None:
    async with open_nodes() as (near, far):
        sender, _ = await near.open(far)
        near.mesh.hold()
        await sender.send(bytes(64 * KIB))
        await sender.send_eof()
        (source,) = near.mesh.sources
        taken = [piece[0] for _ in range(2) if (piece := source.pop(256 * KIB, shared=False)) is not None]
        assert [type(message) for message in taken] == [kinds.TunnelChunk, kinds.TunnelEof]
        assert fields_of(taken[0])[-1] > 0
