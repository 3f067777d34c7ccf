"""A desk for the tests of those who read a bridge's log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from iris.node.node import Node
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[tuple[Network, Node, BridgeMember]]:
    """Return a network, a node, and the member of a bridge that stores all topics."""
    async with open_network() as network, open_member(network, tmp_path) as member, network.open_node("desk") as node:
        await node.wait_for("bridge")
        yield network, node, member
