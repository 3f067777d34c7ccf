"""A node of threads that is closed while they wait in its methods: each ends at once, as with trio."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_futures
from functools import partial
from types import TracebackType
from typing import Any, Self

import pytest
import trio.testing

import iris
import iris.sync
from tests.support.closing import Arrivals, Waits, each_wait, silent_services
from tests.support.threads import portal_of

pytestmark = pytest.mark.usefixtures("own_home")


class Plain:
    """Calls that are awaited elsewhere, made in this thread: each blocks it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Plain]:
        method = getattr(self._inner, name)
        if name == "bridge":  # a handle, which nobody waits for
            return lambda *args: Plain(method(*args))
        return lambda *args, **kwargs: Plain(partial(method, *args, **kwargs))

    def __await__(self) -> Generator[None, None, Any]:
        return self._inner()
        yield

    async def __aenter__(self) -> Self:
        self._inner = self._inner()
        return type(self)(self._inner.__enter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        return self._inner.__exit__(kind, error, traceback)

    def __aiter__(self) -> Plain:
        values: Any = self._inner() if callable(self._inner) else self._inner
        return Plain(iter(values))

    async def __anext__(self) -> Any:
        try:
            return next(self._inner)
        except StopIteration:
            raise StopAsyncIteration from None


def call(arrivals: Arrivals, name: str, wait: Waits, node: iris.sync.Node) -> str:
    try:
        waiting: Coroutine[None, None, str] = arrivals.outcome_of(name, wait, Plain(node))
        waiting.send(None)
    except StopIteration as ended:
        return str(ended.value)
    raise AssertionError("nothing is left to others")


def test_what_waits_ends_when_its_node_is_closed() -> None:
    over = threading.Event()
    arrivals = Arrivals()

    def hang(given: object) -> None:
        arrivals.note_asked(given)
        over.wait(30)

    silent, bridge, _ = silent_services(hang)
    waits = each_wait()
    with ThreadPoolExecutor(len(waits)) as threads:
        with (
            iris.sync.open_node("member") as member,
            member.join("silent", silent),
            member.join("bridge", bridge),
            member.subscribe("held.>", overflow="wait", limits=iris.SubscriptionLimits(events=2)),
            member.subscribe_durable("kept.>"),
        ):
            try:
                with iris.sync.open_node("caller") as node:
                    node.wait_for("bridge")
                    calls = {
                        name: threads.submit(call, arrivals, name, wait, node) for name, (wait, _) in waits.items()
                    }
                    begun = time.monotonic()
                    while not arrivals.complete:
                        assert time.monotonic() < begun + 60, arrivals
                        time.sleep(0.01)
                    portal_of(node).call(partial(trio.testing.wait_all_tasks_blocked, 0.05))
                    assert [name for name, task in calls.items() if task.done()] == []
                wait_futures(calls.values(), timeout=5)
                outcomes = {name: task.result() if task.done() else "waits" for name, task in calls.items()}
            finally:
                over.set()
        assert outcomes == {name: expected for name, (_, expected) in waits.items()}


def test_what_a_closed_node_has_left_is_taken_as_with_trio() -> None:
    with iris.sync.open_node("caller") as node:
        losses = node.watch_losses()
        with node.subscribe("a") as events, node.state("document") as state, node.watch("caller") as changes:
            state["a"] = 1
            keys = state.watch()
            node.publish("a", b"1")
            node.publish("a", b"2")
    assert [event.payload for event in events] == [b"1", b"2"]
    assert [change.key for change in keys] == ["a"]
    assert [*changes] == []
    assert [(loss.reason, loss.count) for loss in losses] == [("receiver left", 2)]
    assert [*losses] == []
