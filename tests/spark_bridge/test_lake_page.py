"""docs/howto/spark/lake.md: its programs write Delta and Iceberg tables, each batch once, also if they are killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from docs.pages import ROOT, blocks
from tests.support.bridges import BridgeProcess, publish
from tests.support.consoles import run_console

MISSING = [name for name in ("deltalake", "pyiceberg") if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install -e .[test])")
@pytest.mark.long
def test_the_terminals_of_lake_md_show_what_it_says() -> None:
    run_console(blocks(ROOT / "docs" / "howto" / "spark" / "lake.md"))


KILLED = """
import os, runpy, signal, sys
import deltalake
from pyiceberg.catalog.sql import SqlCatalog

program, point = sys.argv[1:]

def kill(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def killing(method):
    def call(*arguments, **options):
        method(*arguments, **options)
        kill()
    return call

if point == "before":
    # Iceberg has written its files then, and its catalog does not know them yet.
    deltalake.write_deltalake = kill
    SqlCatalog.commit_table = kill
elif point == "after":
    deltalake.write_deltalake = killing(deltalake.write_deltalake)
    SqlCatalog.commit_table = killing(SqlCatalog.commit_table)
runpy.run_path(program, run_name="__main__")
"""
"""Kills the driver before the table has the batch, or after that and before Spark knows."""

ITEMS = {
    "to_delta.py": """
import deltalake, pyarrow
# Not to_pyarrow_table: threads of Arrow that call Python abort the interpreter at its end, now and then.
query = deltalake.QueryBuilder().register("orders", deltalake.DeltaTable("orders")).execute("SELECT item FROM orders")
rows = pyarrow.table(query.read_all())
""",
    "to_iceberg.py": """
from pathlib import Path
from pyiceberg.catalog.sql import SqlCatalog
lake = Path("lake").resolve()
catalog = SqlCatalog("lake", uri=f"sqlite:///{lake}/catalog.db", warehouse=lake.as_uri())
rows = catalog.load_table("shop.orders").scan().to_arrow()
""",
}


def run_alone(command: list[str], directory: Path) -> int:
    """Run a program, and end what it has started with it; return its status."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (directory / "output").open("w") as output:  # a pipe would wait for a Java that outlives its driver
        program = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            return program.wait(timeout=300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install -e .[test])")
@pytest.mark.parametrize("program", ITEMS)
def test_a_batch_is_in_the_table_once_wherever_its_driver_is_killed(program: str, realm: Path, tmp_path: Path) -> None:
    source = str(ROOT / "examples" / "howto" / program)
    items: list[str] = []
    with BridgeProcess(tmp_path / "log"):
        for point in ("before", "after", "before", "never"):
            more = [f"item {number}" for number in range(len(items), len(items) + 5)]
            items += more
            publish([json.dumps({"item": item, "price": 1.0}).encode() for item in more], topic="orders.created")
            status = run_alone([sys.executable, "-c", KILLED, source, point], tmp_path)
            said = (tmp_path / "output").read_text()[-4000:]
            assert status == (0 if point == "never" else -signal.SIGKILL), said
    look = f"{ITEMS[program]}\nimport json\nprint(json.dumps(sorted(rows.column('item').to_pylist())))"
    found = subprocess.run([sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == sorted(items)
