"""Eclipse Paho's client at the door: it asks a cluster, and serves one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.doors.mqtt.place import Place
from tests.support.doors import Counted, greeters, with_door

pytest.importorskip("paho.mqtt.client", reason="Paho is not installed: pip install paho-mqtt")

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

RIGHTS: Any = {"call": ("greeters",), "serve": ("orders",)}


@asynccontextmanager
async def connected(place: Place) -> AsyncGenerator[tuple[paho.Client, asyncio.Queue[Any]]]:
    """Connect a client with a thread of its own; the queue has what it is sent, and that a filter counts."""
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def hear(_client: Any, _data: Any, message: Any) -> None:
        if message.topic.startswith("$serve/"):
            answer = cast("Any", Properties)(PacketTypes.PUBLISH)
            answer.CorrelationData = message.properties.CorrelationData
            client.publish(message.properties.ResponseTopic, message.payload.upper(), properties=answer)
        loop.call_soon_threadsafe(queue.put_nowait, message)

    def followed(*given: Any) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, given[3])

    client.on_message = hear
    client.on_subscribe = followed
    client.username_pw_set("any", place.token)
    await asyncio.to_thread(client.connect, *place.address)
    client.loop_start()
    try:
        yield client, queue
    finally:
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)


@with_door(rights=RIGHTS)
async def test_a_client_of_paho_asks_a_cluster(place: Place) -> None:
    async with place.member.join("greeters", greeters(Counted())), connected(place) as (client, queue):
        await place.node.wait_for("greeters")
        asked: Any = cast("Any", Properties)(PacketTypes.PUBLISH)
        asked.ResponseTopic, asked.CorrelationData = "replies/mine", b"1"
        client.publish("$call/greeters", b"tea", properties=asked)
        reply = await queue.get()
        assert (reply.topic, reply.payload, reply.properties.CorrelationData) == ("replies/mine", b"tea", b"1")


@with_door(rights=RIGHTS)
async def test_a_client_of_paho_serves_a_cluster(place: Place) -> None:
    async with connected(place) as (client, queue):
        client.subscribe("$serve/orders")
        assert [one.value for one in await queue.get()] == [0]
        assert await place.member.request("orders", b"tea", wait=30) == b"TEA"
