"""The snippets in the pages run: each alone, against whole nodes in memory that serve what the pages talk about."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.testing import Network

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets() -> dict[str, str]:
    """Return every Python snippet that is no whole program: those import what they need, and are run elsewhere."""
    found: dict[str, str] = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for match in FENCE.finditer(page.read_text()):
            code = match[1]
            if "import " not in code and "spark" not in code:
                line = page.read_text()[: match.start()].count("\n") + 1
                found[f"{page.name}:{line}"] = code
    return found


SNIPPETS = snippets()


@dataclasses.dataclass
class Row:
    """What the pages call the result of a look-up."""

    id: int


@dataclasses.dataclass
class Offer:
    """What they call a price."""

    item: str
    price: float


async def reply(request: iris.Request) -> object:
    await trio.lowlevel.checkpoint()
    return request.payload


async def echo(tunnel: iris.Tunnel) -> None:
    async for message in tunnel:
        await tunnel.send(message)
    await tunnel.send_eof()


async def publish_orders(node: iris.Node) -> None:
    while True:
        await node.publish("orders.created", {"id": 7})
        await trio.sleep(0.1)


async def store_orders(node: iris.Node, *, task_status: trio.TaskStatus[None]) -> None:
    """Do what a bridge does, without a disk."""
    async with node.subscribe("orders.>", durable=True) as events:
        task_status.started()
        async for event in events:
            await events.confirm([event])


async def open_world(stack: AsyncExitStack, network: Network) -> dict[str, Any]:
    """Open the nodes that snippets talk to; return the names that they use."""
    company = await stack.enter_async_context(network.open_node("company"))
    for name in ("databases", "archive"):
        service = iris.Service(name)
        service.request(reply)
        service.tunnel(echo)
        await stack.enter_async_context(company.join(name, service))
    node = await stack.enter_async_context(network.open_node("shop"))
    for name in ("databases", "archive"):
        await node.wait_for(name)
    nursery = await stack.enter_async_context(trio.open_nursery())
    await nursery.start(store_orders, company)
    nursery.start_soon(publish_orders, company)
    stack.callback(nursery.cancel_scope.cancel)
    return {
        "iris": iris,
        "trio": trio,
        "dataclasses": dataclasses,
        "node": node,
        "databases": iris.Service("databases"),
        "orders": [{"id": number} for number in range(3)],
        "Row": Row,
        "Offer": Offer,
    }


@pytest.mark.parametrize("place", SNIPPETS)
async def test_a_snippet_of_a_page_runs(
    autojump_clock: MockClock, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = compile(SNIPPETS[place], place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        names = await open_world(stack, network)
        before = capsys.readouterr().out
        with trio.move_on_after(60) as scope:  # those that listen go on for ever
            running = eval(code, names)
            if inspect.iscoroutine(running):
                await running
        said = capsys.readouterr().out
        if scope.cancelled_caught:
            assert said != before, "it has waited for a minute, and nothing has come"


def test_the_pages_have_snippets() -> None:
    assert len(SNIPPETS) >= 5
    assert any(place.startswith("streams.md") for place in SNIPPETS)
