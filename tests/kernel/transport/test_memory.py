"""The network in memory keeps what a real network promises, and breaks connections on demand."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.transport.memory import MemoryNetwork, MemoryOutgoing, MemoryTransport
from iris.kernel.transport.port import Refused
from tests.support.transports import Notified, ignore


class Ends:
    """Two transports and a route from the first to the second."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.near = network.transport("near")
        self.far = network.transport("far")
        self.broken = 0

    async def connect(self, url: str = "mem://far") -> MemoryOutgoing:
        await self.far.listen([url])
        return await self.near.dial(url, Notified(self.note))

    def note(self) -> None:
        self.broken += 1


async def receive(transport: MemoryTransport) -> bytes:
    while (frame := transport.receive_nowait()) is None:
        await transport.wait_readable()
    return frame


async def drain(transport: MemoryTransport) -> list[bytes]:
    """Return everything that comes until nothing is in flight any more."""
    frames: list[bytes] = []
    with trio.move_on_after(10):
        while True:
            frames.append(await receive(transport))
    return frames


async def test_frames_of_a_way_arrive_in_order_after_the_latency(autojump_clock: MockClock) -> None:
    ends = Ends(MemoryNetwork(latency=(1.0, 2.0), capacity=1000))
    way = await ends.connect()
    began = trio.current_time()
    sent = [bytes([n]) for n in range(200)]
    for frame in sent:
        assert way.send_nowait(frame)
    assert ends.far.receive_nowait() is None
    assert [await receive(ends.far) for _ in sent] == sent
    assert 1.0 <= trio.current_time() - began <= 2.0


async def test_frames_of_two_ways_mix_but_each_stays_in_order(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(latency=(0.0, 1.0), capacity=1000)
    far = network.transport("far")
    await far.listen(["mem://far"])
    ways = [await network.transport(name).dial("mem://far", ignore) for name in "ab"]
    for number in range(50):
        for name, way in zip(b"ab", ways, strict=True):
            way.send_nowait(bytes([name, number]))
    frames = await drain(far)
    assert len(frames) == 100
    for name in b"ab":
        assert [frame[1] for frame in frames if frame[0] == name] == list(range(50))


async def test_the_same_seed_gives_the_same_network(autojump_clock: MockClock) -> None:
    async def run(seed: int) -> list[float]:
        ends = Ends(MemoryNetwork(seed=seed, latency=(0.0, 1.0), loss=0.3))
        way = await ends.connect()
        times: list[float] = []
        for _ in range(20):
            way.send_nowait(b"x")
        began = trio.current_time()
        with trio.move_on_after(10):
            while True:
                await receive(ends.far)
                times.append(round(trio.current_time() - began, 9))
        return times

    assert await run(5) == await run(5) != await run(6)


async def test_a_reader_that_does_not_read_is_felt_by_its_writer(autojump_clock: MockClock) -> None:
    ends = Ends(MemoryNetwork(capacity=3))
    way = await ends.connect()
    ends.far.pause()
    assert [way.send_nowait(b"x") for _ in range(5)] == [True, True, True, False, False]
    with trio.move_on_after(100) as scope:
        await way.wait_writable()
    assert scope.cancelled_caught
    ends.far.resume()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive, ends.far)
        with trio.fail_after(60):
            await way.wait_writable()
    assert way.send_nowait(b"y")


async def test_every_task_that_waits_to_write_is_woken(autojump_clock: MockClock) -> None:
    """The flusher of a link and a handshake may wait for the same route."""
    ends = Ends(MemoryNetwork(capacity=1))
    way = await ends.connect()
    way.send_nowait(b"x")

    async def writer() -> None:
        while not way.send_nowait(b"y"):
            await way.wait_writable()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(writer)
            await wait_all_tasks_blocked()
            assert [await receive(ends.far) for _ in range(4)] == [b"x", b"y", b"y", b"y"]


async def test_a_way_with_room_is_writable_at_once() -> None:
    way = await Ends(MemoryNetwork(latency=(0, 0))).connect()
    with trio.fail_after(60):
        await way.wait_writable()


async def test_a_listener_that_closes_breaks_its_ways_and_loses_what_it_had_not_read(autojump_clock: MockClock) -> None:
    ends = Ends(MemoryNetwork())
    way = await ends.connect()
    way.send_nowait(b"x")
    ends.far.close()
    ends.far.close()
    assert ends.broken == 1
    assert way.closed
    with pytest.raises(trio.ClosedResourceError):
        way.send_nowait(b"y")
    with pytest.raises(trio.ClosedResourceError):
        await way.wait_writable()
    with pytest.raises(trio.ClosedResourceError):
        ends.far.receive_nowait()
    with pytest.raises(Refused, match="mem://far"):
        await ends.near.dial("mem://far", Notified(ends.note))


async def test_closing_ones_own_way_is_not_told_and_ends_every_wait(autojump_clock: MockClock) -> None:
    ends = Ends(MemoryNetwork(capacity=1))
    way = await ends.connect()
    way.send_nowait(b"x")

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await way.wait_writable()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        way.close()
        way.close()
    assert ends.broken == 0
    assert await receive(ends.far) == b"x"  # it had been taken by the network


async def test_closing_a_transport_ends_its_readers_wait() -> None:
    ends = Ends(MemoryNetwork())

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ends.far.wait_readable()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        ends.far.close()


async def test_a_crash_takes_down_all_of_a_host(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    one, two, other = network.transport("host"), network.transport("host"), network.transport("other")
    await one.listen(["mem://a", "mem://b"])
    await other.listen(["mem://c"])
    broken: list[str] = []
    await other.dial("mem://a", Notified(lambda: broken.append("a")))
    await other.dial("mem://b", Notified(lambda: broken.append("b")))
    network.crash("host")
    assert sorted(broken) == ["a", "b"]
    assert one.closed
    assert two.closed
    assert not other.closed
    assert network.find("mem://c") is other
    network.crash("host")


async def test_an_oversize_frame_ends_its_own_connection(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    near, far = network.transport("near"), network.transport("far", 1000)
    await far.listen(["mem://far"])
    broken: list[int] = []
    one = await near.dial("mem://far", Notified(lambda: broken.append(1)))
    two = await near.dial("mem://far", Notified(lambda: broken.append(2)))
    one.send_nowait(bytes(1000))
    one.send_nowait(bytes(1001))
    two.send_nowait(b"x")
    assert sorted(await drain(far)) == [bytes(1000), b"x"]
    assert broken == [1]


async def test_the_links_between_two_hosts_break_and_no_others(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(latency=(0.0, 0.1))
    transports = {host: network.transport(host) for host in ("one", "two", "third")}
    broken: list[tuple[str, str]] = []
    for host, transport in transports.items():
        await transport.listen([f"mem://{host}"])
    for near in transports:
        for far in transports:
            if near != far:
                await transports[near].dial(f"mem://{far}", Notified(lambda way=(near, far): broken.append(way)))  # type: ignore[misc]
    network.break_links("one", "two")
    await trio.sleep(1)
    assert sorted(broken) == [("one", "two"), ("two", "one")]


async def test_a_partition_drops_silently_until_it_heals(autojump_clock: MockClock) -> None:
    ends = Ends(MemoryNetwork())
    way = await ends.connect()
    ends.network.partition(["near"], ["far"])
    assert way.send_nowait(b"lost")
    with trio.move_on_after(100) as scope:
        await ends.near.dial("mem://far", Notified(ends.note))
    assert scope.cancelled_caught
    ends.network.heal()
    assert way.send_nowait(b"kept")
    assert await receive(ends.far) == b"kept"
    assert ends.broken == 0


async def test_a_partition_may_be_one_way(autojump_clock: MockClock) -> None:
    ends = Ends(MemoryNetwork())
    there = await ends.connect()
    await ends.near.listen(["mem://near"])
    back = await ends.far.dial("mem://near", ignore)
    ends.network.partition(["near"], ["far"], one_way=True)
    there.send_nowait(b"lost")
    back.send_nowait(b"kept")
    assert await drain(ends.near) == [b"kept"]
    assert await drain(ends.far) == []


async def test_loss_takes_its_share(autojump_clock: MockClock) -> None:
    ends = Ends(MemoryNetwork(loss=0.2, capacity=2000))
    way = await ends.connect()
    for _ in range(1000):
        way.send_nowait(b"x")
    assert 700 < len(await drain(ends.far)) < 900


async def test_port_zero_is_a_name_of_its_own() -> None:
    transport = MemoryNetwork().transport("host")
    first, second = await transport.listen(["mem://host:0", "mem://host:0"])
    assert first != second
    assert not first.endswith(":0")


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:1", "mem://", "", "far"])
async def test_only_its_own_addresses_are_taken(url: str) -> None:
    transport = MemoryNetwork().transport("host")
    with pytest.raises(ConfigError, match="use mem://NAME"):
        await transport.listen([url])
    with pytest.raises(ConfigError, match="use mem://NAME"):
        await transport.dial(url, ignore)


async def test_an_address_has_one_listener() -> None:
    network = MemoryNetwork()
    await network.transport("a").listen(["mem://x"])
    with pytest.raises(ConfigError, match="in use"):
        await network.transport("b").listen(["mem://x"])


async def test_nobody_at_an_address_is_a_refusal(autojump_clock: MockClock) -> None:
    with pytest.raises(NotSent, match="refused"):
        await MemoryNetwork().transport("a").dial("mem://nobody", ignore)
