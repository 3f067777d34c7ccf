"""Memory that is used up at one moment: what needed it fails, and the node and the program go on."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.kernel.transport import listener, reader
from iris.kernel.transport.greeting import SpGreeting
from iris.node.open import open_parts

pytestmark = pytest.mark.usefixtures("own_home")


class Scarce:
    """Memory of which there is none for what is asked for next, so many times."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.refuses = 0
        self.refused = 0

    def __call__(self, *args: Any) -> Any:
        if self.refuses:
            self.refuses -= 1
            self.refused += 1
            raise MemoryError
        return self._real(*args)


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 3])
async def test_a_node_without_memory_for_a_frame_hangs_up_and_serves_on(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    scarce = Scarce(bytearray)
    monkeypatch.setattr(reader, "bytearray", scarce, raising=False)
    service = iris.Service("shop")

    @service.request
    async def measure(request: iris.Request) -> int:
        return len(request.payload)

    async with iris.open_node("shop") as shop, shop.join("shop", service), iris.open_node("desk") as desk:
        await desk.wait_for("shop")
        scarce.refuses = times
        with trio.fail_after(30):
            size = 1_000_000
            assert (
                await desk.request("shop", bytes(size), timeout=20, options=iris.RequestOptions(idempotent=True))
                == size
            )
            assert await desk.request("shop", b"abc", timeout=5) == 3
    assert scarce.refused


@pytest.mark.long
async def test_a_node_without_memory_for_a_connection_accepts_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scarce = Scarce(SpGreeting)
    monkeypatch.setattr(listener, "SpGreeting", scarce)
    async with open_parts("shop", listen=["tcp://127.0.0.1:0"]) as (shop, shop_parts), shop.subscribe("news") as events:
        port = int(shop_parts.mesh.listening[-1].rpartition(":")[2])
        scarce.refuses = 1
        with socket.create_connection(("127.0.0.1", port)), trio.fail_after(10):
            while not scarce.refused:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.01)
        with trio.fail_after(10):
            async with iris.open_node("desk") as desk:
                await desk.publish("news", "it rains")
                assert (await anext(events)).payload == "it rains"
