"""What the log knows of a queue: written in its transactions, and noticed where it is not what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log import IndexView
from iris.spark_bridge.queues.records import Retry, ShardChange, read_record, write_changes
from tests.support.arrivals import make_store


def test_a_record_that_is_not_what_was_written_is_noticed(tmp_path: Path) -> None:
    retries = {7: Retry(2, 5, "an error that stands nowhere else")}
    change = ShardChange(floor=3, done=3, dead=0, expired=0, blocks={}, retries=retries)

    def write(view: IndexView) -> dict[int, list[EventRun]]:
        write_changes(view, "jobs", {(0, "00" * 8): change}, 7)
        return {}

    store = make_store(tmp_path)
    store.append({}, now=1, change=write)
    with store.read_transaction() as view:
        loaded = read_record(view, "jobs", 0, "00" * 8)
        assert loaded is not None
        assert loaded.retries == retries
        assert read_record(view, "jobs", 0, "11" * 8) is None
    store.close()
    path = tmp_path / "index" / "data.mdb"
    data = path.read_bytes()
    at = data.index(b"an error that")
    path.write_bytes(data[:at] + b"A" + data[at + 1 :])
    store = make_store(tmp_path)
    with (
        store.read_transaction() as view,
        pytest.raises(LogDamaged, match="a record of its table 'queues' is not what was written"),
    ):
        read_record(view, "jobs", 0, "00" * 8)
    store.close()
