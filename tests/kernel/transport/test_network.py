"""The real network, on loopback and the real clock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from iris.kernel.config import MIB, Config
from iris.kernel.errors import ConfigError
from iris.kernel.transport.greeting import SpGreeting
from iris.kernel.transport.listener import Listener
from iris.kernel.transport.network import check_url
from iris.kernel.transport.port import OutgoingConnection, Refused
from iris.kernel.wire.header import FRAME_OVERHEAD
from tests.support.ports import free_port
from tests.support.transports import PATIENT, SCHEMES, NoDesk, Notified, fill, ignore, open_transports, receive, waiting

# -- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "good",
    ["tcp://127.0.0.1:0", "tcp://[::1]:65535", "tcp://*:80", "ws://host:1/path", "ws://host:1", "ipc:///" + "x" * 106],
)
def test_addresses(good: str) -> None:
    assert check_url(good) == good


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "host:80",
        "http://host:80",
        "mem://x",
        "tcp://host",
        "tcp://host:",
        "tcp://host:65536",
        "tcp://host:-1",
        "tcp://host:12ab",
        "ws://host/path",
        "ipc:///" + "x" * 107,
        "ipc:///" + "ä" * 60,
        "ipc:///\ud800",
        "ipc:///a\0b",
    ],
)
async def test_what_is_no_address_is_refused_before_anything_is_done(bad: str) -> None:
    with pytest.raises(ConfigError):
        check_url(bad)
    async with open_transports() as (transport,):
        with pytest.raises(ConfigError):
            await transport.listen([bad])
        with pytest.raises(ConfigError):
            await transport.dial(bad, ignore)


# -- listening ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_it_listens_where_it_says(url: str) -> None:
    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        assert ":0" not in bound
        way = await near.dial(bound, ignore)
        assert way.send_nowait(b"hello")
        assert await receive(far) == b"hello"
        way.close()


async def test_it_listens_at_several_addresses_at_once(tmp_path: Path) -> None:
    async with open_transports(2) as (near, far):
        bound = await far.listen(["tcp://127.0.0.1:0", f"ipc://{tmp_path}/s", "tcp://127.0.0.1:0"])
        assert len(set(bound)) == 3
        for number, url in enumerate(bound):
            way = await near.dial(url, ignore)
            way.send_nowait(b"%d" % number)
            assert await receive(far) == b"%d" % number
            way.close()


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_an_address_that_is_taken_is_named(url: str) -> None:
    async with open_transports(2) as (one, two):
        (bound,) = await one.listen([url])
        with pytest.raises(ConfigError, match=f"{bound}.* in use"):
            await two.listen([bound])


async def test_an_address_that_is_not_ours_is_named() -> None:
    async with open_transports() as (transport,):
        with pytest.raises(ConfigError, match=r"tcp://192\.0\.2\.1:5000"):
            await transport.listen(["tcp://192.0.2.1:5000"])


async def test_an_ipc_socket_is_for_its_user_only_and_goes_with_the_transport(tmp_path: Path) -> None:
    async with open_transports() as (transport,):
        await transport.listen([f"ipc://{tmp_path}/s"])
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    assert not (tmp_path / "s").exists()


async def test_an_ipc_socket_is_never_open_to_others_not_even_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its mode is right nobody can connect."""
    trials: list[int] = []

    chmod = Path.chmod

    def change(path: Path, mode: int) -> None:
        with socket.socket(socket.AF_UNIX) as trial:
            trials.append(trial.connect_ex(str(path)))
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", change)
    former = os.umask(0)
    try:
        async with open_transports() as (transport,):
            await transport.listen([f"ipc://{tmp_path}/s"])
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    finally:
        os.umask(former)
    assert trials == [errno.ECONNREFUSED]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_cannot_connect_by_ipc() -> None:
    """The directory lets everybody through."""
    code = "import os, socket, sys; os.setuid(65534); sys.exit(socket.socket(socket.AF_UNIX).connect_ex(sys.argv[1]))"
    async with open_transports() as (transport,):
        with tempfile.TemporaryDirectory() as directory:
            await trio.Path(directory).chmod(0o755)
            await transport.listen([f"ipc://{directory}/s"])
            command = [sys.executable, "-I", "-S", "-c", code, f"{directory}/s"]
            done = await trio.run_process(command, check=False, capture_stderr=True)
            assert (done.returncode, done.stderr) == (errno.EACCES, b"")


async def test_a_socket_file_that_a_dead_process_has_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
        dead.listen()
    async with open_transports(2) as (near, far):
        (url,) = await far.listen([f"ipc://{tmp_path}/s"])
        way = await near.dial(url, ignore)
        assert way.send_nowait(b"frame")
        assert await receive(far) == b"frame"
        way.close()


def test_of_two_that_start_at_once_where_a_dead_one_was_one_listens(tmp_path: Path) -> None:
    """The other one must not take a socket that is bound and not open yet for one that is left over."""
    path = tmp_path / "s"

    def listen(reception: Listener, barrier: threading.Barrier, failed: list[OSError]) -> None:
        barrier.wait()
        try:
            reception.listen_file(str(path), SpGreeting)
        except OSError as error:
            failed.append(error)

    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        receptions = [Listener(Config(), NoDesk()) for _ in range(2)]
        barrier, failed = threading.Barrier(2), list[OSError]()

        threads = [threading.Thread(target=listen, args=(one, barrier, failed)) for one in receptions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with socket.socket(socket.AF_UNIX) as trial:
            assert trial.connect_ex(str(path)) == 0
        for reception in receptions:
            reception.close()
        assert [error.errno for error in failed] == [errno.EADDRINUSE]
        path.unlink()


async def test_a_listen_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(listening: socket.socket, backlog: int = 0) -> None:
        raise OSError(errno.ENOBUFS, "no buffer space available")

    async with open_transports() as (transport,):
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "listen", fail)
            with pytest.raises(ConfigError, match="no buffer space"):
                await transport.listen([f"ipc://{tmp_path}/s"])
        assert not (tmp_path / "s").exists()


async def test_a_directory_that_another_process_locks_is_an_error_and_no_hang(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        async with open_transports() as (transport,):
            with pytest.raises(ConfigError, match=f"another process holds a lock on {tmp_path}"):
                await transport.listen([f"ipc://{tmp_path}/s"])
    finally:
        os.close(descriptor)


async def test_any_number_of_processes_may_begin_to_listen_in_a_directory_at_once(tmp_path: Path) -> None:
    """One that has no turn of a processor in the middle of it holds up nobody."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        async with open_transports() as (transport,):
            await transport.listen([f"ipc://{tmp_path}/s"])
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


async def test_a_socket_that_has_taken_the_place_of_ours_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    async with open_transports() as (transport,):
        await transport.listen([f"ipc://{path}"])
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


async def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    async with open_transports() as (transport,):
        with pytest.raises(ConfigError, match="the address is in use"):
            await transport.listen([f"ipc://{tmp_path}/s"])
    assert (tmp_path / "s").read_text() == "precious"


async def test_any_number_may_come_by_ipc_at_once(tmp_path: Path) -> None:
    """They are processes of this user: the limit for one address, which is 18, is not for them."""
    async with open_transports(2, PATIENT) as (near, far):
        (url,) = await far.listen([f"ipc://{tmp_path}/s"])
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(tmp_path / "s"))
            way = await near.dial(url, ignore)
            assert way.send_nowait(b"frame")
            assert await receive(far) == b"frame"
            way.close()
            assert far.statistics().refused == 0


async def test_a_directory_that_is_not_there_is_an_error_of_the_caller(tmp_path: Path) -> None:
    async with open_transports() as (transport,):
        with pytest.raises(ConfigError, match="cannot listen"):
            await transport.listen([f"ipc://{tmp_path}/missing/s"])


# -- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [Config(), Config(max_payload=1000, batch_bytes=2000), Config(max_payload=2 * MIB)], ids=["", "s", "l"]
)
@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_every_socket_has_a_receive_limit(config: Config, url: str) -> None:
    expected = max(config.max_payload, config.batch_bytes, MIB) + FRAME_OVERHEAD
    async with open_transports(config=config) as (transport,):
        (bound,) = await transport.listen([url])
        way = await transport.dial(bound, ignore)
        largest = bytes(expected)
        assert way.send_nowait(largest)
        assert await receive(transport) == largest
        way.close()
        broken = trio.Event()
        way = await transport.dial(bound, Notified(broken.set))
        way.send_nowait(bytes(expected + 1))
        async with waiting(transport):
            await broken.wait()
        way.close()


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_an_oversize_frame_ends_its_own_connection_and_nothing_else(url: str) -> None:
    async with open_transports(3) as (good, bad, far):
        (bound,) = await far.listen([url])
        broken = trio.Event()
        innocent = await good.dial(bound, Notified(lambda: pytest.fail("the wrong connection broke")))
        guilty = await bad.dial(bound, Notified(broken.set))
        guilty.send_nowait(bytes(2 * MIB))
        async with waiting(far), waiting(bad):
            await broken.wait()
        innocent.send_nowait(b"still here")
        assert await receive(far) == b"still here"
        innocent.close()
        guilty.close()


# -- dialling ----------------------------------------------------------------------------------------------


async def test_nobody_listening_is_a_refusal_at_once(tmp_path: Path) -> None:
    port = free_port()
    async with open_transports() as (transport,):
        for url in (f"tcp://127.0.0.1:{port}", f"ws://127.0.0.1:{port}/x", f"ipc://{tmp_path}/nobody"):
            with pytest.raises(Refused, match=f"cannot connect to {url}"):
                await transport.dial(url, ignore)


# -- frames ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_frames_arrive_in_order_under_backpressure(url: str) -> None:
    frames = 2000

    async def send(way: OutgoingConnection) -> None:
        for number in range(frames):
            frame = struct.pack(">I", number) + bytes(number % 3000)
            while not way.send_nowait(frame):
                await way.wait_writable()

    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        way = await near.dial(bound, ignore)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, way)
            for number in range(frames):
                frame = await receive(far)
                assert struct.unpack_from(">I", frame) == (number,)
                assert len(frame) == 4 + number % 3000
        way.close()


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_a_reader_that_does_not_read_is_felt_by_every_task_that_writes(url: str) -> None:
    written = 0

    async def write() -> None:
        nonlocal written
        while not way.send_nowait(b"x"):
            await way.wait_writable()
        written += 1

    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        way = await near.dial(bound, ignore)
        taken = await fill(way)
        assert taken < 500
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(write)
            await wait_all_tasks_blocked(0.02)
            assert written == 0
            for _ in range(taken + 3):
                await receive(far)
        assert written == 3
        way.close()


async def test_a_task_that_stops_waiting_lets_the_next_one_watch(url: str) -> None:
    async def watch(scope: trio.CancelScope) -> None:
        with scope:
            await way.wait_writable()

    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        way = await near.dial(bound, ignore)
        taken = await fill(way)
        first = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, first)
            await wait_all_tasks_blocked()

            async def write() -> None:
                while not way.send_nowait(b"x"):
                    await way.wait_writable()

            nursery.start_soon(write)
            await wait_all_tasks_blocked()
            first.cancel()
            with trio.fail_after(60):
                for _ in range(taken + 1):
                    await receive(far)
            nursery.cancel_scope.deadline = trio.current_time() + 60
        assert not nursery.cancel_scope.cancelled_caught, "nobody has told the one that waited of the room"
        way.close()


# -- closing -----------------------------------------------------------------------------------------------


async def test_closing_a_way_ends_every_wait_on_it_and_is_told_to_nobody(url: str) -> None:
    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await way.wait_writable()

    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        way = await near.dial(bound, Notified(lambda: pytest.fail("it was closed on purpose")))
        await fill(way)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            way.close()
        way.close()
        with pytest.raises(trio.ClosedResourceError):
            way.send_nowait(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await way.wait_writable()
        await wait_all_tasks_blocked(0.02)


async def test_closing_a_transport_ends_its_readers_wait(url: str) -> None:
    async with open_transports() as (transport,):
        await transport.listen([url])

        async def read() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await transport.wait_readable()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            transport.close()
        transport.close()
        with pytest.raises(trio.ClosedResourceError):
            transport.receive_nowait()
        with pytest.raises(trio.ClosedResourceError):
            await transport.wait_readable()


async def test_a_reader_that_is_interrupted_looks_up_and_waits_again(url: str) -> None:
    async with open_transports(2) as (near, far):
        (bound,) = await far.listen([url])
        looked_up = 0

        async def read() -> None:
            nonlocal looked_up
            while far.receive_nowait() != b"x":
                await far.wait_readable()
                looked_up += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            for expected in (1, 2):
                far.interrupt()
                await wait_all_tasks_blocked(0.01)
                assert looked_up >= expected
            way = await near.dial(bound, ignore)
            assert way.send_nowait(b"x")
        way.close()
        far.close()
        far.interrupt()


@pytest.mark.parametrize("url", [*SCHEMES], indirect=True)
async def test_a_listener_that_closes_breaks_the_ways_to_it_once(url: str) -> None:
    told = 0
    news = trio.Event()

    def note() -> None:
        nonlocal told
        told += 1
        news.set()

    async with open_transports(3) as (near, far, second):
        (bound,) = await far.listen([url])
        way = await near.dial(bound, Notified(note))
        far.close()
        async with waiting(near):
            await news.wait()
        await second.listen([bound])
        assert not way.send_nowait(b"x")  # and nobody dials again by himself
        also_broken = trio.Event()
        witness = await near.dial(bound, Notified(also_broken.set))
        witness.send_nowait(b"y")
        assert await receive(second) == b"y"
        second.close()
        async with waiting(near):
            await also_broken.wait()
            await wait_all_tasks_blocked(0.02)
        assert told == 1
        way.close()
        witness.close()


def test_a_transport_has_one_thread_and_loads_no_nng(tmp_path: Path) -> None:
    code = """
import os, sys, trio, iris
from iris.kernel.transport import NetworkTransport
async def main():
    transport = NetworkTransport(iris.Config())
    before = len(os.listdir("/proc/self/task"))
    await transport.listen(["tcp://127.0.0.1:0", "ws://127.0.0.1:0/iris", "ipc://" + sys.argv[1]])
    print(len(os.listdir("/proc/self/task")) - before, "pynng" in sys.modules)
    transport.close()
trio.run(main)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "s")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "1 False\n"
