"""A block that is used without being entered, or never is, says what to write."""

from __future__ import annotations

import copy
import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import iris
import iris.aio
import iris.sync
from iris.testing import open_network

OPENERS = [(iris.open_node, "async with"), (iris.aio.open_node, "async with"), (iris.sync.open_node, "with")]


@pytest.mark.parametrize(("opener", "statement"), OPENERS)
def test_what_is_looked_for_in_a_block_is_in_what_it_gives(opener: Callable[[str], Any], statement: str) -> None:
    block = opener("shop")
    expected = rf"^open_node\(\.\.\.\) opens a block, which has no 'request': write '{statement} open_node"
    with pytest.raises(AttributeError, match=expected):
        block.request("stock", 1)
    assert not hasattr(block, "publish")
    with pytest.warns(RuntimeWarning, match="was never entered"):
        del block


@pytest.mark.parametrize(("opener", "statement"), OPENERS)
def test_a_block_that_is_never_entered_is_warned_of_where_it_is_dropped(
    opener: Callable[[str], Any], statement: str
) -> None:
    with pytest.warns(RuntimeWarning, match=rf"open_node.* was never entered.*'{statement}'") as warned:
        opener("shop")
    assert [one.filename for one in warned] == [__file__]


@pytest.mark.parametrize(("opener", "statement"), OPENERS)
def test_what_python_asks_of_objects_is_answered_as_ever(opener: Callable[[str], Any], statement: str) -> None:
    block = opener("shop")
    assert inspect.unwrap(block) is block
    assert not hasattr(block, "__wrapped__")
    twin = copy.copy(block)
    with pytest.warns(RuntimeWarning, match="was never entered"):
        del block, twin


async def test_blocks_that_are_entered_are_not_warned_of() -> None:
    service = iris.Service("shop")
    async with open_network() as network, network.open_node("shop") as node, node.join("shop", service):
        await node.publish("orders.tea", 1)
    gc.collect()  # the warning is an error of the test


async def test_a_service_that_was_not_joined_is_warned_of() -> None:
    async with open_network() as network, network.open_node("shop") as node:
        with pytest.warns(RuntimeWarning, match=r"^join\(\.\.\.\) was never entered, so nothing was done"):
            node.join("shop", iris.Service("shop"))
        with pytest.warns(RuntimeWarning, match=r"^subscribe\(\.\.\.\) was never entered"):
            node.subscribe("orders.*")
