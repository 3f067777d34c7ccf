"""Services of programs without an event loop: own node, and a lifespan that is a plain context manager."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

import iris
import iris.aio
import iris.sync

pytestmark = pytest.mark.usefixtures("own_home")


def test_plain_handlers_have_their_node_and_what_their_lifespan_gives() -> None:
    noted: list[str] = []

    @contextlib.contextmanager
    def life(node: iris.sync.Node) -> Iterator[dict[str, int]]:
        noted.append(node.name)
        yield {"factor": 3}
        noted.append("left")

    shop = iris.Service("shop", lifespan=life)

    @shop.request
    def triple(number: int, factor: iris.FromLifespan[int]) -> int:
        return factor * number

    @shop.request("forward")
    def forward(request: iris.sync.Request) -> object:
        return request.node.request("shop", request.payload)

    @shop.request("thread", thread=True)
    def in_thread(request: iris.sync.Request, node: iris.sync.Node) -> object:
        return [request.node is node, node.request("shop", request.payload)]

    with iris.sync.open_node("shop") as node:
        with node.join("shop", shop):
            assert node.request("shop", 2) == 6
            assert node.request("shop", 2, operation="forward") == 6
            assert node.request("shop", 2, operation="thread") == [True, 6]
            assert noted == ["shop"]
        assert noted == ["shop", "left"]


def test_a_service_for_another_kind_of_program_is_refused_with_the_mend() -> None:
    @contextlib.asynccontextmanager
    async def life(_: iris.sync.Node) -> AsyncIterator[None]:
        yield

    with iris.sync.open_node("shop") as node:
        with (
            pytest.raises(iris.ConfigError, match=r"an iris\.aio\.Service"),
            node.join("shop", iris.aio.Service("shop")),
        ):
            pass
        with (
            pytest.raises(iris.ConfigError, match=r"decorate it with contextlib\.contextmanager"),
            node.join("shop", iris.Service("shop", lifespan=life)),
        ):
            pass
