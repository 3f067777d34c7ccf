"""Topics that no name can subscribe to are not published on, by any call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iris.kernel.errors import ConfigError
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network

REFUSED = "for topics of this realm use|wildcards of MQTT|without '/'"


@pytest.mark.parametrize("topic", ["plants/one/heat", "sensors.+", "#", "a/b.c", "/"])
async def test_what_nobody_could_subscribe_to_is_refused_by_every_way_to_publish(topic: str) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        for publish in (node.publish, node.publish_confirmed, node.retain, node.retain_confirmed):
            with pytest.raises(ConfigError, match=REFUSED):
                await publish(topic, b"x")
        with pytest.raises(ConfigError, match=REFUSED):
            node.raise_for_losses(topic)
        async with node.confirming() as confirmed:
            with pytest.raises(ConfigError, match=REFUSED):
                await confirmed.publish(topic, b"x")
        with pytest.raises(ConfigError, match=REFUSED):
            async with node.subscribe(topic):
                pass
        with pytest.raises(ConfigError, match=REFUSED):
            async with node.bridge().consume(topic, group="g"):
                pass
        for name, dead in ((topic, None), ("jobs", topic)):
            with pytest.raises(ConfigError, match=REFUSED):
                async with node.bridge().queue(name, dead=dead):
                    pass


async def test_a_bridge_puts_no_letters_there_either(tmp_path: Path) -> None:
    terms = {"group": "queue/jobs", "limit": 1, "lease": 1.0, "attempts": 5, "dead": "jobs/dead", "backoff": 0.0}
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        network.open_node("bridge") as other,
        open_bridge(other, topics=[">"], directory=tmp_path),
    ):
        await node.wait_for("bridge")
        async with node.open_tunnel("bridge", operation="take") as tunnel:
            await tunnel.send({**terms, "held": []})
            answer: Any = await tunnel.receive()
            assert answer["error"] == "bad_request"
