"""A running node on a machine that has no thread or descriptor left, or no ``/proc``."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.tasks import run_in_thread
from iris.node.descriptors import open_descriptors
from tests.node.opening.test_opening import LOOPBACK, OUTSIDE, World


class Threads:
    """The threads of the machine; what runs in one is done at once."""

    def __init__(self) -> None:
        self.left = True
        self.refused = 0

    async def run_sync(self, call: Callable[..., object], *args: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        if not self.left:
            self.refused += 1
            raise RuntimeError("can't start new thread")
        return call(*args)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    made = Threads()
    monkeypatch.setattr(trio.to_thread, "run_sync", made.run_sync)
    return made


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    return World(tmp_path / "run")


async def test_a_node_goes_on_without_threads_and_its_handlers_wait_for_one(
    autojump_clock: MockClock, world: World, threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    service = iris.Service("shop")

    def reply(request: iris.Request) -> object:
        return request.payload

    service.request(reply, thread=True)
    opening = partial(iris.open_node, credential=world.shop, environment=world.environment())
    async with opening(listen=[OUTSIDE]) as member, member.join("shop", service), opening(listen=[LOOPBACK]) as caller:
        await caller.wait_for("shop")
        assert await caller.request("shop", 1) == 1
        threads.left = False
        await trio.sleep(200)  # files are looked at, the address book is kept, ...
        assert threads.refused > 100
        assert [record.levelno for record in caplog.records if "no thread can be started" in record.message] == [
            logging.WARNING
        ]
        with pytest.raises(iris.RequestTimeout):
            await caller.request("shop", 2, timeout=3)
        async with trio.open_nursery() as nursery:
            replies: list[object] = []

            async def ask() -> None:
                replies.append(await caller.request("shop", 3, timeout=30))

            nursery.start_soon(ask)
            await trio.sleep(5)
            threads.left = True
        assert replies == [3]
        assert len(member.statistics().links) == len(caller.statistics().links) == 1


async def test_what_a_call_in_a_thread_raises_itself_is_raised_once(threads: Threads) -> None:
    calls: list[None] = []

    def fail() -> None:
        calls.append(None)
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError):
        await run_in_thread(fail)
    assert len(calls) == 1


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOENT, errno.EACCES])
async def test_links_are_made_where_open_files_cannot_be_counted(
    autojump_clock: MockClock, world: World, threads: Threads, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.listdir

    def listdir(path: str = ".") -> list[str]:
        if str(path).endswith("/fd"):
            raise OSError(code, os.strerror(code))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    environment = world.environment(descriptors=open_descriptors)
    opening = partial(iris.open_node, credential=world.shop, environment=environment)
    async with opening(listen=[OUTSIDE]) as one, one.subscribe("news") as events, opening(listen=[LOOPBACK]) as other:
        await other.publish("news", "it rains")
        with trio.fail_after(5):
            assert (await anext(events)).payload == "it rains"
