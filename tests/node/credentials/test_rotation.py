"""Keys of every kind that change under load: gate secret, key of a cluster, delegations.  No request fails.

Sessions live for a third of a second here, so that each step goes through many handshakes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import final

import pytest
import trio

import iris
from iris.cluster.mesh import Mesh
from iris.node.open import OpenNode, open_parts
from iris.security.authority.issuing import (
    add_gate_secret,
    create_realm,
    drop_old_gate_secret,
    issue_cluster,
    refresh_credential,
    revoke_cluster,
    seal_credential,
    use_new_gate_secret,
)
from iris.security.files.credential_file import save_credential
from iris.security.identity.credential import Credential
from iris.security.identity.identity import PeerIdentity
from iris.testing import inspect

CONFIG = iris.Config(session_lifetime=0.3, session_rejected=6.0)
MEMBERS = 3
DAY = 86_400.0


@final
class Site:
    """Members of the cluster ``store``, a client of the cluster ``shop``, and what the client has been asking."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.now = iris.Environment().wall_clock
        self.realm = create_realm(os.urandom)
        self.realm, self.store = issue_cluster(self.realm, "store", entropy=os.urandom, wall_now=self.now())
        self.realm, self.shop = issue_cluster(self.realm, "shop", entropy=os.urandom, wall_now=self.now())
        self.nodes: list[OpenNode] = []
        self.answered = 0
        self.failures: list[iris.IrisError] = []

    def file(self, name: str) -> Path:
        return self.place / f"{name}.iris"

    def hand_out(self, store: Credential, shop: Credential) -> None:
        """Give every node a credential file."""
        self.store, self.shop = store, shop
        for name, credential in (*((f"store-{number}", store) for number in range(MEMBERS)), ("shop", shop)):
            save_credential(self.file(name), credential, replace=True)

    def refresh(self) -> None:
        """Give every node what the realm has now."""
        refreshed = [
            refresh_credential(self.realm, credential, wall_now=self.now()) for credential in (self.store, self.shop)
        ]
        self.hand_out(*refreshed)

    async def until(self, what: str, agreed: Callable[[Mesh], bool]) -> None:
        with trio.fail_after(60):
            while not all(agreed(node.parts.mesh) for node in self.nodes):  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.02)
        assert not self.failures, f"{what}: {self.failures[:3]}"

    async def ask(self, client: iris.Node) -> None:
        while True:
            try:
                await client.request("store", b"x", timeout=60)
                self.answered += 1
            except iris.IrisError as error:
                self.failures.append(error)
            await trio.sleep(0.001)


def peers(mesh: Mesh) -> list[PeerIdentity]:
    return [peer.identity for peer in mesh.peers.values()]


@asynccontextmanager
async def open_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: Site) -> AsyncIterator[Site]:
    """Bring everybody up, and have the client ask all the while.  At the end no request may have failed."""
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("iris.node.open._LOOK", 0.02)
    service = iris.Service("store")

    @service.request
    async def answer(request: iris.Request) -> object:
        return request.payload

    async with AsyncExitStack() as stack:
        for number in range(MEMBERS):
            member = await stack.enter_async_context(open_parts(credential=site.file(f"store-{number}"), config=CONFIG))
            site.nodes.append(member)
            await stack.enter_async_context(member.node.join("store", service))
        asking = await stack.enter_async_context(open_parts(credential=site.file("shop"), config=CONFIG))
        site.nodes.append(asking)
        client = asking.node
        await client.wait_for("store", MEMBERS)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(site.ask, client)
            while site.answered < 20:  # noqa: ASYNC110 -- it counts
                await trio.sleep(0.01)
            yield site
            before = site.answered
            with trio.fail_after(60):
                while site.answered < before + 50:  # noqa: ASYNC110 -- likewise
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert site.failures == []


async def test_the_gate_secret_changes_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    site.hand_out(site.store, site.shop)
    async with open_site(tmp_path, monkeypatch, site):
        first = site.realm.gate_secrets[0]
        site.realm = add_gate_secret(site.realm, os.urandom)
        site.refresh()
        await site.until("add", lambda mesh: len(mesh.identity.gate_secrets) == 2)
        await trio.sleep(0.7)  # handshakes with both
        site.realm = use_new_gate_secret(site.realm)
        site.refresh()
        await site.until("use", lambda mesh: mesh.identity.gate_secrets[0] != first)
        await trio.sleep(0.7)
        site.realm = drop_old_gate_secret(site.realm)
        site.refresh()
        await site.until("drop", lambda mesh: first not in mesh.identity.gate_secrets)
        last = site.nodes[-1].parts.mesh
        made = dict(last.peers)
        sessions = {node: peer.session for node, peer in made.items()}
        await site.until(
            "handshakes with the new secret alone",
            lambda mesh: (
                mesh is not last or all(peer.session is not sessions.get(peer.node) for peer in mesh.peers.values())
            ),
        )


async def test_the_key_of_a_cluster_changes_under_load_and_the_old_one_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    site.hand_out(site.store, site.shop)
    async with open_site(tmp_path, monkeypatch, site):
        site.realm, second = issue_cluster(site.realm, "store", entropy=os.urandom, wall_now=site.now())
        assert second.certificate.generation == 2
        site.hand_out(second, site.shop)
        await site.until(
            "every peer knows the new generation",
            lambda mesh: all(
                peer.certificate.generation == 2 for peer in peers(mesh) if peer.certificate.name == "store"
            ),
        )
        site.realm, revoked = revoke_cluster(site.realm, "store", wall_now=site.now(), below=2)
        assert await site.nodes[0].node.revoke(revoked.signed)
        with trio.fail_after(60):
            while any(inspect(one.node).revocations != revoked.number for one in site.nodes):  # noqa: ASYNC110
                await trio.sleep(0.02)
        assert len(peers(site.nodes[-1].parts.mesh)) == MEMBERS


async def test_delegations_of_portable_and_sealed_credentials_change_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    site.hand_out(site.store, site.shop)

    def seal(days: float, previous: Credential | None = None) -> Credential:
        now = site.now()
        return seal_credential(
            site.store, entropy=os.urandom, not_before=now - 60, not_after=now + days * DAY, previous=previous
        )

    sealed = seal(1)
    save_credential(site.file("store-0"), sealed, replace=True)
    async with open_site(tmp_path, monkeypatch, site):
        meshes = [one.parts.mesh for one in site.nodes]
        ends = {mesh: mesh.identity.expires for mesh in meshes}
        await trio.sleep(1.1)  # times in certificates are whole seconds
        site.refresh()
        save_credential(site.file("store-0"), seal(2, sealed), replace=True)
        await site.until("renewed", lambda mesh: mesh.identity.expires > ends[mesh])
        assert meshes[0].identity.expires > ends[meshes[0]] + DAY / 2
        now_known = {mesh.node: mesh.identity.delegation.signed for mesh in meshes}
        await site.until(
            "every peer has seen the new certificates",
            lambda mesh: all(peer.delegation.signed == now_known[peer.node_id] for peer in peers(mesh)),
        )
