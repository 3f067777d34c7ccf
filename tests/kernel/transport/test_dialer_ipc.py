"""Dialling by ipc: who is taken for a node, how it ends otherwise, and what is left behind."""

from __future__ import annotations

import errno
import socket
from collections.abc import Generator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from iris.kernel.errors import NotSent
from iris.kernel.transport.dialer import open_ipc_connection
from iris.kernel.transport.port import Refused
from iris.kernel.transport.sp import ANSWER, GREETING, with_type_and_length


@pytest.fixture
def listener(tmp_path: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen(0)
        yield listening


@pytest.fixture
def no_descriptor_is_left(listener: socket.socket) -> Generator[None]:  # of this module; nng keeps some
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert listener.fileno() >= 0


@pytest.mark.usefixtures("no_descriptor_is_left")
@pytest.mark.parametrize("stale", [True, False])
async def test_where_nobody_listens_it_is_refused(tmp_path: Path, stale: bool) -> None:
    if stale:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
            killed.bind(str(tmp_path / "nobody"))
    with pytest.raises(Refused, match=r"cannot connect to ipc:.*/nobody"):
        await open_ipc_connection(f"ipc://{tmp_path}/nobody")


async def test_who_may_not_connect_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(NotSent, match=r"cannot connect to ipc:.*/file"):
        await open_ipc_connection(f"ipc://{tmp_path}/file/{'x' * 300}")


async def test_where_no_descriptor_is_left_it_is_an_error_of_that_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_left)
    with pytest.raises(NotSent, match=r"cannot connect to ipc:.*/x: too many open files"):
        await open_ipc_connection(f"ipc://{tmp_path}/x")


@pytest.mark.usefixtures("no_descriptor_is_left")
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n", ANSWER[:3]])
async def test_who_does_not_greet_as_a_node_is_none(tmp_path: Path, listener: socket.socket, said: bytes) -> None:
    async def answer() -> None:
        await trio.lowlevel.wait_readable(listener)
        with listener.accept()[0] as connection:
            connection.send(said)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        with trio.fail_after(60), pytest.raises(NotSent, match="cannot connect"):
            await open_ipc_connection(f"ipc://{tmp_path}/s")


@pytest.mark.usefixtures("no_descriptor_is_left")
async def test_where_too_many_wait_to_be_accepted_it_waits_for_its_turn(
    tmp_path: Path, listener: socket.socket
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
        first.connect(str(tmp_path / "s"))
        opened: list[socket.socket] = []

        async def dial() -> None:
            opened.append(await open_ipc_connection(f"ipc://{tmp_path}/s"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial)
            await wait_all_tasks_blocked()
            assert not opened
            listener.accept()[0].close()
            await trio.lowlevel.wait_readable(listener)
            connection, _ = listener.accept()
            await trio.lowlevel.wait_readable(connection)
            assert connection.recv(100) == GREETING
            connection.send(ANSWER)
        opened[0].send(b"".join(with_type_and_length(b"frame")))
        assert connection.recv(100) == b"\x01\0\0\0\0\0\0\0\x05frame"
        opened[0].close()
        connection.close()


@pytest.mark.usefixtures("no_descriptor_is_left")
async def test_cancelling_leaves_nothing_behind(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_ipc_connection, f"ipc://{tmp_path}/s")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
