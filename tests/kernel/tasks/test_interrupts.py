"""Ctrl-C strikes in the program that uses Iris, and not within Iris."""

from __future__ import annotations

import importlib.machinery
import signal
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self

import pytest
import trio
from pydantic import BaseModel, model_serializer, model_validator
from trio.lowlevel import currently_ki_protected
from trio.testing import MockClock

import iris
from iris.cluster.mesh.reader import InboxReader, InboxWaiter
from iris.kernel.names import NodeId
from iris.kernel.tasks.background import open_background
from iris.kernel.tasks.interrupts import leave_unprotected, protect_package, protected_context
from iris.kernel.tasks.late_names import late_names
from iris.kernel.tasks.wakeup import Wakeup
from iris.kernel.transport.memory import MemoryNetwork
from iris.patterns.request.attempt import Attempt
from iris.testing import open_network
from tests.support.calls import call_to
from tests.support.messages import array
from tests.support.processes import open_realm
from tests.support.programs import interrupted

# -- marks --------------------------------------------------------------------------------------------------


def is_protected(code: types.CodeType) -> bool:
    """Return what trio finds when a signal comes, and nothing around this code is marked."""
    marks: Any = trio._core._ki._CODE_KI_PROTECTION_STATUS_WMAP
    try:
        return bool(marks[code])
    except KeyError:
        return False


def codes_within(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from codes_within(one)


SOURCE = """
import contextlib
from iris.kernel.tasks.interrupts import interruptible

async def begin(): pass
def public():
    async def inside(): pass
def _private(): pass
async def _begin(): pass

class Class:
    def method(self): pass
    async def _task(self): pass
    @property
    def attribute(self): pass
    @staticmethod
    def static(): pass
    @classmethod
    def of_class(cls): pass
    async def __anext__(self): pass

@contextlib.asynccontextmanager
async def block(): yield

@contextlib.contextmanager
def plain_block(): yield

@interruptible
def call_user(): pass
"""


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of the package that is loaded when the others are protected already."""
    protect_package()
    module = types.ModuleType("iris.late")
    module.__spec__ = importlib.machinery.ModuleSpec("iris.late", None)
    exec(SOURCE, vars(module))
    monkeypatch.setitem(sys.modules, "iris.late", module)
    monkeypatch.setattr("iris.kernel.tasks.interrupts._protected", set[str]())
    return module


def test_what_users_call_and_what_tasks_begin_with_is_protected(late: types.ModuleType) -> None:
    protect_package()
    public: types.CodeType = late.public.__code__
    made: dict[str, Any] = late.Class.__dict__
    protected: set[types.CodeType] = {
        late.begin.__code__,
        *codes_within(public),
        late._begin.__code__,
        made["method"].__code__,
        made["_task"].__code__,
        made["attribute"].fget.__code__,
        made["static"].__func__.__code__,
        made["of_class"].__func__.__code__,
        made["__anext__"].__code__,
        late.block.__wrapped__.__code__,
        late.plain_block.__wrapped__.__code__,
    }
    assert [code for code in protected if not is_protected(code)] == []
    # What the standard library puts around a function is that of every program.
    for code in (late.block.__code__, late.plain_block.__code__, late._private.__code__, late.call_user.__code__):
        assert not is_protected(code)


def test_a_module_that_is_loaded_later_is_protected_when_it_is_whole(late: types.ModuleType) -> None:
    async def open_one() -> None:
        async with open_background():
            pass

    late.__spec__._initializing = True  # type: ignore[union-attr]
    trio.run(open_one)
    assert not is_protected(late.begin.__code__)
    late.__spec__._initializing = False  # type: ignore[union-attr]
    trio.run(open_one)
    assert is_protected(late.begin.__code__)


def test_what_is_loaded_with_a_late_name_is_protected_at_once(
    late: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    vars(late)["__all__"] = ["begin"]
    monkeypatch.setitem(sys.modules, "iris.room", types.ModuleType("iris.room"))
    monkeypatch.setitem(sys.modules, "iris.room.api", late)
    begin: Any = late_names("iris.room")("begin")
    assert begin is late.begin
    assert is_protected(begin.__code__)


def test_a_process_that_waits_for_sigint_marks_nothing(late: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.kernel.tasks.interrupts._needed", True)  # and again after the test
    leave_unprotected()
    protect_package()
    assert not is_protected(late.begin.__code__)


def test_a_block_is_entered_and_left_under_a_mark_and_what_is_done_in_it_has_none() -> None:
    seen: list[tuple[str, bool]] = []

    @protected_context
    async def block(name: str) -> AsyncIterator[str]:
        seen.append(("entered", currently_ki_protected()))
        try:
            yield name
        finally:
            seen.append(("left", currently_ki_protected()))

    async def main() -> None:
        async with block("name") as name:
            seen.append((name, currently_ki_protected()))
        with pytest.raises(ValueError, match="mine"):
            async with block("other"):
                raise ValueError("mine")

    trio.run(main)
    assert seen == [("entered", True), ("name", False), ("left", True), ("entered", True), ("left", True)]


class Typed(BaseModel):
    number: int

    @model_validator(mode="after")
    def check(self) -> Self:
        protected_meanwhile.append(currently_ki_protected())
        return self

    @model_serializer
    def dump(self) -> dict[str, int]:
        protected_meanwhile.append(currently_ki_protected())
        return {"number": self.number}


protected_meanwhile: list[bool] = []


async def test_handlers_can_be_interrupted_and_what_they_call_of_iris_cannot(autojump_clock: MockClock) -> None:
    """The main task of a test is marked by nobody; neither are its others."""
    seen: dict[str, bool] = {}
    protected_meanwhile.clear()
    service = iris.Service("store")

    @service.request
    async def answer(request: iris.Request) -> None:
        seen["request"] = currently_ki_protected()
        await trio.sleep(0.1)
        seen["request, later"] = currently_ki_protected()

    @service.request("plain")
    def answer_at_once(request: iris.Request) -> None:
        seen["plain"] = currently_ki_protected()

    @service.request("typed")
    def answer_typed(payload: Typed) -> Typed:
        seen["typed"] = currently_ki_protected()
        return payload

    @service.broadcast
    async def hear(message: iris.Message) -> None:
        seen["broadcast"] = currently_ki_protected()

    @service.tunnel
    async def talk(tunnel: iris.Tunnel) -> None:
        seen["tunnel"] = currently_ki_protected()
        async for _ in tunnel:
            seen["tunnel, later"] = currently_ki_protected()

    def note_progress(done: int, expected: int) -> None:
        seen["progress"] = currently_ki_protected()

    async with (
        open_network(seed=1) as network,
        network.open_node("store") as store,
        network.open_node("shop") as shop,
        store.join("store", service),
    ):
        await shop.wait_for("store")
        seen["block"] = currently_ki_protected()
        await shop.request("store")
        await shop.request("store", operation="plain")
        await shop.request("store", {"number": 1}, operation="typed")
        await shop.broadcast("store", b"")
        async with shop.open_tunnel("store") as tunnel:
            await tunnel.send(b"")
            await tunnel.send_file(__file__, note_progress)
        await trio.sleep(1)
    assert seen == dict.fromkeys(seen, False)
    assert len(seen) == 9
    assert protected_meanwhile == [False, False], "a model is made, and made plain again"


def test_a_handler_that_never_ends_is_interrupted() -> None:
    service = iris.Service("store")

    @service.request
    async def answer(request: iris.Request) -> None:
        signal.raise_signal(signal.SIGINT)
        for _ in range(10_000_000):
            pass
        ended.append("it was not interrupted")

    ended: list[str] = []

    async def main() -> None:
        async with (
            open_network(seed=1) as network,
            network.open_node("store") as store,
            network.open_node("shop") as shop,
            store.join("store", service),
        ):
            await shop.wait_for("store")
            try:
                await shop.request("store")
            except trio.Cancelled:
                ended.append("cancelled")
                raise

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert ended == ["cancelled"]


class Tasks(trio.abc.Instrument):
    """Looks at each task that begins, whether its code is marked."""

    def __init__(self) -> None:
        self.unmarked: set[str] = set()
        self.marked = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        frame = getattr(task.coro, "cr_frame", None)
        assert isinstance(frame, types.FrameType)
        name = str(frame.f_globals["__name__"])
        if name.startswith("iris."):
            if is_protected(frame.f_code):
                self.marked += 1
            else:
                self.unmarked.add(f"{name}: {frame.f_code.co_name}")


@pytest.mark.parametrize("program", [interrupted.work_nearby, interrupted.work_abroad])
def test_every_task_that_iris_begins_is_protected(program: Callable[[], Awaitable[None]]) -> None:
    tasks = Tasks()
    with open_realm():
        trio.run(program, instruments=[tasks])
    assert tasks.unmarked == set()
    assert tasks.marked > 50


# -- at each line -------------------------------------------------------------------------------------------


class Stop(Exception):
    """There are no more lines."""


def interrupted_at(number: int, file: str, main: Callable[[], Awaitable[None]]) -> bool:
    """Run ``main`` and send SIGINT before the line ``number`` of those that run of a file; tell whether there was one.

    What comes of it is ``KeyboardInterrupt`` and nothing else.
    """
    protect_package()
    lines = 0

    def trace(frame: types.FrameType, event: str, _: object) -> object:
        nonlocal lines
        if frame.f_code.co_filename != file:
            return None
        if event == "line":
            lines += 1
            if lines == number:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()

    async def traced() -> None:
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            await main()
        finally:
            sys.settrace(before)

    try:
        trio.run(traced)
    except BaseException as error:
        ends = {type(leaf) for leaf in interrupted.leaves(error)}
        if ends != {KeyboardInterrupt}:
            raise
        return True
    finally:
        sys.settrace(before)
    return lines >= number


async def wake_each_other() -> None:
    one, other = Wakeup(), Wakeup()

    async def answer() -> None:
        for _ in range(3):
            await one.wait()
            other.wake()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        for _ in range(3):
            one.wake()
            await other.wait()
        other.wake()
        await other.wait()
        with trio.move_on_after(0.001):
            await other.wait()
        other.wake()


async def wait_for_outcomes() -> None:
    async def wait(waiter: Attempt) -> None:
        await waiter.wait(None)

    waiters = [Attempt(call_to(None), number, NodeId(name), 0.0) for number, name in enumerate("abc")]
    async with trio.open_nursery() as nursery:
        for waiter in waiters:
            nursery.start_soon(wait, waiter)
        await trio.testing.wait_all_tasks_blocked()
        for waiter in waiters:
            waiter.end(
                array(
                    "a reply",
                )
            )


class Unread:
    """Receives frames, of which there are none."""

    def receive_frame(self, frame: bytes | memoryview) -> None:
        raise AssertionError(frame)


async def read_for_others() -> None:
    transport = MemoryNetwork().transport("here")
    reading = InboxReader(transport, Unread())
    followers = [InboxWaiter(reading), InboxWaiter(reading, hasty=True)]

    async def follow(follower: InboxWaiter) -> None:
        for _ in range(3):
            follower.keen = True
            await follower.wait()
            await trio.lowlevel.checkpoint()
            follower.give_back()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading.run)
        for follower in followers:
            nursery.start_soon(follow, follower)
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            for follower in followers:
                follower.wake()
        await trio.testing.wait_all_tasks_blocked()
        transport.close()


@pytest.mark.parametrize(
    ("defined", "main"),
    [(Wakeup, wake_each_other), (Attempt, wait_for_outcomes), (InboxReader, read_for_others)],
)
def test_a_signal_at_any_line_of_what_wakes_tasks_ends_the_program_and_not_trio(
    defined: type, main: Callable[[], Awaitable[None]]
) -> None:
    file = sys.modules[defined.__module__].__file__
    assert file is not None
    number = 1
    while interrupted_at(number, file, main):
        number += 1
    assert number > 20, "hardly anything of it ran"


# -- blocks that are opened the wrong way -------------------------------------------------------------------


async def enter_plainly(block: Any) -> None:
    with block:
        pass


async def iterate(block: Any) -> None:
    async for _ in block:
        pass


async def wait_for(block: Any) -> None:
    await block


@pytest.mark.parametrize(("attempt", "used"), [(iterate, "async for"), (wait_for, "await"), (enter_plainly, "with")])
async def test_a_block_that_is_not_entered_by_async_with_says_what_to_write(
    attempt: Callable[[Any], Awaitable[None]], used: str
) -> None:
    with pytest.raises(TypeError, match=rf"^open_node.* opens a block and is not for '{used}': use 'async with'"):
        await attempt(iris.open_node())


# -- at random moments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.long)])
def test_no_interruption_of_a_program_that_uses_everything_has_another_end(count: int) -> None:
    shown = interrupted.run(count, seed=3)
    assert shown.faults == []
    commands = -(-count // interrupted.BATCH)
    assert shown.outcomes == {"interrupted": count - commands, "command interrupted": commands}


def test_what_ends_otherwise_is_found() -> None:
    """A program whose handler swallows the interruption and fails with another error."""
    interrupter = interrupted.Interrupter()

    async def fail() -> None:
        try:
            interrupter.arm(0)
            while True:
                pass
        except KeyboardInterrupt:
            raise RuntimeError("what should not have come") from None

    outcome, fault = interrupted.run_one(fail, None, interrupter)
    assert outcome == "RuntimeError"
    assert fault is not None
    assert "what should not have come" in fault
