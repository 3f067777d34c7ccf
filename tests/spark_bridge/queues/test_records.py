"""The log's record of a queue: written in its transactions, and noticed where it is not what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from iris.kernel.config import MIB
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log import Quota, Transaction
from iris.spark_bridge.queues.records import Crowded, Retry, ShardChange, read_record, write_changes
from tests.support.arrivals import make_store


def test_a_record_that_is_not_what_was_written_is_noticed(tmp_path: Path) -> None:
    retries = {7: Retry(2, 5, "an error that stands nowhere else")}
    change = ShardChange(floor=3, done=3, dead=0, expired=0, blocks={}, retries=retries)

    def write(view: Transaction) -> dict[int, list[EventRun]]:
        write_changes(view, "jobs", "shop", {(0, "00" * 8): change}, 7)
        return {}

    store = make_store(tmp_path)
    store.appender.append({}, now=1, change=write)
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


def test_failed_attempts_are_counted_in_bytes_and_those_beyond_are_not_written(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    shard = (0, "00" * 8)

    def write(queue: str, cluster: str, retries: dict[int, Retry | None]) -> Crowded:
        crowded: Crowded = {}

        def change(view: Transaction) -> dict[int, list[EventRun]]:
            written = ShardChange(floor=0, done=0, dead=0, expired=0, blocks={}, retries=retries)
            crowded.update(write_changes(view, queue, cluster, {shard: written}, 7))
            return {}

        store.appender.append({}, now=1, change=change)
        return crowded

    def kept(queue: str) -> dict[int, Retry]:
        with store.read_transaction() as view:
            found = read_record(view, queue, *shard)
            assert found is not None
            return found.retries

    def used(cluster: str) -> int:
        with store.read_transaction() as view:
            return Quota(view, "retries").used(cluster)

    long = {offset: Retry(1, 5, "e" * 1024) for offset in range(1200)}
    crowded = write("evil", "evil", {**long})
    assert set(crowded) == {(0, offset) for offset in range(1200)} - {(0, offset) for offset in kept("evil")}
    assert 900 < len(kept("evil")) < 1100
    assert 3 * MIB < used("evil") <= 4 * MIB, "a sixteenth of the 64 MiB of this log's index"
    # The attempts of one that is there go on counting, for the same cluster; its error is left out.
    assert write("evil", "honest", {0: Retry(2, 6, "")}) == {}
    assert set(write("evil", "honest", {offset: Retry(1, 5, "") for offset in range(2000, 2100)}))
    assert set(write("evil", "honest", {0: Retry(3, 7, "e" * 1024)})) == {(0, 0)}
    assert kept("evil")[0] == Retry(3, 7, "")
    assert used("honest") == 0
    # Others have room.
    assert write("good", "good", {offset: Retry(1, 5, "e" * 1024) for offset in range(50)}) == {}
    assert used("good") > 50 * 1024
    for name in ("evil", "good"):
        write(name, name, dict.fromkeys(kept(name)))
        assert used(name) == 0
    store.close()
