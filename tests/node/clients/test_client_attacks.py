"""Clients that break the rules: what they say of members is not taken, and what they cost is bounded."""

from __future__ import annotations

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
from iris.cluster.mesh import handshakes
from iris.cluster.swim import Swim
from iris.kernel.config import Config
from iris.kernel.names import is_name
from iris.kernel.wire import Message, kinds
from iris.security.identity.revocation import issue_revocations
from iris.testing import inspect
from tests.support.clients import naming, open_client, open_realm
from tests.support.stages import Stage, open_stage

NOT_TAKEN = "message of a kind that is not taken"


def own_record(stage: Stage, client: iris.Node) -> kinds.RecordUpdate:
    """Return the record that a client would have if it were a member: signed by it, and in order."""
    return stage.parts[client.id].view.own.as_update()


@pytest.mark.parametrize("kind", ["gossip", "join", "state", "sync", "event", "interest", "tunnel accepted"])
async def test_what_is_for_members_is_not_taken_from_a_client(autojump_clock: MockClock, kind: str) -> None:
    async with open_stage() as stage:
        members = await open_realm(stage, "one")
        client = await open_client(stage)
        record = own_record(stage, client)
        message: Message = {
            "gossip": kinds.Gossip((record,)),
            "join": kinds.Join(record),
            "state": kinds.State(False, (record,)),
            "sync": kinds.Sync(bytes(2048)),
            "event": kinds.Events("prices.eur", 1, 0, None, None, None, (b"1",), ()),
            "interest": kinds.Interest(1, True, (), ()),
            "tunnel accepted": kinds.TunnelAccept(1, 4096, 1),
        }[kind]
        assert await client.request("store") == "one"
        async with members["one"].subscribe(">") as events:
            for node in list(inspect(client).peers):
                stage.parts[client.id].mesh.post(node, message, 1000)
            await trio.sleep(5)
            assert events.statistics().received == 0
        for member in members.values():
            machine = stage.parts[member.id].view
            assert isinstance(machine, Swim)
            assert machine.state(client.id) is None
            if client.id in inspect(member).peers:
                assert member.statistics().refusals[NOT_TAKEN] == 1
        assert await client.request("store") == "one", "and the link goes on"
        stage.harmless = (NOT_TAKEN,)


async def test_a_client_that_asks_without_end_is_answered_now_and_then(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one")
        client = await open_client(stage)
        door = next(iter(inspect(client).peers))
        link = stage.parts[client.id].mesh.peers[door].link
        for second in range(10):
            for number in range(200):
                link.post(kinds.Lookup(10_000 + 200 * second + number, "store", bytes(8)), 100)
                if number % 20 == 0:
                    await trio.sleep(0.1)
        answering = inspect(stage.nodes["door"]).peers[client.id].link
        assert answering.posted < 700, "128 at once and 32 a second"
        assert stage.nodes["door"].statistics().refusals["message of kind Lookup"] > 1000
        stage.harmless = ("Lookup",)


async def test_clients_of_one_key_leave_room_for_those_of_others(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        config = Config(clients_per_cluster_key=3)
        await stage.member(naming("door", "door"), "door", config=config)
        many = [await open_client(stage, "shop", host=f"shop-{number}") for number in range(5)]
        await trio.sleep(1)
        door = stage.nodes["door"]
        assert sum(client.id in inspect(door).peers for client in many) == 3
        other = await open_client(stage, "desk")
        assert await other.request("door") == "door"
        stage.harmless = ("AuthenticationError", "junk from a stranger", "unknown session")
        for number in range(5):
            stage.crash(f"shop-{number}")


async def test_a_client_is_one_until_its_link_ends(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one")
        client = await open_client(stage)
        assert await client.request("store") == "one"
        mesh = stage.parts[client.id].mesh
        structs.force_setattr(mesh.tag, "client", False)  # it says that it is a member from now on
        await trio.sleep(130)  # its sessions are renewed
        for node in list(inspect(client).peers):
            mesh.post(node, kinds.Join(own_record(stage, client)), 1000)
        await trio.sleep(5)
        assert client.id not in {node.node for node in stage.nodes["door"].nodes()}
        stage.harmless = (NOT_TAKEN,)
        structs.force_setattr(mesh.tag, "client", True)


async def test_who_is_revoked_is_no_client_any_more(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        members = await open_realm(stage, "one")
        client = await open_client(stage)
        assert await client.request("store") == "one"
        network = stage.network
        newest = issue_revocations(network.root, number=1, issued=network.wall_clock(), clusters={"shop": 2}, nodes={})
        assert await members["one"].revoke(newest.signed)
        await trio.sleep(1)
        for member in members.values():
            assert client.id not in inspect(member).peers
        with pytest.raises(iris.DeliveryError, match="nobody talks to this node"):
            await client.request("store")
        stage.harmless = ("AuthenticationError", "peer that is gone", "junk from a stranger", "unknown session")


async def test_a_client_has_the_rights_of_its_credential(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage)
        service = iris.Service("safe", allow=["bank"])

        @service.request
        async def give(_request: iris.Request) -> str:
            return "gold"

        await stage.member(service, "safe")
        thief, owner = await open_client(stage, "shop"), await open_client(stage, "bank")
        assert await owner.request("safe") == "gold"
        with pytest.raises(iris.NotAllowed):
            await thief.request("safe")


async def test_an_older_member_turns_a_client_away(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_tag(value: object) -> bool:
        return isinstance(value, str) and is_name(value.removeprefix(">"))

    async with open_stage() as stage:
        await open_realm(stage)
        monkeypatch.setattr(handshakes, "is_tag", is_tag)
        client = await open_client(stage)
        with pytest.raises(
            iris.NoSuchCluster, match=r"linked to nobody: the connection to mem://door broke during .* version"
        ):
            await client.request("door")
        stage.harmless = ("RemoteProtocolError", "junk from a stranger")
