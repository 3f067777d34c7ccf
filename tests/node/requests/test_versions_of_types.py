"""Members and callers of different versions: what one of them does not know is ignored by it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from trio.testing import MockClock

import iris
from tests.support.stages import open_stage


@dataclass
class Ride:
    rider: str


@dataclass
class NewRide:
    rider: str
    helmet: bool = False
    stops: list[str] = field(default_factory=list)


@dataclass
class Lock:
    bike: int
    ride: Ride


@dataclass
class NewLock:
    bike: int
    ride: NewRide
    code: str = "none"


class Bikes(iris.Service, cluster="bikes"):
    @iris.operation
    async def rent(self, ride: Ride) -> Lock:
        return Lock(7, ride)

    @iris.operation
    async def stations(self, city: str, least: int = 1) -> list[str]:
        return [city] * least


class NewBikes(iris.Service, cluster="bikes"):
    @iris.operation
    async def rent(self, ride: NewRide) -> NewLock:
        return NewLock(8, ride, "1234" if ride.helmet else "none")

    @iris.operation
    async def stations(self, city: str, least: int = 1, most: int = 9) -> list[str]:
        return [city] * min(least, most)


@pytest.mark.parametrize(
    ("service", "client", "ride", "lock", "more"),
    [
        (Bikes, NewBikes, NewRide("bob", True, ["north"]), NewLock(7, NewRide("bob")), {"most": 1}),
        (NewBikes, Bikes, Ride("bob"), Lock(8, Ride("bob")), {}),
        (NewBikes, NewBikes, NewRide("bob", True), NewLock(8, NewRide("bob", True), "1234"), {"most": 2}),
    ],
)
async def test_callers_and_members_of_two_versions_understand_each_other(
    autojump_clock: MockClock, service: Any, client: Any, ride: object, lock: object, more: dict[str, int]
) -> None:
    async with open_stage() as stage:
        await stage.member(service())
        desk = await stage.node("desk")
        bikes = client.client(desk, wait=5)
        assert await bikes.rent(ride) == lock
        assert await bikes.stations("oslo", 2, **more) == ["oslo", "oslo"]


async def test_what_is_missing_is_an_error_that_names_what_was_given_in_its_place(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await stage.member(Bikes())
        desk = await stage.node("desk")
        with pytest.raises(iris.RemoteError, match=r"^bad_request: payload: rider missing; not known: ride$"):
            await desk.request("bikes", {"ride": {"rider": "bob"}}, operation="rent", wait=5)
        with pytest.raises(iris.RemoteError, match=r"^bad_request: payload: city missing; not known: town$"):
            await desk.request("bikes", {"town": "oslo"}, operation="stations")
        with pytest.raises(
            iris.RemoteError, match=r"^reply_malformed: .*: payload\.ride: x missing; not known: rider$"
        ):
            await desk.request("bikes", {"rider": "bob"}, operation="rent", reply=Elsewhere)


@dataclass
class Elsewhere:
    ride: Place


@dataclass
class Place:
    x: int
