"""Programs that serve nothing, on a machine that lets nobody in; the members' machine lets callers in at two ports.

The counters of both walls say whether anybody tried to dial back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.machines import APP, NETWORK, Machine, open_machines, why_no_wall

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why_no_wall()), reason=why_no_wall())]

PATIENCE = 90.0
"""Seconds after which a program is taken to hang."""

WHOLE = 10.0
"""Seconds within which a caller is to be whole again after the address of its machine has changed."""

ROUNDS = 10

EXAMPLES = Path(__file__).parents[2] / "examples"

CLIENT = """
import sys, iris.sync
with iris.sync.open_node(client=True, lan=False) as node:
    assert node.addresses[1:] == (), node.addresses
    print(node.request("databases", "hello", wait=20))
    with node.survey("databases", "all") as answers:
        print([answer.payload for answer in answers])
    with node.open_tunnel("streams", wait=20) as tunnel:
        tunnel.send(b"there")
        print(tunnel.receive())
"""

STREAMS = """
import iris
streams = iris.Service("streams")

@streams.tunnel
async def repeat(tunnel: iris.Tunnel) -> None:
    async for data in tunnel:
        await tunnel.send(data)
"""

WEB = """
import os
from fastapi import FastAPI, Request
import iris.aio

app = FastAPI(lifespan=iris.aio.lifespan())

@app.get("/{name}")
async def ask(name: str, request: Request) -> object:
    return [os.getpid(), await request.state.node.request("databases", name, wait=20)]

@app.post("/{topic}")
async def publish(topic: str, request: Request) -> object:
    return await request.state.node.publish_confirmed("orders." + topic, {"item": topic}, timeout=20)
"""

ASK_WEB = """
import json, urllib.request
workers = set()
while len(workers) < 4:
    with urllib.request.urlopen("http://127.0.0.1:8000/tea", timeout=30) as answer:
        worker, payload = json.load(answer)
    assert payload == "tea"
    workers.add(worker)
urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8000/tea", data=b""), timeout=30).read()
print("all four")
"""

SPARK = """
from pyspark.sql import SparkSession
import iris.spark_bridge
spark = iris.spark_bridge.configure(SparkSession.builder.master("local[1]")).getOrCreate()
events = spark.readStream.format("iris").option("subscribe", "orders.>").load()
events.writeStream.format("memory").queryName("events").trigger(availableNow=True).start().awaitTermination()
print([row.topic for row in spark.sql("SELECT topic FROM events").collect()])
"""

ASK_DOOR = """
import sys, urllib.request
asked = urllib.request.Request("http://127.0.0.1:8080/request/databases", data=b'"hello"')
asked.add_header("Authorization", "Bearer " + open("token").read().strip())
asked.add_header("Content-Type", "application/json")
print(urllib.request.urlopen(asked, timeout=30).read())
"""

CALLER = """
import sys, time, trio, iris

async def main():
    async with iris.open_node(lan=False) as node:
        await node.wait_for("databases", timeout=30)
        print("up", flush=True)
        options = iris.RequestOptions(idempotent=True)
        while True:
            began = time.monotonic()
            with trio.move_on_after(0.5) as scope:
                try:
                    await node.request("databases", "hello", timeout=0.5, options=options)
                except iris.IrisError as error:
                    print(f"failed {type(error).__name__}: {error}", flush=True)
                else:
                    print(f"answered {began}", flush=True)
            await trio.sleep(0.1)

trio.run(main)
"""


@pytest.fixture
def machines() -> Generator[tuple[Machine, Machine]]:
    """An office, where members serve, and a home; the programs of both have credentials of one realm."""
    with open_machines() as (office, home):
        realm = str(office.terminal.directory / "realm.key")
        assert office.terminal.run("keys", "realm", realm).returncode == 0
        for name, *extra in (("databases",), ("streams",), ("bridge", "--serve", "bridge.*"), ("callers",)):
            machine = home if name == "callers" else office
            out = str(machine.terminal.directory / name)
            done = office.terminal.run("keys", "cluster", realm, name, "--out", out, *extra)
            assert done.returncode == 0, done.stderr
        (office.terminal.directory / "app.py").write_text(APP + STREAMS)
        for name, text in (("client.py", CLIENT), ("web.py", WEB), ("ask_web.py", ASK_WEB), ("ask_door.py", ASK_DOOR)):
            (home.terminal.directory / name).write_text(text)
        for name, text in (("query.py", SPARK), ("caller.py", CALLER)):
            (home.terminal.directory / name).write_text(text)
        home.terminal.environment |= {"IRIS_CREDENTIAL": "callers", "IRIS_SEEDS": office.url}
        yield office, home


@contextmanager
def running(machine: Machine, *command: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a program for the length of the block, with all that it starts."""
    with machine.start(*command) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for_line(process: subprocess.Popen[bytes], text: str) -> str:
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line.decode())
        if text in said[-1]:
            return said[-1]
    raise AssertionError("".join(said))


def run(machine: Machine, program: str) -> str:
    with running(machine, sys.executable, program) as process:
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said.decode()
        return said.decode()


@contextmanager
def members(office: Machine) -> Generator[None]:
    """Serve databases, streams and a bridge, at two ports of the office."""
    second = f"tcp://{office.address}:7001"
    seeds = ("--seeds", office.url)
    serve = ("run", "app:databases", "--credential", "databases", "--listen", office.url)
    # As a setting of its surroundings, and not of the command.
    office.terminal.environment["IRIS_LISTEN"] = f"tcp://{office.address}:7002"
    with (
        office.terminal.started(*serve, announces="serves databases"),
        office.terminal.started(
            *("bridge", "--topic", "orders.>", "--data", "log", "--credential", "bridge", "--listen", second, *seeds),
            announces="stores",
        ),
        office.terminal.started(
            *("run", "app:streams", "--credential", "streams", *seeds),
            announces=":7002",
        ),
    ):
        yield


def test_whoever_serves_nothing_works_without_an_open_port(machines: tuple[Machine, Machine]) -> None:
    office, home = machines
    office.let_in(7000, 7001, 7002)
    home.turn_away_callers()
    with members(office):
        done = home.terminal.run("request", "databases", "hello", "--wait", "20")
        assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
        said = run(home, "client.py")
        assert said.split("\n")[:3] == ["hello", "['all']", "b'there'"], said
        with home.terminal.started("sub", "orders.>", announces="subscribed") as subscriber:
            assert subscriber.stdout is not None
            # Of the office, and of one that only dials out as well: through a member.
            for machine, extra in ((office, ("--credential", "streams", "--seeds", office.url)), (home, ())):
                done = machine.terminal.run("pub", "orders.coffee", "two", *extra)
                assert done.returncode == 0, done.stderr
                line = subscriber.stdout.readline()
                assert b"orders.coffee" in line, line
        tokens = home.terminal.run("keys", "token", "tokens", "web", "--call", "databases")
        assert tokens.returncode == 0, tokens.stderr
        (home.terminal.directory / "token").write_bytes(tokens.stdout)
        with home.terminal.started("door", "--http", "127.0.0.1:8080", "--tokens", "tokens", announces="8080"):
            assert "hello" in run(home, "ask_door.py")
        uvicorn = (sys.executable, "-m", "uvicorn", "web:app", "--workers", "4")
        with running(home, *uvicorn) as web:
            for _ in range(4):
                wait_for_line(web, "Application startup complete")
            assert "all four" in run(home, "ask_web.py")
    assert home.turned_away() == 0, "nobody has tried to dial back"
    assert office.turned_away() == 0, "nor to another port of the members"


def test_spark_reads_a_bridge_without_an_open_port(machines: tuple[Machine, Machine]) -> None:
    office, home = machines
    office.let_in(7000, 7001, 7002)
    home.turn_away_callers()
    home.terminal.environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    with members(office):
        done = home.terminal.run("pub", "orders.tea", "two", "--confirm")
        assert done.returncode == 0, done.stderr
        with running(home, sys.executable, "query.py") as query:  # what it leaves running keeps the pipe open
            wait_for_line(query, "'orders.tea'")
    assert home.turned_away() == 0, "nobody has tried to dial back"
    assert office.turned_away() == 0, "nor to another port of the members"


def test_a_caller_is_whole_soon_after_the_address_of_its_machine_has_changed(
    machines: tuple[Machine, Machine],
) -> None:
    office, home = machines
    home.turn_away_callers()
    serve = ("run", "app:databases", "--credential", "databases", "--listen", office.url)
    took: list[float] = []
    with (
        office.terminal.started(*serve, announces="serves databases"),
        running(home, sys.executable, "caller.py") as caller,
    ):
        wait_for_line(caller, "answered")
        for number in range(ROUNDS):
            home.move(f"{NETWORK}.{100 + number}")
            began = time.monotonic()
            while (
                float(wait_for_line(caller, "answered").split()[1]) < began
            ):  # what was asked before may be answered still
                pass
            took.append(time.monotonic() - began)
    print(", ".join(f"{seconds:.1f} s" for seconds in took))  # noqa: T201 -- a figure for the log
    assert max(took) <= WHOLE, took
    assert home.turned_away() == 0
