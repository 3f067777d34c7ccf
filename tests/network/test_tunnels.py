"""Tunnels between two processes, over real connections and a real clock."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

import iris
from tests.support.tunnel_store import make_credentials, open_store

MIB = 2**20
TRANSFER = int(os.environ.get("IRIS_TRANSFER_MIB", "128")) * MIB
"""Size of the large transfer, in bytes; IRIS_TRANSFER_MIB=10240 takes some minutes."""


@asynccontextmanager
async def open_shop(directory: Path) -> AsyncIterator[tuple[iris.Node, trio.Process]]:
    """A node in this process, linked to the store in another."""
    shop, store = make_credentials("shop", "store")
    async with (
        open_store(store, directory) as (process, url),
        iris.open_node(credential=shop, listen=["tcp://127.0.0.1:0"], seeds=[url]) as node,
    ):
        await node.wait_for("store")
        yield node, process


class Proxy:
    """A TCP proxy whose connections can be broken."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._scopes: set[trio.CancelScope] = set()
        self._news = trio.lowlevel.ParkingLot()
        self.broken = 0
        self.passed = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                async with (
                    stream,
                    await trio.open_tcp_stream("127.0.0.1", self._port) as other,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(self._pump, stream, other, nursery.cancel_scope)
                    nursery.start_soon(self._pump, other, stream, nursery.cancel_scope)
            except OSError:
                return
            finally:
                self._scopes.discard(scope)

    async def _pump(self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            async for data in source:
                await target.send_all(data)
                self.passed += len(data)
                self._news.unpark_all()
        except trio.BrokenResourceError:
            pass
        scope.cancel()

    async def break_each(self, size: int) -> None:
        """Break all connections whenever so many bytes more have passed."""
        while True:
            due = self.passed + size
            while self.passed < due:
                await self._news.park()
            self.break_all()

    def break_all(self) -> None:
        self.broken += len(self._scopes)
        for scope in self._scopes:
            scope.cancel()


async def put(node: iris.Node, size: int) -> tuple[str, list[object]]:
    """Send so many bytes; return their hash and the answer of the store."""
    digest = hashlib.sha256()
    block = os.urandom(MIB)
    async with node.open_tunnel("store", operation="put") as tunnel:
        for number in range(size // MIB):
            payload = number.to_bytes(8) + block[8:]
            digest.update(payload)
            await tunnel.send(payload)
            assert tunnel.statistics().bytes_held <= 2.1 * MIB
        await tunnel.send_eof()
        answer = await tunnel.receive()
    return digest.hexdigest(), answer


async def test_a_large_transfer_arrives_whole_in_constant_memory(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as (node, _):
        with trio.fail_after(60 + TRANSFER / MIB):
            digest, (answer, grown) = await put(node, TRANSFER)
        assert answer == digest
        assert isinstance(grown, int)
        assert grown < 64 * MIB
        assert node.statistics().tunnels.messages.lost == {}


async def test_a_transfer_survives_connections_that_break(tmp_path: Path) -> None:
    shop, store = make_credentials("shop", "store")
    async with open_store(store, tmp_path) as (_, url), trio.open_nursery() as nursery:
        proxy = Proxy(int(url.rpartition(":")[2]))
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, proxy.serve, [listener])
        seed = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"

        async with iris.open_node(credential=shop, listen=["tcp://127.0.0.1:0"], seeds=[seed]) as node:
            await node.wait_for("store")
            nursery.start_soon(proxy.break_each, 2 * MIB)
            with trio.fail_after(300):
                digest, (answer, _) = await put(node, 32 * MIB)
            assert answer == digest
            assert proxy.broken >= 12
        nursery.cancel_scope.cancel()


async def test_a_file_goes_from_one_process_to_another(tmp_path: Path) -> None:
    source = tmp_path / "source"
    data = os.urandom(5 * MIB + 1)
    source.write_bytes(data)
    async with open_shop(tmp_path) as (node, _):
        async with node.open_tunnel("store", operation="file") as tunnel:
            summary = await tunnel.send_file(source)
            assert await tunnel.receive() == [summary.size, summary.sha256]
            received = await tunnel.receive_file(tmp_path / "back")
        assert (summary.size, summary.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert received == summary
        assert (tmp_path / "back").read_bytes() == data
