"""A large transfer over a bad network: packets are lost, the link flaps, connections are reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import trio

import iris
from tests.support.hashed import CLUSTER, MIB, send_hashed, taking
from tests.support.parts import say

_CONFIG: Final = iris.Config(suspicion_multiplier=20.0, refused_grace=10.0)
"""A peer is dead after 10 s of silence, or of refusing: TCP needs a second or two to go on after a flap, or to connect
if a flap comes just then."""


async def _member(task: Mapping[str, Any]) -> None:
    async with (
        iris.open_node(credential=task["credential"], listen=[task["listen"]], config=_CONFIG) as node,
        node.join(CLUSTER, taking()),
    ):
        say(ready=True)
        await trio.sleep_forever()


async def _opener(task: Mapping[str, Any]) -> None:
    async with iris.open_node(
        credential=task["credential"], listen=[task["listen"]], seeds=[task["seed"]], config=_CONFIG
    ) as node:
        await node.wait_for(CLUSTER, timeout=60)
        say(ready=True)
        await send_hashed(node, task["bytes"], every=MIB)
        await trio.sleep_forever()


ROLES = {"member": _member, "opener": _opener}
