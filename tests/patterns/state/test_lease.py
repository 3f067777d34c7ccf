"""Leases as their holders see them: renewed, lost and given back, and never two who may, whatever happens."""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.errors import LeaseLost, NoSuchCluster, NotAllowed, RemoteError, RequestTimeout
from iris.patterns.bridge_protocol import Ask, AskLease, LeaseAnswer, ReleaseLease, RenewLease, as_fields, read_answer
from iris.patterns.state import ELSEWHERE, Lease, open_lease
from iris.spark_bridge.server.leases import LeaseRecord, LeaseTable

R = TypeVar("R")


class Bridge:
    """The table of a bridge, behind a network that a test cuts."""

    def __init__(self) -> None:
        self.table = LeaseTable(0, {}, 0.0)
        self.at = ""
        """Cluster at which it says that it grants leases; empty: the one that was asked."""
        self.slow = 0.01
        """Seconds that its next answer takes."""
        self.cut = False
        self.reply: object = None
        self.asked: list[str] = []

    async def ask(self, cluster: str, request: Ask[R], timeout: float, /) -> R:
        self.asked.append(f"{request.operation}@{cluster}")
        slow, self.slow = self.slow, 0.01
        await trio.sleep(slow)
        if isinstance(self.reply, Exception):
            raise self.reply
        if self.cut:
            await trio.sleep(timeout)
            raise RequestTimeout("cut")
        if self.reply is not None and cluster == "bridge":
            return read_answer(request, self.reply)
        return read_answer(request, as_fields(self.answer(cluster, request, trio.current_time())))

    def answer(self, cluster: str, request: Ask[Any], now: float) -> object:
        match request:
            case AskLease():
                granted = self.table.acquire(request.name, request.holder.hex(), "", request.ttl, now)
                if isinstance(granted, LeaseRecord):
                    return LeaseAnswer(token=granted.token, at=self.at or cluster)
                return LeaseAnswer(busy=granted)
            case RenewLease():
                return self.table.renew(request.name, request.holder.hex(), now)
            case ReleaseLease():
                return self.table.release(request.name, request.holder.hex())
            case _:
                raise AssertionError(request)

    def lease(self, holder: int, *, ttl: float = 10.0, timeout: float = 60.0) -> AbstractAsyncContextManager[Lease]:
        bridges = Bridges(self, holder)
        return open_lease(bridges, "bridge", "workers", "scheduler", ttl, timeout, random.Random(holder))


class Bridges:
    """The bridge, as one node asks it."""

    def __init__(self, bridge: Bridge, holder: int) -> None:
        self.bridge = bridge
        self.holder = holder

    async def ask(self, cluster: str, request: Ask[R], timeout: float, /) -> R:
        return await self.bridge.ask(cluster, request, timeout)

    def entropy(self, size: int, /) -> bytes:
        return bytes([self.holder]) * size


async def test_a_lease_is_held_as_long_as_it_is_renewed(autojump_clock: MockClock) -> None:
    bridge = Bridge()
    async with bridge.lease(1) as lease:
        assert lease.token == 1
        await trio.sleep(100)
        assert 6 < lease.left <= 10
        with pytest.raises(RequestTimeout, match="the lease 'scheduler' of cluster 'workers' was not free within 5 s"):
            async with bridge.lease(2, timeout=5):
                pass
    async with bridge.lease(2) as lease:
        assert lease.token == 2, "given back at once"


async def test_a_lease_that_cannot_be_renewed_cancels_its_block_before_the_bridge_gives_it_away(
    autojump_clock: MockClock,
) -> None:
    bridge = Bridge()
    cut = ended = 0.0
    with pytest.raises(LeaseLost, match="could not be told for 10 s that it is still needed"):  # noqa: PT012 -- a block is what is tested
        async with bridge.lease(1):
            bridge.cut = True
            cut = trio.current_time()
            try:
                await trio.sleep_forever()
            finally:
                ended = trio.current_time()
    assert ended - cut <= 10
    bridge.cut = False
    assert isinstance(bridge.table.acquire("scheduler", "other", "", 10, ended), float), "not free yet"


async def test_a_lease_that_another_one_has_cancels_its_block_at_the_next_renewal(autojump_clock: MockClock) -> None:
    bridge = Bridge()
    with pytest.raises(LeaseLost):  # noqa: PT012 -- a block is what is tested
        async with bridge.lease(1):
            bridge.table = LeaseTable(5, {}, trio.current_time())
            await trio.sleep(9)
            raise AssertionError("it goes on")


async def test_a_block_that_ends_after_its_lease_says_so(autojump_clock: MockClock) -> None:
    """It did not wait for anything, so nothing could be cancelled."""
    bridge = Bridge()
    with pytest.raises(LeaseLost):  # noqa: PT012 -- a block is what is tested
        async with bridge.lease(1) as lease:
            autojump_clock.jump(11)
            assert lease.left == 0


async def test_an_error_of_the_block_is_its_own(autojump_clock: MockClock) -> None:
    bridge = Bridge()
    with pytest.raises(KeyError):
        async with bridge.lease(1):
            raise KeyError
    assert bridge.asked[-1] == "release@bridge"


async def test_whoever_waits_gets_a_lease_soon_after_it_is_over(autojump_clock: MockClock) -> None:
    bridge = Bridge()
    bridge.table.acquire("scheduler", "gone", "", 10, trio.current_time())
    began = trio.current_time()
    async with bridge.lease(1):
        assert trio.current_time() - began <= 11


async def test_waiting_that_is_cancelled_leaves_no_lease_behind(autojump_clock: MockClock) -> None:
    bridge = Bridge()
    with trio.move_on_after(0.005):
        async with bridge.lease(1):
            raise AssertionError
    assert bridge.table.count("", trio.current_time()) == (0, 0)


async def test_the_member_that_grants_is_asked(autojump_clock: MockClock) -> None:
    bridge = Bridge()
    bridge.reply = {"elsewhere": "bridge.0"}
    async with bridge.lease(1):
        await trio.sleep(4)
    assert bridge.asked == ["lease@bridge", "lease@bridge.0", "renew@bridge.0", "release@bridge.0"]


async def test_a_lease_is_renewed_and_given_back_where_it_was_granted(autojump_clock: MockClock) -> None:
    """Another member of the bridge, which the next question may go to, does not know it."""
    bridge = Bridge()
    bridge.at = "bridge.0"
    async with bridge.lease(1):
        await trio.sleep(4)
    assert bridge.asked == ["lease@bridge", "renew@bridge.0", "release@bridge.0"]


async def test_a_lease_is_kept_and_given_back_where_it_is_granted_by_now(autojump_clock: MockClock) -> None:
    """The member that has granted it says who does, as would any other one that is asked by the name of the bridge."""

    class Moved(Bridge):
        granting = "bridge.0"

        async def ask(self, cluster: str, request: Ask[R], timeout: float, /) -> R:
            if cluster == self.granting or request.operation == "lease":
                return await super().ask(cluster, request, timeout)
            self.asked.append(f"{request.operation}@{cluster}")
            raise RemoteError(ELSEWHERE, self.granting)

    bridge = Moved()
    bridge.at = "bridge.0"
    async with bridge.lease(1):
        bridge.granting = "bridge.1"
        await trio.sleep(30)
        assert bridge.asked[:3] == ["lease@bridge", "renew@bridge.0", "renew@bridge.1"]
        bridge.granting = "bridge.0"
    assert bridge.asked[-2:] == ["release@bridge.1", "release@bridge.0"]
    assert bridge.table.count("", trio.current_time()) == (0, 0)


async def test_members_that_send_a_caller_to_each_other_are_not_asked_without_end(autojump_clock: MockClock) -> None:

    class Elsewhere(Bridge):
        async def ask(self, cluster: str, request: Ask[R], timeout: float, /) -> R:
            self.asked.append(cluster)
            return read_answer(request, {"elsewhere": "bridge.0" if cluster == "bridge" else "bridge"})

    bridge = Elsewhere()
    with pytest.raises(RequestTimeout, match="not free within 5 s"):
        async with bridge.lease(1, timeout=5):
            pass
    assert len(bridge.asked) < 50


async def test_a_grant_that_comes_too_late_is_asked_for_again(autojump_clock: MockClock) -> None:
    bridge = Bridge()
    bridge.slow = 1.2
    async with bridge.lease(1, ttl=1) as lease:
        assert lease.left > 0
        assert lease.token == 1


@pytest.mark.parametrize(
    ("reply", "error", "text"),
    [
        (NoSuchCluster("?"), NoSuchCluster, "a lease needs a bridge, .* no node serves 'bridge': start one"),
        (RemoteError("no_such_operation", "?"), NoSuchCluster, "is no bridge that grants leases"),
        (RemoteError("NotAllowed", "no member"), NotAllowed, "no member"),
        (RemoteError("not_stored", "disk full"), RemoteError, "not_stored: disk full"),
        (NotAllowed("no"), NotAllowed, "no"),
    ],
)
async def test_a_lease_is_refused_with_the_reason(
    autojump_clock: MockClock, reply: Exception, error: type[Exception], text: str
) -> None:
    bridge = Bridge()
    bridge.reply = reply
    with pytest.raises(error, match=text):
        async with bridge.lease(1):
            pass


# -- histories -------------------------------------------------------------------------------------------------

_TTL = 10.0
_HOLDERS = 3


class Resource:
    """A resource that only a holder may change: it refuses tokens smaller than one it has seen."""

    def __init__(self) -> None:
        self.greatest = 0
        self.writers: dict[int, int] = {}

    def write(self, holder: int, token: int) -> None:
        if token >= self.greatest:
            self.greatest = token
            assert self.writers.setdefault(token, holder) == holder, "two nodes have written by one token"


class History:
    """Holders, a bridge and a resource, and whatever may happen to them; time is that of the clock."""

    def __init__(self, rng: random.Random, clock: MockClock) -> None:
        self.rng, self.clock = rng, clock
        self.table = LeaseTable(0, {}, trio.current_time())
        self.disk: dict[str, LeaseRecord] = {}
        self.written = 0
        """The last token on the disk."""
        self.date = 1e6
        self.earliest = 0.0
        """A clock is not behind the last token of a disk that is lost."""
        self.resource = Resource()
        self.leases: dict[int, Lease] = {}
        self.frozen: dict[int, int] = {}
        """Holders that were stopped just before they wrote, and with which token."""
        self.cut: set[int] = set()
        self.last = 0
        self.boots = [0] * _HOLDERS
        self.stopped = 0
        """Writes of holders that were stopped, which the resource refused."""

    def step(self) -> None:
        holder = self.rng.randrange(_HOLDERS)
        often = (self.acquire, self.acquire, self.acquire, self.renew, self.renew, self.write, self.write)
        seldom = (self.stop, self.go_on, self.give_back, self.partition, self.restart, self.set_clock)
        self.rng.choice((*often, *seldom))(holder)
        self.clock.jump(self.rng.choice((0.0, 0.1, 1.0, 3.0, 9.9, 11.0)) * self.rng.random())
        at_work = [one for one, lease in self.leases.items() if one not in self.frozen and lease.left > 0]
        assert len(at_work) <= 1, "two nodes believe that they may"

    def able(self, holder: int) -> bool:
        return holder not in self.frozen and holder not in self.cut

    def acquire(self, holder: int) -> None:
        if not self.able(holder) or (holder in self.leases and self.leases[holder].left > 0):
            return
        self.boots[holder] += 1
        asked = trio.current_time()
        self.clock.jump(self.rng.choice((0.0, 0.5, 2.0)))  # on the way there
        granted = self.table.acquire("x", f"{holder}.{self.boots[holder]}", "", _TTL, trio.current_time())
        if not isinstance(granted, LeaseRecord):
            return
        for ended in self.table.pop_ended():
            self.disk.pop(ended, None)
        self.disk["x"], self.written = granted, granted.token
        assert granted.token > self.last
        self.last = granted.token
        self.clock.jump(self.rng.choice((0.0, 0.5, 2.0)))  # on the way back
        if self.rng.random() < 0.9:  # else the answer is lost
            self.leases[holder] = Lease("x", granted.token, _TTL, trio.CancelScope(deadline=asked + _TTL))

    def renew(self, holder: int) -> None:
        lease = self.leases.get(holder)
        if lease is None or not self.able(holder) or lease.left == 0:
            return
        asked = trio.current_time()
        self.clock.jump(self.rng.choice((0.0, 0.5, 2.0)))
        if not self.table.renew("x", f"{holder}.{self.boots[holder]}", trio.current_time()):
            lease._lose()
        elif self.rng.random() < 0.9 and lease.left > 0:
            lease._renewed(asked)

    def write(self, holder: int) -> None:
        lease = self.leases.get(holder)
        if lease is not None and holder not in self.frozen and lease.left > 0:
            self.resource.write(holder, lease.token)

    def stop(self, holder: int) -> None:
        lease = self.leases.get(holder)
        if lease is not None and holder not in self.frozen and lease.left > 0:
            self.frozen[holder] = lease.token

    def go_on(self, holder: int) -> None:
        if holder in self.frozen:
            token = self.frozen.pop(holder)  # it had looked before it was stopped
            self.stopped += token < self.resource.greatest
            self.resource.write(holder, token)

    def give_back(self, holder: int) -> None:
        if self.able(holder) and self.leases.pop(holder, None) is not None:
            self.table.release("x", f"{holder}.{self.boots[holder]}")

    def partition(self, holder: int) -> None:
        self.cut ^= {holder}

    def restart(self, _: int) -> None:
        if self.rng.random() < 0.1:  # its disk is lost, and another one is set up when what was held is over
            self.clock.jump(_TTL)
            self.earliest = self.last / 1e6 + 1
            self.date = max(self.date, self.earliest)
            self.disk, self.written = {}, 0
        self.table = LeaseTable(max(self.written, int(self.date * 1e6)), self.disk, trio.current_time())

    def set_clock(self, _: int) -> None:
        self.date = max(self.earliest, self.date + self.rng.choice((-1e5, 1.0, 1e5)))


async def run_histories(count: int, clock: MockClock) -> tuple[int, int]:
    written = stopped = 0
    for seed in range(count):
        history = History(random.Random(seed), clock)
        try:
            for _ in range(60):
                history.step()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        written += len(history.resource.writers)
        stopped += history.stopped
    await trio.lowlevel.checkpoint()
    return written, stopped


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
async def test_thousands_of_histories_have_never_two_who_may(mock_clock: MockClock, count: int) -> None:
    written, stopped = await run_histories(count, mock_clock)
    assert written > count / 2
    assert stopped > count / 100, "holders that were stopped wrote after others had"
