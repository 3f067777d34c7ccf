"""``iris.aio.testing`` has what ``iris.testing`` has, for programs of asyncio."""

from __future__ import annotations

import asyncio
import inspect
import textwrap
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import uvloop
from starlette.applications import Starlette
from trio.testing import MockClock

import iris
import iris.aio
import iris.aio.testing
import iris.testing
from iris.testing.faults import CHAOS
from tests.support.async_tests import on_asyncio

Run = Callable[[Coroutine[Any, Any, None]], None]
Clock = Callable[[], AbstractAsyncContextManager[None]]

CLOCKS: dict[str, tuple[Run, Clock]] = {
    "virtual time": (asyncio.run, iris.aio.testing.autojump_clock),
    "real time": (asyncio.run, nullcontext),
    "uvloop": (uvloop.run, nullcontext),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def orders() -> iris.Service:
    service = iris.Service("orders")

    @service.request
    async def state(request: iris.Request) -> bytes:
        assert request.payload == b"status"
        await asyncio.sleep(0.001)
        return b"open"

    return service


async def serve() -> None:
    """Serve orders, as a program of a user does: it knows nothing of tests."""
    async with iris.aio.open_node("orders") as node, node.join("orders", orders()):
        await asyncio.Event().wait()


def test_the_example_in_its_docstring_runs_as_it_stands() -> None:
    lines = (inspect.getdoc(iris.aio.testing) or "").partition("::\n\n")[2].splitlines()
    end = next(number for number, line in enumerate(lines) if line and not line.startswith(" "))
    names: dict[str, Any] = {"iris": iris, "service": orders()}
    exec(textwrap.dedent("\n".join(lines[:end])), names)
    asyncio.run(names["test_orders"]())


@pytest.mark.parametrize(("run", "in_time"), CLOCKS.values(), ids=CLOCKS)
def test_programs_open_their_nodes_on_the_network_of_the_test(run: Run, in_time: Clock, home: Path) -> None:
    async def main() -> None:
        async with in_time(), iris.aio.testing.open_network() as network:
            programs = [asyncio.create_task(serve()) for _ in range(2)]
            async with network.open_node("desk") as desk, iris.aio.open_node("shop") as shop:
                await desk.wait_for("orders", members=2)
                await shop.wait_for("orders", members=2)
                assert await shop.request("orders", b"status") == b"open"
                iris.testing.check_books(shop)
                assert len(iris.testing.inspect(desk).peers) == 3
            for program in programs:
                program.cancel()
            await asyncio.wait(programs)

    run(main())
    assert not home.exists(), "no node was a real one"


@on_asyncio()
async def test_a_member_that_crashes_fails_no_request_that_may_be_repeated() -> None:
    async with (
        iris.aio.testing.autojump_clock(),
        iris.aio.testing.open_network(seed=5) as network,
        network.open_node("orders", host="a") as one,
        network.open_node("orders", host="b") as other,
        network.open_node("desk", host="c") as desk,
        one.join("orders", orders()),
        other.join("orders", orders()),
    ):
        await desk.wait_for("orders", members=2)
        network.memory.crash("a")
        for _ in range(10):
            options = iris.RequestOptions(idempotent=True)
            assert await desk.request("orders", b"status", options=options) == b"open"
        await asyncio.sleep(60)
        assert [member.node for member in desk.members("orders")] == [other.id]


@pytest.mark.parametrize(
    ("name", "value"),
    [("listen", ["tcp://127.0.0.1:0"]), ("seeds", ["tcp://127.0.0.1:7000"]), ("lan", False), ("revocations", "list")],
)
@on_asyncio()
async def test_what_a_network_in_memory_cannot_honour_is_refused(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    async with iris.aio.testing.open_network():
        with pytest.raises(iris.ConfigError, match=rf"^{name} has no meaning in a simulation"):
            async with iris.aio.open_node("shop", **options):
                raise AssertionError("it is not opened")


def test_a_program_that_outlives_the_network_opens_no_node_of_the_users_own(home: Path) -> None:
    async def late(over: asyncio.Event) -> None:
        await over.wait()
        async with iris.aio.open_node("shop"):
            raise AssertionError("it is not opened")

    async def main() -> None:
        over = asyncio.Event()
        async with iris.aio.testing.open_network():
            program = asyncio.create_task(late(over))
        over.set()
        with pytest.raises(RuntimeError, match="is closed: open nodes within its block"):
            await program
        async with iris.aio.open_node("shop") as shop:
            assert shop.addresses[0].startswith("ipc:"), "here it is a real one again"

    asyncio.run(main())
    assert home.exists()


@on_asyncio()
async def test_a_web_application_has_its_node_there_as_well() -> None:
    app = Starlette(lifespan=iris.aio.lifespan("web"))
    async with (
        iris.aio.testing.open_network() as network,
        network.open_node("orders") as member,
        member.join("orders", orders()),
        app.router.lifespan_context(app) as state,
    ):
        assert state is not None
        assert await state["node"].request("orders", b"status", wait=5) == b"open"
        assert iris.testing.inspect(member).peers.keys() == {state["node"].id}


async def test_programs_of_trio_open_theirs_there_as_well(autojump_clock: MockClock) -> None:
    async with (
        iris.testing.open_network() as network,
        iris.open_node("shop") as shop,
        network.open_node("orders") as member,
        member.join("orders", iris.Service("orders")),
    ):
        await shop.wait_for("orders")


@on_asyncio()
async def test_of_two_realms_each_has_its_own_nodes() -> None:
    async with iris.aio.testing.autojump_clock(), iris.aio.testing.open_network() as network:
        other = network.other_realm(2)
        assert other.root.public != network.root.public
        other.trust(network.bundle("partner", "orders"))
        async with network.open_node("orders", host="a") as one, other.open_node("orders", host="b") as two:
            assert one.realm != two.realm
            assert not iris.testing.inspect(one).peers


@on_asyncio()
async def test_in_asyncio_the_kit_for_trio_says_what_to_use() -> None:
    with pytest.raises(RuntimeError, match=r"import iris\.aio\.testing and use iris\.aio\.testing\.open_network"):
        async with iris.testing.open_network():
            raise AssertionError("it is not opened")


def test_its_names_and_methods_are_those_of_the_kit_for_trio() -> None:
    own = set(iris.aio.testing.__all__) - {"autojump_clock"}  # of pytest-trio, there
    assert own <= set(iris.testing.__all__)
    for name in own:
        functions = [getattr(module, name) for module in (iris.testing, iris.aio.testing)]
        if not inspect.isclass(functions[0]):
            theirs, own_parameters = ([*inspect.signature(function).parameters] for function in functions)
            assert theirs == own_parameters, name
    internal = {
        "begin",
        "crash",
        "restart",
        "open_parts",
        "start_asyncio",
        "open_for_program",
        "serving_programs",
        "close",
    }
    pairs = [(iris.testing.Network, iris.aio.testing.Network), (iris.testing.World, iris.aio.testing.World)]
    for trios, ours in pairs:
        public = {name for name in dir(trios) if not name.startswith("_")} - internal
        assert public <= {*dir(ours)}


# -- simulations ---------------------------------------------------------------------------------------------

answered: list[object] = []


class Counter(iris.Service):
    """Counts, with a mistake."""

    def __init__(self) -> None:
        super().__init__("counter")
        self.count = 0

    @iris.operation
    async def add(self, number: int) -> int:
        count = self.count
        await asyncio.sleep(0.002)
        self.count = count + number
        return self.count


async def count() -> None:
    async with iris.aio.open_node("counter") as node, node.join("counter", Counter()):
        await asyncio.Event().wait()


def test_a_simulation_of_asyncio_has_faults_and_a_world() -> None:
    @iris.aio.testing.simulate(seeds=[3], hours=0.02, faults=CHAOS)
    async def test(world: iris.aio.testing.World) -> None:
        for host in "ab":
            world.start(host, serve)
        async with iris.aio.open_node("shop") as shop:
            async for number in world.every(5):
                world.note(f"round {number}")
                answered.append(number)
            await world.wait_healed()
            assert not world.is_faulty
            await iris.aio.testing.check_answers(shop, "orders", b"status")
        assert world.hosts == ("a", "b", "test")
        assert world.directory().is_dir()
        assert world.network.memory is not None

    answered.clear()
    test()
    assert 10 < len(answered) <= 15


def test_a_simulation_of_asyncio_finds_a_lost_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @iris.aio.testing.simulate(seeds=200, hours=0.01, shrink_runs=5)
    async def test(world: iris.aio.testing.World) -> None:
        world.start("server", count)
        counted: list[int] = []

        async def add(node: iris.aio.Node) -> None:
            await asyncio.sleep(world.random.uniform(0, 0.1))
            counted.append(await node.request("counter", 1, operation="add"))

        async with iris.aio.open_node("desk") as node:
            await node.wait_for("counter", timeout=30)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(5):
                    tasks.create_task(add(node))
            iris.testing.check_at_most_once(counted)

    with pytest.raises(iris.testing.SimulationFailed, match="has happened more than once"):
        test()


def test_a_test_that_is_no_async_function_is_refused() -> None:
    with pytest.raises(TypeError, match="is no async function"):
        iris.aio.testing.simulate()(print)  # type: ignore[arg-type]
