"""Somebody clears up the directory in which the nodes of one machine meet, while they run."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import trio

import iris


async def test_a_node_whose_directory_was_cleared_up_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real sockets, for the one of this node has gone as well."""
    monkeypatch.setenv("IRIS_HOME", str(tmp_path))
    monkeypatch.setattr("iris.cluster.discovery.discovery._INTERVAL", 0.05)
    with tempfile.TemporaryDirectory() as short:  # the path of a socket is
        place = Path(short) / "run"

        def directory(_: str) -> Path:
            place.mkdir(mode=0o700, exist_ok=True)
            return place

        environment = iris.Environment(directory=directory)
        async with (
            iris.open_node("orders", environment=environment) as node,
            node.join("orders", iris.Service("orders")),
        ):
            shutil.rmtree(place)
            with trio.fail_after(60):
                while not list(place.glob("*.node")):  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.01)
            async with iris.open_node("shop", environment=environment) as other:
                await other.wait_for("orders", timeout=60)
        assert not place.exists(), "nothing is left behind"
