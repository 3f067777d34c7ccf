"""Seeds that name a host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio

from iris.cluster import addresses as look_ups
from iris.cluster.addresses import return_urls
from iris.cluster.discovery.dns import names_a_host, resolve_url
from iris.kernel.errors import NotSent

ANSWER = [
    (socket.AF_INET, 1, 6, "", ("10.0.0.1", 0)),
    (socket.AF_INET6, 1, 6, "", ("2001:db8::1", 0, 0, 0)),
    (socket.AF_INET, 1, 6, "", ("10.0.0.1", 0)),
    (socket.AF_INET6, 1, 6, "", ("fe80::1%eth0", 0, 0, 3)),
]


class Resolver:
    """The system's resolver, as the test says."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.released = threading.Event()

    def getaddrinfo(self, host: str, *_: object, flags: int = 0, **__: object) -> Any:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "a name")
        self.asked.append(host)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            self.released.wait(10)
            raise socket.gaierror(socket.EAI_AGAIN, "nobody answers")
        return self.answer


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver(ANSWER)
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    yield resolver
    resolver.released.set()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("tcp://localhost:1", True),
        ("tcp://iris.example:7000", True),
        ("tcp://10.0.0.1:1", False),
        ("tcp://[::1]:1", False),
        ("ws://iris.example:80/x", False),
        ("ipc:///x", False),
        ("mem://x", False),
    ],
)
def test_which_urls_are_looked_up(url: str, named: bool) -> None:
    assert names_a_host(url) is named


async def test_a_name_stands_for_all_its_addresses(resolver: Resolver) -> None:
    assert await resolve_url("tcp://iris.example:7000") == ("tcp://10.0.0.1:7000", "tcp://[2001:db8::1]:7000")
    resolver.answer = ANSWER[:1]
    assert await resolve_url("tcp://iris.example:7000") == ("tcp://10.0.0.1:7000",), "asked anew each time"
    assert resolver.asked == ["iris.example"] * 2


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:1", "tcp://[::1]:2", "ipc:///x", "ws://iris.example:80/x", "mem://x"])
async def test_what_needs_no_resolver_stands_for_itself(url: str, resolver: Resolver) -> None:
    assert await resolve_url(url) == (url,)
    assert not resolver.asked


@pytest.mark.parametrize(
    "answer", [socket.gaierror(-2, "unknown"), UnicodeError("no name"), RuntimeError("can't start new thread"), []]
)
async def test_a_name_that_is_not_known_stands_for_nothing_and_says_so(answer: object, resolver: Resolver) -> None:
    resolver.answer = answer
    with pytest.raises(NotSent, match=r"the name in tcp://iris\.example:1 is not known, or no name server answers"):
        await resolve_url("tcp://iris.example:1")


async def test_a_resolver_that_does_not_answer_is_not_waited_for(
    autojump_clock: trio.testing.MockClock, resolver: Resolver
) -> None:
    resolver.answer = None
    with trio.fail_after(5), pytest.raises(NotSent, match="no name server answers"):
        await resolve_url("tcp://iris.example:1")


async def look_up(url: str) -> None:
    with suppress(NotSent):
        await resolve_url(url)


async def test_names_that_nobody_answers_for_take_no_thread_from_anybody_else(resolver: Resolver) -> None:
    resolver.answer = None
    threads = trio.to_thread.current_default_thread_limiter()
    async with trio.open_nursery() as nursery:
        for number in range(int(threads.total_tokens) + 10):
            nursery.start_soon(look_up, f"tcp://{number}.example:1")
            nursery.start_soon(return_urls, ["tcp://0.0.0.0:1"], f"tcp://{number}.example:1")

        def asked() -> int:  # a thread that another test did not wait for may get its turn only now, on a busy machine
            return len([name for name in resolver.asked if name != "iris.example"])

        with trio.fail_after(30):
            while asked() < look_ups.AT_ONCE:  # noqa: ASYNC110 -- the threads of the look-ups count
                await trio.sleep(0.01)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert asked() == look_ups.AT_ONCE
        assert threads.borrowed_tokens == 0
        nursery.cancel_scope.cancel()


async def test_the_real_resolver_knows_this_machine() -> None:
    assert "tcp://127.0.0.1:7" in await resolve_url("tcp://localhost:7")
