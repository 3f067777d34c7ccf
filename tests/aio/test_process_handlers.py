"""Members of asyncio whose handlers run in processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import iris
import iris.aio
from iris.patterns.service import process_pool
from tests.support.process_handlers import Query, make_work


def test_a_member_of_asyncio_has_handlers_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(process_pool, "GRACE", 60)

    async def main() -> None:
        async with iris.aio.open_node("aio") as node, node.join("work", make_work()):
            assert await node.request("work", Query("tea"), operation="price", wait=5) == {"item": "tea", "price": 3}
            pid = (await node.request("work", operation="look"))["pid"]
            file = tmp_path / "told"
            waiting = asyncio.create_task(node.request("work", str(file), operation="wait", timeout=60))
            while not file.with_suffix(".began").exists():
                await asyncio.sleep(0.002)
            waiting.cancel()
            while not file.exists() or file.read_text() != str(pid):
                await asyncio.sleep(0.002)
        assert pid != os.getpid()

    asyncio.run(main())


def test_a_handler_of_asyncio_in_a_process_is_refused() -> None:
    async def wait(_: iris.Request) -> None:
        await asyncio.sleep(0)

    with pytest.raises(iris.ConfigError, match="use def, or leave process out"):
        iris.Service("work").request("wait", process=True)(wait)
