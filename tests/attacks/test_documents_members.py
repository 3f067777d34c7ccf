"""Documents: what programs and members can do to those who read, watch and come."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.kernel.errors import ConfigError
from iris.patterns.state.entries import BUCKETS, VALUE, WRITERS, Edit, Entry, dot_of, encode
from iris.patterns.state.kept_copy import load_copy
from iris.patterns.state.programs import Subject, _read
from iris.patterns.state.shared_types import SharedMap
from iris.patterns.state.sync import Header
from iris.testing import Network, inspect_document
from tests.support.held import MOST_HELD
from tests.support.states import replica, same

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    "element",
    [2**53, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**300, 1e300, -1e300, 2.0**63, 2.0**64, 1e17, -0.0, 5e-324],
    ids=str,
)
async def test_whatever_is_put_into_a_set_its_readers_get(
    autojump_clock: MockClock, network: Network, element: float
) -> None:
    async with (
        network.open_node("prices") as node,
        network.open_node("door") as door,
        node.state("prices", allow=["door"]) as state,
    ):
        await door.wait_for("prices")
        with suppress(ConfigError):
            state.set("s").add(element)
        with suppress(iris.RemoteError, iris.LocalProtocolError):
            await door.request("prices", {"set": "t", "element": element}, operation="add")
        for name in "st":
            read = await door.request("prices", {"set": name}, operation="read")
            assert read == list(state.set(name))
            if read:
                assert read == [element]
                assert element in state.set(name)
                state.set(name).discard(read[0])
                assert not state.set(name)


VALUES: dict[str, Any] = {
    "dicts": [{}] * 70_000,
    "most": [{}] * 65_519,
    "one more": [{}] * 65_520,
    "lists": [[]] * 70_000,
    "both": {str(n): [n] for n in range(40_000)},
    "text": "\0" * 100_000,
    "nan": float("nan"),
    "int": 2**64 - 1,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
async def test_whatever_is_put_into_a_document_its_readers_and_watchers_get(
    autojump_clock: MockClock, network: Network, value: Any
) -> None:
    async with (
        network.open_node("prices") as node,
        network.open_node("door") as door,
        node.state("prices", allow=["door"]) as state,
    ):
        await door.wait_for("prices")
        with suppress(ConfigError):
            state["k"] = value
        state["later"] = 1
        if "k" in state:
            assert repr(await door.request("prices", {"key": "k"}, operation="read")) == repr(value)
        async with door.open_tunnel("prices", operation="watch") as tunnel:
            await tunnel.send(">")
            with trio.fail_after(20):
                while (await tunnel.receive())["key"] != "later":
                    pass


async def test_a_member_that_gives_little_by_little_keeps_nobody_from_coming(
    autojump_clock: MockClock, network: Network
) -> None:
    bad = iris.Service("prices")

    @bad.tunnel("sync")
    async def trickle(tunnel: iris.Tunnel) -> None:
        await tunnel.receive()
        await tunnel.send(b"\x01")
        await tunnel.send(encode(Header({5: 10_000}, [], list(range(BUCKETS)))))
        for number in range(1, 10_000):
            await tunnel.send(encode([Entry(dot_of(5, number), VALUE, "", "", f"k{number}", b"\x01")]))
            await trio.sleep(0.4)

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        first = await enter(network.open_node("prices"))
        state = await enter(first.state("prices"))
        state["a"] = 1
        for _ in range(4):
            node = await enter(network.open_node("prices"))
            await enter(node.join("prices", bad))
        for _ in range(3):
            # Another one is asked after 1, 3, 7 and 15 s.
            async with network.open_node("prices") as node, node.state("prices", timeout=20) as document:
                assert document["a"] == 1


class Holds:
    """Longest time for which the loop was blocked, in ms."""

    def __init__(self) -> None:
        self.most = 0.0

    async def watch(self) -> None:
        while True:
            last = time.thread_time()
            await trio.lowlevel.checkpoint()
            self.most = max(self.most, (time.thread_time() - last) * 1e3)


@pytest.mark.parametrize("what", ["read", "read set", "watch"])
async def test_a_program_that_reads_all_of_a_large_document_holds_the_loop_up_for_some_ms_only(what: str) -> None:
    async with (
        iris.testing.open_network(seed=11) as network,
        network.open_node("prices") as node,
        network.open_node("door") as door,
        node.state("prices", allow=["door"], max_bytes=2**25) as state,
        trio.open_nursery() as nursery,
    ):
        await door.wait_for("prices")
        for number in range(100_000):
            if what == "read set":
                state.set("s").add(number)
            else:
                state[f"{number}"] = 1
            if number % 1000 == 0:
                await trio.sleep(0.001)
        await trio.sleep(0.1)
        holds = Holds()
        nursery.start_soon(holds.watch)
        if what == "watch":
            async with door.open_tunnel("prices", operation="watch") as tunnel:
                await tunnel.send(">")
                for _ in range(10_000):
                    await tunnel.receive()
        else:
            subject: dict[str, Any] = {"set": "s"} if what == "read set" else {}
            # Not over the network: that a large reply takes long to read is a matter of its own.
            read: Any = await cast("Any", _read(state._replica, state, msgspec.convert(subject, Subject)))
            assert len(read) == 100_000
        nursery.cancel_scope.cancel()
    assert holds.most < MOST_HELD, holds.most


async def test_a_copy_that_is_cut_anywhere_is_named_and_not_read(autojump_clock: MockClock, tmp_path: Path) -> None:
    del autojump_clock
    from iris.patterns.state.kept_copy import save_copy

    one = replica()
    SharedMap(one, "").update({f"k{number}": number for number in range(20)})
    path = tmp_path / "copy"
    save_copy(path, dict(one.vector), one.all_entries())
    whole = path.read_bytes()
    assert load_copy(path) is not None
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match="is damaged"):
            load_copy(path)
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ConfigError, match="is damaged"):
            load_copy(path)


async def test_an_old_copy_brings_nothing_back(autojump_clock: MockClock, network: Network, tmp_path: Path) -> None:
    """What was deleted since stays deleted, and what was set since stays set."""
    autojump_clock.rate, autojump_clock.autojump_threshold = 1.0, float("inf")
    path = tmp_path / "copy"
    async with network.open_node("prices") as node, node.state("prices") as state:
        async with network.open_node("prices") as other, other.state("prices", path=path) as theirs:
            theirs.update({"deleted": 1, "set": 1, "kept": 1})
            theirs.counter("c").add(5)
            theirs.set("s").add(1)
            await theirs.settled(2)
        old = path.read_bytes()
        del state["deleted"]
        state["set"] = 2
        state.counter("c").add(1)
        state.set("s").discard(1)
        path.write_bytes(old)
        async with network.open_node("prices") as other, other.state("prices", path=path) as theirs:
            await theirs.settled(2)
            for each in (state, theirs):
                assert dict(each) == {"set": 2, "kept": 1}
                assert (int(each.counter("c")), set(each.set("s"))) == (6, set())
            theirs.counter("c").add(1)
            await theirs.settled(2)
            assert int(state.counter("c")) == 7


async def test_numbers_that_are_all_taken_or_at_their_end_stop_nobody(
    autojump_clock: MockClock, network: Network
) -> None:
    """A member uses all numbers of writers, and their greatest counts, and goes on while others write."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        states = [await enter((await enter(network.open_node("prices"))).state("prices")) for _ in range(3)]
        evil = await enter(network.open_node("prices"))
        await enter(evil.join("prices", iris.Service("prices")))
        await evil.wait_for("prices", 4)
        top = int((network.wall_clock() + 86_300) * 1e6)
        for writer in range(WRITERS):
            first = top if writer % 2 else 1
            edit = Edit(writer, 1, first, {}, [Entry(dot_of(writer, first), VALUE, "", "", f"e{writer}", b"\x01")], [])
            await evil.broadcast("prices", encode(edit))
        await trio.sleep(1)
        for number in range(30):
            for at, state in enumerate(states):
                state[f"{at}.{number}"] = number
                state.counter("c").add(1)
            own = [inspect_document(state).writer for state in states]
            for writer in own:
                known = max(state._replica.vector.get(max(writer, 0), 0) for state in states)
                edit = Edit(max(writer, 0), known + 1, 1, {}, [], [])
                await evil.broadcast("prices", encode(edit))
            await trio.sleep(0.5)
        await trio.sleep(20)
        wanted = {f"{at}.{number}" for at in range(3) for number in range(30)}
        for state in states:
            assert wanted <= set(state), sorted(wanted - set(state))
            assert int(state.counter("c")) == 90
        async with network.open_node("prices") as node, node.state("prices") as newcomer:
            await trio.sleep(5)
            assert dict(newcomer) == dict(states[0])


async def test_bytes_of_any_kind_in_each_message_leave_all_equal(autojump_clock: MockClock, network: Network) -> None:
    import random

    rng = random.Random(5)
    junk: list[Any] = [b"", b"\x01", b"\x90", b"\xc1", 1, None, "x", [], {}, b"\xdd\xff\xff\xff\xff", b"\x95" * 5000]
    junk += [rng.randbytes(rng.randrange(64)) for _ in range(40)]
    junk += [encode(Header(dict.fromkeys(range(WRITERS), 2**53 - 1), [], [0] * 256))]
    junk += [encode(({0: 2**53 - 1}, [bytes(16)] * 256)), encode([[0, 0, "", "", "k", b"\x01"]] * 2048)]
    evil_service = iris.Service("prices")

    @evil_service.tunnel("sync")
    async def answer(tunnel: iris.Tunnel) -> None:
        with suppress(trio.EndOfChannel):
            await tunnel.receive()
        for _ in range(rng.randrange(8)):
            await tunnel.send(rng.choice(junk))

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        states = [await enter((await enter(network.open_node("prices"))).state("prices")) for _ in range(2)]
        evil = await enter(network.open_node("prices"))
        await enter(evil.join("prices", evil_service))
        await evil.wait_for("prices", 3)
        for number in range(100):
            states[number % 2][f"k{number % 7}"] = number
            await evil.broadcast("prices", rng.choice(junk))
            with suppress(iris.IrisError, trio.BrokenResourceError, trio.EndOfChannel):
                async with evil.open_tunnel("prices", operation="sync") as tunnel:
                    for _ in range(rng.randrange(5)):
                        await tunnel.send(rng.choice(junk))
                    with trio.move_on_after(0.2):
                        await tunnel.receive()
            with suppress(iris.IrisError):
                await evil.request("prices", rng.choice(junk), operation="reached", timeout=0.1)
        await trio.sleep(10)
        assert dict(states[0]) == dict(states[1])
        assert same(*states[:2])
    assert msgspec.msgpack.decode(encode(dict(states[0])))
