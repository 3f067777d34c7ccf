"""Processes that are forked from one with a node: the child gets an error with advice, and the parent goes on."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- programs of asyncio, too
import multiprocessing
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import iris
import iris.aio
import iris.sync
from tests.support.async_tests import on_asyncio

pytestmark = pytest.mark.long

TOLD = "forked"
NODES: list[Any] = []


@pytest.fixture(autouse=True)
def _own_home(own_home: None) -> None:
    NODES.clear()
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads


def outcome(call: Callable[[], Any]) -> str:
    """Return what a call comes to, within 10 s."""
    came: list[str] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 -- it is looked at
            came.append(str(error))
        else:
            came.append("done")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    return came[0] if came else "it waits"


def use(queue: Any) -> None:
    (node,) = NODES
    queue.put({
        "open": outcome(iris.sync.open_node("child").__enter__),
        "request": outcome(lambda: node.request("shop", 1, timeout=2)),
        "publish": outcome(lambda: node.publish("a", 1)),
        "subscribe": outcome(node.subscribe("a").__enter__),
    })  # fmt: skip


def open_in_asyncio(queue: Any) -> None:
    async def main() -> None:
        async with iris.aio.open_node("child"):
            pass

    queue.put({"open": outcome(lambda: asyncio.run(main()))})


def echo() -> iris.Service:
    service = iris.Service("shop")

    @service.request
    def reply(request: iris.Request) -> object:
        return request.payload

    return service


def from_child(work: Callable[[Any], None]) -> dict[str, str]:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    came: dict[str, str] = queue.get()
    child.join(20)
    assert child.exitcode == 0
    return came


def test_a_forked_child_is_told_that_the_node_is_its_parents_which_goes_on() -> None:
    with (
        iris.sync.open_node("shop") as shop,
        shop.join("shop", echo()),
        iris.sync.open_node("desk") as desk,
    ):
        NODES.append(desk)
        desk.wait_for("shop")
        assert all(TOLD in said for said in from_child(use).values())
        assert desk.request("shop", 2, timeout=10) == 2


@on_asyncio()
async def test_a_child_that_is_forked_beside_a_node_of_asyncio_is_told_to_open_it_elsewhere() -> None:
    service = iris.Service("shop")

    @service.request
    async def reply(request: iris.Request) -> object:
        return request.payload

    async with (
        iris.aio.open_node("shop") as shop,
        shop.join("shop", service),
        iris.aio.open_node("desk") as desk,
    ):
        await desk.wait_for("shop")
        assert TOLD in from_child(open_in_asyncio)["open"]
        assert await desk.request("shop", 2, timeout=10) == 2


LEAVES = """
import os, time, iris.sync
with iris.sync.open_node("desk") as node:
    child = os.fork()
    if child:
        time.sleep(0.5)
        print("parent", node.clusters(), flush=True)
if not child:
    print("child left", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_that_leaves_the_block_of_its_parents_node_ends_and_takes_nothing_away() -> None:
    ran = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, sorted(ran.stdout.split("\n"))) == (0, ["", "child left", "parent ()"]), ran.stderr
