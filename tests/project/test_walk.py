"""docs/explanation/architecture.md follows a request and an event: here both are sent and compared with it."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(iris/[\w/.]+)` \| `([\w.]+)` \|", re.MULTILINE)
Step = tuple[str, str]


def documented(heading: str) -> list[Step]:
    """Return the files and functions that a section lists."""
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    section = text[text.index(f"## {heading}\n") :].split("\n## ")[0]
    return [(file, function) for file, function in ROW.findall(section)]


class Calls:
    """Notes each function of Iris when it is first called."""

    def __init__(self) -> None:
        self._noted: dict[Step, None] = {}

    def __iter__(self) -> Iterator[Step]:
        return iter(self._noted)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT / "iris"):
            self._noted.setdefault((str(file.relative_to(ROOT)), frame.f_code.co_qualname))

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is called in a block."""
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)


async def request(near: iris.Node, far: iris.Node, calls: Calls) -> None:
    service = iris.Service("far")

    @service.request
    async def answer(question: iris.Request) -> object:  # pyright: ignore[reportUnusedFunction]
        return question.payload

    async with far.join("far", service):
        await near.wait_for("far", timeout=5)
        assert await near.request("far", b"first") == b"first"
        await trio.sleep(1)
        with calls.noted():
            assert await near.request("far", b"second") == b"second"


async def event(near: iris.Node, far: iris.Node, calls: Calls) -> None:
    async with far.subscribe("news") as subscription:
        await near.publish("news", b"first")
        await anext(subscription)
        await trio.sleep(1)
        with calls.noted():
            await near.publish("news", b"second")
            assert (await anext(subscription)).payload == b"second"


@pytest.mark.parametrize(("heading", "send"), [("The walk of a request", request), ("The walk of an event", event)])
async def test_the_documented_walk_is_the_way_that_a_message_takes(
    autojump_clock: MockClock, heading: str, send: Callable[[iris.Node, iris.Node, Calls], Awaitable[None]]
) -> None:
    steps = documented(heading)
    assert len(steps) >= 8
    calls = Calls()
    async with (
        iris.testing.open_network() as network,
        network.open_node("near") as near,
        network.open_node("far") as far,
    ):
        await send(near, far, calls)
    called = list(calls)
    assert [step for step in steps if step not in called] == []
    assert steps == sorted(steps, key=called.index)
