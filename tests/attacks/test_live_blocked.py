"""What members say of handlers that hold them up, and who may know: lies, file names, signals of others, loops."""

from __future__ import annotations

import faulthandler
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.doors import problem_of
from iris.kernel.names import NodeId
from iris.kernel.wire import encode_batch, kinds
from iris.node.blocked import watch as watching
from iris.node.blocked.stacks import Standing
from iris.patterns.request import requests
from iris.patterns.request.blocked import BlockedMembers
from iris.patterns.service.handlers import described
from tests.support.meshes import open_meshes

PLACE: Final = "store.py:12 in write"
ONE: Final = NodeId("1" * 32)

UNFIT: Final = ("\n2026-11-29 CRITICAL root: all is lost", "\x1b[2J", "\x9b2J", "a\rb", "\u2028", "\u202egpj.exe")
"""Places that would begin a line, or command a terminal."""


def said(number: int = 0, place: str = PLACE) -> kinds.Blocked:
    return kinds.Blocked(number, "store", "write", place, 600, False)


@contextmanager
def lying() -> Iterator[iris.Service]:
    """A service whose members are held up by nothing, and never answer."""
    service = iris.Service("store")

    @service.request
    async def write(_: iris.Request) -> None:
        await trio.sleep_forever()

    yield service


@pytest.mark.parametrize("place", UNFIT)
async def test_what_commands_a_terminal_is_in_no_log_and_no_error(
    place: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_meshes("shop", "store") as fleet:
        shop, store = fleet["shop"], fleet["store"]
        with lying() as service, caplog.at_level(logging.INFO, logger="iris"):
            async with store.serve(service):

                async def lie() -> None:
                    await trio.sleep(0.1)
                    (job,) = store.serving.in_progress
                    store.mesh.post(shop.id, said(job.identifier, place), 0)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lie)
                    with pytest.raises(iris.RequestTimeout) as failed:
                        await shop.request("store", b"", timeout=1)
        assert shop.mesh.refusals.pop("message of kind Blocked") == 1
        assert place not in str(failed.value)
        assert not [record for record in caplog.records if "not dead" in record.getMessage()]
        assert store.id in shop.mesh.peers


def always(_: object) -> bool:
    return True


@pytest.mark.parametrize(("idempotent", "gone"), [(True, False), (False, False), (True, True), (False, True)])
async def test_a_file_name_is_for_who_asks_and_goes_no_further(
    *, idempotent: bool, gone: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a handler to its own caller, who may be of another realm, and not through a door."""
    monkeypatch.setattr(requests, "is_acknowledged", always)  # as by TCP
    async with open_meshes("shop", "store") as fleet:
        shop, store = fleet["shop"], fleet["store"]
        with lying() as service:
            async with store.serve(service):

                async def lie() -> None:
                    await trio.sleep(0.1)
                    (job,) = store.serving.in_progress
                    store.mesh.post(shop.id, said(job.identifier), 0)
                    if gone:
                        await trio.sleep(0.1)
                        shop.requests.peer_unreachable(store.id)
                        shop.mesh.drop(store.id, "it is gone")

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lie)
                    with pytest.raises(iris.DeliveryError) as failed:
                        await shop.request("store", b"", timeout=2, idempotent=idempotent)
        error = failed.value
        assert PLACE in str(error)
        passed_on = [described(error, tracebacks=False)[1], problem_of(error).detail]
        assert [text for text in passed_on if "store.py" in text] == []
        if PLACE in str(error):
            assert all(
                "is blocked, not dead: its handler of operation 'write' in 'store' stands" in one for one in passed_on
            )


async def test_what_a_member_says_of_requests_of_others_means_nothing(autojump_clock: MockClock) -> None:
    async with open_meshes("shop", "first", "second", "villain") as fleet:
        shop, villain = fleet["shop"], fleet["villain"]
        lies, answers = iris.Service("store"), iris.Service("store")

        @lies.request
        async def never(_: iris.Request) -> None:
            await trio.sleep_forever()

        @answers.request
        async def at_once(_: iris.Request) -> str:
            return "here"

        async with fleet["first"].serve(lies), fleet["second"].serve(answers):

            async def lie() -> None:
                await trio.sleep(0.1)
                for number in range(64):
                    villain.mesh.post(shop.id, said(number), 0)
                await trio.sleep(0.1)
                assert [attempt.blocks for attempt in shop.requests._waiting.values()] == [None]
                shop.mesh.drop(fleet["first"].id, "it is gone")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lie)
                assert await shop.request("store", b"", timeout=5, idempotent=True) == "here"


def test_a_member_that_comes_again_and_again_has_no_line_for_each_time() -> None:
    blocked = BlockedMembers()
    logged = 0
    for number in range(1000):
        logged += blocked.receive(ONE, said(), number / 200)
        blocked.forget(ONE)
    assert logged == 1
    assert blocked.now == {}


@pytest.mark.parametrize("name", ["/srv/caf\udce9/app.py", "/srv/a\nb/app.py", "/srv/x/\x1b[2Japp.py", "/srv/é/app.py"])
def test_a_file_of_any_name_is_text_of_one_line_on_the_wire(name: str) -> None:
    """Else what a member says of itself would end its links: at its own end, or at that of its peers."""
    standing = Standing("request", "store", "write", None, name, 3, "write", True, "")
    assert standing.place.isprintable()
    assert encode_batch([said(place=standing.place)])


# -- signals and loops --------------------------------------------------------------------------------------


def test_a_signal_that_code_in_c_handles_is_left_to_it() -> None:
    free = watching.free_signals()
    assert free is not None
    faulthandler.register(free[0], file=2)
    try:
        assert signal.getsignal(free[0]) is signal.SIG_DFL, "signal knows nothing of it"
        assert free[0] not in (watching.free_signals() or ())
    finally:
        faulthandler.unregister(free[0])


@pytest.mark.long
def test_the_watch_of_a_thread_that_is_gone_ends() -> None:
    """One whose loop was never closed: another thread may get its identifier, and would be named for it."""
    watches: list[watching.LoopWatch] = []

    def run() -> None:
        async def main() -> None:
            watches.append(watching.LoopWatch(trio.lowlevel.current_trio_token()))

        trio.run(main)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    worker = watches[0]._worker
    worker.join(5)
    assert not worker.is_alive()
