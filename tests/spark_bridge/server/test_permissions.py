"""Who may call which operation of a bridge: one table for the code and the documentation."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import get_args

import pytest
import trio

from iris.kernel.config import Config
from iris.kernel.errors import IrisError, NotAllowed
from iris.node.node import Node
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies import LogState, PrimaryCopies, Settings
from iris.spark_bridge.log.recovery import open_store
from iris.spark_bridge.log.retention import Retention
from iris.spark_bridge.queues import Queues
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.clock_check import MemberClock
from iris.spark_bridge.server.group_commit import GroupLimits
from iris.spark_bridge.server.member import BridgeMember
from iris.spark_bridge.server.operations import Operations
from iris.spark_bridge.server.permissions import PERMISSIONS, Caller, Permissions
from iris.spark_bridge.server.sharding import Sharding
from iris.spark_bridge.server.sink_commits import BatchCommitter
from iris.spark_bridge.staging.staging import Staging
from iris.spark_bridge.staging.usage import Usage
from iris.testing import Rights, open_network

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "spark.md"
TUNNELS = ("read", "stage", "take", "consume")


async def tell_nobody(*_: object, **__: object) -> None:
    """Stand in for ``node.publish``."""


async def test_every_operation_has_a_row_and_every_row_an_operation(tmp_path: Path) -> None:
    store = open_store(tmp_path, shards=[0], entropy=os.urandom)
    clock = MemberClock(time.time, None)  # noqa: TID251 -- a date
    copies = PrimaryCopies(store, LogState(), Settings(), bridge="bridge")
    member = BridgeMember(
        store,
        shards=[0],
        bridge="bridge",
        limits=GroupLimits(),
        retention=Retention(),
        clock=clock,
        copies=copies,
    )
    intake = BatchCommitter(
        store,
        Staging(tmp_path / "staged", Usage(most=1, most_of_owner=1)),
        Sharding([0]),
        bridge="bridge",
        publish=tell_nobody,
        committed=member.take_note,
        clock=clock,
    )
    async with open_network() as network, network.open_node("bridge") as node, trio.open_nursery() as nursery:
        permissions = Permissions(bridge="bridge", readers=None, node=node)
        queues = Queues(member, nursery, may_publish=permissions.may_publish)
        operations = Operations(
            member, intake, queues=queues, permissions=permissions, config=Config(), address="bridge"
        )
        service = operations.service("bridge")
    assert {*service.requests, *service.tunnels} == set(PERMISSIONS)
    assert set(service.tunnels) == set(TUNNELS)
    assert service.broadcasts == []
    store.close()


def test_the_documentation_has_the_table() -> None:
    text = DOCUMENT.read_text()
    for operation, permission in PERMISSIONS.items():
        owned = "" if permission.owns is None else f"; the {permission.owns} is its own"
        assert re.search(rf"^\| `{operation}` \| .+ \| {permission.caller}{owned} \|$", text, re.MULTILINE), operation
    for caller in get_args(Caller):
        assert f"\n- *{caller}*: " in text


async def refused(node: Node, operations: Collection[str]) -> set[str]:
    """Return those of the operations that a node may not call."""
    client = BridgeClient(node, "bridge", patience=5)
    found: set[str] = set()
    for operation in operations:
        try:
            if operation in TUNNELS:
                async with node.open_tunnel("bridge", operation=operation) as tunnel:
                    await tunnel.send({})
                    answer = await tunnel.receive()
                    assert isinstance(answer, dict)
                    if answer["error"] == "NotAllowed":
                        found.add(operation)
            else:
                await client.ask("bridge", operation, {})
        except NotAllowed:
            found.add(operation)
        except IrisError:
            pass  # there was nothing in the payload
    return found


def called_by(*callers: str) -> set[str]:
    return {operation for operation, permission in PERMISSIONS.items() if permission.caller in callers}


async def test_each_operation_is_refused_to_whom_the_table_does_not_name(tmp_path: Path) -> None:
    nobody = Rights(publishes=(), subscribes=())
    async with open_network() as network:
        network.credential("analysts", nobody)
        async with (
            network.open_node("bridge") as node,
            open_bridge(node, topics=["t"], directory=tmp_path, readers=["analysts", "writers"]),
            network.open_node("stranger") as stranger,
            network.open_node("analysts") as analysts,
            network.open_node("writers") as writers,
        ):
            assert await refused(stranger, PERMISSIONS) == set(PERMISSIONS)
            assert await refused(analysts, PERMISSIONS) == called_by("writer", "bridge")
            assert await refused(writers, PERMISSIONS) == called_by("bridge")
            assert await refused(node, PERMISSIONS) == set()


@pytest.mark.parametrize("caller", get_args(Caller))
def test_every_kind_of_caller_is_in_use(caller: str) -> None:
    assert called_by(caller)
