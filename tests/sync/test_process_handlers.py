"""Members without an event loop whose handlers run in processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import iris.sync
from tests.support.process_handlers import Query, make_work


def test_a_member_without_an_event_loop_has_handlers_in_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    with iris.sync.open_node("sync") as node, node.join("work", make_work()):
        assert node.request("work", Query("cup"), operation="price", wait=5) == {"item": "cup", "price": 3}
        assert node.request("work", operation="look")["pid"] != os.getpid()
