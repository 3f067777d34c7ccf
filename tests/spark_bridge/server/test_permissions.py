"""Rights to call each operation of a bridge: one table for the code and the documentation."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import get_args

import pytest
import trio

from iris.kernel.errors import IrisError, NotAllowed
from iris.node.node import Node
from iris.patterns.bridge_protocol import Caller, Permission, read_refusal, read_request
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.protocol import OPERATIONS, PERMISSIONS
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Rights, open_network
from tests.support.bridge_members import open_member
from tests.support.bridge_requests import ask_raw

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "spark.md"
TUNNELS = ("read", "stage", "take", "consume")


async def test_every_operation_has_a_row_and_every_row_an_operation(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_parts("bridge") as (node, node_parts),
        open_bridge(node, topics=["t"], directory=tmp_path, member="one"),
    ):
        for cluster in ("bridge", "bridge.one"):
            service = node_parts.patterns.serving.memberships[cluster].service
            assert {*service.requests, *service.tunnels} == set(PERMISSIONS)
            assert set(service.tunnels) == set(TUNNELS)
            assert service.broadcasts == []


async def test_an_operation_without_a_row_is_refused_to_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as node,
        open_bridge(node, topics=["t"], directory=tmp_path),
    ):
        monkeypatch.setattr("iris.spark_bridge.server.permissions.PERMISSIONS", {})
        assert await refused(node, PERMISSIONS) == set(PERMISSIONS)


def test_the_documentation_has_the_table() -> None:
    text = DOCUMENT.read_text()
    for operation, permission in PERMISSIONS.items():
        owned = "" if permission.owns is None else f"; the {permission.owns} is its own"
        rows = re.findall(rf"^\| ([a-z ;]+) \| (?:.* )?`{re.escape(operation)}`[,; ].*\|$", text, re.MULTILINE)
        assert rows == [f"{permission.caller}{owned}"], operation
    for caller in get_args(Caller):
        assert f"\n- *{caller}*: " in text


NAMED = {"topics": ["secret.a"], "group": "queue/secret.jobs", "query": "q", "cluster": "somebody", "shard": "0@ab"}
"""A payload of which each operation reads its own part."""

REST: dict[str, object] = {
    "start": 0, "end": 1, "skip": 0, "known": {}, "timeout": 0, "timestamp": 0, "offsets": {}, "machine": "here",
    "limit": 1, "lease": 1.0, "attempts": 1, "backoff": 0.0, "dead": "secret.jobs.dead", "most": 1, "batch": 0,
    "partition": 0, "attempt": 1, "parts": [], "name": "l", "holder": bytes(16), "ttl": 1.0, "caller": "c", "key": "k",
    "fingerprint": bytes(16), "keep": 60.0, "rerun": False, "notes": b"", "outcome": b"", "begun": True,
}  # fmt: skip
"""What else the operations need; a malformed request names nothing."""
STARTS: Mapping[str, object] = {"pin": {}, "consume": "earliest"}


def whole(operation: str, payload: Mapping[str, object]) -> dict[str, object]:
    start = {"start": STARTS[operation]} if operation in STARTS else {}
    return {**REST, **start, **payload}


@pytest.mark.parametrize("operation", [name for name, row in PERMISSIONS.items() if row.caller != "bridge"])
def test_the_payloads_of_these_tests_are_well_formed(operation: str) -> None:
    asked = read_request(OPERATIONS[operation], whole(operation, NAMED))
    assert asked.operation == operation


async def refused(node: Node, operations: Collection[str], payload: Mapping[str, object] = NAMED) -> set[str]:
    """Return those of the operations that a node may not call."""
    client = BridgeClient(node, "bridge", patience=5)
    found: set[str] = set()
    for operation in operations:
        try:
            if operation in TUNNELS:
                async with node.open_tunnel("bridge", operation=operation) as tunnel:
                    await tunnel.send(whole(operation, payload))
                    await tunnel.send_eof()
                    if isinstance(read_refusal(await tunnel.receive()), NotAllowed):
                        found.add(operation)
            else:
                await ask_raw(client, operation, whole(operation, payload))
        except NotAllowed:
            found.add(operation)
        except IrisError:
            pass  # there was not enough in the payload
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
            assert await refused(analysts, PERMISSIONS) == called_by("writer", "bridge", "member")
            async with network.open_node("somebody"):
                others = {**NAMED, "group": "g", "query": "r"}
            assert await refused(writers, PERMISSIONS, others) == called_by("bridge", "member")
            assert await refused(node, PERMISSIONS, {**NAMED, "group": "h", "query": "s"}) == called_by("member")


RIGHTS = [
    Rights(publishes=publishes, subscribes=subscribes)
    for publishes, subscribes in (
        ((), ()),
        (None, ()),
        (("public.>",), ("public.>",)),
        ((), ("public.>",)),
        ((), ("secret.*",)),
        (None, None),
    )
]


def permitted(permission: Permission, rights: Rights) -> bool:
    """Return whether a cluster with these rights may call an operation with ``NAMED``, by the columns of its row."""
    match permission.caller:
        case "bridge" | "member":
            return False
        case "writer":
            return rights.publishes != ()
        case "subscriber" if rights.subscribes == ():
            return False
        case _:
            reads = permission.topics in ("named", "wanted", "queue") or permission.owns == "group"
            return not reads or rights.may_subscribe("secret.a")


async def test_each_operation_looks_at_the_rights_to_what_it_names_before_anything_is_claimed(tmp_path: Path) -> None:
    async with open_network() as network:
        for number, rights in enumerate(RIGHTS):
            network.credential(f"c{number}", rights)
        async with open_member(network, tmp_path, topics=["secret.>", "public.>"]) as bridge:
            for number, rights in enumerate(RIGHTS):
                async with network.open_node(f"c{number}") as other:
                    expected = {name for name, row in PERMISSIONS.items() if not permitted(row, rights)}
                    assert await refused(other, PERMISSIONS) == expected, rights
                if not rights.may_subscribe("secret.a"):
                    assert bridge.store.owners.of_kind("group") == {}
                if rights.publishes == ():
                    assert bridge.store.owners.of_kind("query") == {}
                for kind, name in (("group", NAMED["group"]), ("query", "q")):
                    drop = bridge.store.cursors.drop if kind == "group" else bridge.store.owners.drop_query
                    drop(str(name))


async def test_who_names_no_topics_gets_none_that_it_may_not_have(tmp_path: Path) -> None:
    async with open_network() as network:
        network.credential("public", Rights(subscribes=("public.>",)))
        async with (
            network.open_node("bridge") as node,
            open_bridge(node, topics=["secret.>", "public.>"], directory=tmp_path) as bridge,
            network.open_node("public") as other,
        ):
            await node.publish_confirmed("secret.jobs", b"hidden")
            (shard,) = bridge.states
            span: dict[str, object] = {"shard": shard, "topics": []}
            wanting = {name for name, row in PERMISSIONS.items() if row.topics == "wanted"}
            everything: dict[str, object] = {**span, "group": "g"}
            assert await refused(other, wanting, everything) == wanting
            by_regex: dict[str, object] = {**span, "group": "g", "regex": "secret"}
            assert await refused(other, {*wanting, "offsets", "damage"}, by_regex) == {*wanting, "offsets", "damage"}
            group = {"group": "queue/secret.jobs", "offsets": {shard: 1}, "topics": ["public.a"]}
            named = {"pin", "move", "consume", "take", "queue", "peek", "purge"}
            assert await refused(other, named, {**group, "most": 9}) == named, "also beside topics that it may have"
            async with network.open_node("rightful") as rightful, rightful.bridge().queue("secret.jobs") as jobs:
                with trio.fail_after(10):
                    async with await anext(jobs.receive()) as job:
                        assert job.payload == b"hidden"


@pytest.mark.parametrize("caller", get_args(Caller))
def test_every_kind_of_caller_is_in_use(caller: str) -> None:
    assert called_by(caller)
