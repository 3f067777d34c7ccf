"""Imports at a start, seen from a fresh interpreter: ``import iris``, a node that is up, the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "asyncio", "click", "concurrent.futures.process", "email", "http", "ifaddr", "lmdb", "multiprocessing",
    "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "rich", "unittest", "urllib.request", "zeroconf",
)  # fmt: skip
"""Modules that only some programs need; most of them have dozens of others behind them."""

OTHERS = (
    "iris.aio", "iris.arrow", "iris.bench", "iris.cli", "iris.demo", "iris.doors", "iris.federation", "iris.logs",
    "iris.metrics", "iris.spark_bridge", "iris.sync", "iris.testing",
    "iris.cluster.discovery.mdns_service", "iris.kernel.transport.reverse_dial", "iris.kernel.transport.websocket",
    "iris.node.realm", "iris.node.telemetry", "iris.patterns.pubsub.queues.api", "iris.patterns.pubsub.queues.consumer",
    "iris.patterns.pubsub.queues.worker", "iris.patterns.state.api", "iris.patterns.state.lease",
    "iris.patterns.state.saga", "iris.patterns.state.shared_state",
)  # fmt: skip
"""Modules and packages of Iris that a node loads when it does what few do."""

NODE = """
import iris, trio

async def main():
    async with iris.open_node("databases") as node, node.join("databases", service):
        assert await node.request("databases", b"hello") == b"hello"

service = iris.Service("databases")

@service.request
async def echo(request: iris.Request):
    return request.payload

trio.run(main)
"""

HELP = """
import contextlib, io
from iris.cli.main import run_command
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
    run_command({arguments!r})
assert "Usage" in shown.getvalue()
"""


def modules_after(program: str, directory: Path | None = None) -> set[str]:
    """Every module that a fresh interpreter has loaded after ``program``."""
    places = {} if directory is None else {"IRIS_HOME": f"{directory}/home", "XDG_RUNTIME_DIR": str(directory)}
    told = f"{program}\nimport sys\nprint(*sorted(sys.modules), sep='\\n')"
    command = [sys.executable, "-c", told]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **places})
    return set(done.stdout.split())


def test_import_iris_loads_nothing_that_only_some_programs_need() -> None:
    loaded = modules_after("import iris; iris.open_node")
    assert loaded.isdisjoint(HEAVY)
    assert "iris.node.open" in loaded
    assert not [name for name in loaded if name.startswith("iris.cli")]


def test_import_iris_loads_no_more_until_a_name_is_read() -> None:
    loaded = modules_after("import iris")
    assert {name for name in loaded if name.startswith("iris")} == {"iris"}
    assert "trio" not in loaded


def test_logs_and_metrics_are_imported_by_their_names() -> None:
    logs = modules_after("import iris.logs; iris.logs.LimitedHandler")
    assert "trio" not in logs
    metrics = modules_after("import iris.metrics; iris.metrics.serve")
    assert metrics.isdisjoint({*HEAVY, "prometheus_client", "h11"} - {"email"})


def test_a_node_of_the_local_realm_that_serves_and_asks_loads_no_more(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    loaded = modules_after(NODE, tmp_path)
    assert loaded.isdisjoint(HEAVY)
    assert [name for name in loaded if f"{name}.".startswith(tuple(f"{other}." for other in OTHERS))] == []


def test_what_few_nodes_do_is_loaded_with_the_first_of_its_names() -> None:
    assert "iris.patterns.state.lease" in modules_after("import iris; iris.Lease")
    assert "iris.patterns.pubsub.queues.worker" in modules_after("from iris import JobWorker")
    assert "iris.patterns.state.saga" in modules_after("from iris import *")


@pytest.mark.parametrize("arguments", [["--help"], ["request", "--help"]], ids=" ".join)
def test_help_loads_no_bridge_and_no_other_verbs(arguments: list[str]) -> None:
    loaded = modules_after(HELP.format(arguments=arguments))
    assert loaded.isdisjoint({*HEAVY, "iris.cli.keys.keys", "iris.federation.gateway"} - {"click"})


def test_the_probe_would_notice() -> None:
    assert "click" in modules_after("import iris, click")


def test_layers_are_loaded_once_under_their_full_name() -> None:
    loaded = modules_after("import iris, iris.kernel.errors, iris.patterns, iris.cluster, iris.security")
    assert "iris.patterns" in loaded
    assert loaded.isdisjoint({"patterns", "cluster", "security", "federation", "spark_bridge"})
