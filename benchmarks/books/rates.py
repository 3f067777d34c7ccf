"""Processor time of each pattern, with what there is in any checkout: run by path, with its tree as argument.

Two nodes of one process, over ipc, so that the processor time is that of both ends.  It reads what to send, a pattern
and a number of messages, line by line, and answers with the seconds that it took: so two checkouts can take turns.

For valgrind the nodes are on a network in memory and in virtual time: what it counts does not depend on what else the
machine does.  Nothing is encrypted then, as valgrind does not know the instructions that make that cheap.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

Work = Callable[[int], Awaitable[None]]


@asynccontextmanager
async def open_works(open_node: Callable[[str], AbstractAsyncContextManager[Any]]) -> AsyncGenerator[dict[str, Work]]:
    """Open two nodes; yield for each pattern what sends so many messages of it from one to the other."""
    import trio

    import iris

    service = iris.Service("cache")
    heard = trio.Event()
    left = 0

    @service.request
    async def answer(request: iris.Request) -> object:
        return request.payload

    @service.broadcast
    async def note(message: iris.Message) -> None:
        nonlocal left
        left -= len(message.payload) > 0
        if not left:
            heard.set()

    @service.tunnel
    async def talk(tunnel: iris.Tunnel) -> None:
        async for _ in tunnel:
            pass

    async with open_node("cache") as member, open_node("shop") as shop, member.join("cache", service):
        await shop.wait_for("cache")

        async def requests(count: int) -> None:
            async def ask(share: int) -> None:
                for _ in range(share):
                    await shop.request("cache", b"question")

            async with trio.open_nursery() as nursery:
                for _ in range(16):
                    nursery.start_soon(ask, count // 16)

        async def surveys(count: int) -> None:
            for _ in range(count):
                async with shop.survey("cache", b"question") as answers:
                    async for _ in answers:
                        pass

        async def broadcasts(count: int) -> None:
            nonlocal left, heard
            left, heard = count, trio.Event()
            for _ in range(count):
                await shop.broadcast("cache", b"news")
            await heard.wait()

        async def events(count: int) -> None:
            async with member.subscribe("news.*", overflow="wait") as news, trio.open_nursery() as nursery:

                async def take() -> None:
                    for _ in range(count):
                        await anext(news)

                nursery.start_soon(take)
                for _ in range(count):
                    await shop.publish("news.a", b"x" * 100)

        async def topics(count: int) -> None:
            names = [f"news.{number}" for number in range(100)]
            async with member.subscribe("news.*", overflow="wait") as news, trio.open_nursery() as nursery:

                async def take() -> None:
                    for _ in range(count):
                        await anext(news)

                nursery.start_soon(take)
                for number in range(count):
                    await shop.publish(names[number % 100], b"x" * 100)

        async def tunnels(count: int) -> None:
            async with shop.open_tunnel("cache") as tunnel:
                for _ in range(count):
                    await tunnel.send(b"x" * 100)

        yield {
            "requests": requests, "surveys": surveys, "broadcasts": broadcasts, "events of one topic": events,
            "events of 100 topics by turns": topics, "tunnels": tunnels,
        }  # fmt: skip


async def measure() -> None:
    """Send what is asked for, and print the processor seconds of a message."""
    import trio

    import iris

    async with open_works(iris.open_node) as works:
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            name, count = json.loads(line)
            used = time.process_time()
            await works[name](count)
            print((time.process_time() - used) / count, flush=True)


class NoCipher:
    """Stands for a cipher."""

    def __init__(self, _: bytes) -> None: ...

    def encrypt(self, _: bytes, data: Any, __: bytes) -> bytes:
        """Return the data, with a tag."""
        return bytes(data) + bytes(16)

    def decrypt(self, _: bytes, data: Any, __: bytes) -> bytes:
        """Return the data without its tag."""
        return bytes(data[:-16])

    def decrypt_into(self, _: bytes, data: Any, __: bytes, into: Any) -> int:
        """Write the data without its tag."""
        into[:] = data[:-16]
        return len(data) - 16


async def send(pattern: str, count: int) -> None:
    """Send so many messages."""
    import iris.testing

    async with iris.testing.open_network(seed=1) as network, open_works(network.open_node) as works:
        await works[pattern](count)


def main() -> None:
    """Measure the tree that is named; or send messages of a pattern, as many as are named, for valgrind to look on."""
    tree, *rest = sys.argv[1:]
    sys.path.insert(0, tree)
    import trio
    from trio.testing import MockClock

    import iris
    from iris.security.noise import handshake_state

    assert iris.__file__.startswith(tree), iris.__file__
    if rest:
        ciphers = cast("dict[str, Any]", handshake_state.CIPHERS)
        ciphers.update(dict.fromkeys(ciphers, NoCipher))
        scheduler: Any = trio._core._run
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
        scheduler._r.seed(1)
        trio.run(send, rest[0], int(rest[1]), clock=MockClock(autojump_threshold=0))
        return
    with tempfile.TemporaryDirectory(prefix="iris-") as home:
        os.environ.update(IRIS_HOME=home, XDG_RUNTIME_DIR=home)
        trio.run(measure)


if __name__ == "__main__":
    main()
