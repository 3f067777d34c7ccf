"""Counts how often calls of asyncio and of threads cross into trio, and the tasks that they take there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, NamedTuple, final

import pytest

import iris
import iris.sync
from iris.kernel.tasks import CallTasks, OutsideCall

TIMES: Final = 10
"""How often each operation is counted."""

READERS: Final = 4


class Cost(NamedTuple):
    """What one call takes: crossings into trio that it waits for, and tasks there."""

    crossings: float
    tasks: float


NOTHING: Final = Cost(0, 0)
CROSSES: Final = Cost(1, 0)
TASK: Final = Cost(1, 1)


@final
class Cast:
    """A node that is counted, in one of the two fronts, and what it uses.

    Args:
        other: node of another thread that publishes for it.
    """

    def __init__(self, node: Any, events: Any, tunnel: Any, confirming: Any, other: iris.sync.Node) -> None:
        self.node = node
        self.events = events
        self.tunnel = tunnel
        self.confirming = confirming
        self.other = other

    def send_events(self, count: int) -> None:
        """Have another node publish events, and wait until they are here."""
        for _ in range(count):
            self.other.publish("own.a", b"there")
        inner, ends = self.events._inner, time.monotonic() + 30
        while inner._waiting < count:
            assert time.monotonic() < ends
            time.sleep(0.001)


@final
class Operation:
    """An operation, and what it costs.

    Args:
        call: makes the call; with asyncio, what it returns is awaited.
        aio: what it costs with asyncio.
        sync: what it costs with threads.  An event that is posted crosses together with what comes next.
        prepare: called before each, and not counted.
    """

    def __init__(
        self,
        call: Callable[[Cast], Any],
        aio: Cost,
        sync: Cost,
        prepare: Callable[[Cast], object] = lambda _: None,
    ) -> None:
        self.call = call
        self.aio = aio
        self.sync = sync
        self.prepare = prepare


_ONCE_MORE: Final = iris.RequestOptions(idempotent=True)

OPERATIONS: Final[dict[str, Operation]] = {
    "publish, nobody subscribes": Operation(lambda one: one.node.publish("none.a", b"x"), NOTHING, NOTHING),
    "publish to one": Operation(lambda one: one.node.publish("one.a", b"x"), NOTHING, NOTHING),
    "publish to four": Operation(lambda one: one.node.publish("four.a", b"x"), NOTHING, NOTHING),
    "publish 64 KiB to four": Operation(lambda one: one.node.publish("four.a", bytes(65536)), NOTHING, NOTHING),
    "publish a dict": Operation(lambda one: one.node.publish("four.a", {"a": 1}), NOTHING, CROSSES),
    "publish with headers": Operation(
        lambda one: one.node.publish("four.a", b"x", headers={"a": "b"}), NOTHING, CROSSES
    ),
    "publish with a key": Operation(lambda one: one.node.publish("four.a", b"x", key="k"), NOTHING, CROSSES),
    "publish what expires": Operation(lambda one: one.node.publish("four.a", b"x", expires=9.0), NOTHING, CROSSES),
    "retain": Operation(lambda one: one.node.retain("four.a", b"x"), NOTHING, CROSSES),
    "publish, confirming": Operation(lambda one: one.confirming.publish("kept.a", b"x"), NOTHING, NOTHING),
    "publish a dict, confirming": Operation(lambda one: one.confirming.publish("kept.a", {"a": 1}), NOTHING, CROSSES),
    "publish_confirmed": Operation(lambda one: one.node.publish_confirmed("kept.a", b"x"), TASK, TASK),
    "request": Operation(lambda one: one.node.request("shop", b"x"), NOTHING, CROSSES),
    "request with a reply type": Operation(lambda one: one.node.request("shop", 1, reply=int), NOTHING, CROSSES),
    "request with options": Operation(lambda one: one.node.request("shop", b"x", options=_ONCE_MORE), NOTHING, CROSSES),
    "request that may wait for members": Operation(lambda one: one.node.request("shop", b"x", wait=1), TASK, TASK),
    "broadcast": Operation(lambda one: one.node.broadcast("shop", b"x"), NOTHING, CROSSES),
    "tunnel.send": Operation(lambda one: one.tunnel.send(b"x"), NOTHING, CROSSES),
    "next event, which is there": Operation(
        lambda one: anext(one.events) if hasattr(one.events, "__anext__") else next(one.events),
        NOTHING,
        CROSSES,
        lambda one: one.send_events(1),
    ),
    "receive_batch, of events that are there": Operation(
        lambda one: one.events.receive_batch(), NOTHING, CROSSES, lambda one: one.send_events(8)
    ),
    "confirm": Operation(lambda one: one.events.confirm([]), TASK, TASK),
    "statistics": Operation(lambda one: one.node.statistics(), NOTHING, CROSSES),
}
"""All that programs do often, beside waiting for what has not come yet."""


@final
class Crossings:
    """Counts of the calls into one run."""

    def __init__(self) -> None:
        self.calls = self.tasks = 0

    def since(self, before: tuple[int, int]) -> Cost:
        """Return what one of ``TIMES`` took."""
        return Cost((self.calls - before[0]) / TIMES, (self.tasks - before[1]) / TIMES)


@contextmanager
def counted(run: Callable[[], CallTasks | None]) -> Iterator[Crossings]:
    """Count the calls into a run for the length of the block."""
    found, counts = Crossings(), run()
    begin, begin_task = CallTasks.begin, CallTasks._begin_task

    def note(self: CallTasks, call: OutsideCall) -> None:
        found.calls += self is counts
        begin(self, call)

    def note_task(self: CallTasks, call: OutsideCall) -> None:
        found.tasks += self is counts
        begin_task(self, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CallTasks, "begin", note)
        patch.setattr(CallTasks, "_begin_task", note_task)
        yield found


@contextmanager
def open_others() -> Iterator[iris.sync.Node]:
    """Open what a counted node talks to, in threads of their own: subscribers, a member, and who stores events.

    Yields:
        A node that may publish for it.
    """
    shop = iris.Service("shop")

    @shop.request
    def echo(request: iris.Request) -> object:
        return request.payload

    @shop.broadcast
    def hear(_: iris.Message) -> None:
        pass

    @shop.tunnel
    def take(tunnel: iris.sync.Tunnel) -> None:
        for _ in tunnel:
            pass

    def keep(events: iris.sync.Subscription) -> None:
        with suppress(iris.sync.EndOfChannel):
            while True:
                events.confirm(events.receive_batch())

    with ExitStack() as stack:
        readers = [stack.enter_context(iris.sync.open_node("reader")) for _ in range(READERS)]
        for reader in readers:
            stack.enter_context(reader.subscribe("four.a"))
        stack.enter_context(readers[0].subscribe("one.a"))
        stack.enter_context(readers[0].join("shop", shop))
        kept = stack.enter_context(readers[1].subscribe_durable("kept.a"))
        keeping = threading.Thread(target=keep, args=(kept,), daemon=True)
        keeping.start()
        yield readers[0]
