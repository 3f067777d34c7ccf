"""For how long a caller waits for members that it is not linked with."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.membership import Membership
from iris.cluster.mesh import Mesh
from iris.cluster.sites.member_reach import MemberReach
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from tests.support.membership import node


class Members:
    """A cluster of which some members cannot be linked, and say nothing."""

    version = 1

    def __init__(self, silent: set[NodeId]) -> None:
        self.silent = silent
        self.linked: list[NodeId] = []

    def unlinked(self, _address: str) -> list[NodeId]:
        return [node(number) for number in range(12) if node(number) not in self.linked]

    def member_ids(self, _address: str) -> list[NodeId]:
        return self.linked

    def request_link(self, member: NodeId) -> bool:
        if member not in self.silent:
            self.linked.append(member)
        return True

    def is_settled(self, member: NodeId) -> bool:
        return member in self.linked

    def picker(self, _address: str) -> SimpleNamespace | None:
        return SimpleNamespace(has_other=self.has_other) if self.linked else None

    def has_other(self, tried: Collection[NodeId]) -> bool:
        return any(member not in tried for member in self.linked)

    async def wait_news(self) -> None:
        await trio.sleep_forever()


def reach_of(members: Members) -> MemberReach:
    mesh = SimpleNamespace(node=node(100), config=Config(), expelled=lambda: None)
    return MemberReach(cast("Mesh", mesh), cast("Membership", members), None)


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_member_that_is_silent_leaves_the_others_half_of_the_time(
    autojump_clock: MockClock, keyed: bool
) -> None:
    members = Members({node(3)})
    left = await reach_of(members).reach("numbers", 2.0, everybody=not keyed, keyed=keyed)
    assert left == pytest.approx(1.0)
    assert len(members.linked) == 11


async def test_where_those_that_are_linked_first_are_silent_others_are_soon(autojump_clock: MockClock) -> None:
    probe = Members({node(number) for number in range(12)})
    reach = reach_of(probe)
    silent = set(reach._lacking("numbers", everybody=False)[:6])
    members = Members(silent)
    left = await reach_of(members).reach("numbers", 2.0, everybody=False)
    assert left == pytest.approx(1.0)
    assert members.linked
