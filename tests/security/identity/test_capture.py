"""Everything that two nodes send each other over TCP is recorded, and searched for names, payloads and secrets."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

import iris
from iris.kernel.config import Config
from iris.kernel.transport.network import NetworkTransport
from iris.node.open import OpenNode, open_parts
from iris.security.authority.issuing import create_realm, issue_cluster
from iris.security.identity.credential import Credential
from iris.security.identity.signing import SigningKey
from tests.support.canaries import Canaries
from tests.support.tapped import TappedTransport, Wire
from tests.support.transports import ignore

WORDS = {
    "cluster": "zyzzyva-stock",
    "caller": "quokka-counter",
    "topic": "okapi.prices.changed",
    "operation": "numbat-audit",
    "header": "axolotl-trace",
    "value": "capybara-4711",
    "site": "wombat-hall",
    "payload": "pangolin-secret-recipe",
    "error": "dugong-is-out-of-order",
    "goodbye": "the node was closed",
}
"""Texts that may be readable nowhere; each is sent at least once."""


def stock() -> iris.Service:
    service = iris.Service(WORDS["cluster"])

    @service.request(WORDS["operation"])
    async def audit(request: iris.Request) -> object:
        return {WORDS["value"]: request.payload}

    @service.request
    async def fail(_: iris.Request) -> object:
        raise ValueError(WORDS["error"])

    @service.broadcast
    async def hear(_: iris.Message) -> None:
        """Take it."""

    @service.tunnel
    async def echo(tunnel: iris.Tunnel) -> None:
        async for payload in tunnel:
            await tunnel.send(payload)

    return service


async def talk(member: iris.Node, caller: iris.Node) -> None:
    """Say every word, in every way that there is."""
    payload, headers = WORDS["payload"], {WORDS["header"]: WORDS["value"]}
    cluster = WORDS["cluster"]
    async with member.subscribe(WORDS["topic"]) as events, member.join(cluster, stock()):
        await caller.wait_for(cluster)
        reply = await caller.request(cluster, payload, operation=WORDS["operation"], headers=headers)
        assert reply == {WORDS["value"]: payload}
        with pytest.raises(iris.RemoteError):
            await caller.request(cluster, payload)
        await caller.broadcast(cluster, payload, headers=headers)
        async with caller.survey(cluster, payload, operation=WORDS["operation"]) as answers:
            assert [answer async for answer in answers]
        async with caller.open_tunnel(cluster, headers=headers) as tunnel:
            await tunnel.send(payload.encode() * 5000)
            await tunnel.receive()
        await caller.publish(WORDS["topic"], payload.encode() * 1000, headers=headers)
        async for event in events:
            assert event.topic == WORDS["topic"]
            break


@asynccontextmanager
async def open_tapped(wire: Wire, stack: AsyncExitStack) -> AsyncIterator[tuple[list[OpenNode], list[Credential]]]:
    now = iris.Environment().wall_clock()
    realm = create_realm(os.urandom)
    nodes: list[OpenNode] = []
    credentials: list[Credential] = []
    for name in (WORDS["cluster"], WORDS["caller"]):
        realm, credential = issue_cluster(realm, name, entropy=os.urandom, wall_now=now)
        credentials.append(credential)
        nodes.append(
            await stack.enter_async_context(
                open_parts(
                    credential=credential,
                    listen=["tcp://127.0.0.1:0"],
                    seeds=[url for opened in nodes for url in opened.node.addresses],
                    site=WORDS["site"],
                    environment=iris.Environment(
                        transport=lambda config: TappedTransport(config, wire), directory=None, lan=None
                    ),
                )
            )
        )
    yield nodes, credentials


async def test_nothing_readable_goes_over_the_wire() -> None:
    canaries = Canaries()
    async with trio.open_nursery() as nursery:
        wire = Wire(nursery)
        async with AsyncExitStack() as stack, open_tapped(wire, stack) as (nodes, credentials):
            with trio.fail_after(60):
                await talk(*(opened.node for opened in nodes))
            ids = [opened.node.id for opened in nodes]
            for opened, credential in zip(nodes, credentials, strict=True):
                identity = opened.parts.mesh.identity
                assert isinstance(credential.keys, SigningKey)
                for secret in (
                    *credential.gate_secrets,
                    credential.keys.private_bytes(),
                    identity.static.private_bytes(),
                    identity.signing.private_bytes(),
                ):
                    canaries.add(secret)
        nursery.cancel_scope.cancel()

    assert wire.size > 200_000, "the tunnel and the event alone are more"
    assert len(wire.recorded) >= 4, "each node dials the other, and nng greets in both directions"
    assert all(record.startswith(b"\0SP\0") for record in wire.recorded if record)
    for record in wire.recorded:
        readable = bytes(record).lower()
        for what, word in WORDS.items():
            assert word.encode() not in readable, f"{what} can be read"
        for node in ids:
            assert node.encode() not in readable
            assert bytes.fromhex(node) not in readable
        for credential in credentials:
            assert credential.realm not in record
            assert credential.certificate.signed[:64] not in record
        assert canaries.find(record.decode("latin-1")) is None


async def test_the_tap_sees_what_is_sent() -> None:
    """Else the test above would find nothing whatever was sent."""
    async with trio.open_nursery() as nursery:
        wire = Wire(nursery)
        far, near = TappedTransport(Config(), wire), NetworkTransport(Config())
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        way = await near.dial(url, ignore)
        way.send_nowait(WORDS["payload"].encode())
        while far.receive_nowait() is None:
            await far.wait_readable()
        assert any(WORDS["payload"].encode() in record for record in wire.recorded)
        way.close()
        near.close()
        far.close()
        nursery.cancel_scope.cancel()
