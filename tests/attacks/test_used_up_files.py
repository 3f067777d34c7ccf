"""Files used up at clients, at nodes that only dial, and at the door for nng: they go on when there are some."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.cluster.discovery.local_network import LocalNetwork
from iris.cluster.discovery.mdns import realm_mark
from iris.cluster.discovery.mdns_service import MdnsService
from iris.kernel.tasks import run_in_thread
from iris.node.open import open_parts
from iris.security.authority.issuing import issue_cluster
from iris.security.authority.realm_root import create_realm
from tests.attacks.test_machine_files import none_left

pytestmark = pytest.mark.long


@pytest.mark.parametrize("kind", ["client", "dial_only"])
async def test_who_only_dials_goes_on_when_there_are_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    date = iris.Environment().wall_clock()
    shop = issue_cluster(create_realm(os.urandom), "shop", entropy=os.urandom, wall_now=date)[1]
    service = iris.Service("shop")

    async def reply(request: iris.Request) -> object:
        return request.payload

    service.request(reply)
    opening = partial(open_parts, credential=shop, lan=False)
    options: Any = {kind: True}
    async with (
        opening(listen=["ws://127.0.0.1:0/iris"]) as (hub, _),
        opening(listen=["ws://127.0.0.1:0/iris"], seeds=hub.addresses) as (member, _),
        member.join("shop", service),
    ):
        seeds = [url for url in hub.addresses if url.startswith("ws")]
        async with opening(seeds=seeds, **options) as (caller, parts):
            with trio.fail_after(60):
                assert await caller.request("shop", 0, wait=10) == 0
                taken: list[int] = []

                async def take_what_is_freed() -> None:
                    while True:
                        with contextlib.suppress(OSError):
                            while True:
                                taken.append(os.open("/dev/null", os.O_RDONLY))
                        await trio.sleep(0.002)

                async with trio.open_nursery() as nursery:
                    with none_left():
                        nursery.start_soon(take_what_is_freed)
                        for peer in list(parts.mesh.peers):
                            parts.mesh.drop(peer, "a trial")
                        await trio.sleep(3)
                        with contextlib.suppress(iris.IrisError):
                            await caller.request("shop", 1, timeout=1, wait=1)
                    nursery.cancel_scope.cancel()
                for one in taken:
                    os.close(one)
                assert await caller.request("shop", 2, timeout=30, wait=30) == 2
    told = [record.message for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert len(told) < 10, told


async def test_a_machine_without_a_thread_for_a_question_of_multicast_has_a_node_that_goes_on() -> None:
    """The package begins its threads with an error of Python's own."""
    lan = LocalNetwork(realm_mark("realm"), "own")
    board = await run_in_thread(partial(MdnsService, lan, trio.lowlevel.current_trio_token(), ["127.0.0.1"]))
    asked: list[str] = []

    def fail(kind: str, name: str, within: int) -> None:
        asked.append(name)
        raise RuntimeError("can't start new thread")

    try:
        board._zeroconf.get_service_info = fail  # type: ignore[method-assign, assignment]
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(board.ask)
                for number in range(8):
                    board._ask_for(f"other-{number}")
                while len(asked) < 8:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
    finally:
        await run_in_thread(board.close)
