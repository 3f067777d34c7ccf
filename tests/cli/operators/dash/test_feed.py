"""One survey a second for all pages, none for nobody, and a history that has an end."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
import trio

import iris
from iris.cli.operators.dash import feed as module
from iris.cli.operators.dash.feed import MAX_PAGES, MAX_POINTS, MAX_SERIES, Feed
from iris.testing import open_network


def _data(message: bytes) -> dict[str, Any]:
    head, data, end = message.decode().split("\n", 2)
    assert head.startswith("event: ")
    assert data.startswith("data: ")
    assert end == "\n"
    told: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return told


def _store() -> iris.Service:
    service = iris.Service("store")

    @service.request
    async def get(request: iris.Request) -> object:
        await trio.sleep(0.25)
        return request.payload

    return service


async def test_pages_share_one_survey_a_second_and_nobody_has_none(autojump_clock: object) -> None:
    async with open_network() as network, network.open_node("operator") as operator, trio.open_nursery() as nursery:
        feed = Feed(operator)
        nursery.start_soon(feed.run)
        await trio.sleep(60)
        assert feed.surveys == 0
        with ExitStack() as pages:
            assert all(pages.enter_context(feed.looking()) for _ in range(200))
            await trio.sleep(10.5)
            assert feed.surveys == 10
            assert feed.pages == 200
        await trio.sleep(60)
        assert 10 <= feed.surveys <= 11
        assert feed.pages == 0
        nursery.cancel_scope.cancel()


async def test_rates_begin_anew_when_somebody_looks_again(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as store,
        network.open_node("operator") as operator,
        store.join("store", _store()),
        trio.open_nursery() as nursery,
    ):
        await operator.wait_for("store")
        feed = Feed(operator)
        nursery.start_soon(feed.run)
        for asked in (0, 8):
            with feed.looking():
                for _ in range(asked):
                    nursery.start_soon(operator.request, "store")
                _, message = await feed.next(feed.number)
                (cluster,) = _data(message)["view"]["clusters"]
                assert cluster["rate"] == pytest.approx(asked, rel=0.01)
                assert (cluster["p50"] is None) == (asked == 0)
            for _ in range(30):
                await operator.request("store")
            await trio.sleep(60)
        nursery.cancel_scope.cancel()


async def test_a_page_that_does_not_read_gets_the_newest_and_misses_some(autojump_clock: object) -> None:
    async with open_network() as network, network.open_node("operator") as operator, trio.open_nursery() as nursery:
        feed = Feed(operator)
        nursery.start_soon(feed.run)
        with feed.looking():
            number, _ = await feed.next(0)
            await trio.sleep(7.5)
            newest, message = await feed.next(number)
            assert newest == number + 7
            assert _data(message)["point"] == _data(feed.history(()))["points"][-1]
        nursery.cancel_scope.cancel()


async def test_there_is_room_for_so_many_pages(autojump_clock: object) -> None:
    async with open_network() as network, network.open_node("operator") as operator:
        feed = Feed(operator)
        with ExitStack() as pages:
            assert all(pages.enter_context(feed.looking()) for _ in range(MAX_PAGES))
            with feed.looking() as may:
                assert not may
            assert feed.pages == MAX_PAGES
        with feed.looking() as may:
            assert may


async def test_the_history_is_bounded_in_points_and_clusters(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as store,
        network.open_node("operator") as operator,
        trio.open_nursery() as nursery,
    ):
        feed = Feed(operator)
        nursery.start_soon(feed.run)
        async with trio.open_nursery() as joined:
            for number in range(MAX_SERIES + 5):

                async def join(name: str) -> None:
                    async with store.join(name, iris.Service(name)):
                        await trio.sleep_forever()

                joined.start_soon(join, f"cluster-{number:02}")
            await operator.wait_for("cluster-00")
            with feed.looking():
                await trio.sleep(MAX_POINTS + 20)
            points = _data(feed.history(()))["points"]
            assert len(points) == MAX_POINTS
            assert all(len(point["clusters"]) == MAX_SERIES for point in points)
            joined.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def test_a_page_is_told_who_speaks_and_what_it_may_do(autojump_clock: object) -> None:
    async with open_network() as network, network.open_node("operator") as operator:
        about = _data(Feed(operator).history(["drain"]))
        assert about["realm"] == operator.realm
        assert about["node"] == operator.id
        assert about["allowed"] == ["drain"]
        assert about["interval"] == module.INTERVAL


async def test_who_hangs_delays_nobody(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("operator", host="here") as operator,
        network.open_node("store", host="there") as store,
        store.join("store", _store()),
        trio.open_nursery() as nursery,
    ):
        await operator.wait_for("store")
        feed = Feed(operator)
        nursery.start_soon(feed.run)
        with feed.looking():
            await feed.next(0)
            network.memory.partition(["here"], ["there"])
            began = trio.current_time()
            seen: dict[str, float] = {}
            number = feed.number
            while "gone" not in seen:
                number, message = await feed.next(feed.number)
                view = _data(message)["view"]
                for kind in ("silent", "gone"):
                    if view[kind]:
                        seen.setdefault(kind, trio.current_time() - began)
            assert seen["silent"] <= 2.0
            assert number >= trio.current_time() - began
        nursery.cancel_scope.cancel()
