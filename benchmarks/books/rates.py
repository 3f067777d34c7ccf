"""Processor time of each pattern, with what there is in any checkout: run by path, with its tree as argument.

Two nodes of one process, over ipc, so that the processor time is that of both ends.  It reads what to send, a pattern
and a number of messages, line by line, and answers with the seconds that it took: so two checkouts can take turns.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable


async def measure() -> None:
    """Send what is asked for, and print the processor seconds of a message."""
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

    async with iris.open_node("cache") as member, iris.open_node("shop") as shop, member.join("cache", service):
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

        works: dict[str, Callable[[int], Awaitable[None]]] = {
            "requests": requests, "surveys": surveys, "broadcasts": broadcasts, "events of one topic": events,
            "events of 100 topics by turns": topics, "tunnels": tunnels,
        }  # fmt: skip
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            name, count = json.loads(line)
            used = time.process_time()
            await works[name](count)
            print((time.process_time() - used) / count, flush=True)


def main() -> None:
    """Measure the tree that is named."""
    tree = sys.argv[1]
    sys.path.insert(0, tree)
    import trio

    import iris

    assert iris.__file__.startswith(tree), iris.__file__
    with tempfile.TemporaryDirectory(prefix="iris-") as home:
        os.environ.update(IRIS_HOME=home, XDG_RUNTIME_DIR=home)
        trio.run(measure)


if __name__ == "__main__":
    main()
