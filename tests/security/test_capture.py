"""Everything that two nodes send each other over TCP is recorded, and searched for names, payloads and secrets."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import final

import pytest
import trio

import iris
from iris.kernel.config import Config
from iris.kernel.nng import NngOutgoing, NngTransport
from iris.kernel.transport import ConnectionObserver
from iris.security.credential import Credential
from iris.security.keyring import create_realm, issue_cluster
from iris.security.signing import SigningKey
from tests.support.canaries import Canaries

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
"""What may be read nowhere; each is said at least once."""


@final
class Wire:
    """A tap on every connection to the listeners that it stands before."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.recorded: list[bytearray] = []
        self._nursery = nursery

    async def tap(self, url: str) -> str:
        """Return a URL that leads to ``url`` by way of the tap."""
        port = int(url.rpartition(":")[2])
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def serve(near: trio.SocketStream) -> None:
            far = await trio.open_tcp_stream("127.0.0.1", port)
            async with near, far, trio.open_nursery() as nursery:
                for source, target in ((near, far), (far, near)):
                    nursery.start_soon(self._copy, source, target, nursery.cancel_scope)

        self._nursery.start_soon(trio.serve_listeners, serve, [listener])
        return f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        record = bytearray()
        self.recorded.append(record)
        try:
            async for chunk in source:
                record += chunk
                await target.send_all(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()

    @property
    def size(self) -> int:
        return sum(map(len, self.recorded))


@final
class TappedTransport:
    """The real network; others reach this node through the tap only."""

    def __init__(self, config: Config, wire: Wire) -> None:
        self._real = NngTransport(config)
        self._wire = wire

    async def listen(self, urls: Sequence[str]) -> tuple[str, ...]:
        return tuple([await self._wire.tap(url) for url in await self._real.listen(urls)])

    async def dial(self, url: str, on_broken: Callable[[], None]) -> NngOutgoing:
        return await self._real.dial(url, on_broken)

    def receive_nowait(self) -> bytes | None:
        return self._real.receive_nowait()

    async def wait_readable(self) -> None:
        await self._real.wait_readable()

    def observe(self, observer: ConnectionObserver) -> None:
        self._real.observe(observer)

    def source(self) -> int:
        return self._real.source()

    def hang_up(self, connection: int) -> None:
        self._real.hang_up(connection)

    def close(self) -> None:
        self._real.close()


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
async def open_tapped(wire: Wire, stack: AsyncExitStack) -> AsyncIterator[tuple[list[iris.Node], list[Credential]]]:
    now = iris.Environment().wall_clock()
    realm = create_realm(os.urandom)
    nodes: list[iris.Node] = []
    credentials: list[Credential] = []
    for name in (WORDS["cluster"], WORDS["caller"]):
        realm, credential = issue_cluster(realm, name, entropy=os.urandom, wall_now=now)
        credentials.append(credential)
        nodes.append(
            await stack.enter_async_context(
                iris.open_node(
                    credential=credential,
                    listen=["tcp://127.0.0.1:0"],
                    seeds=[url for node in nodes for url in node.addresses],
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
                await talk(*nodes)
            ids = [opened.id for opened in nodes]
            for opened, credential in zip(nodes, credentials, strict=True):
                identity = opened._mesh.identity
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
        far, near = TappedTransport(Config(), wire), NngTransport(Config())
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        way = await near.dial(url, lambda: None)
        way.send_nowait(WORDS["payload"].encode())
        while far.receive_nowait() is None:
            await far.wait_readable()
        assert any(WORDS["payload"].encode() in record for record in wire.recorded)
        way.close()
        near.close()
        far.close()
        nursery.cancel_scope.cancel()
