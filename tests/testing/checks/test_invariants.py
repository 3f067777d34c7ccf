"""The checks hold where they should, and name what does not hold."""

from __future__ import annotations

import dataclasses

import pytest
from trio.testing import MockClock

import iris
import iris.testing


def test_each_publishers_numbers_go_up() -> None:
    iris.testing.check_fifo([("a", 1), ("b", 1), ("a", 3), ("b", 2)])
    with pytest.raises(AssertionError, match="not in the order of 'a': 2 came after 3"):
        iris.testing.check_fifo([("a", 3), ("a", 2)])
    with pytest.raises(AssertionError, match="not in the order of 'a': 3 came twice"):
        iris.testing.check_fifo([("a", 3), ("a", 3)])


def test_an_effect_is_there_once() -> None:
    iris.testing.check_at_most_once(["a", "b"])
    with pytest.raises(AssertionError, match="'a' has happened more than once"):
        iris.testing.check_at_most_once(["a", "b", "a"])


async def test_books_balance_and_one_message_too_few_is_seen(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, network.open_node("a") as node, network.open_node("b") as other:
        async with other.join("b", iris.Service("b")):
            await node.wait_for("b")
            with pytest.raises(iris.DeliveryError):
                await node.request("b")
        iris.testing.check_books(node)
        statistics = node.statistics()
        wrong = dataclasses.replace(statistics, requests=dataclasses.replace(statistics.requests, sent=2))
        with pytest.raises(AssertionError, match="the books of requests do not balance: sent 2, ended or waiting 1"):
            iris.testing.check_books(wrong)


async def test_a_cluster_that_answers_nothing_is_named(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, network.open_node("a") as node:
        with pytest.raises(AssertionError, match="nowhere has answered nothing for 5 s"):
            await iris.testing.check_answers(node, "nowhere", within=5)
