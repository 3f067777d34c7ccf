"""Services of one program that fail beside others, and lifespans that do not behave, served as ``iris run`` does."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- half of what is served here
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, final

import pytest
import trio

import iris
import iris.aio
import iris.aio.testing
import iris.sync
from iris.cli.event_loop import _serve
from iris.cli.main import run_command
from iris.cli.serving import Serving
from iris.testing import open_network


@final
class Silent:
    """Nobody waits for these services."""

    def announce(self) -> None:
        """Say nothing."""


def waiting_for(event: asyncio.Event) -> Callable[[], Coroutine[Any, Any, None]]:
    async def wait() -> None:
        await event.wait()

    return wait


def in_virtual_time(main: Callable[[iris.aio.testing.Network], Coroutine[Any, Any, None]]) -> None:
    async def simulated() -> None:
        async with iris.aio.testing.autojump_clock(), iris.aio.testing.open_network() as network:
            await main(network)

    asyncio.run(simulated())


# -- one that fails, beside one that has work ----------------------------------------------------------------


def slow_service(kind: type[iris.Service], sleep: Callable[[float], Any]) -> iris.Service:
    slow = kind("slow")

    @slow.request
    async def work(_: iris.Request) -> str:
        await sleep(2)
        return "done"

    return slow


@contextlib.asynccontextmanager
async def unclosed(_: object) -> AsyncIterator[None]:
    yield
    raise OSError("not closed")


@contextlib.asynccontextmanager
async def breaks_in_trio(_: object) -> AsyncIterator[None]:
    async def follow() -> None:
        await trio.sleep(1.5)
        raise OSError("not followed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        yield


@contextlib.asynccontextmanager
async def breaks_in_asyncio(_: object) -> AsyncIterator[None]:
    async def follow() -> None:
        await asyncio.sleep(1.5)
        raise OSError("not followed")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        yield


@contextlib.asynccontextmanager
async def cancels_its_task(_: object) -> AsyncIterator[None]:
    task = asyncio.current_task()
    assert task is not None
    handle = asyncio.get_running_loop().call_later(1.5, task.cancel)
    yield
    handle.cancel()


@pytest.mark.parametrize(("lifespan", "is_told"), [(unclosed, True), (breaks_in_trio, False)])
async def test_a_service_of_trio_that_fails_lets_the_others_finish_their_work(
    lifespan: Any, is_told: bool, autojump_clock: object
) -> None:
    broken, slow = iris.Service("broken", lifespan=lifespan), slow_service(iris.Service, trio.sleep)
    serving = Serving([("broken", broken), ("slow", slow)], 30, Silent())
    replies: list[object] = []

    async with (
        open_network() as network,
        network.open_node("broken") as member,
        network.open_node("desk") as caller,
        trio.open_nursery() as nursery,
    ):
        told = trio.Event()

        async def ask() -> None:
            replies.append(await caller.request("slow", wait=5))

        async def tell() -> None:
            await trio.sleep(1)
            if is_told:
                told.set()

        nursery.start_soon(ask)
        nursery.start_soon(tell)
        with trio.fail_after(20), pytest.raises((OSError, ExceptionGroup)) as raised:
            await serving.serve_in_trio(member, told.wait)
        assert raised.group_contains(OSError, match="not") if isinstance(raised.value, ExceptionGroup) else True
        assert member.clusters() == ()
    assert replies == ["done"]


@pytest.mark.parametrize(
    ("lifespan", "is_told", "error"),
    [
        (unclosed, True, "not closed"),
        (breaks_in_asyncio, False, "unhandled errors in a TaskGroup"),
        (cancels_its_task, False, "the task of service 'broken' was cancelled, and not by Iris"),
    ],
)
def test_a_service_of_asyncio_that_fails_lets_the_others_finish_their_work(
    lifespan: Any, is_told: bool, error: str
) -> None:
    broken, slow = iris.aio.Service("broken", lifespan=lifespan), slow_service(iris.aio.Service, asyncio.sleep)
    serving = Serving([("broken", broken), ("slow", slow)], 30, Silent())

    async def main(network: iris.aio.testing.Network) -> None:
        async with network.open_node("broken") as member, network.open_node("desk") as caller:
            told = asyncio.Event()
            asked = asyncio.create_task(caller.request("slow", wait=5))
            if is_told:
                asyncio.get_running_loop().call_later(1, told.set)
            with pytest.raises(Exception, match=error):
                async with asyncio.timeout(20):
                    await _serve(serving, member, waiting_for(told))
            assert await asked == "done"
            assert member.clusters() == ()

    in_virtual_time(main)


# -- lifespans that do not behave ----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def never_yields(_: object) -> AsyncIterator[None]:
    if not _:
        yield


@contextlib.asynccontextmanager
async def yields_twice(_: object) -> AsyncIterator[None]:
    yield
    yield


@contextlib.asynccontextmanager
async def raises_cancelled(_: object) -> AsyncIterator[None]:
    raise asyncio.CancelledError
    yield


@contextlib.asynccontextmanager
async def cancels_at_once(_: object) -> AsyncIterator[None]:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    yield


@contextlib.asynccontextmanager
async def swallows(_: object) -> AsyncIterator[None]:
    with contextlib.suppress(Exception):
        yield


MISBEHAVING = [
    (never_yields, "generator didn't yield"),
    (yields_twice, "generator didn't stop"),
    (raises_cancelled, "was cancelled, and not by Iris"),
    (cancels_at_once, "was cancelled, and not by Iris"),
]


@pytest.mark.parametrize(("lifespan", "text"), MISBEHAVING)
def test_a_lifespan_of_asyncio_that_does_not_behave_ends_the_program_with_an_error(lifespan: Any, text: str) -> None:
    serving = Serving([("shop", iris.aio.Service("shop", lifespan=lifespan))], 30, Silent())

    async def main(network: iris.aio.testing.Network) -> None:
        async def interrupted() -> None:
            await asyncio.sleep(1)

        async with network.open_node("shop") as member:
            with pytest.raises(RuntimeError, match=text):
                async with asyncio.timeout(20):
                    await _serve(serving, member, interrupted)

    in_virtual_time(main)


@pytest.mark.parametrize(("lifespan", "text"), MISBEHAVING[:2])
async def test_a_lifespan_of_trio_that_does_not_behave_ends_the_program_with_an_error(
    lifespan: Any, text: str, autojump_clock: object
) -> None:
    serving = Serving([("shop", iris.Service("shop", lifespan=lifespan))], 30, Silent())
    async with open_network() as network, network.open_node("shop") as member:
        with trio.fail_after(20), pytest.raises(RuntimeError, match=text):
            await serving.serve_in_trio(member, partial(trio.sleep, 1))


def test_a_lifespan_that_goes_on_when_it_is_cancelled_does_not_keep_a_program_that_is_told_to_end() -> None:
    @contextlib.asynccontextmanager
    async def goes_on(_: object) -> AsyncIterator[None]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        yield

    serving = Serving([("shop", iris.aio.Service("shop", lifespan=goes_on))], 30, Silent())

    async def main(network: iris.aio.testing.Network) -> None:
        async with network.open_node("shop") as member:
            task = asyncio.create_task(_serve(serving, member, waiting_for(asyncio.Event())))
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(20):
                    await task
            assert member.clusters() == ()

    in_virtual_time(main)


def test_what_a_lifespan_raises_when_the_start_is_given_up_is_not_lost() -> None:
    @contextlib.asynccontextmanager
    async def fails(_: object) -> AsyncIterator[None]:
        try:
            await asyncio.sleep(100)
            yield
        finally:
            raise OSError("not closed")

    serving = Serving([("shop", iris.aio.Service("shop", lifespan=fails))], 30, Silent())

    async def main(network: iris.aio.testing.Network) -> None:
        async with network.open_node("shop") as member:
            task = asyncio.create_task(_serve(serving, member, waiting_for(asyncio.Event())))
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(ExceptionGroup) as raised:
                await task
            assert raised.group_contains(OSError, match="not closed")

    in_virtual_time(main)


async def test_the_error_of_a_block_is_not_swallowed_by_a_lifespan(autojump_clock: object) -> None:
    async with open_network() as network, network.open_node("shop") as member:
        with pytest.raises(KeyError):
            async with member.join("shop", iris.Service("shop", lifespan=swallows)):
                raise KeyError("of the block")
        async with member.join("shop", iris.Service("shop")):
            with pytest.raises(iris.ConfigError, match="is a member of the cluster 'shop' already"):
                async with member.join("shop", iris.Service("shop", lifespan=swallows)):
                    pass


async def test_what_joining_raises_is_not_said_to_be_of_a_lifespan_that_holds_a_nursery(
    autojump_clock: object,
) -> None:
    @contextlib.asynccontextmanager
    async def holds(_: iris.Node) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            yield
            nursery.cancel_scope.cancel()

    async with (
        open_network() as network,
        network.open_node("shop") as member,
        member.join("shop", iris.Service("shop")),
    ):
        with pytest.raises(ExceptionGroup) as raised:
            async with member.join("shop", iris.Service("shop", lifespan=holds)):
                pass
        assert raised.group_contains(iris.ConfigError, match="already")
        assert not getattr(raised.value, "__notes__", ())


def test_a_lifespan_of_threads_swallows_nothing_either_and_is_named(own_home: None) -> None:

    @contextlib.contextmanager
    def forgives(_: iris.sync.Node) -> Iterator[None]:
        with contextlib.suppress(Exception):
            yield

    @contextlib.contextmanager
    def fails(_: iris.sync.Node) -> Iterator[None]:
        yield
        raise OSError("not closed")

    with iris.sync.open_node("shop") as node:
        with pytest.raises(KeyError), node.join("shop", iris.Service("shop", lifespan=forgives)):
            raise KeyError("of the block")
        with (
            pytest.raises(OSError, match="not closed") as raised,
            node.join("shop", iris.Service("shop", lifespan=fails)),
        ):
            pass
    assert raised.value.__notes__ == ["raised in the lifespan of service 'shop'"]


@pytest.mark.parametrize("kind", ["iris.Service", "iris.aio.Service"])
@pytest.mark.parametrize(("where", "expected"), [("import", "no database"), ("entry", "no database"), ("status", 3)])
def test_a_program_that_exits_while_it_starts_ends_as_python_does(
    kind: str, where: str, expected: str | int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"app_exits_{where}_{kind.count('.')}"
    (tmp_path / f"{module}.py").write_text(EXITS.format(kind=kind, where=where))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    with pytest.raises(SystemExit) as raised:
        run_command(["run", f"{module}:shop"])
    assert raised.value.code == expected
    sys.modules.pop(module, None)


EXITS = """
import contextlib, sys
import iris, iris.aio

if "{where}" == "import":
    sys.exit("no database")

@contextlib.asynccontextmanager
async def life(node):
    sys.exit(3 if "{where}" == "status" else "no database")
    yield

shop = {kind}("shop", lifespan=life)
"""


# -- the node of a handler ----------------------------------------------------------------------------------


async def test_the_node_of_a_thread_does_nothing_after_its_membership() -> None:
    kept: list[iris.sync.Node] = []
    shop = iris.Service("shop")

    @shop.request(thread=True)
    def keep(node: iris.sync.Node) -> None:
        kept.append(node)

    async with open_network() as network, network.open_node("shop") as member, network.open_node("desk") as caller:
        async with member.join("shop", shop):
            await caller.request("shop", wait=5)
        (node,) = kept
        async with caller.join("desk", iris.Service("desk")):
            for call in (lambda: node.request("desk"), lambda: node.publish("a", 1), lambda: node.broadcast("desk", 1)):
                with pytest.raises(trio.ClosedResourceError):
                    await trio.to_thread.run_sync(call)


async def test_a_thread_that_asks_when_its_membership_ends_is_told_so(autojump_clock: object) -> None:
    ended: list[BaseException] = []
    done = trio.Event()
    token = trio.lowlevel.current_trio_token()
    shop, deaf = iris.Service("shop"), iris.Service("deaf")

    @shop.request(thread=True)
    def ask(node: iris.sync.Node) -> None:
        try:
            node.request("deaf", timeout=500)
        except BaseException as error:
            ended.append(error)
            raise
        finally:
            token.run_sync_soon(done.set)

    @deaf.request
    async def never(_: iris.Request) -> None:
        await trio.sleep_forever()

    config = iris.Config(drain_timeout=1)
    async with (
        open_network() as network,
        network.open_node("deaf") as other,
        network.open_node("shop", config=config) as member,
        network.open_node("desk") as caller,
        other.join("deaf", deaf),
        trio.open_nursery() as nursery,
    ):

        async def ask_shop() -> None:
            with contextlib.suppress(iris.IrisError):
                await caller.request("shop", timeout=600)

        async with member.join("shop", shop):
            await caller.wait_for("shop")
            await member.wait_for("deaf")
            nursery.start_soon(ask_shop)
            await trio.sleep(1)
        with trio.fail_after(5):
            await done.wait()
    (error,) = ended
    assert isinstance(error, trio.ClosedResourceError), repr(error)
