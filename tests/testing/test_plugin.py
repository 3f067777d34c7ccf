"""The plugin of pytest: it costs nothing where it is not used, and tests never meet the services of their developer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

import iris
from iris.testing.plugin import VARIABLES

ROOT = Path(__file__).resolve().parents[2]

RUN = """
import sys
import pytest

ended = pytest.main(sys.argv[1:])
print("loaded:", *sorted(name for name in sys.modules if name.partition(".")[0] in %r))
sys.exit(ended)
"""
"""A test run that tells which modules it has loaded."""

HEAVY = {"iris", "trio", "msgspec", "cryptography", "anyio"}

NOTHING = """
def test_nothing():
    pass
"""

WHERE = """
import os
import iris.sync


def test_where():
    with iris.sync.open_node("desk") as node:
        print("home:", os.environ["IRIS_HOME"])
        print("realm:", node.realm)
        print("meets:", *sorted({*node.clusters()} - {"desk"}))
"""


SEEDS = """
import iris.testing

shown = []


@iris.testing.simulate(seeds=(7, 8), hours=0.001)
async def test_seeds(world):
    shown.append(world.seed)


def test_shown():
    print("seeds:", *shown)
"""


async def run_tests(
    directory: Path, source: str, *options: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a file of tests as its user does, in a process of its own, with no plugins but this one."""
    file = directory / "test_users.py"
    file.write_text(source)
    command = [
        *(sys.executable, "-c", RUN % HEAVY, "-q", "-s", "-p", "iris.testing.plugin", "-c", os.devnull),
        *(f"--rootdir={directory}", "-p", "no:cacheprovider", str(file), *options),
    ]
    variables = {
        **os.environ,
        "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}{os.pathsep}{ROOT}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **(environment or {}),
    }
    ran = await trio.run_process(
        command, cwd=directory, env=variables, capture_stdout=True, capture_stderr=True, check=False
    )
    return subprocess.CompletedProcess(command, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def line(ran: subprocess.CompletedProcess[str], name: str) -> str:
    found = re.search(rf"^\.?{name}:(.*)$", ran.stdout, re.MULTILINE)
    assert found, ran.stdout + ran.stderr
    return found[1].strip()


async def test_a_test_run_that_does_not_use_it_loads_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    ran = await run_tests(tmp_path, NOTHING, environment={"TMPDIR": str(tmp_path / "temporary")})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert line(ran, "loaded") == "iris iris.testing iris.testing.plugin"
    assert [*(tmp_path / "temporary").iterdir()] == []


@pytest.mark.parametrize("option", ["--iris-seed=-1", "--iris-seed=1_0", "--iris-seeds=0", "--iris-seeds=many"])
async def test_a_number_that_is_no_seed_is_an_error_of_usage(tmp_path: Path, option: str) -> None:
    ran = await run_tests(tmp_path, NOTHING, option)
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "is not a whole number of" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(("options", "seeds"), [((), "7 8"), (("--iris-seeds=3",), "0 1 2"), (("--iris-seed=5",), "5")])
async def test_the_seeds_of_a_run_take_the_place_of_those_that_a_test_names(
    tmp_path: Path, options: tuple[str, ...], seeds: str
) -> None:
    ran = await run_tests(tmp_path, SEEDS, *options)
    assert line(ran, "seeds") == seeds


async def test_nodes_of_tests_do_not_meet_the_services_of_their_developer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    async with iris.open_node("prices") as developers, developers.join("prices", iris.Service("prices")):
        wrong = {"IRIS_CREDENTIAL": str(tmp_path / "production"), "IRIS_SEEDS": "tcp://192.0.2.1:7"}
        ran = await run_tests(tmp_path, WHERE, environment=wrong)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert line(ran, "realm") != developers.realm
        assert line(ran, "meets") == ""
        own = trio.Path(line(ran, "home"))
        assert own.name.startswith("iris-tests-")
        assert not await own.exists(), "its keys are gone"


@pytest.mark.parametrize(("options", "expected"), [((), "None False"), (("-o", "iris_own_realm=false"), "mine True")])
async def test_the_environment_is_another_one_before_the_first_module_of_a_project_is_imported_unless_it_says_so(
    tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    (tmp_path / "conftest.py").write_text(
        "import os\nprint('early:', os.environ.get('IRIS_CREDENTIAL'), os.environ['IRIS_HOME'] == '/home/mine')\n"
    )
    mine = {"IRIS_CREDENTIAL": "mine", "IRIS_HOME": "/home/mine"}
    ran = await run_tests(tmp_path, NOTHING, *options, environment=mine)
    assert line(ran, "early") == expected


@pytest.mark.long
async def test_each_process_of_xdist_has_a_realm_of_its_own(tmp_path: Path) -> None:
    source = (
        "import os, pathlib, pytest, time\n"
        "@pytest.mark.parametrize('number', range(2))\n"
        "def test_it(number):\n"
        "    place = pathlib.Path(__file__).parent\n"
        "    (place / f'{number}.home').write_text(os.environ['IRIS_HOME'])\n"
    )
    ran = await run_tests(tmp_path, source, "-p", "xdist.plugin", "-n", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    homes = {(tmp_path / f"{number}.home").read_text() for number in range(2)}
    assert len(homes) == 2


def test_it_takes_every_variable_that_says_where_a_program_belongs() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    assert set(re.findall(r"^\| `(IRIS_\w+)`", page, re.MULTILINE)) <= set(VARIABLES)


ASYNCIO = """
import asyncio

import iris.aio.testing
import pytest


async def use():
    async with iris.aio.testing.autojump_clock(), iris.aio.testing.open_network() as network:
        async with iris.aio.open_node("shop") as shop, network.open_node("desk") as desk:
            async with desk.join("desk", iris.Service("desk")):
                await shop.wait_for("desk")
                await asyncio.sleep(30)

"""

IN_ANYIO = """
@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
async def network():
    async with iris.aio.testing.open_network() as network:
        yield network

@pytest.mark.anyio
async def test_by_itself():
    await use()

@pytest.mark.anyio
async def test_with_a_network_of_a_fixture(network):
    async with network.open_node("desk") as desk, iris.aio.open_node("shop") as shop:
        assert iris.testing.inspect(desk).peers.keys() == {shop.id}
"""

IN_PYTEST_ASYNCIO = """
import pytest_asyncio

@pytest_asyncio.fixture
async def network():
    async with iris.aio.testing.open_network() as network:
        yield network

async def test_by_itself():
    await use()

async def test_with_a_network_of_a_fixture(network):
    async with network.open_node("desk") as desk, iris.aio.open_node("shop") as shop:
        assert iris.testing.inspect(desk).peers.keys() == {shop.id}
"""

IN_UNITTEST = """
import unittest

class TestIt(unittest.IsolatedAsyncioTestCase):
    async def test_by_itself(self):
        await use()
"""

IN_SIMULATION = """
@pytest.mark.iris(seeds=1, hours=0.01)
async def test_in_a_simulation(iris_aio_world, tmp_path):
    async def serve():
        async with iris.aio.open_node("desk") as desk, desk.join("desk", iris.Service("desk")):
            await asyncio.Event().wait()

    iris_aio_world.start("a", serve)
    async with iris.aio.open_node("shop") as shop:
        await shop.wait_for("desk", timeout=30)
        await iris_aio_world.wait_healed()
    assert tmp_path.is_dir()
"""

TRIO = """
@pytest.mark.iris(seeds=1, hours=0.01)
async def test_in_a_simulation_of_trio(iris_world):
    async with iris.open_node("shop"):
        await iris_world.wait_healed()

def test_that_cannot_be_simulated(iris_aio_world):
    pass
"""


async def test_tests_run_under_anyio_unittest_and_in_simulations(tmp_path: Path) -> None:
    ran = await run_tests(tmp_path, ASYNCIO + IN_ANYIO + IN_UNITTEST + IN_SIMULATION + TRIO, "-p", "anyio")
    assert "5 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert "iris_aio_world is for tests that are async functions" in ran.stdout


@pytest.mark.parametrize("mode", ["auto", pytest.param("strict", marks=pytest.mark.long)])
async def test_tests_run_under_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("pytest_asyncio")
    mark = "pytestmark = pytest.mark.asyncio\n" if mode == "strict" else ""
    source = ASYNCIO + mark + IN_PYTEST_ASYNCIO + IN_UNITTEST + (IN_SIMULATION if mode == "auto" else "")
    ran = await run_tests(tmp_path, source, "-p", "pytest_asyncio.plugin", f"--asyncio-mode={mode}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
