"""docs/howto/spark/lake.md: its programs write real Delta and Iceberg tables, each batch once."""

from __future__ import annotations

import importlib.util

import pytest

from docs.pages import ROOT, blocks
from tests.support.consoles import run_console

MISSING = [name for name in ("deltalake", "pyiceberg") if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install -e .[test])")
def test_the_terminals_of_lake_md_show_what_it_says() -> None:
    run_console(blocks(ROOT / "docs" / "howto" / "spark" / "lake.md"))
