"""A real Prometheus scrapes three processes of ``iris run`` and answers queries; its unreadiness while they drain."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.command import Terminal, interrupt, open_terminal
from tests.support.ports import free_port

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is missing: apt-get install prometheus"
)

SERVICE = """
import iris

store = iris.Service("store")

@store.request("look_up")
async def look_up(request: iris.Request) -> object:
    return request.payload
"""

NODES = 3
REQUESTS = 90

ASKING = f"""
import trio, iris

async def main():
    async with iris.open_node("shop") as node:
        await node.wait_for("store", {NODES})
        for number in range({REQUESTS}):
            assert await node.request("store", number, operation="look_up") == number

trio.run(main)
"""


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with open_terminal() as opened:
        yield opened


@contextmanager
def prometheus(directory: Path, targets: list[str]) -> Iterator[str]:
    """Run Prometheus, which scrapes each second; give its address once it answers."""
    port = free_port()
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "iris", "static_configs": [{"targets": targets}]}],
    }
    file = directory / "prometheus.yml"
    file.write_text(json.dumps(configuration))  # JSON is YAML
    with subprocess.Popen(
        [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def ask(base: str, query: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{base}/api/v1/query?{urllib.parse.urlencode({'query': query})}") as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found
    except OSError:  # it is not up yet
        return []


async def wait_for(base: str, query: str, expected: float) -> None:
    """Ask until the answer is one value that is expected: Prometheus scrapes when it does."""
    result: list[dict[str, Any]] = []
    with trio.move_on_after(60):
        while True:
            result = await trio.to_thread.run_sync(ask, base, query)
            if [float(one["value"][1]) for one in result] == [expected]:
                return
            await trio.sleep(0.2)
    raise AssertionError(f"{query} is {result} and not {expected}")


async def test_prometheus_scrapes_three_nodes_and_answers(terminal: Terminal, tmp_path: Path) -> None:
    (terminal.directory / "app.py").write_text(SERVICE)
    ports = [free_port() for _ in range(NODES)]
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(terminal.started("run", "app:store", "--metrics", str(port), announces="serves store"))
            for port in ports
        ]
        base = stack.enter_context(prometheus(tmp_path, [f"127.0.0.1:{port}" for port in ports]))
        await trio.run_process([sys.executable, "-c", ASKING], env=terminal.environment)
        await wait_for(base, "sum(up)", NODES)
        await wait_for(base, "sum(iris_ready)", NODES)
        served = 'sum(iris_service_ended_total{cluster="store",pattern="request",outcome="served"})'
        await wait_for(base, served, REQUESTS)
        await wait_for(base, 'sum(iris_handler_duration_seconds_count{operation="look_up"})', REQUESTS)
        await wait_for(base, f"count({served[4:-1]} > 0)", NODES)
        quantile = "histogram_quantile(0.99, sum by (le) (iris_handler_duration_seconds_bucket)) < bool 10"
        await wait_for(base, quantile, 1)
        await wait_for(base, "count(count by (node) (iris_info))", NODES)
        assert await trio.to_thread.run_sync(interrupt, nodes[0], signal.SIGTERM) == 0
        await wait_for(base, "sum(up)", NODES - 1)
