"""The network in memory beside a plain model of it: after any sequence of calls both say the same."""

from __future__ import annotations

import dataclasses

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.kernel.transport.memory import MemoryNetwork, MemoryOutgoing, MemoryTransport
from iris.kernel.transport.port import Refused
from tests.support.transports import Notified, ignore

HOSTS = "abc"
CAPACITY = 3


@dataclasses.dataclass
class ModelWay:
    """State of one route that is known without looking inside."""

    source: str
    target: str
    way: MemoryOutgoing
    serial: int
    in_transit: int = 0
    broken: int = 0
    closed: bool = False


class Watcher:
    """Records the reports of a transport on the connections that others open."""

    def __init__(self) -> None:
        self.open: dict[int, str | None] = {}
        self.closed: list[int] = []

    def connection_opened(self, connection: int, address: str | None) -> None:
        assert connection not in self.open
        assert connection not in self.closed, "a number is used once"
        self.open[connection] = address

    def connection_closed(self, connection: int) -> None:
        del self.open[connection]
        self.closed.append(connection)

    def connections_refused(self, count: int) -> None:
        raise AssertionError("this network turns nobody away")


class World:
    """A network, and what it should have done."""

    def __init__(self, seed: int) -> None:
        self.network = MemoryNetwork(seed=seed, latency=(0.1, 1.0), capacity=CAPACITY)
        self.transports: dict[str, MemoryTransport] = {}
        self.watchers: dict[str, Watcher] = {}
        self.ways: list[ModelWay] = []
        self.cut: set[tuple[str, str]] = set()
        self.sent: dict[int, list[int]] = {}
        self.arrived: dict[str, list[tuple[int, int]]] = {host: [] for host in HOSTS}
        self.numbers = 0

    async def start(self) -> None:
        for host in HOSTS:
            await self.revive(host)

    async def revive(self, host: str) -> None:
        if host not in self.transports:
            transport = self.transports[host] = self.network.transport(host)
            await transport.listen([f"mem://{host}"])
            watcher = self.watchers[host] = Watcher()
            transport.observe(watcher)

    async def dial(self, source: str, target: str) -> None:
        if source not in self.transports or (source, target) in self.cut:
            return
        record: list[ModelWay] = []

        def on_broken() -> None:
            record[0].broken += 1

        try:
            way = await self.transports[source].dial(f"mem://{target}", Notified(on_broken))
        except Refused:
            assert target not in self.transports
            return
        assert target in self.transports
        model = ModelWay(source, target, way, len(self.ways))
        record.append(model)
        self.ways.append(model)
        self.sent[model.serial] = []

    def send(self, model: ModelWay) -> None:
        if model.closed:
            with pytest.raises(trio.ClosedResourceError):
                model.way.send_nowait(b"")
            return
        self.numbers += 1
        frame = model.serial.to_bytes(4, "big") + self.numbers.to_bytes(4, "big")
        full = model.in_transit == CAPACITY
        assert model.way.send_nowait(frame) is not full
        if not full and (model.source, model.target) not in self.cut:
            model.in_transit += 1
            self.sent[model.serial].append(self.numbers)

    def receive(self, host: str) -> None:
        transport = self.transports.get(host)
        if transport is None:
            return
        while (frame := transport.receive_nowait()) is not None:
            assert not transport.paused, "who is stopped reads nothing"
            serial, number = int.from_bytes(frame[:4], "big"), int.from_bytes(frame[4:], "big")
            model = self.ways[serial]
            model.in_transit -= 1
            assert transport.source() == model.way.number
            self.arrived[host].append((serial, number))

    def close(self, model: ModelWay) -> None:
        model.closed = True
        model.way.close()

    def hang_up(self, model: ModelWay) -> None:
        if model.target in self.transports:
            self.transports[model.target].hang_up(model.way.number)

    def crash(self, host: str) -> None:
        self.network.crash(host)
        self.transports.pop(host, None)
        self.watchers.pop(host, None)
        self.arrived[host].clear()
        for model in self.ways:
            if host in (model.source, model.target):
                model.closed = True

    def partition(self, one: str, other: str, one_way: bool) -> None:
        self.network.partition([one], [other], one_way=one_way)
        self.cut.add((one, other))
        if not one_way:
            self.cut.add((other, one))

    def check(self) -> None:
        for model in self.ways:
            assert model.way.closed == model.closed
            assert model.broken <= 1
        for host, watcher in self.watchers.items():
            assert watcher.open == {
                model.way.number: model.source for model in self.ways if model.target == host and not model.closed
            }
        for host in HOSTS:
            assert (self.network.find(f"mem://{host}") is None) == (host not in self.transports)
            for other in HOSTS:
                assert self.network.is_cut(host, other) == ((host, other) in self.cut)
        for host, arrivals in self.arrived.items():
            for model in self.ways:
                mine = [number for serial, number in arrivals if serial == model.serial]
                assert mine == self.sent[model.serial][: len(mine)] or model.target != host


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("dial"), st.sampled_from(HOSTS), st.sampled_from(HOSTS)),
        st.tuples(st.just("send"), st.integers(0, 30), st.integers(1, 5)),
        st.tuples(st.just("send"), st.integers(0, 30), st.integers(1, 5)),
        st.tuples(st.just("sleep"), st.floats(0, 2), st.none()),
        st.tuples(st.just("read"), st.sampled_from(HOSTS), st.none()),
        st.tuples(st.just("pause"), st.sampled_from(HOSTS), st.booleans()),
        st.tuples(st.just("close"), st.integers(0, 30), st.none()),
        st.tuples(st.just("hang up"), st.integers(0, 30), st.none()),
        st.tuples(st.just("crash"), st.sampled_from(HOSTS), st.none()),
        st.tuples(st.just("revive"), st.sampled_from(HOSTS), st.none()),
        st.tuples(st.just("cut"), st.sampled_from(["ab", "ba", "bc", "ca"]), st.booleans()),
        st.tuples(st.just("heal"), st.none(), st.none()),
    ),
    max_size=60,
)


async def perform(world: World, step: tuple[str, object, object]) -> None:
    what, first, second = step
    ways = world.ways
    model = ways[first % len(ways)] if isinstance(first, int) and ways else None
    match what:
        case "dial":
            await world.dial(str(first), str(second))
        case "send" if model is not None and isinstance(second, int):
            for _ in range(second):
                world.send(model)
        case "sleep" if isinstance(first, int | float):
            await trio.sleep(first)
        case "read":
            world.receive(str(first))
        case "pause" if first in world.transports:
            transport = world.transports[str(first)]
            transport.pause() if second else transport.resume()
        case "close" if model is not None:
            world.close(model)
        case "hang up" if model is not None:
            world.hang_up(model)
            await trio.testing.wait_all_tasks_blocked()
            if model.target in world.transports:
                assert model.broken == 1 or model.closed
                model.closed = True
        case "crash":
            world.crash(str(first))
        case "revive":
            await world.revive(str(first))
        case "cut" if isinstance(first, str):
            world.partition(first[0], first[1], bool(second))
        case "heal":
            world.network.heal()
            world.cut.clear()
        case _:
            pass


@settings(max_examples=60)
@given(STEPS, st.integers(0, 99))
def test_after_any_calls_the_network_agrees_with_a_plain_model(
    steps: list[tuple[str, object, object]], seed: int
) -> None:
    async def main() -> None:
        world = World(seed)
        await world.start()
        for step in steps:
            await perform(world, step)
            world.check()
        for transport in world.transports.values():
            transport.resume()
        await trio.sleep(2)
        for host in HOSTS:
            world.receive(host)
        world.check()
        for model in world.ways:
            if not model.closed:
                assert model.in_transit == 0, "the reader has room made for his writers"
                mine = [number for serial, number in world.arrived[model.target] if serial == model.serial]
                assert mine == world.sent[model.serial], "nothing is lost but by partitions and ends"

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_frames_that_were_under_way_when_a_way_was_closed_still_arrive(autojump_clock: MockClock) -> None:
    """As on a real network: closing does not call back what was handed over."""
    network = MemoryNetwork(latency=(1.0, 1.0))
    near, far = network.transport("near"), network.transport("far")
    await far.listen(["mem://far"])
    way = await near.dial("mem://far", ignore)
    way.send_nowait(b"x")
    way.close()
    await trio.sleep(1)
    assert far.receive_nowait() == b"x"


async def test_who_hangs_up_on_a_connection_that_is_gone_does_no_harm(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    near, far = network.transport("near"), network.transport("far")
    await far.listen(["mem://far"])
    watcher = Watcher()
    broken: list[int] = []
    one = await near.dial("mem://far", Notified(lambda: broken.append(1)))
    far.observe(watcher)
    assert watcher.open == {one.number: "near"}, "the observer is told of what is there"
    two = await near.dial("mem://far", Notified(lambda: broken.append(2)))
    one.close()
    far.hang_up(one.number)
    far.hang_up(0)
    await trio.testing.wait_all_tasks_blocked()
    assert broken == []
    assert watcher.open == {two.number: "near"}
    far.hang_up(two.number)
    far.hang_up(two.number)
    await trio.testing.wait_all_tasks_blocked()
    assert broken == [2]


async def test_a_stopped_reader_finds_everything_in_order_when_it_goes_on(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(latency=(0.1, 2.0), capacity=100)
    far = network.transport("far")
    await far.listen(["mem://far"])
    way = await network.transport("near").dial("mem://far", ignore)
    far.pause()
    for number in range(50):
        way.send_nowait(bytes([number]))
    with trio.move_on_after(100) as scope:
        await far.wait_readable()
    assert scope.cancelled_caught
    assert far.receive_nowait() is None
    far.resume()
    with trio.fail_after(0.001):
        await far.wait_readable()
    assert [far.receive_nowait() for _ in range(51)] == [*(bytes([number]) for number in range(50)), None]


async def test_a_partition_catches_what_is_sent_and_not_what_is_under_way(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(latency=(1.0, 1.0))
    far = network.transport("far")
    await far.listen(["mem://far"])
    way = await network.transport("near").dial("mem://far", ignore)
    way.send_nowait(b"before")
    network.partition(["near"], ["far"])
    way.send_nowait(b"during")
    network.heal()
    way.send_nowait(b"after")
    await trio.sleep(2)
    assert [far.receive_nowait() for _ in range(3)] == [b"before", b"after", None]
