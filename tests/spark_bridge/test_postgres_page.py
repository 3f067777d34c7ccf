"""docs/howto/events/to_postgres.md: its program writes each event once to a real PostgreSQL, wherever it is killed."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import iris
from docs.pages import ROOT, blocks
from tests.support.bridges import BridgeProcess
from tests.support.consoles import run_console
from tests.support.postgres import find_server, open_postgres

PROGRAMS = find_server()
MISSING = [
    *(["PostgreSQL (apt-get install postgresql)"] if PROGRAMS is None else []),
    *(["psycopg (pip install -e .[test])"] if importlib.util.find_spec("psycopg") is None else []),
]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.xdist_group("postgres"),
]

KILLED = """
import os, runpy, signal, sys
import psycopg
from iris.patterns.pubsub.queues.consumer import LogBatch

left = int(sys.argv[2])

def killing(method, *, before):
    def call(*arguments, **options):
        global left
        left -= 1
        if before and not left:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments, **options)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

psycopg.Connection.execute = killing(psycopg.Connection.execute, before=False)
psycopg.Cursor.executemany = killing(psycopg.Cursor.executemany, before=False)
LogBatch.commit = killing(LogBatch.commit, before=True)
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Kills the process after its statement number N: 1 makes the tables, 2 to 5 are one batch, 6 is what tells the bridge
when the database has committed."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[dict[str, str]]:
    assert PROGRAMS is not None
    with open_postgres(PROGRAMS) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment


def rows() -> list[str]:
    import psycopg

    with psycopg.connect() as database:
        return [item for (item,) in database.execute("SELECT item FROM orders").fetchall()]


def drop() -> None:
    import psycopg

    with psycopg.connect() as database:
        database.execute("DROP TABLE IF EXISTS orders, places")


def publish(first: int, count: int) -> list[str]:
    items = [f"item {number}" for number in range(first, first + count)]

    async def run() -> None:
        async with iris.open_node("shop") as node, node.confirming(timeout=60) as confirmed:
            await node.wait_for("bridge", timeout=60)
            for item in items:
                await confirmed.publish("orders.created", json.dumps({"item": item, "price": 1.0}))

    trio.run(run)
    return items


def test_an_event_is_written_once_wherever_the_program_is_killed(
    postgres: dict[str, str], realm: Path, tmp_path: Path
) -> None:
    drop()
    program = ROOT / "examples" / "howto" / "to_postgres.py"
    with BridgeProcess(tmp_path / "log"):
        items: list[str] = []
        for statement in (5, 6):
            items += publish(len(items), 20)
            command = [sys.executable, "-c", KILLED, str(program), str(statement)]
            killed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            written = rows()
            assert written == items[: len(written)]
            assert bool(written) == (statement == 6), "it is in the database when its transaction was committed"
        subprocess.run([sys.executable, program], check=True, capture_output=True, timeout=300)
        assert rows() == items


def test_the_terminals_of_to_postgres_md_show_what_it_says(postgres: dict[str, str]) -> None:
    drop()
    run_console(blocks(ROOT / "docs" / "howto" / "events" / "to_postgres.md"))
    assert rows() == ["tea"]
