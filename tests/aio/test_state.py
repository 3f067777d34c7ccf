"""Documents and leases of asyncio programs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import iris
import iris.aio


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))


def test_tasks_read_write_and_follow_a_document() -> None:
    async def main() -> None:
        async with (
            iris.aio.open_node("prices") as one,
            iris.aio.open_node("prices") as two,
            one.state("prices") as here,
            two.state("prices") as there,
        ):
            here["eur"] = 1.5
            here.counter("visits").add(2)
            with here.edit():
                here["from"], here["to"] = -5, 5
            await here.settled(2)
            assert dict(there) == {"eur": 1.5, "from": -5, "to": 5}
            assert there.counter("visits").value == 2
            watch = there.watch("late")
            asyncio.get_running_loop().call_later(0.1, here.__setitem__, "late", 1)
            change = await anext(watch)
            assert (change.key, change.value) == ("late", 1)
            assert there.statistics().applied > 0

    asyncio.run(main())


def test_a_lease_is_refused_without_a_bridge() -> None:
    async def main() -> None:
        async with iris.aio.open_node("workers") as node:
            with pytest.raises(iris.NoSuchCluster, match="a lease needs a bridge"):
                async with node.lease("scheduler"):
                    pass
            with pytest.raises(iris.ConfigError):
                async with node.leader("workers"):
                    pass

    asyncio.run(main())
