"""docs/howto/spark/lake.md: its programs write real Delta and Iceberg tables, each batch once, wherever they are killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT, blocks
from tests.support.bridges import BridgeProcess, publish
from tests.support.consoles import run_console

MISSING = [name for name in ("deltalake", "pyiceberg") if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install -e .[test])")
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
    "to_delta.py": "import deltalake; rows = deltalake.DeltaTable('orders').to_pyarrow_table()",
    "to_iceberg.py": "from pathlib import Path; from pyiceberg.catalog.sql import SqlCatalog; lake = Path('lake').resolve(); "
    "rows = SqlCatalog('lake', uri=f'sqlite:///{lake}/catalog.db', warehouse=lake.as_uri()).load_table('shop.orders').scan()"
    ".to_arrow()",
}


@pytest.mark.long
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install -e .[test])")
@pytest.mark.parametrize("program", ITEMS)
def test_a_batch_is_in_the_table_once_wherever_its_driver_is_killed(program: str, realm: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    source = str(ROOT / "examples" / "howto" / program)
    items: list[str] = []
    with BridgeProcess(tmp_path / "log"):
        for point in ("before", "after", "before", "never"):
            more = [f"item {number}" for number in range(len(items), len(items) + 5)]
            items += more
            publish([json.dumps({"item": item, "price": 1.0}).encode() for item in more], topic="orders.created")
            ran = subprocess.run(
                [sys.executable, "-c", KILLED, source, point],
                cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            assert ran.returncode == (0 if point == "never" else -signal.SIGKILL), ran.stderr[-4000:]
    look = f"import json; {ITEMS[program]}; print(json.dumps(sorted(rows.column('item').to_pylist())))"
    found = subprocess.run([sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == sorted(items)
