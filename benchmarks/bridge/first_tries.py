"""First tries: ``spark-submit`` to a standalone cluster on a busy machine, one after the other, none of them repeated.

Each try is a driver, an executor and their Python processes from nothing, while so many processes do nothing but count
that the load is what is asked for.  It has worked if the program ends well and all events are copied once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
import trio

import iris
from benchmarks.bridge.children import bridge_child, open_realm
from benchmarks.bridge.cluster import open_cluster
from benchmarks.bridge.rates import row
from iris.spark_bridge.admin import read_events
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.session.java import find_java

EVENTS: Final = 100
_LONGEST: Final = 600.0
_COUNT: Final = "while True: pass"
_PROGRAM: Final = Path(__file__).with_name("submitted.py")


@contextlib.contextmanager
def busy(load: float) -> Iterator[None]:
    """Keep the machine as busy as that, with what others do counted in; the block begins when it is."""
    others = os.getloadavg()[0]
    counting = [subprocess.Popen([sys.executable, "-c", _COUNT]) for _ in range(max(0, round(load - others)))]
    try:
        deadline = time.monotonic() + _LONGEST
        while os.getloadavg()[0] < load - 1 and time.monotonic() < deadline:
            time.sleep(1)
        yield
    finally:
        for process in counting:
            process.kill()
            process.wait()


async def publish(count: int) -> None:
    """Publish events on ``in``, confirmed."""
    async with iris.open_node("publisher") as node, node.confirming(timeout=120) as events:
        await node.wait_for("bridge", timeout=120)
        for number in range(count):
            await events.publish("in", b"%d" % number)


async def copied() -> list[str]:
    """Return what is on ``out``."""
    async with iris.open_node("reader") as node:
        client = BridgeClient(node, "bridge", patience=60)
        return [event["value"] async for event in read_events(client, topics=["out"])]


def submit(url: str, settings: dict[str, str], directory: Path, number: int) -> subprocess.CompletedProcess[str]:
    """Submit the program, as a user does."""
    home = Path(pyspark.__file__).parent
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [str(home / "bin" / "spark-submit"), "--master", url, *options, str(_PROGRAM)]
    path = (str(Path(iris.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
    return subprocess.run(
        [*command, str(directory / f"checkpoint-{number}")],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )


def first_tries(tries: int, load: float) -> int:
    """Try so often; print a line for each, and return how many worked."""
    worked = 0
    with open_realm() as directory:
        bridge = bridge_child(directory)
        bridge.start()
        try:
            with open_cluster(directory, workers=1) as cluster:
                trio.run(publish, EVENTS)
                expected: list[str] = []
                with busy(load):
                    for number in range(tries):
                        began = time.monotonic()
                        done = submit(cluster.url, cluster.settings, directory, number)
                        seconds, busyness = time.monotonic() - began, os.getloadavg()[0]
                        expected += map(str, range(EVENTS))
                        good = done.returncode == 0 and sorted(trio.run(copied)) == sorted(expected)
                        worked += good
                        row(f"try {number + 1}", f"{seconds:.0f} s, load {busyness:.0f}", "works" if good else "fails")
                        if not good:
                            sys.stderr.write(done.stderr[-4000:])
                            expected = trio.run(copied)
        finally:
            bridge.end()
    row("first tries that worked", f"{worked} of {tries}", f"{tries} of {tries}")
    return worked
