"""Documents of programs without an event loop: all types as plain calls, by any thread."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import iris
import iris.sync


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))


def test_threads_read_and_write_a_document() -> None:
    with iris.sync.open_node("prices") as one, iris.sync.open_node("prices") as two:
        with one.state("prices") as here, two.state("prices") as there:
            here["eur"] = 1.5
            here.update({"usd": 1, "chf": 2})
            here.counter("visits").add(2)
            here.text("notes").append("hello")
            here.list("queue").extend([1, 2])
            here.list("queue")[0] = 3
            here.set("tags").add("x")
            here.map("limits").update({"most": 9})
            here.settled(2)
            assert dict(there) == {"eur": 1.5, "usd": 1, "chf": 2}
            assert (int(there.counter("visits")), there.counter("visits").value) == (2, 2)
            assert str(there.text("notes")) == "hello"
            assert there.text("notes")[1:3] == "el"
            assert list(there.list("queue")) == [3, 2]
            assert set(there.set("tags")) == {"x"}
            assert dict(there.map("limits")) == {"most": 9}
            assert "eur" in there
            assert there.statistics().applied > 0
            writer = threading.Thread(target=there.__setitem__, args=("late", 1))
            watch = here.watch("late")
            writer.start()
            assert next(watch) == iris.StateChange(key="late", kind="value", value=1, removed=False)
            writer.join()
            del here["late"]
            assert next(watch).removed
        assert dict(here) == {"eur": 1.5, "usd": 1, "chf": 2}, "what it was can still be read"


def test_a_lease_is_refused_without_a_bridge() -> None:
    with iris.sync.open_node("workers") as node:
        with pytest.raises(iris.NoSuchCluster, match="a lease needs a bridge"), node.lease("scheduler"):
            pass
        with pytest.raises(iris.ConfigError), node.leader("workers"):
            pass
