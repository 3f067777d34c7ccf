"""The harness finds what it is for: mistakes of the kinds that messaging systems have, one planted at a time.

Each is found by the mixed workload within 200 seeds, and shrunk to five faults at most.  With ``-s`` each test says by
which seed it was found, and what is left.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest
import trio

import iris
import iris.testing
from benchmarks.simulation.workload import MixedWorkload
from iris.cluster.swim.records import MemberState
from iris.cluster.swim.view import NodeState, View
from iris.federation.gateway import Gateway
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.books import Account
from iris.patterns.pubsub.publish.acks import Acknowledgements
from iris.patterns.pubsub.pubsub import PubSub
from iris.patterns.request.call import Call
from iris.patterns.request.requests import Requests
from iris.patterns.service.broadcast_queue import BroadcastQueue
from iris.patterns.service.worker_pool import WorkerPool
from iris.patterns.tunnel.receive_half import ReceivingHalf
from iris.spark_bridge.log.dedup import PublisherWindow
from iris.spark_bridge.log.segments import FileSystem
from iris.spark_bridge.queues.machine import QueuedJob, QueueMachine
from iris.testing.faults import CHAOS, Broken, Crash, Fault, Faults, Schedule, SlowDisk
from iris.testing.running import run_once
from iris.testing.shrinking import shrink

SEEDS = 200
MOST_FAULTS = 5
STORM = Faults(kinds=CHAOS.kinds, pause=6.0, lasting=(0.2, 8.0))
"""Faults of twenty minutes of ``CHAOS``, in two."""
Patch = pytest.MonkeyPatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planted:
    """A mistake, and the part of the workload that can meet it."""

    plant: Callable[[Patch], None]
    bridged: bool = False
    sites: bool = False
    kinds: tuple[type[Fault], ...] = CHAOS.kinds
    """Kinds of faults to draw, where only some can bring the bug to light."""

    pause: float = 6.0
    seconds: float = 120.0
    slow: bool = False
    """True if it needs more than a few runs."""


PLANTED: Final[dict[str, Planted]] = {}


def planted(**options: Any) -> Callable[[Callable[[Patch], None]], None]:
    def register(plant: Callable[[Patch], None]) -> None:
        PLANTED[plant.__name__] = Planted(plant=plant, **options)

    return register


@planted(bridged=True, seconds=60.0, slow=True)
def lost_acknowledgement(patch: Patch) -> None:
    """Once frames were lost, what a durable subscriber confirms is not taken any more."""
    lost, confirm = Acknowledgements.lost, Acknowledgements._confirm
    deaf: set[object] = set()

    def note(self: Acknowledgements, node: Any) -> None:
        deaf.add(node)
        lost(self, node)

    def ignore(self: Acknowledgements, node: Any, first: int, last: int) -> None:
        if node not in deaf:
            confirm(self, node, first, last)

    patch.setattr(Acknowledgements, "lost", note)
    patch.setattr(Acknowledgements, "_confirm", ignore)


@planted(bridged=True, kinds=(SlowDisk, Broken), pause=0.5, slow=True)
def deduplication_off_by_one(patch: Patch) -> None:
    """The first event of a repeat is taken for new."""
    admit_all = PublisherWindow.admit_all

    def admit_later(window: PublisherWindow, first: int, count: int) -> bool:
        return admit_all(window, first + 1, count - 1)

    patch.setattr(PublisherWindow, "admit_all", admit_later)


@planted(seconds=20.0)
def credit_leak(patch: Patch) -> None:
    """Plant a bug: what has come through a tunnel gives its sender no new credit."""

    def grant_nothing(half: ReceivingHalf) -> int:
        return half._window

    patch.setattr(ReceivingHalf, "_grant", grant_nothing)


@planted(slow=True)
def double_retry(patch: Patch) -> None:
    """A request that may have been carried out is asked of another member, whether it may be repeated or not."""
    call = Requests.call

    def always_idempotent(self: Requests, *args: Any, **options: Any) -> Any:
        return call(self, *args, **{**options, "idempotent": True})

    patch.setattr(Requests, "call", always_idempotent)


@planted(kinds=(Crash,), slow=True)
def stale_incarnation_accepted(patch: Patch) -> None:
    """The old record of a member that was declared dead raises it from the dead."""
    bury = View.bury

    def raise_again(self: View, member: NodeState, state: MemberState, now: float) -> None:
        bury(self, member, state, now)
        if state is MemberState.DEAD:
            self.renew(member, member.record)
            member.state = MemberState.ALIVE

    patch.setattr(View, "bury", raise_again)


@planted(seconds=20.0)
def reordered_events(patch: Patch) -> None:
    """Events that come in one run are taken from its end."""
    receive = PubSub._receive_events

    def turned(self: PubSub, peer: Any, message: kinds.Events) -> None:
        receive(self, peer, msgspec.structs.replace(message, payloads=message.payloads[::-1]))

    patch.setattr(PubSub, "_receive_events", turned)


@planted(slow=True)
def unbalanced_books(patch: Patch) -> None:
    """A request whose time is over is counted twice."""
    failed = Requests.failed

    def twice(self: Requests, call: Call, member: NodeId, error: BaseException) -> None:
        failed(self, call, member, error)
        if isinstance(error, iris.RequestTimeout):
            self.tally.expired += 1

    patch.setattr(Requests, "failed", twice)


@planted(seconds=20.0)
def told_twice(patch: Patch) -> None:
    """A broadcast that waits behind another one is handed to its handler twice."""
    accept = BroadcastQueue.accept

    def again(self: BroadcastQueue, message: Any, account: Account, position: int, cost: int) -> None:
        waits = bool(self)
        accept(self, message, account, position, cost)
        if waits:
            accept(self, message, account, position, cost)

    patch.setattr(BroadcastQueue, "accept", again)


@planted(bridged=True, kinds=(Crash,), pause=3.0, seconds=60.0, slow=True)
def confirmed_before_it_is_on_disk(patch: Patch) -> None:
    """The log is not synchronized before events are confirmed."""

    def forget(_files: FileSystem, _descriptor: int) -> None:
        pass

    patch.setattr(FileSystem, "sync", forget)


@planted(sites=True, slow=True)
def gateway_dials_once(patch: Patch) -> None:
    """A gateway whose link was lost does not dial again."""

    async def once(self: Gateway, url: str, alias: str = "") -> None:
        del alias
        while True:
            try:
                await self._between.connect([url])
            except iris.DeliveryError:
                await trio.sleep(0.5)
            else:
                await trio.sleep_forever()

    patch.setattr(Gateway, "keep_dialling", once)


@planted(bridged=True, seconds=60.0, slow=True)
def keys_of_a_queue_ignored(patch: Patch) -> None:
    """A job does not wait until the one before it of its key is done."""

    def offer(self: QueueMachine, job: QueuedJob, now: float) -> None:
        self._offer(job, now)

    patch.setattr(QueueMachine, "_enqueue", offer)


@planted(slow=True)
def slot_leak(patch: Patch) -> None:
    """A worker whose request was cut off does not come back, and neither do the others."""
    cut_off = WorkerPool._cut_off

    def leak(self: WorkerPool, job: Any) -> None:
        cut_off(self, job)
        self._concurrency = 0

    patch.setattr(WorkerPool, "_cut_off", leak)


def find_and_shrink(name: str) -> tuple[int, int, str]:
    """Return the seed that finds a planted mistake, the faults that are left, and the error."""
    bug = PLANTED[name]

    async def body(world: iris.testing.World) -> None:
        await MixedWorkload(world, pause=2.0, bridged=bug.bridged, sites=bug.sites, probe_interval=2.0).run()

    for seed in range(SEEDS):
        drawn = msgspec.structs.replace(STORM, kinds=bug.kinds, pause=bug.pause)
        run = run_once(body, Schedule(seed=seed, seconds=bug.seconds), drawn)
        if run.error is not None:
            assert isinstance(run.error, AssertionError | iris.IrisError), f"the plant does not work: {run.error!r}"
            best = shrink(run, lambda schedule, limit: run_once(body, schedule, limit=limit), 20)
            return seed, len(best.schedule.faults), f"{type(best.error).__name__}: {best.error}"
    raise AssertionError(f"{name} was not found in {SEEDS} seeds")


@pytest.fixture(autouse=True)
def _accounts_add_up() -> None:
    """Not here: some of the mistakes are in the books."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if bug.slow else []) for name, bug in PLANTED.items()]
)
def test_a_planted_bug_is_found_and_shrunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name].plant(monkeypatch)
    seed, faults, error = find_and_shrink(name)
    sys.stdout.write(f"{name}: seed {seed}, {faults} faults left: {error[:200]}\n")
    assert faults <= MOST_FAULTS
