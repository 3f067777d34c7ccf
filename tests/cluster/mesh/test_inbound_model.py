"""Connections that others have opened: whose each is, and who is sent away; beside a plain model."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.cluster.mesh.inbound import InboundConnections
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.tasks import HostLoop
from iris.kernel.transport.port import (
    ConnectionObserver,
    ConnectionUser,
    IncomingConnection,
    OutgoingConnection,
    Permit,
)

CONFIG: Final = Config(half_open_handshakes=6, half_open_per_address=4, handshake_timeout=2.0)
"""Three unauthenticated connections from one address: three quarters of the handshakes that it may have begun."""

ONE, TWO = NodeId("1" * 32), NodeId("2" * 32)


class Switchboard:
    """A transport that has nothing but connections; those that are closed end at ``settle``."""

    def __init__(self) -> None:
        self.open: dict[int, str | None] = {}
        self.hung_up: list[int] = []
        self.current = 0
        self._observer: ConnectionObserver | None = None

    def observe(self, observer: ConnectionObserver) -> None:
        self._observer = observer

    def connect(self, connection: int, address: str | None = "10.0.0.1") -> None:
        assert self._observer is not None
        self.open[connection] = address
        self._observer.connection_opened(connection, address)

    def end(self, connection: int) -> None:
        assert self._observer is not None
        if self.open.pop(connection, self) is not self:
            self._observer.connection_closed(connection)

    @property
    def held(self) -> int:
        return 0

    def source(self) -> int:
        return self.current

    def hang_up(self, connection: int) -> None:
        self.hung_up.append(connection)

    def settle(self) -> None:
        """Let those end that were hung up, as the event loop would a moment later."""
        for connection in self.hung_up:
            self.end(connection)

    async def listen(self, urls: Sequence[str]) -> tuple[str, ...]:
        raise NotImplementedError

    async def dial(self, url: str, user: ConnectionUser, permit: Permit | None = None) -> OutgoingConnection:
        raise NotImplementedError

    async def accept_reverse(self, token: str, user: ConnectionUser) -> OutgoingConnection:
        raise NotImplementedError

    def dial_reverse(self, url: str, token: str, user: ConnectionUser) -> IncomingConnection:
        raise NotImplementedError

    def receive_nowait(self) -> bytes | None:
        raise NotImplementedError

    async def wait_readable(self) -> None:
        raise NotImplementedError

    def receive_in(self, host: HostLoop, readable: Callable[[], None]) -> bool:
        raise NotImplementedError

    def interrupt(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Hall:
    """The connections of one node, and where frames come from."""

    def __init__(self) -> None:
        self.switchboard = Switchboard()
        self.refusals: Counter[str] = Counter()
        self.inbound = InboundConnections(self.switchboard, CONFIG, self.refusals)

    def connect(self, *connections: int, address: str | None = "10.0.0.1") -> None:
        for connection in connections:
            self.switchboard.connect(connection, address)

    def genuine(self, connection: int, node: NodeId = ONE) -> None:
        self.switchboard.current = connection
        self.inbound.genuine(node)

    def refused(self, connection: int) -> None:
        self.switchboard.current = connection
        self.inbound.refused()

    @property
    def strangers(self) -> set[int]:
        return set(self.inbound.unauthenticated)

    @property
    def hung_up(self) -> list[int]:
        return self.switchboard.hung_up


async def test_of_the_connections_of_a_peer_those_by_which_nothing_whole_comes_are_closed(
    autojump_clock: MockClock,
) -> None:
    hall = Hall()
    hall.connect(1, 2, 3)
    for connection in (1, 2, 3):
        hall.genuine(connection)
    began = trio.current_time()
    for _ in range(6):
        await trio.sleep(3)
        hall.genuine(1)
        hall.inbound.expire(trio.current_time())
        hall.switchboard.settle()
        assert (hall.hung_up == [2, 3]) is (trio.current_time() - began >= CONFIG.frame_timeout)
    assert not hall.inbound.contested
    assert hall.inbound.deadline == math.inf
    assert hall.refusals["no whole frame of a member in time"] == 2


async def test_one_connection_alone_may_be_silent_for_ever(autojump_clock: MockClock) -> None:
    hall = Hall()
    hall.connect(1, 2)
    hall.genuine(1)
    hall.genuine(2, TWO)
    await trio.sleep(1000)
    hall.inbound.expire(trio.current_time())
    assert hall.hung_up == []


async def test_of_two_silent_connections_the_one_by_which_the_last_frame_came_stays(autojump_clock: MockClock) -> None:
    hall = Hall()
    hall.connect(1, 2)
    hall.genuine(1)
    await trio.sleep(100)
    hall.genuine(2)
    assert hall.inbound.deadline == trio.current_time() + CONFIG.frame_timeout, "the first one has its time from now"
    hall.genuine(1)
    await trio.sleep(CONFIG.frame_timeout)
    hall.inbound.expire(trio.current_time())
    assert hall.hung_up == [2]


async def test_a_frame_that_came_inside_another_one_says_nothing_of_any_connection() -> None:
    """A gateway carries frames of many: what is wrong with them is not its doing, nor are they its own."""
    hall = Hall()
    hall.connect(1)
    hall.inbound.carried = True
    hall.genuine(1)
    hall.refused(1)
    assert hall.inbound.address() is None
    assert hall.strangers == {1}
    assert hall.hung_up == []
    hall.inbound.carried = False
    assert hall.inbound.address() == "10.0.0.1"


@pytest.mark.parametrize(
    ("address", "key"),
    [("10.0.0.7", "10.0.0.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"), (None, None)],
)
async def test_limits_are_counted_for_what_strangers_cannot_choose(address: str | None, key: str | None) -> None:
    hall = Hall()
    hall.connect(1, address=address)
    hall.switchboard.current = 1
    found = hall.inbound.address()
    assert (found is None) == (key is None)
    if key is not None and found is not None:
        assert found.startswith(key.rstrip(":"))
        assert "3:4:5:6" not in found


async def test_who_is_gone_before_his_frame_is_read_is_under_the_limits_of_one_address() -> None:
    """Else a first frame would be under no limit if its sender hung up fast enough."""
    hall = Hall()
    hall.connect(1, 2)
    hall.connect(3, address=None)
    addresses: list[str | None] = []
    for connection in (1, 2, 3):
        hall.switchboard.current = connection
        addresses.append(hall.inbound.address())
        hall.switchboard.end(connection)
        addresses.append(hall.inbound.address())
    assert addresses == ["10.0.0.1", "gone", "10.0.0.1", "gone", None, "gone"]


async def test_those_that_the_network_turned_away_are_counted() -> None:
    hall = Hall()
    hall.inbound.connections_refused(3)
    hall.inbound.connections_refused(4)
    assert hall.refusals == {"connections turned away unseen": 7}
    assert len(hall.inbound) == 0


async def test_strangers_that_are_silent_are_sent_away_in_time_whenever_they_come(autojump_clock: MockClock) -> None:
    hall = Hall()
    gone: dict[int, float] = {}

    async def watch() -> None:
        while True:
            for connection in hall.hung_up:
                gone.setdefault(connection, round(trio.current_time() - began, 3))
            hall.switchboard.settle()
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        nursery.start_soon(hall.inbound.run)
        nursery.start_soon(watch)
        await trio.sleep(10)
        hall.connect(1)
        await trio.sleep(1)
        hall.connect(2, 3)
        hall.genuine(3)
        await trio.sleep(20)
        hall.connect(4)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert gone == {
        1: pytest.approx(12, abs=0.2),
        2: pytest.approx(13, abs=0.2),
        4: pytest.approx(33, abs=0.2),
    }
    assert hall.refusals["no genuine frame in time"] == 3
    assert len(hall.inbound) == 1


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_after_any_sequence_owners_and_strangers_are_those_of_a_plain_model(seed: int) -> None:
    trio.run(_compare_with_model, seed)


async def _compare_with_model(seed: int) -> None:
    rng = random.Random(seed)
    hall = Hall()
    owners: dict[int, NodeId | None] = {}
    closing: set[int] = set()
    number = 0
    for _ in range(150):
        await trio.lowlevel.checkpoint()
        known = len(hall.hung_up)
        match rng.randrange(7):
            case 0 | 1:
                number += 1
                hall.connect(number, address=rng.choice(["10.0.0.1", "10.0.0.2", None]))
                owners[number] = None
            case 2 | 3 if number:
                connection, node = rng.randint(1, number), rng.choice([ONE, TWO])
                hall.genuine(connection, node)
                if connection in owners:
                    owners[connection] = node
            case 4 if number:
                connection = rng.randint(1, number)
                before = owners.get(connection, ONE)
                hall.refused(connection)
                if before is None and connection not in closing:
                    assert hall.hung_up[known:] == [connection]
                else:
                    assert connection not in hall.hung_up[known:]
            case 5 if number:
                connection = rng.randint(1, number)
                hall.switchboard.end(connection)
                owners.pop(connection, None)
            case _:
                hall.switchboard.settle()
                for connection in hall.hung_up:
                    owners.pop(connection, None)
        closing.update(hall.hung_up[known:])
        assert len(hall.inbound) == len(owners)
        assert hall.strangers == {c for c, owner in owners.items() if owner is None and c not in closing}
        assert len(hall.strangers) <= CONFIG.half_open_handshakes
    for node in (ONE, TWO):
        known = len(hall.hung_up)
        hall.inbound.hang_up(node)
        assert sorted(hall.hung_up[known:]) == [c for c, owner in sorted(owners.items()) if owner == node]
    for connection in list(owners):
        hall.switchboard.end(connection)
    assert len(hall.inbound) == 0
    assert hall.strangers == set()
    assert not hall.inbound._owned, "nothing is kept of nodes without a connection"
