"""A node without a configured address to listen on, on a machine whose address changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from msgspec import structs

import iris
from iris.cluster.addresses import split_url
from iris.cluster.discovery import return_address
from iris.node.open import open_parts
from iris.security.authority.issuing import issue_cluster
from iris.security.authority.realm_root import create_realm
from tests.support.realms import WALL, seeded_entropy


class Machine:
    """A machine with an address of loopback that faces the others."""

    def __init__(self) -> None:
        self.address: str | None = "127.0.0.2"

    async def source(self, url: str) -> str | None:
        await trio.lowlevel.checkpoint()
        is_remote = split_url(url) is not None and self.address is not None
        return f"tcp://{self.address}:0" if is_remote else None


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(return_address, "LOOK", 0.01)
    return Machine()


def hosts(urls: tuple[str, ...]) -> list[str]:
    return [parts[1] for url in urls if (parts := split_url(url)) is not None]


async def test_it_listens_at_the_new_address_and_tells_everybody(tmp_path: Path, machine: Machine) -> None:
    entropy = seeded_entropy(3)
    realm, hub_credential = issue_cluster(create_realm(entropy), "hub", entropy=entropy, wall_now=WALL)
    _, credential = issue_cluster(realm, "shop", entropy=entropy, wall_now=WALL)
    there = iris.Environment(directory=None, lan=None, variables={}, wall_clock=lambda: WALL)

    def directory(_: str) -> Path:
        return tmp_path

    here = structs.replace(there, directory=directory, source=machine.source)
    with trio.fail_after(30):
        async with (
            open_parts(credential=hub_credential, listen=["tcp://127.0.0.1:0"], environment=there) as (hub, hub_parts),
            iris.open_node(credential=credential, seeds=hub.addresses, environment=here) as shop,
            shop.join("shop", iris.Service("shop")),
        ):

            def known_at_hub() -> list[str]:
                record = hub_parts.membership.record_of(shop.id)
                return [] if record is None else hosts(record.addresses)

            assert hosts(shop.addresses) == ["127.0.0.2"]
            for address in (None, "127.0.0.3", "127.0.0.2", "127.0.0.3"):
                machine.address = address
                expected = [address or "127.0.0.2"]
                while hosts(shop.addresses) != expected:  # noqa: ASYNC110 -- it looks now and then
                    await trio.sleep(0.01)
                while known_at_hub() != expected:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert len([url for url in shop.addresses if url.startswith("ipc")]) == 1
            hub_parts.mesh.drop(shop.id, "a trial")
            while shop.id not in hub_parts.mesh.peers:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def test_a_caller_whose_machine_has_another_address_dials_anew(machine: Machine) -> None:
    entropy = seeded_entropy(3)
    realm, hub_credential = issue_cluster(create_realm(entropy), "hub", entropy=entropy, wall_now=WALL)
    _, credential = issue_cluster(realm, "shop", entropy=entropy, wall_now=WALL)
    there = iris.Environment(directory=None, lan=None, variables={}, wall_clock=lambda: WALL)
    here = structs.replace(there, source=machine.source)
    service = iris.Service("hub")

    @service.request
    async def reply(request: iris.Request) -> object:
        return request.payload

    with trio.fail_after(30):
        async with (
            iris.open_node(credential=hub_credential, listen=["tcp://127.0.0.1:0"], environment=there) as hub,
            hub.join("hub", service),
            open_parts(credential=credential, seeds=hub.addresses, environment=here) as (shop, parts),
        ):
            assert shop.addresses == ()
            for address in ("127.0.0.2", "127.0.0.3", "127.0.0.2"):
                before = parts.mesh.outgoing_to(hub.id)
                assert before is not None
                machine.address = None  # no route at all ends nothing
                await trio.sleep(0.05)
                assert parts.mesh.outgoing_to(hub.id) is before
                machine.address = address
                while address != "127.0.0.2" and parts.mesh.outgoing_to(hub.id) in (before, None):  # noqa: ASYNC110
                    await trio.sleep(0.01)
                assert await shop.request("hub", 1, options=iris.RequestOptions(idempotent=True)) == 1
            assert shop.addresses == ()
