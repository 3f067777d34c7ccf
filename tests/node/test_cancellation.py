"""Every public operation, cancelled at each step of the scheduler in turn: it can be repeated and leaves nothing."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.cluster.membership.roster import Watch
from iris.patterns.pubsub.publish.ack_batch import ConfirmedEvents
from iris.patterns.tunnel.tunnel import TunnelStream
from iris.security.identity.revocation import issue_revocations
from iris.testing import Network
from tests.support.stages import IN_FLIGHT, Stage, check_accounts, open_stage

ENOUGH = 3
"""Runs one after the other that were over before the step came: how many steps one takes also depends on others."""


class CancelAt(trio.abc.Instrument):
    """Cancels a scope after so many steps of any task."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self._scope = scope
        self._left = steps

    @property
    def came(self) -> bool:
        """Whether there were so many steps."""
        return self._left <= 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


@dataclass
class Cast:
    """The nodes of one test, and what their handlers are at."""

    shop: iris.Node
    store: iris.Node
    bridge: iris.Subscription
    network: Network
    revocations: bytes
    running: int = 0

    async def serve(self, request: iris.Request) -> object:
        self.running += 1
        try:
            await trio.sleep(0.001)
            return request.payload
        finally:
            self.running -= 1

    async def store_events(self) -> None:
        while True:
            await self.bridge.confirm(await self.bridge.receive_batch())


def waiters(node: iris.Node) -> list[object]:
    """What a node keeps for those who wait: requests, surveys, handlers, confirmations, watches, subscriptions."""
    requests, pubsub = node._requests, node._pubsub
    return [
        *requests._waiting, *requests.gathering, *node._serving._jobs, *pubsub.confirming._waiting,
        *node._membership._watches, *pubsub._every,
    ]  # fmt: skip


def connections(network: Network) -> list[int]:
    """What would be descriptors on a real network: sockets, connections of either direction, and those being made."""
    memory = network.memory
    ways = [(len(transport._outward), len(transport._inward)) for transport in memory._transports]
    return [
        len(memory._transports), sum(out for out, _ in ways), sum(inward for _, inward in ways),
        len(memory._listening), len(memory.accepting), len(memory.calling),
    ]  # fmt: skip


def revocations_of(network: Network) -> bytes:
    """A list that names nobody."""
    return issue_revocations(network.root, number=1, issued=network.wall_clock(), clusters={}, nodes={}).signed


@asynccontextmanager
async def open_cast(stage: Stage) -> AsyncIterator[Cast]:
    """Bring up a shop that asks, and a store that answers, takes tunnels and keeps events."""
    store, shop = await stage.node("store"), await stage.node("shop")
    service = iris.Service("store")
    async with store.subscribe("kept.>", durable=True) as bridge:
        cast = Cast(shop, store, bridge, stage.network, revocations_of(stage.network))
        service.request(cast.serve)

        async def note(_: iris.Message) -> None:
            await trio.lowlevel.checkpoint()

        async def echo(tunnel: iris.Tunnel) -> None:
            async for payload in tunnel:
                await tunnel.send(payload)

        service.broadcast(note)
        service.tunnel(echo)
        async with store.join("store", service), trio.open_nursery() as nursery:
            nursery.start_soon(cast.store_events)
            await shop.wait_for("store")
            yield cast
            nursery.cancel_scope.cancel()


async def request(cast: Cast) -> None:
    assert await cast.shop.request("store", 1, timeout=60) == 1


async def idempotent_request(cast: Cast) -> None:
    assert await cast.shop.request("store", 1, timeout=60, idempotent=True) == 1


async def own_request(cast: Cast) -> None:
    assert await cast.store.request("store", 1, timeout=60) == 1


async def hedged_request(cast: Cast) -> None:
    assert await cast.shop.request("store", 1, timeout=60, idempotent=True, hedge=0.0005) == 1


async def broadcast(cast: Cast) -> None:
    await cast.shop.broadcast("store", b"flush")


async def survey(cast: Cast) -> None:
    async with cast.shop.survey("store", 2, timeout=60) as answers:
        assert [answer.payload async for answer in answers] == [2]


async def survey_until_the_first(cast: Cast) -> None:
    async with cast.shop.survey("store", 2, timeout=60, count=1, quiet=1) as answers:
        assert (await anext(answers)).payload == 2


async def publish(cast: Cast) -> None:
    for _ in range(1100):  # more than one run
        await cast.shop.publish("kept.a", b"x")


async def publish_confirmed(cast: Cast) -> None:
    await cast.shop.publish("kept.a", b"x", confirm=True, timeout=60)


async def publish_many_confirmed(cast: Cast) -> None:
    async with cast.shop.confirming(timeout=60) as events:
        for number in range(5):
            await events.publish("kept.a", b"x", key=str(number % 2))
        await events.wait_confirmed()
        await events.publish("kept.b", b"x")
    assert events.confirmed == events.published == 6


async def publish_retained(cast: Cast) -> None:
    await cast.shop.publish("state", 4, retain=True, strict=True)
    async with cast.store.subscribe("state") as events:
        assert (await anext(events)).payload == 4


async def subscribe(cast: Cast) -> None:
    async with cast.shop.subscribe("back.*") as events:
        await cast.store.publish("back.a", 3)
        assert (await anext(events)).payload == 3


async def subscribe_in_group(cast: Cast) -> None:
    async with cast.shop.subscribe("back.*", group="g", overflow="wait") as events:
        await cast.store.publish("back.a", 3, key="k")
        assert (await anext(events)).payload == 3


async def take_in_batches(cast: Cast) -> None:
    async with cast.shop.subscribe("back.*") as events:
        await cast.store.publish("back.a", 3)
        batch = await events.receive_batch()
        await events.confirm(batch)
        await cast.store.publish("back.a", 4)
        (run,) = await events._receive_runs()
        assert (len(batch), len(run.payloads)) == (1, 1)


async def forget_subscriber(cast: Cast) -> None:
    async with cast.shop.subscribe("back.*", durable=True, name="books"):
        pass
    await cast.shop.forget_subscriber("books")


async def tunnel(cast: Cast) -> None:
    async with cast.shop.open_tunnel("store", timeout=60) as tunnel:
        await tunnel.send(b"there")
        assert await tunnel.receive() == b"there"


async def tunnel_as_a_stream(cast: Cast) -> None:
    async with cast.shop.open_tunnel("store", timeout=60) as tunnel:
        stream = tunnel.as_stream()
        await stream.wait_send_all_might_not_block()
        await stream.send_all(b"there" * 20_000)  # more than one chunk
        await stream.send_eof()
        received = 0
        while part := await stream.receive_some():
            received += len(part)
        assert received == 100_000


async def iterate_over_a_tunnel(cast: Cast) -> None:
    async with cast.shop.open_tunnel("store", timeout=60) as tunnel:
        await tunnel.send([1])
        await tunnel.send_eof()
        assert [payload async for payload in tunnel] == [[1]]


async def join(cast: Cast) -> None:
    service = iris.Service("more")
    service.request(cast.serve)
    async with cast.shop.join("more", service):
        await cast.store.wait_for("more", timeout=60)
        assert await cast.store.request("more", 4, timeout=60) == 4
    await trio.sleep(0.5)


async def wait_for(cast: Cast) -> None:
    await cast.shop.wait_for("store", timeout=60)
    with pytest.raises(iris.RequestTimeout):
        await cast.shop.wait_for("store", members=2, timeout=0.01)


async def watch(cast: Cast) -> None:
    async with cast.shop.watch("store") as changes:
        assert (await anext(changes)).kind == "joined"
        with trio.move_on_after(0.01):
            await anext(changes)


async def revoke(cast: Cast) -> None:
    await cast.shop.revoke(cast.revocations)


async def open_node(cast: Cast) -> None:
    async with cast.network.open_node("third", host="third") as third:
        await third.wait_for("store", timeout=60)
        assert await third.request("store", 5, timeout=60) == 5


OPERATIONS = (
    request, idempotent_request, hedged_request, own_request, broadcast, survey, survey_until_the_first, publish,
    publish_confirmed, publish_many_confirmed, publish_retained, subscribe, subscribe_in_group, take_in_batches, tunnel,
    tunnel_as_a_stream, iterate_over_a_tunnel, join, wait_for, watch, revoke, forget_subscriber, open_node,
)  # fmt: skip

COVERED = {
    iris.Node: {
        "request": request, "broadcast": broadcast, "survey": survey, "publish": publish, "subscribe": subscribe,
        "confirming": publish_many_confirmed, "open_tunnel": tunnel, "join": join, "wait_for": wait_for,
        "watch": watch, "revoke": revoke, "forget_subscriber": forget_subscriber,
    },
    iris.Subscription: {
        "__anext__": subscribe, "receive_batch": take_in_batches, "confirm": take_in_batches,
    },
    iris.Answers: {"__anext__": survey},
    iris.Tunnel: {
        "send": tunnel, "receive": tunnel, "send_eof": iterate_over_a_tunnel, "__anext__": iterate_over_a_tunnel,
        "aclose": tunnel,
    },
    TunnelStream: {
        "send_all": tunnel_as_a_stream, "wait_send_all_might_not_block": tunnel_as_a_stream,
        "send_eof": tunnel_as_a_stream, "receive_some": tunnel_as_a_stream, "aclose": tunnel_as_a_stream,
    },
    ConfirmedEvents: {"publish": publish_many_confirmed, "wait_confirmed": publish_many_confirmed},
    Watch: {"__anext__": watch},
}  # fmt: skip
"""For each class that users have in their hands, which operation goes through each step of what can be waited for."""

RUN_BY_OTHERS = {
    (ConfirmedEvents, "post_soon"), (ConfirmedEvents, "follow"),
}  # fmt: skip
"""For the user, within operations."""

ELSEWHERE = RUN_BY_OTHERS | {
    (iris.Tunnel, "send_file"), (iris.Tunnel, "receive_file"),  # threads: tests/patterns/tunnel/test_file_transfer.py
}  # fmt: skip


def can_be_waited_for(function: object) -> bool:
    """Tell whether it is a coroutine function, or makes a block that is entered and left."""
    if not callable(function):
        return False
    try:
        made = str(inspect.signature(function).return_annotation)
    except (TypeError, ValueError):
        return False
    return inspect.iscoroutinefunction(function) or "ContextManager" in made or "AsyncIterator[" in made


def test_every_public_operation_is_among_those_that_are_cancelled_at_each_step() -> None:
    shown = {getattr(iris, name) for name in iris.__all__}
    async_classes = {
        one
        for one in shown
        if inspect.isclass(one)
        and any(can_be_waited_for(member) for name, member in vars(one).items() if name != "__aiter__")
    }
    assert async_classes <= COVERED.keys() | {iris.Environment}
    for owner, covered in COVERED.items():
        public = {
            name
            for name, member in vars(owner).items()
            if (not name.startswith("_") or name == "__anext__")
            and can_be_waited_for(member)
            and (owner, name) not in ELSEWHERE
        }
        assert public == covered.keys(), owner
        assert set(covered.values()) <= set(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
async def test_an_operation_cancelled_at_any_step_leaves_nothing_behind(
    autojump_clock: MockClock, operation: Callable[[Cast], Awaitable[None]]
) -> None:
    async with open_stage() as stage, open_cast(stage) as cast:
        if operation is open_node:  # what a node that was opened in part has on its way comes after its end
            stage.harmless = ("unknown session", "of a peer that is gone")
        for _ in range(2):  # what is made once and kept, such as workers, is there before tasks are counted
            await operation(cast)
        await trio.sleep(1)
        cancelled = step = over = 0
        tasks = trio.lowlevel.current_statistics().tasks_living
        open_before = connections(stage.network)
        waiting = [len(waiters(node)) for node in (cast.shop, cast.store)]
        while over < ENOUGH:  # every step of the operation
            step += 1
            scope = trio.CancelScope()
            instrument = CancelAt(scope, step)
            with scope:
                trio.lowlevel.add_instrument(instrument)
                try:
                    await operation(cast)
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            cancelled += scope.cancelled_caught
            over = 0 if instrument.came else over + 1
            await trio.sleep(IN_FLIGHT)
            assert cast.running == 0, step
            for node in (cast.shop, cast.store):
                check_accounts(node, *stage.harmless)
                assert node.statistics().tunnels.open == 0, step
            assert not cast.shop.statistics().subscriptions, step
            assert not cast.shop.statistics().services, step
            assert [len(waiters(node)) for node in (cast.shop, cast.store)] == waiting, step
        with trio.fail_after(30):
            await operation(cast)
        await trio.sleep(1)
        assert trio.lowlevel.current_statistics().tasks_living <= tasks
        assert connections(stage.network) == open_before
        assert cancelled > 0


def test_every_operation_says_what_cancelling_it_leaves_behind() -> None:
    """Those that can be waited for: coroutines, and blocks that are entered and left."""
    waiting = {
        name: function
        for name, function in vars(iris.Node).items()
        if not name.startswith("_")
        and callable(function)
        and (
            inspect.iscoroutinefunction(function)
            or "ContextManager" in str(inspect.signature(function).return_annotation)
            or "AsyncIterator" in str(inspect.signature(function).return_annotation)
        )
    }
    assert {
        "request",
        "broadcast",
        "survey",
        "publish",
        "subscribe",
        "open_tunnel",
        "join",
        "wait_for",
    } <= waiting.keys()
    documented: dict[str, object] = {**waiting, "open_node": iris.open_node}
    for owner, covered in COVERED.items():
        names = (*covered, *(name for other, name in ELSEWHERE - RUN_BY_OTHERS if other is owner))
        for name in names:  # the classes tell of iterating
            documented[f"{owner.__name__}.{name}"] = owner if name == "__anext__" else vars(owner)[name]
    silent = [name for name, described in documented.items() if "ancel" not in (inspect.getdoc(described) or "")]
    assert silent == []
