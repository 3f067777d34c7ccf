"""Counters of doors in their node's metrics, while they are open."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import iris
from iris.doors.clients import ClientLimits
from iris.doors.reporting import reporting
from iris.testing import inspect
from tests.doors.mqtt.place import Place as MqttPlace
from tests.doors.mqtt.place import open_place as open_mqtt_place
from tests.doors.nng.place import Place as NngPlace
from tests.doors.nng.place import open_place as open_nng_place
from tests.support.async_tests import in_realm
from tests.support.doors import Place, open_place


async def page_of(place: Place | MqttPlace | NngPlace) -> list[str]:
    """Return the lines of the page that are of doors."""
    async with iris.metrics.serve(place.node, port=0) as metrics:
        with await asyncio.to_thread(urllib.request.urlopen, metrics.url + "/metrics", timeout=30) as page:
            return [line for line in page.read().decode().splitlines() if line.startswith("iris_door_")]


@in_realm
async def test_a_door_for_http_shows_what_it_does_and_refuses(tmp_path: Path) -> None:
    async with open_place(tmp_path, ClientLimits(subscriptions=1)) as place:
        assert (await place.post("/request/greeters")).status == 200
        assert (await place.post("/request/greeters", headers={})).status == 401
        async with place.follow("topic=a"):
            assert (await place.fetch("GET", "/subscribe?topic=a")).status == 429
            page = await page_of(place)
    assert 'iris_door_connections{protocol="http"} 1.0' in page
    assert 'iris_door_messages_total{outcome="answered",protocol="http"} 1.0' in page
    assert 'iris_door_refusals_total{protocol="http",status="401"} 1.0' in page
    assert 'iris_door_refusals_total{protocol="http",status="429"} 1.0' in page
    assert 'iris_door_missed_events_total{protocol="http",reason="missed"} 0.0' in page
    assert 'iris_door_turned_away_total{protocol="http"} 0.0' in page


@in_realm
async def test_a_door_for_mqtt_shows_strangers_that_were_turned_away(tmp_path: Path) -> None:
    async with open_mqtt_place(tmp_path) as place, place.client():
        async with place.dial() as raw:
            assert int((await raw.join("wrong")).reason_code) == 0x86
        await place.until(lambda: place.door.statistics().turned_away)
        page = await page_of(place)
    assert 'iris_door_connections{protocol="mqtt"} 1.0' in page
    assert 'iris_door_turned_away_total{protocol="mqtt"} 1.0' in page


@in_realm
async def test_a_door_for_nng_shows_refusals_and_is_no_more_when_it_is_closed(tmp_path: Path) -> None:
    async with open_nng_place(tmp_path) as place:
        assert (await place.ask(b"nobody\n")).startswith(b"404")
        page = await page_of(place)
        assert inspect(place.node).reports == {"door.nng"}
    assert not inspect(place.node).reports
    assert 'iris_door_refusals_total{protocol="nng",status="404"} 1.0' in page


@in_realm
async def test_of_two_doors_of_a_protocol_the_one_that_closes_takes_nothing_from_the_other(tmp_path: Path) -> None:
    async with open_nng_place(tmp_path) as place:
        first, second = reporting(place.node, "http", list), reporting(place.node, "http", dict)
        first.__enter__()
        with second:
            first.__exit__(None, None, None)
            assert "door.http" in inspect(place.node).reports
        assert "door.http" not in inspect(place.node).reports
