"""Handshakes with nodes of other sites whose route is replaced meanwhile."""

from __future__ import annotations

from typing import cast

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.directory import Hop, RemoteMember, SitePath
from iris.cluster.mesh import Mesh, TurnedAway
from iris.cluster.sites.remote_links import RemoteLinks
from iris.kernel.config import Config
from iris.kernel.errors import NotSent
from tests.support.membership import node

MEMBER = RemoteMember("eu", node(1), b"", 1)


class Routes:
    """A mesh whose handshakes end as ``outcomes`` say, each with the gateway that leads to the site then."""

    def __init__(self, *outcomes: tuple[type[NotSent] | None, int | None]) -> None:
        self.outcomes = list(outcomes)
        self.gateway: int | None = 1
        self.peers: dict[object, object] = {}

    def path(self, site: str) -> SitePath | None:
        if self.gateway is None:
            return None
        return SitePath(node(self.gateway), (Hop(site, node(self.gateway)),))

    async def connect(self, urls: list[str], expected: object) -> None:
        await trio.sleep(0.1)
        error, self.gateway = self.outcomes.pop(0)
        if error is not None:
            raise error("broken")
        self.peers[expected] = urls

    def links(self, nursery: trio.Nursery) -> RemoteLinks:
        return RemoteLinks(cast("Mesh", self), nursery, Config(), self.path, lambda: None)


@pytest.mark.parametrize(
    ("outcomes", "linked", "left"),
    [
        pytest.param([(TurnedAway, 2), (TurnedAway, 3), (None, 3)], True, 0, id="replaced twice"),
        pytest.param([(TurnedAway, 1), (None, 1)], False, 1, id="the same route"),
        pytest.param([(TurnedAway, None), (None, 1)], False, 1, id="no route"),
        pytest.param([(NotSent, 2), (None, 2)], False, 1, id="no answer"),
    ],
)
async def test_a_handshake_whose_route_is_replaced_is_begun_again(
    autojump_clock: MockClock, outcomes: list[tuple[type[NotSent] | None, int | None]], linked: bool, left: int
) -> None:
    routes = Routes(*outcomes)
    async with trio.open_nursery() as nursery:
        await routes.links(nursery).begin(MEMBER).wait()
    assert (MEMBER.node in routes.peers, len(routes.outcomes)) == (linked, left)


async def test_what_was_put_off_may_be_tried_at_once_over_another_route(autojump_clock: MockClock) -> None:
    routes = Routes()
    async with trio.open_nursery() as nursery:
        links = routes.links(nursery)
        links.put_off(MEMBER.site, MEMBER.node)
        assert not links.may_try(MEMBER.site, MEMBER.node)
        routes.gateway = 2
        assert links.may_try(MEMBER.site, MEMBER.node)
        routes.gateway = 1
        assert not links.may_try(MEMBER.site, MEMBER.node)
        await trio.sleep(1.0)
        assert links.may_try(MEMBER.site, MEMBER.node)
