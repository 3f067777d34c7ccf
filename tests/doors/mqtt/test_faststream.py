"""FastStream's broker for MQTT at the door: publishers, subscribers, groups, requests by topics and to clusters."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.doors.mqtt.place import Place, storing
from tests.support.doors import Counted, greeters, with_door

pytest.importorskip("faststream.mqtt", reason="FastStream is not installed: pip install 'faststream[mqtt]'")

from faststream import Path
from faststream.mqtt import MQTTBroker, QoS
from faststream.security import SASLPlaintext

RIGHTS: Any = {"call": (">",), "serve": ("orders",), "publish": (">",), "subscribe": (">",)}


def broker_at(place: Place, version: Any = "5.0") -> MQTTBroker:
    security = SASLPlaintext(username="any", password=place.token)
    return MQTTBroker("127.0.0.1", port=place.address[1], version=version, security=security)


@pytest.mark.parametrize("version", ["5.0", "3.1.1"])
@with_door(rights=RIGHTS)
async def test_a_chain_of_handlers(place: Place, version: str) -> None:
    broker, seen = broker_at(place, version), asyncio.Queue[tuple[str, str]]()

    @broker.publisher("processed/all")
    @broker.subscriber("/devices/{device}/living room")
    async def normalize(body: str, device: str = Path()) -> str:
        return f"{device} {body.upper()}"

    @broker.subscriber("processed/+", shared="pool" if version == "5.0" else None)
    async def consume(body: str) -> None:
        seen.put_nowait(("consumed", body))

    async with storing(place.node), broker:
        await broker.start()
        await broker.publish("warm", "/devices/7/living room", qos=QoS.AT_LEAST_ONCE)
        assert await seen.get() == ("consumed", "7 WARM")


@with_door(rights=RIGHTS)
async def test_requests_to_topics_and_clusters_and_a_handler_that_serves_one(place: Place) -> None:
    broker = broker_at(place)

    @broker.subscriber("rpc/echo")
    async def echo(body: str) -> str:
        return body

    @broker.subscriber("$serve/orders")
    async def brew(body: dict[str, Any]) -> dict[str, Any]:
        return {"brewed": body["tea"]}

    async with place.member.join("greeters", greeters(Counted())), broker:
        await place.node.wait_for("greeters")
        await broker.start()
        assert (await broker.request("hello", "rpc/echo", timeout=10.0)).body == b"hello"
        assert (await broker.request({"cups": 2}, "$call/greeters", timeout=10.0)).body == b'{"cups":2}'
        assert await place.member.request("orders", {"tea": "mint"}, wait=30) == {"brewed": "mint"}
        with suppress(asyncio.CancelledError):
            await broker.stop()
