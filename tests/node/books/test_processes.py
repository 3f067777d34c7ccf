"""The books of a node whose receivers are processes: suspended and killed by signals, over real sockets."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest
import trio

import iris
from tests.support.command import Terminal, open_terminal

APP = """
import iris

cache = iris.Service("cache")


@cache.broadcast
async def note(message: iris.Message) -> None:
    pass
"""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Generator[Terminal]:
    with open_terminal() as opened:
        (opened.directory / "app.py").write_text(APP)
        for name in ("IRIS_HOME", "XDG_RUNTIME_DIR"):  # this process is in the local realm of the terminal as well
            monkeypatch.setenv(name, opened.environment[name])
        yield opened


async def test_a_member_that_is_stopped_and_killed_leaves_the_rest_in_doubt(terminal: Terminal) -> None:
    with terminal.started("run", "app:cache", announces="serves cache") as member:
        async with iris.open_node("shop") as shop, shop.watch("cache") as changes:
            await shop.wait_for("cache", timeout=30)
            losses = shop.watch_losses("cache", every=0.2)
            for number in range(10):
                await shop.broadcast("cache", number)
            assert (await shop.books("cache", settle=30)).received == 10
            member.send_signal(signal.SIGSTOP)
            for number in range(20):
                await shop.broadcast("cache", number)
            stopped = await shop.books("cache", settle=0.2)
            assert (stopped.received, stopped.waiting, stopped.in_doubt, stopped.balanced) == (10, 20, 0, False)
            member.kill()
            with trio.fail_after(60):
                while (await anext(changes)).kind != "lost":
                    pass
                loss = await anext(losses)
            books = await shop.books("cache")
            assert (books.sent, books.received, books.in_doubt, books.lost) == (30, 10, 20, {})
            assert books.balanced
            assert (loss.pattern, loss.name, loss.reason, loss.count) == ("broadcast", "cache", "in doubt", 20)
            done = await trio.to_thread.run_sync(lambda: terminal.run("books", "--settle", "0", "-o", "json"))
            assert done.returncode == 0, done.stderr
            assert b'"in_doubt":20' in done.stdout, done.stdout
