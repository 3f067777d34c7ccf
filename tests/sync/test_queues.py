"""Work queues in programs without an event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

import iris.sync
from tests.support.bridges import open_sync_bridge

pytestmark = pytest.mark.usefixtures("own_home")


def test_jobs_are_put_done_failed_and_given_back(tmp_path: Path) -> None:
    with iris.sync.open_node("bridge") as serving:
        bridge = open_sync_bridge(serving, topics=["jobs"], directory=tmp_path / "log")
        with (
            bridge,
            iris.sync.open_node("workers") as node,
            node.bridge().queue("jobs", attempts=2, backoff=0.01) as jobs,
        ):
            node.wait_for("bridge", timeout=60)
            for number in range(3):
                jobs.put(number, key="k", timeout=60)
            taken = jobs.receive(limit=4)
            with next(taken) as job:
                assert (job.payload, job.key, job.attempt, job.queue, job.is_lost) == (0, "k", 1, "jobs", False)
                job.extend()
            with next(taken) as job:
                assert (job.payload, job.attempt) == (1, 1)
                raise ValueError("one")
            again = next(taken)
            assert (again.payload, again.attempt) == (1, 2)
            again.fail("still", permanent=True)
            last = next(taken)
            last.commit()
            assert (last.payload, taken.in_hand) == (2, 0)
            status = node.request("bridge", {"group": "queue/jobs"}, operation="queue")
            assert (status["done"], status["dead"], status["waiting"]) == (2, 1, 0)


def test_the_log_is_read_in_batches(tmp_path: Path) -> None:
    with iris.sync.open_node("bridge") as serving:
        bridge = open_sync_bridge(serving, topics=[">"], directory=tmp_path / "log")
        with bridge, iris.sync.open_node("desk") as node, node.bridge().consume("orders.>", group="billing") as orders:
            node.wait_for("bridge", timeout=60)
            node.publish_confirmed("orders.new", 1, timeout=60)
            with next(orders) as batch:
                assert [event.payload for event in batch] == [1]
                assert (len(batch), batch.lag, batch.missed, orders.lag, orders.group) == (1, 0, 0, 0, "billing")


def test_a_log_is_read_to_its_end_by_who_only_looks(tmp_path: Path) -> None:
    with iris.sync.open_node("bridge") as serving:
        bridge = open_sync_bridge(serving, topics=[">"], directory=tmp_path / "log")
        with bridge, iris.sync.open_node("desk") as node:
            node.wait_for("bridge", timeout=60)
            for number in range(3):
                node.publish_confirmed("orders.new", number, timeout=60)
            for group in (None, "billing"):
                with node.bridge().consume("orders.>", group=group, until="now") as orders:
                    assert [event.payload for batch in orders for event in batch] == [0, 1, 2]
                    assert list(orders) == []
            with iris.sync.open_node("bridge") as operator:
                operator.wait_for("bridge", timeout=60)
                operator.bridge().drop_group("billing")
                with pytest.raises(iris.ConfigError, match="has no group"):
                    operator.bridge().drop_group("billing")
