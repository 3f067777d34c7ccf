"""Dialling by TCP: who is taken for a node, how it ends otherwise, and what is left behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from iris.kernel.config import KIB
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.transport.dialer import DialSlots, open_connection
from iris.kernel.transport.port import Refused
from iris.kernel.transport.sp import ANSWER, GREETING
from tests.support.forks import in_child
from tests.support.transports import Notified, fill, ignore, open_transports, receive


class Listener:
    """Somebody who listens, and takes one connection."""

    def __init__(self) -> None:
        self.socket = trio.socket.from_stdlib_socket(socket.create_server(("127.0.0.1", 0)))
        self.port: int = self.socket.getsockname()[1]
        self.url = f"tcp://127.0.0.1:{self.port}"

    async def accept(self) -> trio.SocketStream:
        return trio.SocketStream((await self.socket.accept())[0])


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener()
    with listener.socket, trio.fail_after(60):
        yield listener


async def dial(url: str) -> socket.socket:
    return await open_connection(url, DialSlots(8))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("pieces", [[ANSWER], [ANSWER[:1], ANSWER[1:7], ANSWER[7:]], [bytes((b,)) for b in ANSWER]])
async def test_a_connection_is_there_when_both_have_greeted_however_slowly(pieces: list[bytes]) -> None:
    async with listening() as listener, trio.open_nursery() as nursery:

        async def answer() -> None:
            stream = await listener.accept()
            async with stream:
                assert await stream.receive_some(100) == GREETING
                for piece in pieces:
                    await stream.send_all(piece)
                    await wait_all_tasks_blocked(0.001)
                assert await stream.receive_some(100) == b"later"

        nursery.start_soon(answer)
        with await dial(listener.url) as connection:
            assert not connection.getblocking()
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 128 * KIB
            connection.send(b"later")


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", GREETING, ANSWER[:5] + b"?", b"\0" * 8, ANSWER[:7], b""]
)
async def test_who_greets_otherwise_is_no_node_and_is_not_taken_for_gone(said: bytes) -> None:
    before = descriptors()
    async with listening() as listener, trio.open_nursery() as nursery:

        async def answer() -> None:
            async with await listener.accept() as stream:
                await stream.receive_some(100)
                await stream.send_all(said)

        nursery.start_soon(answer)
        with pytest.raises(NotSent, match=f"cannot connect to {listener.url}: (it was closed|who listens)") as caught:
            await dial(listener.url)
        assert not isinstance(caught.value, Refused)
    assert descriptors() == before


@pytest.mark.parametrize("said", [b"", ANSWER[:3]])
async def test_who_does_not_finish_greeting_is_waited_for_as_long_as_the_caller_likes(said: bytes) -> None:
    async with listening() as listener:
        before = descriptors()
        async with trio.open_nursery() as nursery:

            async def answer() -> None:
                async with await listener.accept() as stream:
                    await stream.send_all(said)
                    await stream.receive_some(100)
                    assert await stream.receive_some(100) == b"", "it hangs up"

            nursery.start_soon(answer)
            with trio.move_on_after(0.05) as scope:
                await dial(listener.url)
            assert scope.cancelled_caught
        assert descriptors() == before


async def test_nobody_there_is_a_refusal_and_leaves_nothing() -> None:
    async with listening() as listener:
        url = listener.url
    before = descriptors()
    with pytest.raises(Refused, match="connection refused"):
        await dial(url)
    assert descriptors() == before


async def test_a_port_that_the_system_connects_with_itself_has_nobody_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dialled often enough, a port at which nobody listens is once given to the end that dials it."""

    class Bound(socket.socket):
        def connect_ex(self, address: Any) -> int:
            self.bind(address)
            return super().connect_ex(address)

    async with listening() as listener:
        url = listener.url
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Bound)
        with pytest.raises(Refused):
            await dial(url)


async def test_a_host_of_several_addresses_is_tried_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as listener, listening() as gone:
        gone.socket.close()
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", one.port)) for one in (gone, listener)]

        def look_up(*_: object, **__: object) -> list[Any]:
            return found

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        async with trio.open_nursery() as nursery:

            async def answer() -> None:
                stream = await listener.accept()
                await stream.send_all(ANSWER)
                await stream.aclose()

            nursery.start_soon(answer)
            (await dial("tcp://many:1")).close()
        async with trio.open_nursery() as nursery:

            async def hang_up() -> None:
                await (await listener.accept()).aclose()

            nursery.start_soon(hang_up)
            with pytest.raises(NotSent) as caught:
                await dial("tcp://many:1")
            assert not isinstance(caught.value, Refused), "somebody is there, at one of them"


@pytest.mark.parametrize("host", ["nosuch.invalid", "", "a..b", "x" * 300, "nul\0host", "ä" * 70, "1.2.3.4.5.6"])
async def test_a_host_that_cannot_be_is_not_reached_and_no_refusal(host: str) -> None:
    with pytest.raises(NotSent, match="cannot connect to") as caught:
        await dial(f"tcp://{host}:80")
    assert not isinstance(caught.value, Refused)


@pytest.mark.parametrize("url", ["tcp://127.0.0.1", "tcp://127.0.0.1:80/path", "tcp://127.0.0.1:"])
async def test_an_address_ends_with_its_port(url: str) -> None:
    with pytest.raises(ConfigError, match="port"):
        await dial(url)


async def test_little_waits_for_somebody_who_does_not_read() -> None:
    """Less than a megabyte, of which all but the last frame is in the hands of the system: requests are behind it."""
    async with listening() as listener, open_transports() as (transport,), trio.open_nursery() as nursery:
        stopped = trio.Event()

        async def stop_reading() -> None:
            async with await listener.accept() as stream:
                await stream.send_all(ANSWER)
                await stopped.wait()

        nursery.start_soon(stop_reading)
        way = await transport.dial(listener.url, ignore)
        assert 1 <= await fill(way) <= 16
        way.close()
        stopped.set()


async def test_an_address_of_a_host_that_does_not_answer_does_not_keep_it_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening() as mute, listening() as listener:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", one.port)) for one in (mute, listener)]

        def look_up(*_: object, **__: object) -> list[Any]:
            return found

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        before = descriptors()
        async with trio.open_nursery() as nursery:

            async def answer() -> None:
                async with await listener.accept() as stream:
                    await stream.send_all(ANSWER)
                    assert await stream.receive_some(100) == GREETING
                    assert await stream.receive_some(100) == b"", "the other end has closed it"

            nursery.start_soon(answer)
            with await open_connection("tcp://many:1", DialSlots(1)) as connection:  # both take one place
                assert connection.getpeername()[1] == listener.port
        assert descriptors() == before


async def test_only_so_many_connect_at_one_time() -> None:
    dials = DialSlots(1)
    async with listening() as listener, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(open_connection, listener.url, dials)
        stream = await listener.accept()
        await wait_all_tasks_blocked(0.01)
        assert dials.connections.statistics().tasks_waiting == 1
        nursery.cancel_scope.cancel()
        await stream.aclose()
    assert dials.connections.borrowed_tokens == 0


async def test_where_no_thread_is_left_to_look_up_a_name_it_is_an_error_of_that_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def none_left(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", none_left)
    with pytest.raises(NotSent, match=r"cannot connect to tcp://name.invalid:1: can't start new thread"):
        await dial("tcp://name.invalid:1")


async def test_names_that_nobody_answers_for_keep_no_number_from_being_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()
    look_up = socket.getaddrinfo

    def wait_for_an_answer(host: str, port: int, *, type: int, flags: int) -> list[Any]:  # noqa: A002
        if host == "slow" and not flags:
            token.run_sync_soon(asked.set)
            answered.wait(10)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return look_up(host, port, type=type, flags=flags)

    monkeypatch.setattr(socket, "getaddrinfo", wait_for_an_answer)
    dials = DialSlots(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_connection, "tcp://slow:1", dials)
        await asked.wait()
        nursery.cancel_scope.cancel()
    assert dials.look_ups.borrowed_tokens == 1  # its thread goes on, although nobody waits for it
    async with listening() as listener:
        url = listener.url
    with trio.fail_after(60), pytest.raises(Refused):
        await open_connection(url, dials)
    answered.set()
    with pytest.raises(NotSent, match="no answer"):
        await open_connection("tcp://slow:1", dials)
    assert dials.look_ups.borrowed_tokens == 0


def test_the_child_of_a_fork_touches_nothing_of_its_parents() -> None:
    """What it has inherited is closed to it, and when it cleans up, the parent and its peers go on all the same."""

    async def main() -> None:
        async with open_transports(2) as (near, far):
            (bound,) = await far.listen(["tcp://127.0.0.1:0"])
            lost = trio.Event()
            way = await near.dial(bound, Notified(lost.set))
            assert way.send_nowait(b"before")
            assert await receive(far) == b"before"

            def close() -> bool:
                for transport in (near, far):
                    with pytest.raises(trio.ClosedResourceError):
                        transport.receive_nowait()
                    transport.close()
                way.close()
                return True

            assert in_child(close)
            for _ in range(3):
                assert way.send_nowait(b"after")
                assert await receive(far) == b"after"
            far.close()

            async def read() -> None:
                while True:
                    await near.wait_readable()
                    assert near.receive_nowait() is None

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await lost.wait()  # it is reported in another turn than that in which it is read
                nursery.cancel_scope.cancel()
            way.close()

    trio.run(main)
