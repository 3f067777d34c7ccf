"""Sites joined by gateways: on a network in memory, as a test says, or in processes of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pytest
import trio
from msgspec import structs

import iris
import iris.testing
from iris.cluster.mesh import Mesh, Peer
from iris.cluster.sites import Sites
from iris.federation.gateway import Gateway, GatewayParts, open_gateway_parts
from iris.federation.policy import Policy
from iris.kernel.wire import BatchDecoder, Message, kinds
from iris.node.parts import NodeParts
from iris.testing import Network
from tests.support.ports import free_port
from tests.support.waiting import wait_until

T = TypeVar("T")

Examine = Callable[[Peer, bytes | memoryview], bool]

_DECODER: Final[BatchDecoder[Message]] = BatchDecoder(*kinds.BY_KIND.values())

EVERYTHING = Policy(exports=(">",), export_topics=(">",))


class Heard(NamedTuple):
    """An event, and the site of its subscriber."""

    site: str
    topic: str
    payload: Any
    missed: int


class Federation:
    """Nodes and gateways that stay up until the test is over.  Use it in the task that opened it."""

    def __init__(self, network: Network, stack: AsyncExitStack, nursery: trio.Nursery, prefix: str = "") -> None:
        self.network = network
        self.prefix = prefix
        self.nursery = nursery
        self.gateways: dict[str, Gateway] = {}
        self.nodes: dict[str, iris.Node] = {}
        self.parts: dict[str, NodeParts] = {}
        """Parts of every node that was opened, by its id."""
        self.between: dict[Gateway, Mesh] = {}
        """The mesh of gateways of every gateway that was opened."""
        self.gateway_parts: dict[Gateway, GatewayParts] = {}
        """Parts of every gateway that was opened."""
        self.inside: dict[Gateway, NodeParts] = {}
        """Parts of the node of every gateway."""
        self._stack = stack

    async def node(self, site: str | None, name: str, **options: Any) -> iris.Node:
        """Bring up a node; its host is called ``site-name``, or as the node if there is no site."""
        host = self.prefix + (name if site is None else f"{site}-{name}")
        node, parts = await self._stack.enter_async_context(
            self.network.open_parts(name, host=host, site=site, **options)
        )
        self.nodes[host], self.parts[node.id] = node, parts
        return node

    async def enter(self, block: AbstractAsyncContextManager[T]) -> T:
        """Enter a block that lasts until the test is over."""
        return await self._stack.enter_async_context(block)

    async def member(self, site: str, service: iris.Service, name: str | None = None, **options: Any) -> iris.Node:
        """Bring up a node that is a member of the service's cluster."""
        node = await self.node(site, name or service.name, **options)
        await self._stack.enter_async_context(node.join(service.name, service))
        return node

    async def gateway(
        self, site: str, *, to: Iterable[str] = (), name: str = "gateway", policy: Policy = EVERYTHING, **options: Any
    ) -> Gateway:
        """Bring up a gateway that dials other gateways, named by their hosts, perhaps with ``REALM/`` before."""
        node = await self.node(site, name)
        host = f"{self.prefix}{site}-{name}"
        peers = [f"{realm}{slash}{gateway_url(other)}" for realm, slash, other in (way.rpartition("/") for way in to)]
        gateway, between, parts = await self._stack.enter_async_context(
            open_gateway_parts(node, listen=[gateway_url(host)], peers=peers, policy=policy, **options)
        )
        self.gateways[host], self.between[gateway], self.gateway_parts[gateway] = gateway, between, parts
        self.inside[gateway] = self.parts[node.id]
        return gateway

    def other_realm(self, prefix: str, seed: int = 77) -> Federation:
        """Return the nodes and gateways of another realm on the same network; its hosts have ``prefix``."""
        other = Federation(self.network.other_realm(seed), self._stack, self.nursery, prefix)
        other.parts, other.between = self.parts, self.between
        other.gateway_parts, other.inside = self.gateway_parts, self.inside
        return other

    async def two_sites(self, *services: iris.Service, **options: Any) -> iris.Node:
        """Link us to eu, bring up members at eu, and return a node of us that knows of them.

        Options are those of eu's gateway.
        """
        await self.gateway("eu", **options)
        await self.gateway("us", to=["eu-gateway"])
        for service in services:
            await self.member("eu", service)
        return await self.shop("us", *(service.name for service in services))

    async def three_sites(self) -> tuple[iris.Node, Gateway]:
        """Have a store at eu, a shop at us, and behind us a site whose gateway a test can make a bad one of."""
        shop = await self.two_sites(echo("store"))
        bad = await self.gateway("ap", to=["us-gateway"])
        await self.wait_for_sites("eu", "us", "ap")
        return shop, bad

    async def shop(self, site: str, *clusters: str) -> iris.Node:
        """Bring up a node that knows of members of some clusters."""
        shop = await self.node(site, "shop")
        for cluster in clusters:
            await shop.wait_for(cluster)
        return shop

    async def ring(self, *sites: str) -> None:
        """Bring up one gateway for each site, each linked to the next, the last one to the first."""
        for site, following in zip(sites, (*sites[1:], sites[0]), strict=True):
            await self.gateway(site, to=[f"{following}-gateway"])

    async def mesh(self, *sites: str) -> None:
        """Bring up one gateway for each site, each linked to all others."""
        for number, site in enumerate(sites):
            await self.gateway(site, to=[f"{other}-gateway" for other in sites[:number]])

    async def wait_for_sites(self, *sites: str, within: float = 5.0) -> None:
        """Wait until every gateway reaches all of these but its own."""
        with trio.fail_after(within):
            for gateway in self.gateways.values():
                for site in sites:
                    if site != gateway.site:
                        await gateway.wait_for_site(site)

    async def listen(self, site: str, pattern: str, heard: list[Heard], **options: Any) -> iris.Node:
        """Bring up a node that writes down the events that match a pattern."""
        node = await self.node(site, f"ear-{len(self.nodes)}")
        events = await self.enter(node.subscribe(pattern, **options))

        async def listen() -> None:
            async for event in events:
                heard.append(Heard(site, event.topic, event.payload, event.missed))  # noqa: PERF401 -- at once

        self.nursery.start_soon(listen)
        return node

    def sites(self, node: iris.Node) -> Sites:
        """Return the other sites as a node reaches them."""
        sites = self.parts[node.id].sites
        assert sites is not None
        return sites

    def watch_frames(self, gateway: Gateway, note: Callable[[kinds.Carry | kinds.Copy, bool], None]) -> None:
        """Note the frames that a gateway is handed to forward from now on, and whether it decodes the batch of each."""
        carrying = self.gateway_parts[gateway].carrying

        def watched(examine: Examine) -> Examine:
            def examine_and_note(peer: Peer, batch: bytes | memoryview) -> bool:
                messages = _DECODER.decode_untrusted(bytes(batch))
                used = examine(peer, batch)
                for message in messages:
                    if isinstance(message, kinds.Carry | kinds.Copy):
                        note(message, not used)
                return used

            return examine_and_note

        carrying.examine = watched(carrying.examine)  # type: ignore[method-assign, assignment]
        carrying.examine_from_gateway = watched(carrying.examine_from_gateway)  # type: ignore[method-assign, assignment]

    def alter_frames(self, gateway: Gateway, change: Callable[[bytes], list[bytes]]) -> None:
        """Have a gateway forward other frames than it is handed."""

        def altering(mesh: Mesh) -> Examine:
            def examine(peer: Peer, batch: bytes | memoryview) -> bool:
                for message in _DECODER.decode_untrusted(bytes(batch)):
                    if isinstance(message, kinds.Carry | kinds.Copy):
                        for frame in change(message.frame):
                            mesh.deliver(peer, structs.replace(message, frame=frame))
                    else:
                        mesh.deliver(peer, message)
                return True

            return examine

        carrying = self.gateway_parts[gateway].carrying
        carrying.examine = altering(self.inside[gateway].mesh)  # type: ignore[method-assign, assignment]
        carrying.examine_from_gateway = altering(self.between[gateway])  # type: ignore[method-assign, assignment]

    def crash(self, host: str) -> None:
        """Kill a host; nothing more is expected of it."""
        self.network.memory.crash(host)
        self.gateways.pop(host, None)
        self.nodes.pop(host, None)


def reports_of(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Return the warnings that contain a text."""
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def gateway_url(host: str) -> str:
    """Return where a gateway listens for other gateways."""
    return f"mem://{host}/between"


@asynccontextmanager
async def open_federation(**options: Any) -> AsyncIterator[Federation]:
    """Make a network on which sites can be brought up."""
    async with trio.open_nursery() as nursery:
        async with AsyncExitStack() as stack:
            network = await stack.enter_async_context(iris.testing.open_network(**options))
            yield Federation(network, stack, nursery)
        nursery.cancel_scope.cancel()


def echo(name: str, answer: object = None) -> iris.Service:
    """Return a service that answers requests with what they carry, or with ``answer``."""
    service = iris.Service(name)

    @service.request
    async def reply(request: iris.Request) -> object:
        return request.payload if answer is None else answer

    @service.tunnel
    async def mirror(tunnel: iris.Tunnel) -> None:
        async for payload in tunnel:
            await tunnel.send(payload)

    return service


async def expect_mirror(node: iris.Node, address: str, count: int) -> None:
    """Have a tunnel to an ``echo`` bring back what goes in, both ways at the same time."""
    sent = [bytes([number % 251]) * 50_000 for number in range(count)]
    received: list[bytes] = []
    async with node.open_tunnel(address) as tunnel, trio.open_nursery() as nursery:

        async def send() -> None:
            for payload in sent:
                await tunnel.send(payload)
            await tunnel.send_eof()

        nursery.start_soon(send)
        received.extend([payload async for payload in tunnel])
    assert hashlib.sha256(b"".join(received)).digest() == hashlib.sha256(b"".join(sent)).digest()


def hearing(name: str, who: str, heard: list[str]) -> iris.Service:
    """Return an ``echo`` that answers who it is, and records the broadcasts that it receives and their senders."""
    service = echo(name, who)

    @service.broadcast
    async def hear(message: iris.Message) -> None:
        heard.append(f"{who} {message.payload} {message.sender.cluster}")

    return service


def free_gateway_url() -> str:
    """Return an address where a gateway of this machine can listen."""
    return f"ws://127.0.0.1:{free_port()}/gateway"


async def wait_for_sites(file: Path, *sites: str) -> None:
    """Wait until a gateway in another process has written to its status file that it reaches these sites."""
    await wait_until(lambda: _sites(file) == list(sites), pause=0.1)


def _sites(file: Path) -> object:
    return json.loads(file.read_text())["sites"] if file.exists() else None
