"""Leases, idempotency keys and purges at a bridge whose members get other names, or whose disk is full for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.kernel.errors import IrisError
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.server import leases
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import open_network
from tests.support.bridge_members import open_member, open_members

pytestmark = pytest.mark.long


@pytest.mark.parametrize("after", [["b", "a"], ["z", "y"], ["b", "z"]])
async def test_a_lease_is_kept_when_the_members_of_its_bridge_have_other_names(
    tmp_path: Path, after: list[str]
) -> None:
    async with (
        open_network() as network,
        network.open_node("workers") as one,
        network.open_node("workers") as two,
    ):
        closing, opened, over = trio.Event(), trio.Event(), trio.Event()

        async def run_bridges() -> None:
            async with open_members(network, tmp_path, ["a", "b"], of=2):
                await closing.wait()
            async with open_members(network, tmp_path, after, of=2):
                opened.set()
                await over.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_bridges)
            await one.wait_for("bridge")
            async with one.bridge().lease("scheduler", ttl=6) as lease:
                token = lease.token
                closing.set()
                await opened.wait()
                await trio.sleep(14)
                assert lease.left > 0
                with pytest.raises(iris.RequestTimeout):
                    async with two.bridge().lease("scheduler", ttl=6, timeout=0.5):
                        pass
            async with two.bridge().lease("scheduler", ttl=6, timeout=3) as later:
                assert later.token > token
            over.set()


async def test_a_lease_that_ended_while_the_disk_was_full_is_not_there_again_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_network() as network, network.open_node("workers") as node:
        async with (
            network.open_node("bridge") as bridge,
            open_bridge(bridge, topics=[">"], directory=tmp_path),
        ):
            await node.wait_for("bridge")
            async with node.bridge().lease("first", ttl=600):
                pass
            with monkeypatch.context() as patch:
                patch.setattr(leases, "write_lease", no_room)
                with pytest.raises(IrisError, match="no room"):
                    async with node.bridge().lease("second", ttl=1, timeout=5):
                        pass
            async with node.bridge().lease("third", ttl=1, timeout=5):
                pass
        async with (
            network.open_node("bridge") as bridge,
            open_bridge(bridge, topics=[">"], directory=tmp_path),
        ):
            await trio.sleep(2)
            async with node.bridge().lease("first", ttl=1, timeout=5):
                pass


def no_room(*_: object) -> None:
    raise StoreFull("no room for that")


async def test_a_holder_whose_second_question_finds_no_room_has_its_lease_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_network() as network, open_member(network, tmp_path), network.open_node("workers") as node:
        await node.wait_for("bridge")

        async def ask(holder: bytes) -> Any:
            fields = {"name": "x", "cluster": "workers", "holder": holder, "ttl": 60.0, "wait": 0.0}
            return await node.request("bridge", fields, operation="lease")

        first = await ask(b"a" * 16)
        with monkeypatch.context() as patch:
            patch.setattr(leases, "write_lease", no_room)
            with pytest.raises(IrisError, match="no room"):
                await ask(b"a" * 16)
        assert "busy" in await ask(b"b" * 16)
        assert (await ask(b"a" * 16))["token"] == first["token"]


class Bank:
    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.service = iris.Service("bank", outcomes=iris.Outcomes())
        self.during: Any = None

        @self.service.request
        async def pay(request: iris.Request) -> str:
            self.ran.append(request.payload)
            if self.during is not None:
                await self.during()
            return f"paid {request.payload}"


@pytest.mark.parametrize("after", [["b", "a"], ["z", "y"], ["b", "z"]])
async def test_a_key_means_the_same_when_the_members_of_its_bridge_have_other_names(
    tmp_path: Path, after: list[str]
) -> None:
    """One request is at work meanwhile, others were answered before."""
    bank = Bank()
    closing, opened, over, at_work = trio.Event(), trio.Event(), trio.Event(), trio.Event()
    async with (
        open_network() as network,
        network.open_node("bank") as member,
        network.open_node("desk") as desk,
        member.join("bank", bank.service),
    ):

        async def run_bridges() -> None:
            async with open_members(network, tmp_path, ["a", "b"], of=2):
                await closing.wait()
            async with open_members(network, tmp_path, after, of=2):
                opened.set()
                await over.wait()

        async def slow() -> None:
            at_work.set()
            await opened.wait()
            await trio.sleep(1)

        found: list[Any] = []

        async def ask(number: int) -> None:
            found.append(
                await desk.request("bank", number, timeout=40, options=iris.RequestOptions(idempotency_key=f"{number}"))
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_bridges)
            await member.wait_for("bridge")
            await desk.wait_for("bank")
            for number in range(4):
                await ask(number)
            bank.during = slow
            async with trio.open_nursery() as asking:
                asking.start_soon(ask, 4)
                await at_work.wait()
                closing.set()
            bank.during = None
            assert found == [f"paid {number}" for number in range(5)]
            for number in range(5):
                await ask(number)
            assert found[5:] == found[:5]
            assert bank.ran == [*range(5)]
            over.set()


@pytest.mark.parametrize("full", ["claim", "record", "both"])
async def test_a_key_runs_once_though_the_disk_is_full_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    bank = Bank()
    left = 0
    write = BridgeMember.write

    async def change(self: BridgeMember, *args: Any, **options: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise StoreFull("no room for that")
        return await write(self, *args, **options)

    async with (
        open_network() as network,
        open_member(network, tmp_path),
        network.open_node("bank") as member,
        network.open_node("desk") as desk,
        member.join("bank", bank.service),
    ):
        await desk.wait_for("bank")
        await member.wait_for("bridge")
        monkeypatch.setattr(BridgeMember, "write", change)

        async def fill() -> None:
            nonlocal left
            left = 3
            await trio.lowlevel.checkpoint()

        if full != "claim":
            bank.during = fill
        if full != "record":
            left = 1
            with pytest.raises(IrisError):
                await desk.request("bank", "x", timeout=20, options=iris.RequestOptions(idempotency_key="k"))
            assert bank.ran == []
        first = await desk.request("bank", "x", timeout=20, options=iris.RequestOptions(idempotency_key="k"))
        assert (
            await desk.request("bank", "x", timeout=20, options=iris.RequestOptions(idempotency_key="k"))
            == first
            == "paid x"
        )
        assert bank.ran == ["x"]


@pytest.mark.parametrize("after", [["b", "a"], ["z", "y"]])
async def test_who_waits_for_a_lease_gets_it_though_the_members_have_other_names_by_then(
    tmp_path: Path, after: list[str]
) -> None:
    async with (
        open_network() as network,
        network.open_node("workers") as one,
        network.open_node("workers") as two,
        trio.open_nursery() as nursery,
    ):
        closing, opened, got, over = trio.Event(), trio.Event(), trio.Event(), trio.Event()

        async def run_bridges() -> None:
            async with open_members(network, tmp_path, ["a", "b"], of=2):
                await closing.wait()
            async with open_members(network, tmp_path, after, of=2):
                opened.set()
                await over.wait()

        async def wait() -> None:
            while not got.is_set():
                try:
                    async with two.bridge().lease("x", ttl=5, timeout=40):
                        got.set()
                except (iris.NoSuchCluster, iris.RemoteError):
                    await trio.sleep(0.2)  # in the moment in which there is no bridge at all

        nursery.start_soon(run_bridges)
        await one.wait_for("bridge")
        async with one.bridge().lease("x", ttl=5, timeout=10):
            nursery.start_soon(wait)
            await trio.sleep(1)
            closing.set()
            await opened.wait()
            await trio.sleep(8)
            assert not got.is_set()
        with trio.fail_after(10):
            await got.wait()
        over.set()


async def test_nothing_of_a_purged_queue_comes_back_after_a_restart(tmp_path: Path) -> None:
    """Delayed jobs, retries, and jobs of a key behind others, at two members; one worker goes on meanwhile."""
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        node.bridge().queue("jobs", backoff=2.0, attempts=5) as jobs,
    ):
        taker = jobs.receive(4)
        async with open_members(network, tmp_path, ["a", "b"], of=2):
            await node.wait_for("bridge")
            for number in range(24):
                await jobs.put(number, key=str(number % 4) if number % 2 else None, delay=3.0 * (number % 3 == 0))
            with trio.fail_after(20):
                for _ in range(4):
                    (await anext(taker)).fail("once")
            await trio.sleep(0.5)
            for name in "ab":
                await node.request(f"bridge.{name}", {"group": "queue/jobs"}, operation="purge")
        async with open_members(network, tmp_path, ["a", "b"], of=2):
            await node.wait_for("bridge")
            seen: list[Any] = []
            with trio.move_on_after(6):
                while True:
                    async with await anext(taker) as job:
                        seen.append(job.payload)
            assert seen == []
            await jobs.put("new")
            with trio.fail_after(20):
                async with await anext(taker) as job:
                    assert job.payload == "new"
