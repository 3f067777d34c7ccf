"""``iris describe``: what the members of a cluster serve."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from functools import partialmethod

import pytest

import iris
from tests.support.desk import Desk


@dataclass
class Offer:
    item: str
    price: float


def test_operations_are_shown_as_python_writes_them(desk: Desk) -> None:
    quotes = desk.service = iris.Service("quotes")

    @quotes.request("look_up")
    async def look_up(item: str, count: int = 1) -> Offer:
        """Return the price of an item."""
        return Offer(item, 3.0 * count)

    @quotes.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    @quotes.tunnel
    async def follow(tunnel: iris.Tunnel) -> None: ...

    @quotes.broadcast
    async def hear(message: iris.Message) -> None: ...

    done = desk.run("describe", "quotes")
    assert done.status == 0, done.err
    assert done.out.decode().splitlines() == [
        "look_up(item: str, count: int = 1) -> Offer",
        "    Return the price of an item.",
        "    Payload: a map of item, count",
        "(no operation)(payload) -> object",
        "    Payload: any value",
        "tunnel (no operation)",
        "broadcasts",
        "Offer: item: str, price: float",
    ]
    assert json.loads(desk.run("describe", "quotes", "--json").out) == quotes.describe()
    assert json.loads(desk.run("describe", "quotes", "--asyncapi").out) == quotes.asyncapi()


class Size(enum.Enum):
    SMALL = "s"
    LARGE = 2


@dataclass
class Bike:
    size: Size


def test_the_values_of_an_enumeration_are_shown(desk: Desk) -> None:
    bikes = desk.service = iris.Service("bikes")

    @bikes.request("rent")
    async def rent(bike: Bike) -> None: ...

    @bikes.request("find")
    async def find(name: str) -> None: ...

    @bikes.request("list")
    async def list_all() -> None: ...

    assert None not in (rent, find, list_all)
    assert desk.run("describe", "bikes").out.decode().splitlines() == [
        "rent(bike: Bike) -> None",
        "    Payload: a map of size",
        "find(name: str) -> None",
        "    Payload: str",
        "list() -> None",
        "    Payload: none",
        "Bike: size: Size",
        "Size: SMALL: 's', LARGE: 2",
    ]


def test_a_cluster_without_members_is_an_error(desk: Desk) -> None:
    assert "quotes" in desk.run("describe", "quotes").complaint


def answer(_: iris.Service, said: object) -> object:
    return said


@pytest.mark.parametrize("said", [None, 3, {"operations": 1}, {"operations": {"a": {"signature": "\x1b[2J"}}}])
def test_what_a_member_says_of_itself_may_be_anything(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, said: object
) -> None:
    desk.service = iris.Service("quotes")
    monkeypatch.setattr(iris.Service, "describe", partialmethod(answer, said))
    assert "does not know" in desk.run("describe", "quotes", "--asyncapi").err
    done = desk.run("describe", "quotes")
    assert (done.status, "\x1b" in done.out.decode()) == (1, False)
    assert "does not know" in done.err
