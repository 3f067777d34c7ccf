"""A bridge's process does without pandas, and so does the data source until Spark or a user needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.bridges import BridgeProcess, publish


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def test_arrays_are_made_without_pandas_which_can_be_imported_as_before() -> None:
    run(
        "import sys, pyarrow; from iris.spark_bridge.events.arrow import without_pandas; without_pandas();"
        "assert pyarrow.array([b'x']).to_pylist() == [b'x']; assert 'pandas' not in sys.modules;"
        "import pandas; assert pandas.Series([1]).sum() == 1"
    )


def test_where_pandas_is_imported_already_arrow_goes_on_with_it() -> None:
    run(
        "import pandas, pyarrow; from iris.spark_bridge.events.arrow import without_pandas; without_pandas();"
        "assert pyarrow.array(pandas.Series([1])).to_pandas().sum() == 1"
    )


def test_the_data_source_is_imported_without_pandas() -> None:
    run("import sys, iris.spark_bridge.datasource.source; assert 'pandas' not in sys.modules")


def test_a_program_that_opens_a_bridge_has_imported_pandas_before_the_first_event() -> None:
    run("import sys, iris.spark_bridge.server.bridge; assert 'pandas' in sys.modules")


def test_a_bridge_stores_events_without_pandas(realm: Path, tmp_path: Path) -> None:
    with BridgeProcess(tmp_path / "log") as bridge:
        publish([b"1", b"2"], key="k")
        assert "pyarrow" in bridge.maps
        assert "pandas" not in bridge.maps
