"""Seeds that name a host."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

from iris.cluster.names import names_a_host, resolve_url

ANSWER = [
    (socket.AF_INET, 1, 6, "", ("10.0.0.1", 0)),
    (socket.AF_INET6, 1, 6, "", ("2001:db8::1", 0, 0, 0)),
    (socket.AF_INET, 1, 6, "", ("10.0.0.1", 0)),
    (socket.AF_INET6, 1, 6, "", ("fe80::1%eth0", 0, 0, 3)),
]


class Resolver(trio.abc.HostnameResolver):
    """The system's resolver, as the test says."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def getaddrinfo(self, host: Any, *_: Any, **__: Any) -> Any:
        self.asked.append(host if isinstance(host, str) else host.decode())
        await trio.lowlevel.checkpoint()
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await trio.sleep_forever()
        return self.answer

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise AssertionError("nobody asks for the name of an address")


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


async def test_a_name_stands_for_all_its_addresses() -> None:
    resolver = Resolver(ANSWER)
    trio.socket.set_custom_hostname_resolver(resolver)
    assert await resolve_url("tcp://iris.example:7000") == ("tcp://10.0.0.1:7000", "tcp://[2001:db8::1]:7000")
    resolver.answer = ANSWER[:1]
    assert await resolve_url("tcp://iris.example:7000") == ("tcp://10.0.0.1:7000",), "asked anew each time"
    assert resolver.asked == ["iris.example"] * 2


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:1", "tcp://[::1]:2", "ipc:///x", "ws://iris.example:80/x", "mem://x"])
async def test_what_needs_no_resolver_stands_for_itself(url: str) -> None:
    resolver = Resolver(OSError())
    trio.socket.set_custom_hostname_resolver(resolver)
    assert await resolve_url(url) == (url,)
    assert not resolver.asked


@pytest.mark.parametrize("answer", [socket.gaierror(-2, "unknown"), UnicodeError("no name"), []])
async def test_a_name_that_is_not_known_stands_for_nothing(answer: object) -> None:
    trio.socket.set_custom_hostname_resolver(Resolver(answer))
    assert await resolve_url("tcp://iris.example:1") == ()


async def test_a_resolver_that_does_not_answer_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    trio.socket.set_custom_hostname_resolver(Resolver(None))
    with trio.fail_after(5):
        assert await resolve_url("tcp://iris.example:1") == ()


async def test_the_real_resolver_knows_this_machine() -> None:
    assert "tcp://127.0.0.1:7" in await resolve_url("tcp://localhost:7")
