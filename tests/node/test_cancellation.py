"""Every public operation, cancelled at each step of the scheduler in turn: it can be repeated and leaves nothing."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.cluster.membership.roster import Watch
from iris.patterns.pubsub.publish.ack_batch import ConfirmedEvents
from iris.patterns.tunnel.tunnel import TunnelStream
from tests.support import bridge_operations as with_a_bridge
from tests.support import operations as shared
from tests.support.operations import (
    Cast,
    broadcast,
    cancelled_at_each_step,
    connections,
    forget_subscriber,
    iterate_over_a_tunnel,
    join,
    keep_books,
    open_cast,
    open_node,
    publish,
    publish_many_confirmed,
    request,
    revoke,
    state,
    subscribe,
    survey,
    take_in_batches,
    tunnel,
    wait_for,
    waiters,
    watch,
)  # fmt: skip
from tests.support.stages import IN_FLIGHT, check_accounts, open_stage


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


async def take_runs(cast: Cast) -> None:
    async with cast.shop.subscribe("back.*") as events:
        await cast.store.publish("back.a", 4)
        (run,) = await events._receive_runs()
        assert len(run.payloads) == 1


OPERATIONS = (*shared.OPERATIONS, tunnel_as_a_stream, take_runs)

COVERED: dict[type, dict[str, Callable[..., Awaitable[None]]]] = {
    iris.Node: {
        "request": request, "broadcast": broadcast, "survey": survey, "publish": publish,
        "publish_confirmed": shared.publish_confirmed, "retain": shared.publish_retained,
        "retain_confirmed": shared.retain_confirmed, "subscribe": subscribe, "subscribe_durable": forget_subscriber,
        "confirming": publish_many_confirmed, "open_tunnel": tunnel, "join": join, "wait_for": wait_for,
        "watch": watch, "revoke": revoke, "forget_subscriber": forget_subscriber, "state": state,
        "books": keep_books,
    },
    iris.Bridge: {
        "queue": with_a_bridge.queue, "consume": with_a_bridge.consume, "lease": with_a_bridge.lease,
        "saga": with_a_bridge.saga, "drop_group": with_a_bridge.drop_group,
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
    iris.SharedState: {"settled": state},
    iris.StateWatch: {"__anext__": state},
    iris.LossWatch: {"__anext__": keep_books},
    iris.WorkQueue: {"put": with_a_bridge.queue},
    iris.JobWorker: {"__anext__": with_a_bridge.queue},
    iris.Job: {"commit": with_a_bridge.queue},
    iris.Consumer: {"__anext__": with_a_bridge.consume},
    iris.LogBatch: {"commit": with_a_bridge.consume},
    iris.Saga: {"request": with_a_bridge.saga},
}  # fmt: skip
"""Operations that go through each step of what can be waited for, for each class that users have in their hands.

Those of ``with_a_bridge`` are cancelled in tests/spark_bridge/server/test_cancellation.py.
"""

RUN_BY_OTHERS = {
    (ConfirmedEvents, "post_soon"), (ConfirmedEvents, "follow"),
}  # fmt: skip
"""For the user, within operations."""

ELSEWHERE = RUN_BY_OTHERS | {
    (iris.Tunnel, "send_file"), (iris.Tunnel, "receive_file"),  # threads: tests/patterns/tunnel/test_file_transfer.py
}  # fmt: skip


def can_be_waited_for(function: object) -> bool:
    """Return whether it is a coroutine function, or makes a block that is entered and left."""
    if not callable(function):
        return False
    try:
        made = str(inspect.signature(function).return_annotation)
    except (TypeError, ValueError):
        return False
    return inspect.iscoroutinefunction(function) or "AsyncContextManager" in made or "AsyncIterator[" in made


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
        assert set(covered.values()) <= {*OPERATIONS, *with_a_bridge.OPERATIONS}


STRIDES = {"open_node": 11, "state": 11}
"""Operations of hundreds of steps, and of how many steps one is tried; make test-long tries each."""


@pytest.mark.parametrize(
    ("operation", "stride"),
    [
        *(pytest.param(one, STRIDES.get(one.__name__, 1), id=one.__name__) for one in OPERATIONS),
        *(
            pytest.param(one, 1, id=f"{one.__name__} at each", marks=pytest.mark.long)
            for one in OPERATIONS
            if one.__name__ in STRIDES
        ),
    ],
)
async def test_an_operation_cancelled_at_any_step_leaves_nothing_behind(
    autojump_clock: MockClock, operation: Callable[[Cast], Awaitable[None]], stride: int
) -> None:
    async with open_stage() as stage, open_cast(stage) as cast:
        if operation is open_node:  # messages of a node that was opened in part arrive after its end
            stage.harmless = ("unknown session", "of a peer that is gone")
        for _ in range(2):  # what is made once and kept, such as workers, is there before tasks are counted
            await operation(cast)
        await trio.sleep(1)
        tasks = trio.lowlevel.current_statistics().tasks_living
        open_before = connections(stage.network)
        waiting = [waiters(node) for node in cast.nodes]
        async for step in cancelled_at_each_step(partial(operation, cast), stride):
            await trio.sleep(IN_FLIGHT)
            assert cast.running == 0, step
            for node in cast.nodes:
                check_accounts(node, *stage.harmless)
                assert node.statistics().tunnels.open == 0, step
            assert not cast.shop.statistics().subscriptions, step
            assert not cast.shop.statistics().services, step
            assert [waiters(node) for node in cast.nodes] == waiting, step
        with trio.fail_after(30):
            await operation(cast)
        await trio.sleep(iris.Config().handshake_timeout + 1)  # that is how long others wait for one cut off
        assert trio.lowlevel.current_statistics().tasks_living <= tasks
        assert connections(stage.network) == open_before


def test_every_operation_says_what_cancelling_it_leaves_behind() -> None:
    """Those that can be waited for: coroutines, and blocks that are entered and left."""
    waiting = {
        name: function
        for name, function in vars(iris.Node).items()
        if not name.startswith("_")
        and callable(function)
        and (
            inspect.iscoroutinefunction(function)
            or "AsyncContextManager" in str(inspect.signature(function).return_annotation)
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
