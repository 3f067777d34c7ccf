"""Two realms on one network in memory, whose owners have exchanged bundles as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import iris
from iris.federation.policy import Policy
from tests.support.federations import EVERYTHING, Federation, open_federation


class Realms:
    """Ours, whose hosts have plain names, and theirs, whose hosts begin with ``acme-``."""

    def __init__(self, ours: Federation, theirs: Federation) -> None:
        self.ours = ours
        self.theirs = theirs
        self.parts, self.between = ours.parts, ours.between
        """Parts of all nodes, and the meshes of all gateways; see ``Federation``."""

    def introduce(
        self,
        *,
        ours: tuple[str, ...] = (">",),
        theirs: tuple[str, ...] = (">",),
        imports: tuple[str, ...] | None = None,
        callers: tuple[str, ...] | None = (">",),
        topics: tuple[str, ...] = (),
        import_topics: tuple[str, ...] | None = None,
    ) -> None:
        """Have both owners exchange bundles; ours are ``partner`` there, and theirs are ``acme`` here.

        ``topics`` are those that theirs export.
        """
        our_bundle = self.ours.network.bundle("ours", *ours)
        their_bundle = self.theirs.network.bundle("acme", *theirs, topics=topics)
        self.ours.network.trust(their_bundle, imports=imports, import_topics=import_topics)
        self.theirs.network.trust(our_bundle, "partner", callers=callers)

    async def link(self, *, policy: Policy = EVERYTHING) -> None:
        """Bring up a gateway of either realm, both at a site that is called eu; ours dials theirs."""
        await self.theirs.gateway("eu", policy=policy)
        await self.ours.gateway("eu", to=["acme/acme-eu-gateway"])

    async def shop(self, *services: iris.Service, site: str = "eu") -> iris.Node:
        """Bring up members there, and return a node of ours that knows of them."""
        for service in services:
            await self.theirs.member(site, service)
        return await self.ours.shop("eu", *(f"acme/{service.name}" for service in services))


@asynccontextmanager
async def open_realms(**options: Any) -> AsyncIterator[Realms]:
    async with open_federation(**options) as ours:
        yield Realms(ours, ours.other_realm("acme-"))
