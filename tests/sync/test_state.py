"""Documents of programs without an event loop: all types as plain calls, by any thread."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import iris
import iris.sync
from tests.support.bridges import open_sync_bridge

pytestmark = pytest.mark.usefixtures("own_home")


def test_threads_read_and_write_a_document() -> None:
    with iris.sync.open_node("prices") as one, iris.sync.open_node("prices") as two:
        with one.state("prices") as here, two.state("prices") as there:
            here["eur"] = 1.5
            here.update({"usd": 1, "chf": 2})
            here.counter("visits").add(2)
            here.set("tags").add("x")
            here.map("limits").update({"most": 9})
            here.map("limits").counter("asked").add(3)
            here.map("limits").set("names").add("y")
            here.settled(2)
            assert dict(there) == {"eur": 1.5, "usd": 1, "chf": 2}
            assert (int(there.counter("visits")), there.counter("visits").value) == (2, 2)
            assert set(there.set("tags")) == {"x"}
            limits = there.map("limits")
            assert (dict(limits), int(limits.counter("asked")), set(limits.set("names"))) == ({"most": 9}, 3, {"y"})
            assert "eur" in there
            assert there.statistics().received > 0
            writer = threading.Thread(target=there.__setitem__, args=("late", 1))
            watch = here.watch("late")
            writer.start()
            assert next(watch) == iris.StateChange(key="late", kind="value", value=1, removed=False)
            writer.join()
            del here["late"]
            assert next(watch).removed
        assert dict(here) == {"eur": 1.5, "usd": 1, "chf": 2}, "what it was can still be read"


def test_a_lease_is_refused_without_a_bridge() -> None:
    with (
        iris.sync.open_node("workers") as node,
        pytest.raises(iris.NoSuchCluster, match="a lease needs a bridge"),
        node.bridge().lease("scheduler"),
    ):
        pass


def test_a_key_is_answered_once_and_a_saga_is_undone(tmp_path: Path) -> None:
    calls: list[object] = []
    service = iris.Service("bank", outcomes=iris.Outcomes(rerun=True))

    @service.request
    def pay(request: iris.Request) -> int:
        calls.append(request.payload)
        assert request.outbox is not None
        request.outbox.publish("ledger.a", request.payload)
        return len(calls)

    @service.request("undo")
    def undo(request: iris.Request) -> None:
        calls.append(f"not {request.payload}")

    def fail(node: iris.sync.Node) -> None:
        with node.bridge().saga("order") as saga:
            assert (saga.name, saga.attempt) == ("order", 1)
            saga.request("bank", "saga", undo="undo")
            raise ValueError("no more of it")

    with iris.sync.open_node("bridge") as serving:
        bridge = open_sync_bridge(serving, topics=["ledger.>"], directory=tmp_path / "log")
        with bridge, iris.sync.open_node("bank") as node, node.join("bank", service):
            node.wait_for("bridge", timeout=60)
            for _ in range(2):
                assert node.request("bank", "one", timeout=60, options=iris.RequestOptions(idempotency_key="k")) == 1
            with pytest.raises(iris.SagaUndone, match="ValueError: no more of it") as undone:
                fail(node)
            assert undone.value.failed == ()
            assert node.request("nobody", fallback="none") == "none"
            with node.bridge().consume("ledger.>", group="audit") as events, next(events) as batch:
                assert [event.payload for event in batch][:1] == ["one"]
    assert calls == ["one", "saga", "not saga"]
