"""Every public method that waits, waiting for what never comes: the same with trio, asyncio and threads.

``member`` is a node that others ask and that never answers; what it serves is made by ``silent_services``.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Final

import iris
from iris.cluster.membership.roster import Watch
from iris.patterns.messages import Request
from iris.patterns.pubsub.publish.ack_batch import ConfirmedEvents
from iris.patterns.tunnel.tunnel import TunnelStream
from tests.support.request_arguments import request_arguments

FOREVER: Final = math.inf

Waits = Callable[[Any], Awaitable[object]]
"""Call that waits, given a node."""


def silent_services(hang: Callable[[Any], Any]) -> tuple[iris.Service, iris.Service, iris.Service]:
    """Return a service, a bridge, and a bridge that grants one lease, which answer nothing else; ``hang`` waits."""
    silent, bridge, granting = iris.Service("silent"), iris.Service("bridge"), iris.Service("granting")
    silent.request(hang)
    silent.broadcast(hang)
    silent.tunnel(hang)
    for operation in ("lease", "key.claim", "shards"):
        bridge.request(operation)(hang)

    def lease(_: object) -> dict[str, Any]:
        return {"token": 1, "at": "granting"}

    def release(_: object) -> None:
        pass

    granting.request("lease")(lease)
    granting.request("renew")(hang)
    granting.request("release")(release)
    return silent, bridge, granting


_reached: Final[ContextVar[Callable[[], None]]] = ContextVar("_reached")


async def _everything(values: Any) -> None:
    there = aiter(values)  # with threads what makes it is called here, and on a closed node not at all
    _reached.get()()
    async for _ in there:
        pass


def _request(**options: Any) -> Waits:
    async def wait(node: Any) -> None:
        await node.request("silent", timeout=FOREVER, **request_arguments(**options))

    return wait


async def _request_first(node: Any) -> None:
    await node.request("nobody", timeout=FOREVER, wait=FOREVER)


async def _broadcast_first(node: Any) -> None:
    await node.broadcast("nobody", b"", wait=FOREVER)


async def _broadcast(node: Any) -> None:
    while True:
        await node.broadcast("silent", bytes(100_000))


async def _survey_first(node: Any) -> None:
    async with node.survey("nobody", b"", timeout=FOREVER, wait=FOREVER):
        raise AssertionError("there is nobody to ask")


async def _survey(node: Any) -> None:
    async with node.survey("silent", b"", timeout=FOREVER) as answers:
        await _everything(answers)


async def _tunnel_first(node: Any) -> None:
    async with node.open_tunnel("nobody", timeout=FOREVER, wait=FOREVER):
        raise AssertionError("there is nobody to ask")


async def _tunnel(node: Any) -> None:
    async with node.open_tunnel("silent", timeout=FOREVER) as tunnel:
        _reached.get()()
        await tunnel.receive()


async def _tunnel_each(node: Any) -> None:
    async with node.open_tunnel("silent", timeout=FOREVER) as tunnel:
        await _everything(tunnel)


async def _tunnel_full(node: Any) -> None:
    async with node.open_tunnel("silent", timeout=FOREVER) as tunnel:
        _reached.get()()
        while True:
            await tunnel.send(bytes(100_000))


async def _publish(node: Any) -> None:
    while True:
        await node.publish("held.a", b"")


async def _publish_confirmed(node: Any) -> None:
    await node.publish_confirmed("kept.a", b"", timeout=FOREVER)


async def _confirming(node: Any) -> None:
    async with node.confirming(timeout=FOREVER) as events:
        await events.publish("kept.a", b"")


async def _confirming_full(node: Any) -> None:
    async with node.confirming(timeout=FOREVER) as events:
        while True:
            await events.publish("kept.a", bytes(1_000_000))


async def _confirming_part(node: Any) -> None:
    async with node.confirming(timeout=FOREVER) as events:
        await events.publish("kept.a", b"")
        await events.wait_confirmed()


async def _subscribe(node: Any) -> None:
    async with node.subscribe("quiet.>") as events:
        await _everything(events)


async def _subscribe_batch(node: Any) -> None:
    async with node.subscribe("quiet.>") as events:
        _reached.get()()
        await events.receive_batch()


async def _wait_for(node: Any) -> None:
    await node.wait_for("nobody", timeout=FOREVER)


async def _wait_for_more(node: Any) -> None:
    await node.wait_for("silent", 2, timeout=FOREVER)


async def _watch(node: Any) -> None:
    async with node.watch("silent") as changes:
        await _everything(changes)


async def _watch_losses(node: Any) -> None:
    await _everything(node.watch_losses())


async def _state(node: Any) -> None:
    async with node.state("document") as state:
        await _everything(state.watch())


async def _queue(node: Any) -> None:
    async with node.bridge().queue("jobs") as jobs:
        await _everything(jobs.receive())


async def _queue_without(node: Any) -> None:
    async with node.bridge("nobody").queue("jobs") as jobs:
        await _everything(jobs.receive())


async def _queue_put(node: Any) -> None:
    async with node.bridge().queue("kept.jobs") as jobs:
        await jobs.put(b"", timeout=FOREVER)


async def _consume(node: Any) -> None:
    async with node.bridge().consume("a.>", group="g") as batches:
        await _everything(batches)


async def _consume_without(node: Any) -> None:
    async with node.bridge("nobody").consume("a.>", group="g") as batches:
        await _everything(batches)


async def _lease(node: Any) -> None:
    async with node.bridge().lease("one"):
        raise AssertionError("it is never granted")


async def _saga(node: Any) -> None:
    async with node.bridge().saga("one", timeout=FOREVER):
        raise AssertionError("it is never begun")


CLOSED: Final = "ClosedResourceError"
UNKNOWN: Final = "Unknown"
"""Outcome: a member may have run it, and no other is asked."""
BROKEN: Final = "TunnelBroken"
"""Outcome: the error that both ends get."""
ENDED: Final = "ended"
"""Outcome: the iteration ends."""

WAITS: Final[tuple[tuple[type, str, str, tuple[Waits, ...]], ...]] = (
    (
        iris.Node,
        "request",
        CLOSED,
        (
            _request(idempotent=True), _request(idempotent=True, hedge=0.1), _request_first,
            _request(idempotent=True, fallback=b""),
        ),
    ),
    (iris.Node, "request", UNKNOWN, (_request(),)),
    (iris.Node, "broadcast", CLOSED, (_broadcast, _broadcast_first)),
    (iris.Node, "survey", CLOSED, (_survey_first,)),
    (iris.Node, "publish", CLOSED, (_publish,)),
    (iris.Node, "publish_confirmed", CLOSED, (_publish_confirmed,)),
    (iris.Node, "confirming", CLOSED, (_confirming,)),
    (ConfirmedEvents, "publish", CLOSED, (_confirming_full,)),
    (ConfirmedEvents, "wait_confirmed", CLOSED, (_confirming_part,)),
    (iris.Node, "open_tunnel", CLOSED, (_tunnel_first,)),
    (iris.Node, "wait_for", CLOSED, (_wait_for, _wait_for_more)),
    (iris.Bridge, "lease", CLOSED, (_lease,)),
    (iris.Bridge, "saga", CLOSED, (_saga,)),
    (iris.WorkQueue, "put", CLOSED, (_queue_put,)),
    (iris.JobWorker, "__anext__", CLOSED, (_queue, _queue_without)),
    (iris.Consumer, "__anext__", CLOSED, (_consume, _consume_without)),
    (iris.Tunnel, "send", BROKEN, (_tunnel_full,)),
    (iris.Tunnel, "receive", BROKEN, (_tunnel,)),
    (iris.Tunnel, "__anext__", BROKEN, (_tunnel_each,)),
    (iris.Answers, "__anext__", ENDED, (_survey,)),
    (iris.Subscription, "__anext__", ENDED, (_subscribe,)),
    (iris.Subscription, "receive_batch", "EndOfChannel", (_subscribe_batch,)),
    (Watch, "__anext__", ENDED, (_watch,)),
    (iris.StateWatch, "__anext__", ENDED, (_state,)),
    (iris.LossWatch, "__anext__", ENDED, (_watch_losses,)),
)  # fmt: skip
"""Public methods that wait, each with its outcome when its node is closed, and the calls to try."""

WAITS_FOR_NOBODY: Final[frozenset[tuple[type, str]]] = frozenset({
    (iris.Node, "subscribe"), (iris.Node, "join"), (iris.Node, "watch"), (iris.Node, "revoke"), (iris.Node, "state"),
    (iris.Node, "forget_subscriber"), (iris.Node, "books"), (iris.Bridge, "queue"), (iris.Bridge, "consume"),
    (iris.Bridge, "drop_group"),
    (iris.Node, "subscribe_durable"), (iris.Node, "retain"), (iris.Node, "retain_confirmed"),  # a subscription, events
    (iris.Subscription, "confirm"), (iris.SharedState, "settled"), (iris.Saga, "request"),
    (iris.Tunnel, "send_eof"), (iris.Tunnel, "aclose"),
    (TunnelStream, "send_all"), (TunnelStream, "wait_send_all_might_not_block"), (TunnelStream, "send_eof"),
    (TunnelStream, "receive_some"), (TunnelStream, "aclose"),  # a tunnel
    (iris.Job, "commit"), (iris.LogBatch, "commit"),
})  # fmt: skip
"""Methods that wait for linked peers, or for what another method here waits for."""


_REQUESTS: Final = 5
"""Number of requests of ``WAITS`` that are sent to ``silent``, with its survey."""


def each_wait() -> dict[str, tuple[Waits, str]]:
    """Return each call that waits, by a name, with its outcome."""
    return {
        f"{owner.__name__}.{name}: {expected} {number}": (wait, expected)
        for owner, name, expected, several in WAITS
        for number, wait in enumerate(several)
    }


async def take_what_is_left(opening: AbstractAsyncContextManager[Any]) -> None:
    """Check that what a node had received can be taken after it was closed."""
    async with opening as node:
        losses = node.watch_losses()
        async with node.subscribe("a") as events, node.state("document") as state, node.watch("caller") as changes:
            state["a"] = 1
            keys = state.watch()
            await node.publish("a", b"1")
            await node.publish("a", b"2")
    assert [event.payload async for event in events] == [b"1", b"2"]
    assert [change.key async for change in keys] == ["a"]
    assert [change async for change in changes] == []
    assert [(loss.reason, loss.count) async for loss in losses] == [("receiver left", 2)]
    assert [loss async for loss in losses] == []


class Arrivals:
    """Calls that have reached a point from which their outcome is certain, whenever the node is closed.

    The others have the same outcome at any point.  Requests to ``silent`` are noted by its handler.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._missing = {name for name, (_, expected) in each_wait().items() if expected not in (CLOSED, UNKNOWN)}

    def __repr__(self) -> str:
        return f"<Arrivals: {self._asked} asked, {sorted(self._missing)} are missing>"

    def note_asked(self, given: object) -> None:
        """Note what a handler of ``silent`` or ``bridge`` is given."""
        self._asked += isinstance(given, Request) and given.sender.cluster == "caller" and not given.operation

    async def outcome_of(self, name: str, wait: Waits, node: Any) -> str:
        """Make a call that waits, and return its outcome."""
        return await outcome_of(wait, node, lambda: self._missing.discard(name))

    @property
    def complete(self) -> bool:
        """True once all calls have reached that point."""
        return not self._missing and self._asked == _REQUESTS


async def outcome_of(wait: Waits, node: Any, reached: Callable[[], None] = lambda: None) -> str:
    """Make a call that waits, and return its outcome; ``reached`` is called before it waits for the last time."""
    _reached.set(reached)
    try:
        await wait(node)
    except Exception as error:  # noqa: BLE001 -- what it is is looked at
        return type(error).__name__
    return ENDED
