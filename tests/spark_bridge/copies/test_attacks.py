"""Faults of copies: both sides of a cut network live, disks are full, promotions cross each other."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from iris.kernel.errors import ConfigError, RemoteError, RequestTimeout
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.admin import drop_copy
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies import follower, primary
from iris.spark_bridge.copies.follower import open_copy, read_state
from iris.spark_bridge.copies.promotion import promote
from iris.spark_bridge.copies.wire import Follow, FollowAnswer, receive_message, send_bytes, send_message
from iris.spark_bridge.errors import BridgeUnreachable
from iris.spark_bridge.log import HeldShard
from iris.spark_bridge.log.replication.journal import ABANDONED, ChangeHead, LogChange, Write
from iris.spark_bridge.log.segments import FileSystem
from iris.spark_bridge.server import member
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.successor import follow, reopen
from iris.testing import open_network
from tests.support.arrivals import stored
from tests.support.copies import ended, hold, open_follower, open_primary, values, wait_copies, wait_problem
from tests.support.waiting import wait_until


async def test_in_a_cut_network_the_former_primary_confirms_nothing_and_shows_only_what_both_have(
    tmp_path: Path,
) -> None:
    async with (
        open_network() as network,
        network.open_node("publisher", host="left-1") as left,
        network.open_node("publisher", host="right-1") as right,
        network.open_node("bridge", host="right-2") as operator,
        network.open_node("bridge", host="right-3") as node,
        trio.open_nursery() as nursery,
    ):
        near, far = (BridgeClient(side, "bridge", patience=20) for side in (left, right))
        ended = trio.Event()

        async def be_primary(task_status: trio.TaskStatus[None]) -> None:
            with pytest.RaisesGroup(
                pytest.RaisesExc(ConfigError, match="promoted elsewhere, to term 2"), allow_unwrapped=True
            ):
                async with open_primary(network, tmp_path / "primary", host="left-2"):
                    task_status.started()
                    await trio.sleep_forever()
            ended.set()

        await nursery.start(be_primary)
        async with open_copy(node, bridge="bridge", shard=0, directory=tmp_path / "copy") as copy:
            await wait_copies(near, copy="in step")
            await left.publish_confirmed("a", b"both", timeout=60)
            network.memory.partition(["left-1", "left-2"], ["right-1", "right-2", "right-3"])
            done = await promote(operator, "bridge", 0, min_copies=0)
            assert (done.term, done.min_copies) == (2, 0)
            settings = await copy.wait_promoted()
        async with reopen(node, "bridge", tmp_path / "copy", settings, waiting=print):
            await right.publish_confirmed("a", b"right", timeout=60)
            # On the other side the former primary has received nothing.
            await left.publish("a", b"unconfirmed")
            with pytest.raises(RequestTimeout, match=r"says: (its copies have not|0 of the 1 copies)"):
                await left.publish_confirmed("a", b"left", timeout=5)
            assert await values(near) == [b"both"]
            assert await values(far) == [b"both", b"right"]
            (shard,) = await near.shards()
            with pytest.raises(RemoteError, match=r"no events up to 2: .* ends at 1"):
                async for _ in near.read(shard.address, shard.id, 0, 2):
                    pass
            network.memory.heal()
            with trio.fail_after(60):
                await ended.wait()
            await left.publish_confirmed("a", b"healed", timeout=60)
            assert await values(far) == [b"both", b"right", b"healed"]


async def test_two_promotions_at_the_same_time_make_one_primary(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as one,
        network.open_node("bridge") as other,
        open_follower(network, tmp_path / "copy") as copy,
    ):
        async with open_primary(network, tmp_path / "primary"):
            await wait_copies(BridgeClient(one, "bridge", patience=20), copy="in step")
        outcomes: list[object] = []

        async def try_it(node: Any) -> None:
            try:
                outcomes.append((await promote(node, "bridge", 0)).term)
            except ConfigError as error:
                outcomes.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_it, one)
            nursery.start_soon(try_it, other)
        await copy.wait_promoted()
        (term,) = [outcome for outcome in outcomes if isinstance(outcome, int)]
        (refused,) = [outcome for outcome in outcomes if isinstance(outcome, str)]
        assert "promise" in refused or "has not answered" in refused or "has no copy that is there" in refused
        with pytest.raises(ConfigError):
            await promote(one, "bridge", 0, patience=1)
    state = read_state(tmp_path / "copy")
    assert state is not None
    assert state.term == term


async def test_a_promotion_that_died_half_way_is_done_again(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("bridge") as node, network.open_node("bridge") as operator:
        async with (
            open_copy(node, bridge="bridge", shard=0, directory=tmp_path / "copy") as copy,
            network.open_node("bridge") as former,
        ):
            async with open_bridge(former, topics=[">"], directory=tmp_path / "primary", min_copies=1):
                await wait_copies(BridgeClient(node, "bridge", patience=20), copy="in step")
            # The promise was given, and then the node that promoted it was gone.
            await operator.request("bridge.copies-0", {"term": 2}, operation="promise")
        state = read_state(tmp_path / "copy")
        assert state is not None
        assert state.promised == 2
        async with open_copy(node, bridge="bridge", shard=0, directory=tmp_path / "copy") as copy:
            assert (await promote(operator, "bridge", 0)).term == 3
            await copy.wait_promoted()
        # The process of the copy died behind the promotion: the same command goes on as the primary.
        settings = await follow(node, "bridge", 0, tmp_path / "copy", "copy", partial(pytest.fail, "is a copy"))
        async with reopen(node, "bridge", tmp_path / "copy", settings, waiting=print) as member:
            assert member.copies.term == 3


async def test_a_primary_that_a_promise_was_given_against_ends(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as operator,
        open_follower(network, tmp_path / "copy"),
    ):
        with pytest.RaisesGroup(
            pytest.RaisesExc(ConfigError, match="promoted elsewhere, to term 2"), allow_unwrapped=True
        ):
            async with open_primary(network, tmp_path / "primary"):
                await wait_copies(BridgeClient(operator, "bridge", patience=20), copy="in step")
                await operator.request("bridge.copies-0", {"term": 2}, operation="promise")
                await trio.sleep_forever()


async def test_a_primary_that_a_promise_was_given_against_lets_its_publishers_go_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "_GOODBYE", 600.0)

    async def publish() -> None:
        while True:
            await publisher.publish_confirmed("a", b"1", timeout=600)

    async with (
        open_network() as network,
        network.open_node("bridge") as operator,
        network.open_node("publisher") as publisher,
        open_follower(network, tmp_path / "copy"),
        trio.open_nursery() as publishers,
    ):
        with (
            trio.fail_after(60),
            pytest.RaisesGroup(
                pytest.RaisesExc(ConfigError, match="promoted elsewhere, to term 2"), allow_unwrapped=True
            ),
        ):
            async with open_primary(network, tmp_path / "primary"):
                await wait_copies(BridgeClient(operator, "bridge", patience=20), copy="in step")
                for _ in range(20):
                    publishers.start_soon(publish)
                monkeypatch.setattr(follower, "_PAUSE", 600.0)
                await operator.request("bridge.copies-0", {"term": 2}, operation="promise")
                await trio.sleep_forever()
        publishers.cancel_scope.cancel()


async def test_the_one_of_two_copies_that_has_more_is_promoted(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as operator,
        network.open_node("publisher") as publisher,
        open_follower(network, tmp_path / "a", "a"),
    ):
        client = BridgeClient(operator, "bridge", patience=20)
        async with open_primary(network, tmp_path / "primary"):
            async with open_follower(network, tmp_path / "b", "b"):
                await wait_copies(client, a="in step", b="in step")
                await publisher.publish_confirmed("a", b"1", timeout=60)
                await wait_copies(client, a="in step", b="in step")
            await publisher.publish_confirmed("a", b"2", timeout=60)
        with pytest.raises(ConfigError, match=r"of 2 copies 2 have to be there, and b is not: .* drop --copy b/0"):
            await promote(operator, "bridge", 0, patience=1)
        async with open_follower(network, tmp_path / "another disk", "b"):
            with pytest.raises(ConfigError, match=r"2 have to be there, and b \(empty now\) is not: events that only"):
                await promote(operator, "bridge", 0, patience=1)
        async with open_follower(network, tmp_path / "b", "b"):
            with pytest.raises(ConfigError, match=r"'a' has more than 'b': 1 events would be lost.* --force"):
                await promote(operator, "bridge", 0, copy="b", patience=2)
            with pytest.raises(ConfigError, match="has no copy 'c' that is there; there: a, b"):
                await promote(operator, "bridge", 0, copy="c", patience=1)
            assert (await promote(operator, "bridge", 0)).copy == "a"


async def test_a_copy_that_lost_its_disk_counts_for_no_promotion_until_it_has_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_network() as network,
        network.open_node("publisher") as publisher,
        network.open_node("bridge") as operator,
        open_follower(network, tmp_path / "b", "b") as behind,
        trio.open_nursery() as nursery,
    ):
        gone = trio.Event()

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            async with open_primary(network, tmp_path / "primary"):
                task_status.started()
                await gone.wait()

        client = BridgeClient(publisher, "bridge", patience=5)
        await nursery.start(serve)
        async with open_follower(network, tmp_path / "a", "a"):
            await wait_copies(client, a="in step", b="in step")
            await publisher.publish_confirmed("a", b"1", timeout=60)
        monkeypatch.setattr(primary, "_CLOSE", -1)  # it catches up for ever
        async with open_follower(network, tmp_path / "another disk", "a") as emptied:
            with trio.fail_after(60):
                while not (await emptied._describe()).number:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.02)
            gone.set()
            assert behind.whole
            with pytest.raises(ConfigError, match=r"2 have to be there, and a \(empty now\) is not"):
                await promote(operator, "bridge", 0, patience=1)


async def test_a_former_primary_and_a_copy_that_lost_its_disk_make_no_second_history_while_the_successor_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        open_network() as network,
        network.open_node("publisher") as publisher,
        network.open_node("bridge") as operator,
    ):
        client = BridgeClient(operator, "bridge", patience=20)
        async with network.open_node("bridge") as node, open_follower(network, tmp_path / "a", "a"):
            async with open_copy(node, bridge="bridge", shard=0, directory=tmp_path / "b", name="b") as b:
                async with open_primary(network, tmp_path / "primary"):
                    await wait_copies(client, a="in step", b="in step")
                    await publisher.publish_confirmed("a", b"1", timeout=60)
                await promote(operator, "bridge", 0, copy="b")
                settings = await b.wait_promoted()
            async with reopen(node, "bridge", tmp_path / "b", settings, waiting=print):
                await publisher.publish_confirmed("a", b"first", timeout=60)
        async with trio.open_nursery() as nursery:
            opened = trio.Event()

            async def come_back() -> None:
                async with open_primary(network, tmp_path / "primary"):
                    opened.set()
                    await trio.sleep_forever()

            nursery.start_soon(come_back)
            for _ in range(2):  # it is as new when it comes a second time
                async with open_follower(network, tmp_path / "another disk", "a") as emptied:
                    await wait_until(lambda: emptied.whole)
                    with pytest.raises(RequestTimeout):
                        await publisher.publish_confirmed("a", b"second", timeout=2)
                    assert not opened.is_set()
            assert caplog.text.count("iris bridge drop --copy a/0") == 1
            # A person knows that nobody was promoted, and takes both from the list.
            for name in ("a", "b"):
                await drop_copy(client, 0, name)
            with trio.fail_after(60):
                await opened.wait()
            async with open_follower(network, tmp_path / "another disk", "a"):
                await publisher.publish_confirmed("a", b"second", timeout=60)
            nursery.cancel_scope.cancel()


async def test_a_primary_that_was_cut_off_and_never_stopped_counts_no_copy_that_lost_its_disk(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("publisher", host="left-1") as left,
        network.open_node("publisher", host="right-1") as right,
        network.open_node("bridge", host="right-2") as operator,
        network.open_node("bridge", host="right-3") as node,
    ):
        near = BridgeClient(left, "bridge", patience=20)
        primary = open_primary(network, tmp_path / "primary", host="left-2")
        async with ended(primary, "promoted elsewhere") as wait_ended:
            async with open_follower(network, tmp_path / "a", "a", host="right-4") as a:
                async with open_copy(node, bridge="bridge", shard=0, directory=tmp_path / "b", name="b") as b:
                    await wait_copies(near, a="in step", b="in step")
                    await left.publish_confirmed("a", b"1", timeout=60)
                    network.memory.partition(["left-1", "left-2", "left-3"], [f"right-{n}" for n in range(1, 5)])
                    await promote(operator, "bridge", 0, copy="b")
                    settings = await b.wait_promoted()
                async with reopen(node, "bridge", tmp_path / "b", settings, waiting=print):
                    await a.wait_followed(2)
                    await right.publish_confirmed("a", b"first", timeout=60)
            for _ in range(2):  # it is as new when it comes a second time
                async with open_follower(network, tmp_path / "another disk", "a", host="left-3") as emptied:
                    await wait_until(lambda: emptied.whole)
                    await wait_copies(near, a="not counted", b="away")
                    with pytest.raises(RequestTimeout, match="0 of the 1 copies that it needs are in step"):
                        await left.publish_confirmed("a", b"second", timeout=2)
                    assert await values(near) == [b"1"]
            network.memory.heal()
            async with open_follower(network, tmp_path / "a", "a"):
                await wait_ended()


@pytest.mark.parametrize("others", [["b"], []])
async def test_a_copy_on_another_disk_counts_again_once_the_others_show_that_they_follow(
    tmp_path: Path, others: list[str]
) -> None:
    async with (
        open_network() as network,
        network.open_node("publisher") as publisher,
        open_primary(network, tmp_path / "primary"),
    ):
        client = BridgeClient(publisher, "bridge", patience=5)
        async with AsyncExitStack() as stack:
            for name in others:
                await stack.enter_async_context(open_follower(network, tmp_path / name, name))
            async with open_follower(network, tmp_path / "a", "a"):
                await wait_copies(client, a="in step", **dict.fromkeys(others, "in step"))
            replaced = await stack.enter_async_context(open_follower(network, tmp_path / "another disk", "a"))
            await wait_copies(client, a="in step", **dict.fromkeys(others, "in step"))
            for name in others:
                assert name in replaced._state.counted
        async with open_follower(network, tmp_path / "another disk", "a"):
            await publisher.publish_confirmed("a", b"1", timeout=60)


async def test_a_copy_that_has_left_counts_for_no_confirmation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as operator,
        network.open_node("publisher") as publisher,
        open_primary(network, tmp_path / "primary", min_copies=2),
        open_follower(network, tmp_path / "b", "b") as slow,
        AsyncExitStack() as stack,
    ):
        client = BridgeClient(operator, "bridge", patience=20)
        async with open_follower(network, tmp_path / "a", "a") as gone:
            await wait_copies(client, a="in step", b="in step")
            await publisher.publish_confirmed("a", b"1", timeout=60)
            go_on = hold(monkeypatch, slow, stack)
            await publisher.publish("a", b"2")
            await wait_until(lambda: stored(gone.store) == [b"1", b"2"])
        await wait_copies(client, a="away", b="in step")
        go_on.set()  # of two disks that have it, one may be gone with its copy
        await wait_until(lambda: stored(slow.store) == [b"1", b"2"])
        with pytest.raises(RequestTimeout, match="1 of the 2 copies that it needs are in step"):
            await publisher.publish_confirmed("a", b"3", timeout=5)
        assert await values(client) == [b"1"]
        async with open_follower(network, tmp_path / "another disk", "a"):
            await publisher.publish_confirmed("a", b"4", timeout=60)
            assert await values(client) == [b"1", b"2", b"3", b"4"]


async def test_a_copy_that_is_behind_is_promoted_by_force_and_what_is_lost_is_said(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as operator,
        network.open_node("publisher") as publisher,
    ):
        async with open_primary(network, tmp_path / "primary"):
            client = BridgeClient(operator, "bridge", patience=20)
            async with open_follower(network, tmp_path / "copy"):
                await publisher.publish_confirmed("a", b"1", timeout=60)
        # It confirms alone from now on, and the copy is notified before.
        async with (
            open_follower(network, tmp_path / "copy") as copy,
            ended(
                open_primary(network, tmp_path / "primary", min_copies=0), "promoted elsewhere, to term 2"
            ) as wait_ended,
        ):
            await publisher.publish_confirmed("a", b"2", timeout=60)
            await wait_copies(client, copy="in step")
            with pytest.raises(ConfigError, match="confirms without waiting for copies: what it has confirmed"):
                await promote(operator, "bridge", 0, patience=1)
            done = await promote(operator, "bridge", 0, force=True, patience=1)
            assert len(done.lost) == 1
            await copy.wait_promoted()
            assert stored(copy.store) == [b"1", b"2"]
            await wait_ended()


async def test_two_copies_that_come_at_the_same_time_are_both_known(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as operator,
        open_primary(network, tmp_path / "primary") as member,
        AsyncExitStack() as stack,
    ):
        writing = member.copies._writing
        async with writing:
            for name in ("a", "b"):
                await stack.enter_async_context(open_follower(network, tmp_path / name, name))
            await wait_until(lambda: writing.statistics().tasks_waiting >= 2)
        await wait_copies(BridgeClient(operator, "bridge", patience=20), a="in step", b="in step")


async def test_a_copy_that_comes_while_it_is_dropped_stays(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as operator,
        open_primary(network, tmp_path / "primary") as member,
    ):
        client = BridgeClient(operator, "bridge", patience=20)
        async with open_follower(network, tmp_path / "a", "a"):
            await wait_copies(client, a="in step")
        await wait_copies(client, a="away")
        async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
            writing = member.copies._writing

            async def drop() -> None:
                with pytest.raises(ConfigError, match="is there: stop it"):
                    await member.copies.forget("a")

            async with writing:
                nursery.start_soon(drop)
                await stack.enter_async_context(open_follower(network, tmp_path / "a", "a"))
                await wait_until(lambda: writing.statistics().tasks_waiting >= 2)
            await wait_copies(client, a="in step")


async def test_a_copy_whose_disk_is_full_holds_up_confirmations_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FileSystem.write

    def fail(disk: FileSystem, descriptor: int, parts: Sequence[bytes | memoryview], position: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(tmp_path / "copy"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(disk, descriptor, parts, position)

    async with (
        open_network() as network,
        open_primary(network, tmp_path / "primary") as member,
        network.open_node("publisher") as publisher,
        open_follower(network, tmp_path / "copy") as copy,
    ):
        await publisher.publish_confirmed("a", b"1", timeout=60)
        monkeypatch.setattr(FileSystem, "write", fail)
        await publisher.publish("a", b"2")
        with pytest.raises(RequestTimeout, match=r"says: (its copies have not|0 of the 1 copies)"):
            await publisher.publish_confirmed("a", b"3", timeout=5)
        await wait_problem(copy, "this copy has no room: no room for events")
        assert stored(member.store) == [b"1", b"2", b"3"]
        assert stored(copy.store) == [b"1"]
        monkeypatch.setattr(FileSystem, "write", write)
        await publisher.publish_confirmed("a", b"4", timeout=60)
        assert stored(copy.store) == [b"1", b"2", b"3", b"4"]


async def test_a_copy_that_hangs_is_cut_off_and_events_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary, "_STALLED", 1.0)
    monkeypatch.setattr(primary, "_ROOM", 1000)
    async with (
        open_network() as network,
        open_primary(network, tmp_path / "primary") as member,
        network.open_node("publisher") as publisher,
        open_follower(network, tmp_path / "copy") as copy,
        AsyncExitStack() as stack,
    ):
        await publisher.publish_confirmed("a", b"1", timeout=60)
        go_on = hold(monkeypatch, copy, stack)
        await publisher.publish("a", b"2" * 2000)
        with pytest.raises(RequestTimeout, match=r"says: (its copies have not|0 of the 1 copies)"):
            await publisher.publish_confirmed("a", b"3", timeout=6)
        assert stored(member.store)[2] == b"3"  # it waited for the copy, and then no more
        go_on.set()
        await publisher.publish_confirmed("a", b"4", timeout=60)
        assert stored(copy.store) == stored(member.store)


async def test_of_those_that_come_by_one_name_while_a_thread_reads_for_the_first_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[str] = []
    arrived = 0
    held_untrusted = primary._held_untrusted

    def note(data: bytes) -> list[HeldShard]:
        nonlocal arrived
        arrived += 1
        return held_untrusted(data)

    async def come(tunnel: Tunnel) -> None:
        held = msgspec.msgpack.encode([])
        await send_message(tunnel, Follow(copy="copy", term=1, promised=1, revision=0, held=len(held)))
        await send_bytes(tunnel, held)

    async def wait_end(tunnel: Tunnel) -> None:
        while type(message := await tunnel.receive()) is not dict or "error" not in message:
            pass
        replaced.append(str(cast("dict[str, object]", message)["error"]))

    async with (
        open_network() as network,
        open_primary(network, tmp_path / "primary") as member,
        network.open_node("bridge") as node,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
    ):
        go_on = threading.Event()
        stack.callback(go_on.set)
        cuts = member.store.replication.cuts

        def hang(*arguments: Any) -> Any:
            go_on.wait()
            return cuts(*arguments)

        monkeypatch.setattr(member.store.replication, "cuts", hang)
        monkeypatch.setattr(primary, "_held_untrusted", note)
        first, *others = [
            await stack.enter_async_context(node.open_tunnel("bridge.primary-0", operation="follow")) for _ in range(3)
        ]
        await come(first)
        await receive_message(first, FollowAnswer)
        for tunnel in others:
            await come(tunnel)
        await wait_until(lambda: arrived >= 3)
        for tunnel in (first, *others):  # the last two wait until the first one has ended
            nursery.start_soon(wait_end, tunnel)
        go_on.set()
        await wait_until(lambda: len(replaced) >= 2)
        await wait_copies(BridgeClient(node, "bridge", patience=5), copy="not counted")
        assert replaced == ["Replaced", "Replaced"]
        nursery.cancel_scope.cancel()


async def test_of_a_transaction_that_fails_nothing_is_owed_to_a_copy_or_kept_for_it() -> None:
    def change(number: int) -> LogChange:
        return LogChange(ChangeHead(number, number > 0, (), (), [Write(0, "", 0, 0, 10)]), [bytes(10)])

    follower = primary._Follower("copy", cast("Any", None))
    for queued in (change(0), change(7), change(0), change(0), ABANDONED, change(0), change(8), change(0)):
        follower.add(queued)
    assert [queued.head.number for queued in follower.queue] == [0, 7, 0, 8, 0]
    assert follower.size == 50
    follower.leave_out(7)
    assert [queued.head.number for queued in follower.queue] == [0, 8, 0]
    follower.confirmed(8)
    assert follower.size == 10


async def test_what_arrives_while_a_copy_writes_gathers_in_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_network() as network,
        open_primary(network, tmp_path / "primary") as member,
        network.open_node("publisher") as publisher,
        open_follower(network, tmp_path / "copy") as copy,
        AsyncExitStack() as stack,
    ):
        await publisher.publish_confirmed("a", b"first", timeout=60)
        go_on = hold(monkeypatch, copy, stack)
        before = member.statistics()
        for number in range(10):
            await publisher.publish("a", b"%d" % number)
            with trio.fail_after(60):
                while member.statistics().received < before.received + number + 1:  # noqa: ASYNC110
                    await trio.sleep(0.001)
                while member.statistics().commits < before.commits + min(number + 1, 2):  # noqa: ASYNC110
                    await trio.sleep(0.001)
        held = member.statistics()
        assert (held.commits - before.commits, held.waiting) == (2, 8)
        go_on.set()
        await publisher.publish_confirmed("a", b"last", timeout=60)
        assert member.statistics().commits - before.commits <= 4
        assert stored(copy.store) == [b"first", *(b"%d" % number for number in range(10)), b"last"]


async def test_a_copy_of_a_copy_finds_no_primary(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_follower(network, tmp_path / "a", "a"),
        open_follower(network, tmp_path / "b", "b") as copy,
    ):
        await wait_problem(copy, "no primary of shard 0 of bridge 'bridge' is there")


async def test_a_copy_of_another_log_is_not_taken(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("publisher") as publisher:
        async with open_primary(network, tmp_path / "other", min_copies=0):
            await publisher.publish_confirmed("a", b"1", timeout=60)
        async with open_primary(network, tmp_path / "primary"):
            with pytest.RaisesGroup(
                pytest.RaisesExc(ConfigError, match="of another log; a copy begins with an empty directory"),
                allow_unwrapped=True,
            ):
                async with open_follower(network, tmp_path / "other") as copy:
                    await copy.wait_promoted()


async def test_a_primary_that_waits_for_a_copy_that_is_gone_is_told_so(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as operator,
        network.open_node("publisher") as publisher,
    ):
        async with open_primary(network, tmp_path / "primary"), open_follower(network, tmp_path / "copy"):
            await publisher.publish_confirmed("a", b"1", timeout=60)
        async with network.open_node("bridge") as node, trio.open_nursery() as nursery:
            opened = trio.Event()
            waits = trio.Event()

            async def open_again() -> None:
                async with open_bridge(
                    node, topics=[">"], directory=tmp_path / "primary", waiting=lambda _: waits.set()
                ):
                    opened.set()
                    await trio.sleep_forever()

            nursery.start_soon(open_again)  # without copies from now on: the last one has to know
            await waits.wait()
            with pytest.raises(BridgeUnreachable):
                await BridgeClient(operator, "bridge", patience=1).shards()
            await drop_copy(BridgeClient(operator, "bridge", patience=20), 0, "copy")
            await opened.wait()
            await publisher.publish_confirmed("a", b"2", timeout=60)
            nursery.cancel_scope.cancel()
