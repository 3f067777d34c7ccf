"""``local-cluster``: what executors need reaches a Java that is not the driver's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

import iris
from iris.spark_bridge.admin import read_events
from iris.spark_bridge.client.client import BridgeClient
from tests.support.bridges import BridgeProcess, publish

ROOT = Path(__file__).resolve().parents[3]


async def values_on(topic: str) -> list[str]:
    async with iris.open_node("reader") as node:
        client = BridgeClient(node, "bridge", patience=20)
        return [event["value"] async for event in read_events(client, topics=[topic])]


@pytest.mark.long  # tests/benchmarks/test_bridge_kills.py has executors in a Java of their own, those of a real cluster
def test_executors_in_a_java_of_their_own_read_and_publish(realm: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.support.local_cluster", str(tmp_path))
    with BridgeProcess(tmp_path / "log"):
        publish([b"a", b"b", b"c"], topic="in")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1:] == ["1 executors"]
        assert trio.run(values_on, "out") == ["A", "B", "C"]
