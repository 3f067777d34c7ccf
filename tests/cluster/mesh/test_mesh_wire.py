"""The mesh over the real network, within one process and towards one that is killed."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from iris.cluster.mesh.mesh import Mesh
from iris.cluster.mesh.peer import Peer
from iris.kernel.config import Config
from iris.kernel.errors import NotSent
from iris.kernel.transport.network import NetworkTransport
from iris.kernel.transport.writer import StreamOutgoing
from iris.kernel.wire import kinds
from tests.support.admission import open_reading_mesh
from tests.support.meshes import PeerLog
from tests.support.realms import WALL, TestRealm
from tests.support.remote_mesh import open_far_mesh

MARK = kinds.TunnelMarked
SCHEMES = ["tcp://127.0.0.1:0", "ws://127.0.0.1:0/iris", "ipc"]


class Node:
    """A mesh, its log, and the numbers it has received."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.log = PeerLog()
        self.received: list[int] = []
        self.news = trio.Event()
        mesh.observe(self.log)
        mesh.register(MARK, self.receive)
        mesh.register(kinds.Revocations, self.receive_large)

    def receive(self, _: Peer, message: kinds.TunnelMarked) -> None:
        self.received.append(message.mark)
        self.news.set()

    def receive_large(self, _: Peer, message: kinds.Revocations) -> None:
        self.received.append(len(message.signed))
        self.news.set()

    def mark(self, other: Node, number: int) -> None:
        self.mesh.post(other.mesh.node, MARK(number), 0)

    async def wait_received(self, count: int) -> None:
        while len(self.received) < count:
            self.news = trio.Event()
            await self.news.wait()


@asynccontextmanager
async def open_nodes(count: int, url: str, path: Path, config: Config | None = None) -> AsyncIterator[list[Node]]:
    config = config or Config()
    realm = TestRealm(1)
    nodes: list[Node] = []
    async with AsyncExitStack() as stack:
        for number in range(count):
            transport = NetworkTransport(config)
            listening = await transport.listen([f"ipc://{path}/{number}" if url == "ipc" else url])
            mesh = await stack.enter_async_context(
                open_reading_mesh(
                    realm.identity(f"n{number}"),
                    transport,
                    listening,
                    config=config,
                    entropy=realm.entropy,
                    wall_clock=lambda: WALL,
                )
            )
            nodes.append(Node(mesh))
        with trio.fail_after(60):
            yield nodes


@pytest.mark.parametrize("url", SCHEMES)
async def test_nodes_link_over_every_kind_of_connection(url: str, tmp_path: Path) -> None:
    async with open_nodes(2, url, tmp_path) as (a, b):
        await a.mesh.connect(b.mesh.listening)
        for number in range(1000):
            a.mark(b, number)
        await b.wait_received(1000)
        b.mark(a, 1)
        await a.wait_received(1)
        assert b.received == list(range(1000))


@pytest.mark.parametrize("url", SCHEMES[::2])
async def test_the_part_of_a_frame_that_has_come_is_counted(url: str, tmp_path: Path) -> None:
    async with open_nodes(2, url, tmp_path) as (a, b):
        peer = await a.mesh.connect(b.mesh.listening)
        outgoing = peer.link.outgoing
        assert isinstance(outgoing, StreamOutgoing)
        outgoing._socket.send(b"".join(outgoing._framing(bytes(700_000)))[:100_000])
        while b.mesh.statistics().incomplete_bytes < 50_000:  # noqa: ASYNC110 -- there is no event
            await trio.sleep(0.01)


async def test_a_node_that_leaves_is_not_taken_for_lost(tmp_path: Path) -> None:
    for _ in range(5):
        async with open_nodes(2, "tcp://127.0.0.1:0", tmp_path) as (a, b):
            await a.mesh.barrier((await a.mesh.connect(b.mesh.listening)).node)
            await b.mesh.disconnect_all("the end", 1.0)
            b.mesh.close()
            while a.mesh.peers:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.005)
            assert a.log.of(b.mesh.node) == ["up", "down"]
            assert "the end" in a.log.reasons[0]


@pytest.mark.parametrize("url", SCHEMES)
async def test_a_link_resumes_when_its_connection_breaks(url: str, tmp_path: Path) -> None:
    async with open_nodes(2, url, tmp_path) as (a, b):
        peer = await a.mesh.connect(b.mesh.listening)
        for number in range(5):
            outgoing = peer.link.outgoing
            assert outgoing is not None
            # What b's end of it would do: an oversize frame ends a connection.
            outgoing.send_nowait(bytes(3_000_000))
            while peer.link.outgoing is outgoing:  # noqa: ASYNC110 -- until the mesh has noticed
                await trio.sleep(0.005)
            a.mark(b, number)
            await b.wait_received(number + 1)
            await a.mesh.barrier(b.mesh.node)
        assert b.received == list(range(5))
        assert a.log.of(b.mesh.node) == ["up", *["refused", "reset"] * 5]


async def test_a_dialler_of_the_version_before_is_refused_in_one_line_that_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it sends was recorded with a node of version 1: its greeting, the length of its first frame, that frame."""
    recorded = Path(__file__).with_name("dialler_of_version_1.bin").read_bytes()
    async with open_nodes(1, "tcp://127.0.0.1:0", tmp_path) as (a,):
        host, _, port = a.mesh.listening[0].removeprefix("tcp://").rpartition(":")
        for _ in range(2):
            dialler = await trio.open_tcp_stream(host, int(port))
            async with dialler:
                await dialler.send_all(recorded)
                answer = b"".join([bytes(part) async for part in dialler])
                assert answer[:4] == b"\0SP\0", "and then it is closed"
        assert a.mesh.refusals == {"RemoteProtocolError": 2, "junk from a stranger": 2}
        assert not a.mesh.peers
        text = "a frame of protocol version 1 was refused: this node speaks version 2; upgrade the older of the two"
        assert caplog.messages == [text]


async def test_a_process_that_is_killed_is_given_up(tmp_path: Path) -> None:
    async with open_nodes(1, "tcp://127.0.0.1:0", tmp_path) as (a,), open_far_mesh() as (process, url):
        peer = await a.mesh.connect([url])
        await a.mesh.barrier(peer.node)
        process.send_signal(signal.SIGKILL)
        with trio.fail_after(60):
            while a.mesh.peers:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.005)
        assert a.log.of(peer.node) == ["up", "refused", "down"]
        with pytest.raises(NotSent):
            await a.mesh.connect([url])
