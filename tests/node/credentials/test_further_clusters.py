"""A node that is a member of further clusters: its proofs are renewed in time, and end when they have to."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.cluster.swim import Swim
from iris.cluster.swim.records import MemberState
from iris.security.files.credential_file import save_credential
from iris.security.identity.certificate import issue_certificate
from iris.security.identity.credential import Credential, seal_credential
from iris.security.identity.revocation import RevocationList, issue_revocations
from iris.security.identity.signing import SigningKey
from iris.testing import Network, Rights

HOUR = 3600.0
DAY = 24 * HOUR


def _prove_nothing(_: object) -> None:
    pass


def service(name: str) -> iris.Service:
    made = iris.Service(name)

    @made.request
    async def answer(request: iris.Request) -> object:
        return request.payload

    return made


def revoke(network: Network, number: int, **clusters: int) -> RevocationList:
    return issue_revocations(network.root, number=number, issued=network.wall_clock(), clusters=clusters, nodes={})


async def pass_time(network: Network, until: float) -> None:
    """Let the date go on to ``until``, in steps of four hours that the nodes notice; connections do not age by it."""
    while until - network.wall_clock() > 100:
        network._began -= min(4 * HOUR, until - network.wall_clock() - 100)
        await trio.sleep(70)
    await trio.sleep(until - network.wall_clock())


async def asks_late(network: Network, cluster: str) -> object:
    """Ask from a node that has just come up: it believes nothing that it cannot verify now."""
    async with network.open_node("late") as late:
        await late.wait_for(cluster, timeout=1)
        return await late.request(cluster, 1)


@pytest.mark.parametrize("after", [DAY + 1, pytest.param(4 * DAY, marks=pytest.mark.long)])
async def test_the_proof_of_a_further_cluster_is_renewed(autojump_clock: MockClock, after: float) -> None:
    async with (
        iris.testing.open_network(rights=Rights()) as network,
        network.open_parts("shop") as (member, member_parts),
        network.open_node("client") as client,
        member.join("store", service("store"), credential=network.credential("store")),
        member.join("shop", service("shop")),
    ):
        await client.wait_for("store")
        published = member_parts.view.own.incarnation
        await pass_time(network, network.wall_clock() + after)
        for cluster in ("store", "shop"):
            assert await client.request(cluster, 1) == 1
            assert await asks_late(network, cluster) == 1
        changes = member_parts.view.own.incarnation - published
        assert changes <= 2 * (after / (12 * HOUR)) + 2, "no more often than needed"


async def test_a_node_whose_further_credential_ends_goes_on_as_what_it_was(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with iris.testing.open_network(rights=Rights()) as network, AsyncExitStack() as stack:
        brief = short_lived(network, "store", 10 * HOUR)
        member, member_parts = await stack.enter_async_context(network.open_parts("shop"))
        client = await stack.enter_async_context(network.open_node("client"))
        await stack.enter_async_context(member.join("shop", service("shop")))
        await stack.enter_async_context(member.join("store", service("store"), credential=brief))
        await client.wait_for("store")
        ends = brief.certificate.not_after
        published = member_parts.view.own.incarnation
        await pass_time(network, ends - 1)
        assert await client.request("store", 1) == 1
        assert member_parts.view.own.incarnation <= published + 2, "a proof that cannot last longer is kept"
        await trio.sleep(1.5)
        assert client.members("store") == ()
        with pytest.raises(iris.NoSuchCluster):
            await client.request("store", 1)
        await trio.sleep(70)
        assert "no member of cluster 'store' for now" in caplog.text
        assert [entry.name for entry in member_parts.view.own.clusters] == ["shop"]
        await trio.sleep(300)
        assert caplog.text.count("no member of cluster 'store' for now") == 1
        assert await client.request("shop", 2) == 2
        assert await asks_late(network, "shop") == 1


def short_lived(network: Network, name: str, seconds: float, generation: int = 1) -> Credential:
    key = SigningKey(bytes([generation]) * 32)
    now = network.wall_clock()
    return Credential(
        realm=network.root.public,
        gate_secrets=network.credential(name).gate_secrets,
        certificate=issue_certificate(
            network.root,
            name=name,
            public_key=key.public,
            generation=generation,
            not_before=now - 300,
            not_after=now + seconds,
            rights=Rights(),
        ),
        keys=key,
    )


@pytest.mark.parametrize("others", [4, pytest.param(19, marks=pytest.mark.long)])
async def test_of_two_clusters_one_is_revoked_and_the_other_goes_on(autojump_clock: MockClock, others: int) -> None:
    async with iris.testing.open_network(rights=Rights()) as network, AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(network.open_parts("client")) for _ in range(others)]
        nodes = [node for node, _ in opened]
        member = await stack.enter_async_context(network.open_node("shop"))
        await stack.enter_async_context(member.join("shop", service("shop")))
        await stack.enter_async_context(member.join("store", service("store"), credential=network.credential("store")))
        for node in nodes:
            await node.wait_for("store")
        links = {node.id: parts.mesh.peers[member.id] for node, parts in opened}
        assert await nodes[0].revoke(revoke(network, 1, store=2).signed)
        await trio.sleep(5)
        for node in (*nodes, member):
            assert node.members("store") == ()
            with pytest.raises(iris.NoSuchCluster):
                await node.request("store", 1)
        for node, parts in opened:
            assert [found.node for found in node.members("shop")] == [member.id]
            assert await node.request("shop", 1) == 1
            assert parts.mesh.peers[member.id] is links[node.id], "its link rests on its own certificate"
        await trio.sleep(60)
        assert await asks_late(network, "shop") == 1
        assert all(node.members("store") == () for node in nodes)


async def test_a_node_that_says_it_serves_what_is_revoked_is_not_believed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        iris.testing.open_network(rights=Rights()) as network,
        network.open_parts("shop") as (member, member_parts),
        network.open_node("client") as client,
        member.join("shop", service("shop")),
        member.join("store", service("store"), credential=network.credential("store")),
    ):
        await client.wait_for("store")
        monkeypatch.setattr(member_parts.joined, "_prove", _prove_nothing)
        assert await client.revoke(revoke(network, 1, store=2).signed)
        assert client.members("store") == (), "at once, whatever the node itself does"
        await trio.sleep(30)
        assert [entry.name for entry in member_parts.view.own.clusters] == ["shop", "store"]
        assert isinstance(member_parts.view, Swim)
        member_parts.view._own._refute()  # a record that is new, and says the same
        await trio.sleep(5)
        assert client.members("store") == ()
        assert await client.request("shop", 1) == 1, "and no less of it that is true"


async def test_tunnels_to_a_member_that_is_none_any_more_are_broken_and_others_are_not(
    autojump_clock: MockClock,
) -> None:
    def echo(name: str) -> iris.Service:
        made = iris.Service(name)

        @made.tunnel
        async def repeat(tunnel: iris.Tunnel) -> None:
            async for payload in tunnel:
                await tunnel.send(payload)

        return made

    async with (
        iris.testing.open_network(rights=Rights()) as network,
        network.open_node("shop") as member,
        network.open_node("client") as client,
        member.join("shop", echo("shop")),
        member.join("store", echo("store"), credential=network.credential("store")),
    ):
        await client.wait_for("store")
        async with client.open_tunnel("shop") as good:
            with pytest.raises(iris.TunnelBroken, match="is no member of cluster 'store' any more"):  # noqa: PT012
                async with client.open_tunnel("store") as bad:
                    for tunnel in (good, bad):
                        await tunnel.send(1)
                        assert await tunnel.receive() == 1
                    assert await client.revoke(revoke(network, 1, store=2).signed)
                    with trio.fail_after(5):
                        await bad.receive()
            await good.send(2)
            assert await good.receive() == 2


async def test_with_a_new_credential_a_withdrawn_node_is_back(autojump_clock: MockClock) -> None:
    async with (
        iris.testing.open_network(rights=Rights()) as network,
        network.open_parts("shop") as (member, member_parts),
        network.open_node("client") as client,
        member.join("store", service("store"), credential=network.credential("store")),
    ):
        await client.wait_for("store")
        assert await client.revoke(revoke(network, 1, store=2).signed)
        await trio.sleep(1)
        assert client.members("store") == ()
        member_parts.joined._places["store"].credential = short_lived(network, "store", DAY, generation=2)
        await trio.sleep(70)
        assert await client.request("store", 1) == 1


async def test_what_rests_on_a_revoked_certificate_is_gone_from_every_table(autojump_clock: MockClock) -> None:
    """Not only its links end: no node dials it, probes it, or reports it to others."""
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(network.open_parts("shop")) for _ in range(3)]
        nodes = [node for node, _ in opened]
        thief = await stack.enter_async_context(network.open_node("stolen"))
        await stack.enter_async_context(thief.join("shop", service("shop")))
        for node in nodes:
            await node.wait_for("shop")
        assert await nodes[0].revoke(revoke(network, 1, stolen=2).signed)
        await trio.sleep(1)
        for node, parts in opened:
            assert node.members("shop") == ()
            assert thief.id not in parts.mesh.peers
            assert parts.view.state(thief.id) is None, "forgotten, and not suspected first"
            assert parts.membership.linking == 0
        tried = [parts.membership.rejected["cannot link: AuthenticationError"] for _, parts in opened]
        await trio.sleep(20)
        assert tried == [parts.membership.rejected["cannot link: AuthenticationError"] for _, parts in opened]
        assert all(parts.view.state(thief.id) is None for _, parts in opened)


async def test_a_node_that_had_died_is_not_remembered_once_it_is_revoked(autojump_clock: MockClock) -> None:
    async with (
        iris.testing.open_network() as network,
        network.open_parts("shop") as (first, first_parts),
        network.open_node("stolen", host="gone") as thief,
    ):
        network.memory.crash("gone")
        with trio.fail_after(60):
            while first_parts.view.state(thief.id) is not MemberState.DEAD:  # noqa: ASYNC110 -- virtual clock
                await trio.sleep(0.5)
        await first.revoke(revoke(network, 1, stolen=2).signed)
        assert first_parts.view.state(thief.id) is None


async def test_the_file_of_a_further_credential_is_taken_when_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On the real clock, for files are read on threads."""
    monkeypatch.setattr("iris.node.open._LOOK", 0.02)
    monkeypatch.setattr("iris.node.open._RENEWAL_CHECK", 0.02)
    file = tmp_path / "store.iris"
    async with iris.testing.open_network(rights=Rights()) as network:
        first, second = (short_lived(network, "store", 365 * DAY, generation=number) for number in (1, 2))
        save_credential(file, first)
        async with (
            network.open_parts("shop") as (member, member_parts),
            network.open_node("client") as client,
            member.join("store", service("store"), credential=file),
        ):
            await client.wait_for("store")
            save_credential(
                file,
                seal_credential(
                    second, entropy=bytes, not_before=network.wall_clock(), not_after=network.wall_clock() + DAY
                ),
                replace=True,
            )
            with trio.fail_after(60):
                while "a sealed one cannot speak for further nodes" not in caplog.text:  # noqa: ASYNC110 -- by the clock
                    await trio.sleep(0.01)
            save_credential(file, second, replace=True)
            place = member_parts.joined._places["store"]
            with trio.fail_after(60):
                while place.made_of is None or place.made_of.certificate != second.certificate:  # noqa: ASYNC110 -- likewise
                    await trio.sleep(0.01)
            await client.revoke(revoke(network, 1, store=2).signed)
            await client.wait_for("store")
            assert await client.request("store", 1) == 1


async def test_joining_with_what_is_no_credential_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with (
        iris.testing.open_network(rights=Rights()) as network,
        network.open_node("shop") as member,
        network.open_node("client") as client,
    ):
        for given, said in (
            (None, "has no right to serve 'store'"),
            (network.credential("depot"), "is for the cluster 'depot' and not for 'store'"),
            (b"bytes", "the credential is of type bytes"),
        ):
            with pytest.raises(iris.ConfigError, match=said):
                async with member.join("store", service("store"), credential=given):  # type: ignore[arg-type]
                    pass
        long = "x" * 100
        async with AsyncExitStack() as stack:
            with pytest.raises(iris.ConfigError, match="node record"):  # noqa: PT012 -- the last one is too many
                for number in range(70):
                    name = f"{long}-{number}"
                    await stack.enter_async_context(
                        member.join(name, service(name), credential=network.credential(name))
                    )
        async with member.join("store", service("store"), credential=network.credential("store")):
            await client.wait_for("store")
            assert await client.request("store", 1) == 1
