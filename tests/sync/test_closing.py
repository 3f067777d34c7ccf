"""A node of threads that is closed while they wait in its methods: each ends at once, as with trio."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import iris
import iris.sync
from tests.support.closing import Waits, each_wait, outcome_of, silent_services


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))


class Plain:
    """What is awaited by others, called in this thread: it waits where it stands."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Plain]:
        method = getattr(self._inner, name)
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


def call(wait: Waits, node: iris.sync.Node) -> str:
    try:
        waiting: Coroutine[None, None, str] = outcome_of(wait, Plain(node))
        waiting.send(None)
    except StopIteration as ended:
        return str(ended.value)
    raise AssertionError("nothing is left to others")


def test_what_waits_ends_when_its_node_is_closed() -> None:
    over = threading.Event()
    silent, bridge, _ = silent_services(lambda _: over.wait(30))
    waits = each_wait()
    with ThreadPoolExecutor(len(waits)) as threads:
        with (
            iris.sync.open_node("member") as member,
            member.join("silent", silent),
            member.join("bridge", bridge),
            member.subscribe("held.>", overflow="wait", limits=iris.SubscriptionLimits(events=2)),
            member.subscribe("kept.>", durable=True),
        ):
            try:
                with iris.sync.open_node("caller") as node:
                    node.wait_for("bridge")
                    calls = {name: threads.submit(call, wait, node) for name, (wait, _) in waits.items()}
                    time.sleep(0.5)
                    assert [name for name, task in calls.items() if task.done()] == []
                ends = time.monotonic() + 5
                while time.monotonic() < ends and not all(task.done() for task in calls.values()):
                    time.sleep(0.01)
                outcomes = {name: task.result() if task.done() else "waits" for name, task in calls.items()}
            finally:
                over.set()
        assert outcomes == {name: expected for name, (_, expected) in waits.items()}
