"""Documents of whole nodes: who has what when, who may, and what faults and malice cost."""

from __future__ import annotations

import logging
import math
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.kernel.errors import ConfigError, RemoteError, RequestTimeout
from iris.patterns.service import Tunnels
from iris.patterns.state import SharedState, StateChange
from iris.patterns.state.entries import VALUE, WRITERS, Edit, Entry, encode
from iris.patterns.state.shared_types import SharedMap
from iris.testing import Network, Rights, inspect_document
from tests.support.federations import open_federation
from tests.support.states import draw, edit, replica, with_number


@pytest.fixture
async def network(autojump_clock: MockClock) -> AsyncIterator[Network]:
    async with iris.testing.open_network(seed=7) as network:
        yield network


def in_real_time(clock: MockClock) -> None:
    """Have a test of the disk wait for the threads that write: virtual time would be over before they are."""
    clock.rate, clock.autojump_threshold = 1.0, math.inf


class Documents:
    """Members of the cluster ``prices``, on hosts of the same name, each in a task of its own until the test ends."""

    def __init__(self, network: Network, nursery: trio.Nursery) -> None:
        self.network = network
        self.nodes: dict[str, iris.Node] = {}
        self._nursery = nursery
        self._over = trio.Event()

    async def open(self, *hosts: str, **options: Any) -> list[SharedState]:
        return [await self._nursery.start(partial(self._hold, host, options)) for host in hosts]

    async def _hold(self, host: str, options: dict[str, Any], *, task_status: trio.TaskStatus[SharedState]) -> None:
        async with self.network.open_node("prices", host=host) as node, node.state("prices", **options) as state:
            self.nodes[host] = node
            task_status.started(state)
            await self._over.wait()

    def end(self) -> None:
        self._over.set()


@asynccontextmanager
async def opened(network: Network) -> AsyncIterator[Documents]:
    async with trio.open_nursery() as nursery:
        documents = Documents(network, nursery)
        yield documents
        documents.end()


@pytest.fixture
async def documents(network: Network) -> AsyncIterator[Documents]:
    async with opened(network) as documents:
        yield documents


async def equal(*states: SharedState, within: float = 30.0) -> None:
    """Wait until documents have the same writes; then they are equal."""
    for state in states:
        await state.settled(len(states), timeout=within)
    assert len({repr(sorted(state.items())) for state in states}) == 1


async def test_what_one_member_writes_all_have(autojump_clock: MockClock, documents: Documents) -> None:
    one, two, three = await documents.open("one", "two", "three")
    one["eur"] = 1.07
    two.counter("visits").add(2)
    three.counter("visits").add(3)
    three.set("tags").add("x")
    three.map("limits")["most"] = 9
    three.map("limits").counter("hits").add(4)
    three.map("limits").set("names").add("y")
    for state in (one, two, three):
        await state.settled(3)
    for state in (one, two, three):
        assert dict(state) == {"eur": 1.07}
        assert int(state.counter("visits")) == 5
        assert set(state.set("tags")) == {"x"}
        limits = state.map("limits")
        assert (dict(limits), int(limits.counter("hits")), set(limits.set("names"))) == ({"most": 9}, 4, {"y"})
    counted = one.statistics()
    assert (counted.keys, counted.writers, counted.edits, counted.received) == (1, 3, 1, 2)
    assert documents.nodes["one"].statistics().states == {"prices": counted}


async def test_a_member_that_comes_has_it_all_when_its_block_begins(
    autojump_clock: MockClock, documents: Documents
) -> None:
    (one,) = await documents.open("one")
    for number in range(1000):
        one[f"key.{number}"] = number
    (late,) = await documents.open("late")
    assert len(late) == 1000
    del one["key.5"]
    await one.settled()
    assert "key.5" not in late


async def test_settled_says_how_many_have_it(autojump_clock: MockClock, documents: Documents) -> None:
    one, two = await documents.open("one", "two")
    one["a"] = 1
    await one.settled(2)
    assert two["a"] == 1
    with pytest.raises(RequestTimeout, match="1 of 3 members of 'prices' have what this one has written after 1 s"):
        await one.settled(3, timeout=1)
    documents.network.memory.partition(["one"], ["two"])
    one["a"] = 2
    with pytest.raises(RequestTimeout, match="1 of 2 members"):
        await one.settled(2, timeout=0.5)
    documents.network.memory.heal()
    await one.settled(2, timeout=30)
    assert two["a"] == 2


async def test_settled_waits_for_nobody_who_has_left(autojump_clock: MockClock, documents: Documents) -> None:
    one, _, _ = await documents.open("one", "two", "three")
    documents.network.memory.partition(["one", "two"], ["three"])
    one["a"] = 1
    with pytest.raises(RequestTimeout, match="of 3 members"):
        await one.settled(timeout=2)
    began = trio.current_time()
    await one.settled(timeout=60)
    assert trio.current_time() - began < 55, "the third one is lost meanwhile"


async def test_a_partition_ends_in_equal_documents(autojump_clock: MockClock, documents: Documents) -> None:
    states = await documents.open("a", "b", "c", "d")
    documents.network.memory.partition(["a", "b"], ["c", "d"])
    for number, state in enumerate(states):
        state["same"] = number
        state[f"own.{number}"] = number
        state.counter("c").add(1)
        await trio.sleep(1)
    documents.network.memory.heal()
    await equal(*states)
    assert int(states[0].counter("c")) == 4


async def test_lost_messages_are_made_up_for(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network(seed=11, loss=0.05) as network, opened(network) as documents:
        states = await documents.open("a", "b", "c")
        for number in range(100):
            states[number % 3][f"key.{number % 10}"] = number
            await trio.sleep(0.01)
        await equal(*states)


async def test_a_watcher_gets_what_is_there_and_then_what_changes(
    autojump_clock: MockClock, documents: Documents
) -> None:
    one, two = await documents.open("one", "two")
    one["fx.eur"] = 1
    one["other"] = 1
    await one.settled(2)
    watch = two.watch("fx.*")

    async def following() -> StateChange:
        with trio.fail_after(5):
            return await anext(watch)

    assert await following() == StateChange(key="fx.eur", kind="value", value=1, removed=False)
    one["fx.usd"] = 2
    one["other"] = 2
    assert (await following()).key == "fx.usd"
    del one["fx.eur"]
    assert await following() == StateChange(key="fx.eur", kind="value", value=None, removed=True)
    two["fx.own"] = 3
    assert (await following()).value == 3
    one.counter("fx.count").add(4)
    assert await following() == StateChange(key="fx.count", kind="counter", value=4, removed=False)
    one.set("fx.set").add("x")
    assert await following() == StateChange(key="fx.set", kind="set", value=None, removed=False)
    one.map("fx.map").counter("n").add(1)
    assert await following() == StateChange(key="fx.map", kind="map", value=None, removed=False)
    for number in range(100):
        one["fx.eur"] = number
    await one.settled(2)
    assert (await following()).value == 99, "a slow reader gets the last"
    with trio.move_on_after(1) as scope:
        await anext(watch)
    assert scope.cancelled_caught
    with pytest.raises(ConfigError, match="not a topic pattern"):
        one.watch("a b")


async def test_a_watcher_gets_what_is_there_in_order(autojump_clock: MockClock, documents: Documents) -> None:
    one, two = await documents.open("one", "two")
    keys = [f"k.{number:02}" for number in range(20)]
    for key in (*keys[::2], *reversed(keys[1::2])):
        one[key] = 1
        one.counter(key).add(1)
    await one.settled(2)
    for state in (one, two):
        watch = state.watch("k.*")
        with trio.fail_after(5):
            seen = [await anext(watch) for _ in range(40)]
        assert [(change.kind, change.key) for change in seen] == [
            (kind, key) for kind in ("value", "counter") for key in keys
        ]


async def test_keys_that_come_and_go_do_not_wait_for_a_slow_watcher(
    autojump_clock: MockClock, documents: Documents
) -> None:
    (one,) = await documents.open("one")
    one["known"] = 1
    watch = one.watch()
    assert (await anext(watch)).key == "known"
    for number in range(50):
        one[f"brief.{number}"] = 1
        del one[f"brief.{number}"]
    del one["known"]
    one["last"] = 1
    seen = [await anext(watch), await anext(watch)]
    assert [(change.key, change.removed) for change in seen] == [("known", True), ("last", False)]


async def test_watches_have_no_lists_of_their_own(autojump_clock: MockClock, documents: Documents) -> None:
    """Programs that open many and read nothing would fill a member."""
    (one,) = await documents.open("one")
    for number in range(5_000):
        one[f"key.{number}"] = number
    tracemalloc.start()
    try:
        watches = [one.watch() for _ in range(50)]
        assert [(await anext(watch)).key for watch in watches] == ["key.0"] * 50
        assert tracemalloc.get_traced_memory()[0] < 3_000_000
    finally:
        tracemalloc.stop()
    for number in range(5_100):
        one[f"key.{number}"] = -number
    assert inspect_document(one).changes == 5_100
    del watches
    one["key.0"] = 0
    assert inspect_document(one).changes == 0


async def test_a_watch_ends_with_its_document(autojump_clock: MockClock, documents: Documents) -> None:
    async with documents.network.open_node("prices", host="x") as node:
        async with node.state("prices") as state:
            state["a"] = 1
            watch = state.watch()
        assert [change.key async for change in watch] == ["a"]
        with pytest.raises(trio.ClosedResourceError, match="nobody gets what is written"):
            state["b"] = 1
        assert state["a"] == 1
        assert node.statistics().states == {}


async def test_what_is_written_last_is_given_on_when_the_block_ends(
    autojump_clock: MockClock, documents: Documents
) -> None:
    (one,) = await documents.open("one")
    async with documents.network.open_node("prices", host="brief") as node, node.state("prices") as brief:
        brief["parting"] = 1
    assert one["parting"] == 1


async def test_a_large_edit_by_broadcast_is_refused_unread(autojump_clock: MockClock, documents: Documents) -> None:
    """Reading it would hold up everything else that the node does."""
    one, _ = await documents.open("one", "two")
    await documents.nodes["two"].broadcast("prices", bytes(300_000))
    with trio.fail_after(5):
        while one.statistics().refused != {"malformed": 1}:  # noqa: ASYNC110 -- there is no event
            await trio.sleep(0.01)


async def test_a_large_edit_is_fetched(autojump_clock: MockClock, documents: Documents) -> None:
    one, two, three = await documents.open("one", "two", "three")
    for number in range(12):
        one[f"large.{number}"] = "x" * 250_000
    await one.settled(3, timeout=30)
    assert len(two) == len(three) == 12
    assert two.statistics().early == three.statistics().early == 1


async def test_what_is_written_between_two_waits_is_one_change(autojump_clock: MockClock, documents: Documents) -> None:
    one, two = await documents.open("one", "two")
    one["a"], one["b"] = 1, 2
    one.update(c=3, d=4)
    await one.settled(2)
    assert dict(two) == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert two.statistics().received == 1


async def test_edits_that_build_on_what_nobody_has_are_kept_nowhere(
    autojump_clock: MockClock, documents: Documents
) -> None:
    one, two = await documents.open("one", "two")
    async with documents.network.open_node("prices", host="bad") as bad, bad.join("prices", iris.Service("prices")):
        await bad.wait_for("prices", 3)
        entry = Entry(2 * WRITERS + 7, VALUE, "", "", "k", encode("x" * 100_000))
        for number in range(20):
            await bad.broadcast("prices", encode(Edit(7, 2, 1, {8: number + 1}, [entry], [])))
        one["a"] = 1
        while two.get("a") != 1:  # noqa: ASYNC110 -- there is no event
            await trio.sleep(0.01)
    assert one.statistics().early == 20
    assert "k" not in one


# -- numbers of writers ----------------------------------------------------------------------------------------


async def test_what_was_heard_of_who_uses_a_number_counts_no_more_when_it_was_left(
    autojump_clock: MockClock, documents: Documents
) -> None:
    states = one, two, three = await documents.open("one", "two", "three")
    for at, state in enumerate((one, two)):
        draw(state, 7, at)
    one["a"], two["b"] = 1, 2
    await equal(*states)
    assert three.statistics().received > 0
    assert [inspect_document(state).claims for state in states] == [1, 1, 2], "each by one number"
    assert 7 not in {inspect_document(state).writer for state in states}
    assert dict(three) == {"a": 1, "b": 2}


async def test_who_has_written_much_with_a_number_loses_nothing_to_who_has_written_little_with_it(
    autojump_clock: MockClock, documents: Documents
) -> None:
    states = one, two, _ = await documents.open("one", "two", "three")
    documents.network.memory.partition(["one"], ["two", "three"])
    for at, state in enumerate((one, two)):
        draw(state, 7, at)
    one["early"] = 1
    one._replica.vector[7] = 2**20 + 2**19  # as if it had written something else so often
    for number in range(5):
        one["late"] = two["later"] = number
    await trio.sleep(1)
    documents.network.memory.heal()
    await equal(*states)
    assert dict(one) == {"early": 1, "late": 4, "later": 4}


# -- on disk ---------------------------------------------------------------------------------------------------


async def test_a_document_outlives_its_last_member_on_disk(
    autojump_clock: MockClock, network: Network, tmp_path: Path
) -> None:
    in_real_time(autojump_clock)
    path = tmp_path / "prices.iris"
    for expected in ({}, {"run": 1}, {"run": 2}):
        async with network.open_node("prices") as node, node.state("prices", path=path) as state:
            assert dict(state) == expected
            state["run"] = (len(expected) and expected["run"] + 1) or 1
    assert path.stat().st_mode & 0o777 == 0o600


async def test_what_is_to_be_written_anew_is_on_disk_when_its_writer_ends(
    autojump_clock: MockClock, network: Network, tmp_path: Path
) -> None:
    in_real_time(autojump_clock)
    keys = {f"own.{number}" for number in range(600)}
    other = with_number(1, 7)
    SharedMap(other, "").update({f"other.{number}": number for number in range(600)})
    (made,) = other.pop_edits()
    async with network.open_node("prices") as node, node.state("prices", path=tmp_path / "copy") as state:
        draw(state, 7, 1)
        state.update(dict.fromkeys(keys, 1))
        await trio.lowlevel.checkpoint()
        assert state._replica.apply(made)
        assert len(keys - {*state}) > 200, "some are hidden"
    async with network.open_node("prices") as node, node.state("prices", path=tmp_path / "copy") as state:
        assert keys - {*state} == set()


async def test_a_service_that_starts_alone_is_paused_if_this_machine_knows_so(
    autojump_clock: MockClock, network: Network, tmp_path: Path
) -> None:
    in_real_time(autojump_clock)
    path = tmp_path / "flags"
    service = iris.Service("checkout", paused_by="flags.checkout")
    service.request(lambda: "paid")
    async with network.open_node("shop") as node, node.state("flags", path=path) as flags:
        flags["checkout"] = True
    async with network.open_node("shop") as node:
        async with node.state("flags"), node.join("checkout", service):
            assert await node.request("checkout") == "paid"
        async with node.state("flags", path=path), node.join("checkout", service):
            with pytest.raises(RemoteError, match="cluster 'checkout' is paused"):
                await node.request("checkout")


async def test_changes_of_others_are_on_disk_within_seconds(
    autojump_clock: MockClock, documents: Documents, tmp_path: Path
) -> None:
    in_real_time(autojump_clock)
    one, _ = await documents.open("one", "two")
    path = tmp_path / "prices.iris"
    (kept,) = await documents.open("kept", path=path)
    one["a"] = 1
    await one.settled(3)
    with trio.fail_after(60):
        while not path.exists():  # noqa: ASYNC110 -- a thread writes it
            await trio.sleep(0.1)
    async with (
        iris.testing.open_network(seed=1) as other,
        other.open_node("prices") as node,
        node.state("prices", path=path) as state,
    ):
        assert dict(state) == {"a": 1}
    assert kept.statistics().unsaved == 0


async def test_a_damaged_copy_is_named(autojump_clock: MockClock, network: Network, tmp_path: Path) -> None:
    in_real_time(autojump_clock)
    path = tmp_path / "prices.iris"
    async with network.open_node("prices") as node:
        async with node.state("prices", path=path) as state:
            state["a"] = 1
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=r"prices\.iris is damaged: move it away"):
            async with node.state("prices", path=path):
                pass
        with pytest.raises(ConfigError, match="the copy of a document"):
            async with node.state("prices", path=tmp_path):
                pass


async def test_a_disk_that_cannot_be_written_is_counted_and_tried_again(
    autojump_clock: MockClock, network: Network, tmp_path: Path
) -> None:
    in_real_time(autojump_clock)
    path = tmp_path / "away" / "prices.iris"
    async with network.open_node("prices") as node, node.state("prices", path=path) as state:
        state["a"] = 1
        await trio.sleep(3)
        assert state.statistics().unsaved >= 1
        path.parent.mkdir()
        with trio.fail_after(10):
            while not path.exists():  # noqa: ASYNC110 -- a thread writes it
                await trio.sleep(0.1)


# -- who may ---------------------------------------------------------------------------------------------------


async def test_who_may_not_serve_the_cluster_may_not_have_its_document(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network(seed=7, rights=Rights(serves=())) as network, AsyncExitStack() as stack:
        member = await stack.enter_async_context(network.open_node("prices"))
        state = await stack.enter_async_context(member.state("prices"))
        state["a"] = 1
        stranger, stranger_parts = await stack.enter_async_context(network.open_parts("shop"))
        with pytest.raises(ConfigError, match="has no right to serve 'prices'"):
            async with stranger.state("prices"):
                pass
        # what its node would do for it, it does by hand
        other = replica(99)
        edit(other, 0, random.Random(7))
        await stranger.broadcast("prices", encode(other.pop_edits()[0]))
        with pytest.raises(iris.TunnelBroken):
            await compare_amiss(stranger_parts.patterns.tunnels, member, [bytes(16)])
        with pytest.raises(RemoteError, match=r"not_a_member: node .* of cluster 'shop' is no member of 'prices'"):
            await stranger.request("prices", encode({}), operation="reached")
        assert dict(state) == {"a": 1}
        assert state.statistics().refused == {"stranger": 3}


async def test_a_service_has_no_document_of_the_same_name(autojump_clock: MockClock, network: Network) -> None:
    async with (
        network.open_node("prices") as server,
        network.open_node("prices") as node,
        server.join("prices", iris.Service("prices")),
    ):
        await node.wait_for("prices")
        with pytest.raises(ConfigError, match="serves something else: give the document a name of its own"):
            async with node.state("prices"):
                pass
        with pytest.raises(ConfigError, match="is a member of the cluster 'prices' already"):
            async with server.state("prices"):
                pass


async def test_members_that_do_not_answer_are_no_empty_document(
    autojump_clock: MockClock, documents: Documents
) -> None:
    (one,) = await documents.open("one")
    one["a"] = 1
    async with documents.network.open_node("prices", host="late") as node:
        documents.network.memory.partition(["one"], ["late"])
        with pytest.raises(RequestTimeout, match=r"no member of 'prices' gives the document within 0.5 s"):
            async with node.state("prices", timeout=0.5):
                pass


# -- malice ----------------------------------------------------------------------------------------------------


async def test_what_a_member_sends_amiss_costs_nobody_anything(
    autojump_clock: MockClock, documents: Documents, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await documents.open("one", "two", max_bytes=10_000)
    async with (
        documents.network.open_node("prices", host="bad") as bad,
        bad.join("prices", iris.Service("prices")),
    ):
        one["a"] = 1
        await one.settled(2)
        await bad.wait_for("prices", 3)
        wrong = Entry(WRITERS, VALUE, "", "", "k", b"\xc1")
        with caplog.at_level(logging.WARNING, "iris"):
            for payload in (
                b"noise",
                [b"", b""],
                encode(Edit(0, 2**52, 1, {}, [], [])),
                encode(Edit(0, 1, 1, {}, [wrong], [])),
                bytes(30_000),
                encode([1, 2]),
                None,
            ):
                await bad.broadcast("prices", payload)
                one["a"] = repr(payload)[:10]
                await one.settled(2)
                assert two["a"] == one["a"]
        await trio.sleep(0.1)
        assert two.statistics().refused == {"malformed": 7}
        assert one.statistics().refused == {"malformed": 7}
        warnings = [record for record in caplog.records if "refuses a message of node" in record.message]
        assert {record.args[1] for record in warnings if isinstance(record.args, tuple)} == {bad.id}
        assert len(warnings) <= 2 * 7, "what is logged is bounded"


async def compare_amiss(bad: Tunnels, member: iris.Node, messages: list[object]) -> None:
    """Begin to compare, say something else, and read until the other end ends it."""
    async with bad.open("prices", timeout=5, operation="sync", prefer=member.id) as tunnel:
        assert tunnel.sender.node == member.id
        for message in messages:
            await tunnel.send(message)
        await tunnel.send_eof()
        async for _ in tunnel:
            pass


async def test_a_member_that_compares_amiss_is_left_alone(autojump_clock: MockClock, documents: Documents) -> None:
    one, two = await documents.open("one", "two")
    one["a"] = 1
    async with (
        documents.network.open_parts("prices", host="bad") as (bad, bad_parts),
        bad.join("prices", iris.Service("prices")),
    ):
        await bad.wait_for("prices", 3)
        attempts: tuple[list[object], ...] = (
            [b"x"],
            ["text"],
            [bytes(16), b"\xff"],
            [bytes(16), encode([{}, []])],
            [bytes(16), encode([{2000: 1}, [bytes(16)] * 256])],
        )
        for messages in attempts:
            with pytest.raises(iris.TunnelBroken):
                await compare_amiss(bad_parts.patterns.tunnels, documents.nodes["one"], messages)
        assert one.statistics().refused == {"malformed": len(attempts)}
        one["a"] = 2
        await one.settled(2)
        assert two["a"] == 2


async def test_a_member_that_answers_a_comparison_amiss_ends_nobody_elses_document(
    autojump_clock: MockClock, documents: Documents
) -> None:
    """What it gives is read by a task of this member, whose error would end the block."""
    (one,) = await documents.open("one")
    one["b"] = 1
    bad = iris.Service("prices")
    asked = 0

    @bad.tunnel("sync")
    async def answer(tunnel: iris.Tunnel) -> None:
        nonlocal asked
        asked += 1
        await tunnel.receive()
        await tunnel.send(b"\x01")
        await tunnel.receive()
        await tunnel.send(encode([{}, [], list(range(256))]))
        await tunnel.send(encode([Entry(WRITERS, VALUE, "", "", "k", b"\xc1")]))
        await tunnel.send(b"")
        async for _ in tunnel:
            pass

    async with documents.network.open_node("prices", host="bad") as node, node.join("prices", bad):
        await trio.sleep(10)
        assert asked > 2
        assert one.statistics().refused == {"malformed": one.statistics().uncompared}
        one["a"] = 1
    await equal(one, *await documents.open("two"))


async def test_a_member_that_stalls_holds_up_no_other(autojump_clock: MockClock, documents: Documents) -> None:
    one, two = await documents.open("one", "two")
    bad = iris.Service("prices")

    @bad.tunnel("sync")
    async def stall(_: iris.Tunnel) -> None:
        await trio.sleep_forever()

    async with documents.network.open_node("prices", host="bad") as node, node.join("prices", bad):
        await trio.sleep(10)
        documents.network.memory.partition(["one"], ["two"])
        one["a"] = 1
        await trio.sleep(1.5)
        documents.network.memory.heal()
        with trio.fail_after(15):
            while "a" not in two:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.1)


# -- programs --------------------------------------------------------------------------------------------------


async def test_programs_read_and_change_and_follow_by_operations(
    autojump_clock: MockClock, documents: Documents
) -> None:
    """As a page in a browser does by a door."""
    one, two = await documents.open("one", "two", allow=["door"])
    one["eur"] = 1
    await one.settled(2)
    async with documents.network.open_node("door") as door:

        async def ask(operation: str, **subject: object) -> Any:
            return await door.request("prices", subject, operation=operation, wait=5)

        assert await ask("read", key="eur") == 1
        assert await ask("read", key="none") is None
        await ask("write", key="usd", value=[2, {"a": "b"}])
        await ask("write", map="limits", key="most", value=9)
        await ask("add", counter="visits", number=3)
        await ask("add", set="tags", element=["x", 1])
        await ask("add", set="tags", element="y")
        await ask("remove", set="tags", element="y")
        await ask("remove", key="eur")
        await ask("remove", key="none")
        for state in (one, two):
            await state.settled(2)
        for state in (one, two):
            assert dict(state) == {"usd": [2, {"a": "b"}]}
            assert dict(state.map("limits")) == {"most": 9}
            assert (int(state.counter("visits")), set(state.set("tags"))) == (3, {("x", 1)})
        assert await ask("read") == {"usd": [2, {"a": "b"}]}
        assert await ask("read", map="limits") == {"most": 9}
        assert await ask("read", counter="visits") == 3
        assert await ask("read", set="tags") == [["x", 1]]
        with pytest.raises(iris.TunnelBroken):
            await watch_amiss(door, "u*")
        async with door.open_tunnel("prices", operation="watch", wait=5) as tunnel:
            await tunnel.send("usd")
            assert (await tunnel.receive())["value"] == [2, {"a": "b"}]
            del two["usd"]
            assert await tunnel.receive() == {"key": "usd", "kind": "value", "value": None, "removed": True}
        for operation, subject in (
            ("read", {"key": 1}),
            ("read", {"kex": "a"}),
            ("write", {"key": "a"}),
            ("write", {"key": "", "value": 1}),
            ("add", {}),
            ("add", {"counter": "c", "number": "1"}),
            ("add", {"set": "s", "element": {"a": 1}}),
            ("remove", {}),
        ):
            with pytest.raises(RemoteError, match="bad_request"):
                await ask(operation, **subject)
        nested: object = 1
        for _ in range(40):
            nested = [nested]
        with pytest.raises(RemoteError, match="nested deeper than 16"):
            await ask("add", set="s", element=nested)


async def watch_amiss(node: iris.Node, pattern: str) -> None:
    async with node.open_tunnel("prices", operation="watch", wait=5) as tunnel:
        await tunnel.send(pattern)
        async for _ in tunnel:
            pass


async def test_a_program_that_asks_a_member_still_catching_up_waits_for_it(
    autojump_clock: MockClock, documents: Documents
) -> None:
    (one,) = await documents.open("one", allow=["door"])
    one["a"] = 1
    async with (
        documents.network.open_node("door", host="door") as door,
        documents.network.open_node("prices", host="late") as late,
        trio.open_nursery() as nursery,
    ):
        over, found = trio.Event(), list[object]()

        async def hold() -> None:
            async with late.state("prices", allow=["door"]):
                await over.wait()

        async def read() -> None:
            found.append(await door.request("prices", {"key": "a"}, operation="read"))

        documents.network.memory.partition(["one"], ["late"])
        nursery.start_soon(hold)
        await door.wait_for("prices", 2)
        for _ in range(8):
            nursery.start_soon(read)
        await trio.sleep(0.5)
        assert len(found) < 8
        documents.network.memory.heal()
        with trio.fail_after(4):
            while len(found) < 8:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.1)
        assert found == [1] * 8
        over.set()


async def test_programs_are_let_in_by_name(autojump_clock: MockClock) -> None:
    async with (
        iris.testing.open_network(seed=7, rights=Rights(serves=())) as network,
        network.open_node("prices") as member,
        network.open_node("door") as door,
        network.open_node("shop") as shop,
        member.state("prices", allow=["door"], max_bytes=1000) as state,
    ):
        await door.wait_for("prices")
        for operation in ("read", "write", "add", "remove"):
            with pytest.raises(RemoteError, match="not_allowed: nodes of cluster 'shop' may not use 'prices'"):
                await shop.request("prices", {"key": "k", "value": 1}, operation=operation, wait=5)
        with pytest.raises(iris.TunnelBroken):
            await watch_amiss(shop, ">")
        assert state.statistics().refused == {"stranger": 5}
        await door.request("prices", {"key": "k", "value": 1}, operation="write")
        with pytest.raises(RemoteError, match="full: the document has"):
            await door.request("prices", {"key": "l", "value": "x" * 1000}, operation="write")
        with pytest.raises(ConfigError, match="use a list of clusters"):
            async with door.state("door", allow="door"):
                pass


# -- other sites -----------------------------------------------------------------------------------------------


async def test_members_of_two_sites_have_one_document(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.ring("eu", "us")
        here = await federation.node("eu", "prices")
        there = await federation.node("us", "prices")
        near = await federation.enter(here.state("prices"))
        near["eur"] = 1
        await there.wait_for("prices", timeout=30)
        far = await federation.enter(there.state("prices", timeout=30))
        assert dict(far) == {"eur": 1}
        await here.wait_for("prices", 2, timeout=30)
        far["usd"] = 2
        near["eur"] = 3
        await equal(near, far)
        assert dict(near) == {"eur": 3, "usd": 2}


async def test_arguments_are_checked_at_once(autojump_clock: MockClock, network: Network) -> None:
    async with network.open_node("prices") as node:
        for options in ({"max_bytes": "x"}, {"timeout": -1}):
            wrong: dict[str, Any] = dict(options)
            with pytest.raises(ConfigError):
                async with node.state("prices", **wrong):
                    pass
        with pytest.raises(ConfigError):
            async with node.state("no name"):
                pass
        async with node.state("prices") as state:
            for members in (0, "3", True, 1.5):
                wrong = {"members": members}
                with pytest.raises(ConfigError, match=r"members is .*: use a whole number above 0, or None"):
                    await state.settled(**wrong)
            for timeout in (0, "x", float("nan"), None):
                wrong = {"timeout": timeout}
                with pytest.raises(ConfigError, match=r"timeout is .*: use seconds above 0"):
                    await state.settled(**wrong)
            assert "\ud800" not in state
            assert state.get("\ud800") is None
