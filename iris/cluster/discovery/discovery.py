"""Discovery: the search for other nodes by seeds, the registry of this machine, the local network and the address book.

What is found is only an address to dial.  Once one node of the realm is linked, gossip reports all others.  The search
goes on as long as the node lives: a partition of any length ends without a restart, even if all nodes on the other
side have been replaced meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, cast, final

import trio

from iris.cluster.addresses import is_lasting
from iris.cluster.discovery.address_book import AddressFile
from iris.cluster.discovery.candidates import AddressSource, Candidates
from iris.cluster.discovery.sources import Announcer, FoundNodes, Sources
from iris.cluster.mesh import HeldOff, Mesh
from iris.kernel.errors import AuthenticationError, ConfigError, IrisError, NotSent
from iris.kernel.names import NodeId
from iris.kernel.tasks import run_in_thread
from iris.kernel.transport import Refused

_log: Final = logging.getLogger("iris")

_INTERVAL: Final = 2.0
"""Seconds between two looks at the registry and the local network.  Nodes that start announce themselves before they
look, so only those that were cut off are found this way."""

_SHORTEST: Final = 0.05

_KEEP_BOOK: Final = 60.0
"""Seconds between two looks whether the address book has changed."""

_FIRST_ROUND: Final = 4
"""Nodes of the registry that a starting node dials; gossip brings the others."""

_UNKNOWN_NODES: Final = 64
"""Nodes of the registry that no peer has reported yet, and that are remembered from one look to the next."""

_REMEMBERED: Final = 1024
"""Addresses of which it is known what they stood for, or that they were complained about."""

_LAN_PATIENCE: Final = 0.5
"""Seconds that a starting node which has found nobody waits for the local network."""


@final
class _Here:
    """Nodes that need not be looked for: linked, or held alive, so that they are linked when they are needed."""

    def __init__(self, mesh: Mesh, nodes: FoundNodes) -> None:
        self._mesh = mesh
        self._nodes = nodes

    def __contains__(self, node: object) -> bool:
        return node in self._mesh.peers or self._nodes.knows(cast("NodeId", node))


@final
class Discovery:
    """Searches for other nodes of the realm.

    Args:
        mesh: the links.
        nodes: the membership, which is told of what is found.
        sources: where to look.
        file: the file of the address book; None: it is not kept.
        announcer: announces this node on this machine.
    """

    def __init__(
        self,
        mesh: Mesh,
        nodes: FoundNodes,
        sources: Sources,
        *,
        file: AddressFile | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        self._mesh = mesh
        self._announcer = announcer
        self._nodes = nodes
        self._seeds, self._registry, self._lan, self._book = sources
        self._here = _Here(mesh, nodes)
        self._file = file
        self._candidates = Candidates()
        self._resolved: dict[str, NodeId] = {}
        self._announced: set[NodeId] = set()
        self._unknown_nodes: set[NodeId] = set()
        """Nodes that were announced at the last look, and that no peer had reported."""
        self._tried: set[NodeId] = set()
        """Nodes among those announced when this node started that it has dialled."""
        self._remains: set[NodeId] = set()
        """Nodes that are gone, and whose entries in the registry cannot be removed."""
        self._ended = trio.lowlevel.ParkingLot()
        """Tasks that wait for the next attempt to end."""
        self._warned: set[str] = set()
        self._introducing = 0
        """Nodes with which memberships are being exchanged."""

    async def look(self) -> None:
        """Look once: exchange memberships with seeds and announced nodes; if there are none, with whom else one finds.

        Who says nothing, such as a process that is stopped, is waited for until nobody was linked for
        ``DialLimiter.silence``; it is dialled further.  Returns at the latest after the time that a handshake may take,
        and the exchange of what is known.
        """
        async with self._while_somebody_answers() as nursery:
            self._dial(nursery, (AddressSource.SEED,))
            nursery.start_soon(self._look_at_registry)
        if self._lan is not None and not self._mesh.peers:
            if not self._lan.urls():
                await self._lan.wait_news(_LAN_PATIENCE)
            async with self._while_somebody_answers() as nursery:
                self._dial(nursery, (AddressSource.LAN,))
        if not self._mesh.peers:
            await self._look_at_book()

    @asynccontextmanager
    async def _while_somebody_answers(self) -> AsyncIterator[trio.Nursery]:
        """Open a nursery whose attempts are given up when nobody was linked for a while, and no exchange goes on."""
        async with trio.open_nursery() as around:
            async with trio.open_nursery() as nursery:
                yield nursery
                around.start_soon(self._give_up_silent, nursery.cancel_scope)
            around.cancel_scope.cancel()

    async def _give_up_silent(self, scope: trio.CancelScope) -> None:
        linked, since = self._mesh.statistics().handshakes, trio.current_time()
        # A seed is somebody whom the user has named: alone, it has the whole time, and its error says what is wrong.
        while (
            self._introducing
            or (self._seeds.urls and not self._mesh.peers)
            or trio.current_time() < since + self._mesh.turns.silence()
        ):
            await trio.sleep(_SHORTEST)
            if (finished := self._mesh.statistics().handshakes) != linked:
                linked, since = finished, trio.current_time()
        scope.cancel()

    async def _exchange(self, node: NodeId, *, by_chance: bool = False) -> None:
        self._introducing += 1
        try:
            await self._nodes.introduce(node, by_chance=by_chance)
        finally:
            self._introducing -= 1

    async def run(self) -> None:
        """Go on looking, and keep the book."""
        identity = self._mesh.identity
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_book)
            while True:
                now = trio.current_time()
                if self._mesh.identity is not identity:
                    identity = self._mesh.identity
                    self._candidates.retry(now)
                soonest = self._candidates.next_due(self._here, self._known(), self._claimed())
                pause = min(max(soonest - now, _SHORTEST), _INTERVAL)
                await trio.sleep(pause)
                self._dial(nursery, AddressSource)
                self._dial_unknown(nursery)
                await self._stay_announced()

    # -- where to look --------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Ask every source for its addresses."""
        now = trio.current_time()
        self._candidates.offer(AddressSource.SEED, self._seeds.urls, now)
        if self._lan is not None:
            self._candidates.offer(AddressSource.LAN, self._lan.urls(), now)
            if left_out := self._lan.pop_left_out():
                self._mesh.refusals["announcement on the local network, of too many"] += left_out
        self._candidates.offer(AddressSource.BOOK, self._book.urls(), now)

    def _known(self) -> set[str]:
        """Return the addresses that need not be tried, since the node that answers there is linked."""
        return {peer.reached for peer in self._mesh.peers.values()}.union(self._mesh.advertised)

    def _claimed(self) -> set[str]:
        """Return the addresses that nodes say they have.  A seed's may be among them, and not be theirs."""
        return {url for peer in self._mesh.peers.values() for url in peer.addresses} | self._nodes.addresses()

    def _dial(
        self, nursery: trio.Nursery, sources: Iterable[AddressSource], found: Callable[[], None] = lambda: None
    ) -> None:
        self._gather()
        now = trio.current_time()
        for url in self._candidates.due(now, self._here, self._known(), sources, claimed=self._claimed()):
            if url in self._seeds.urls:
                nursery.start_soon(self._try_seed, url)
            else:
                nursery.start_soon(self._try, url, found)

    async def _look_at_registry(self) -> None:
        """Link to a few of those that are announced, however many entries killed processes have left behind."""
        if self._registry is None:
            return
        until = trio.current_time() + self._mesh.turns.patience()
        async with trio.open_nursery() as nursery:
            while trio.current_time() < until:
                linked = sum(node in self._mesh.peers for node in self._tried)
                room = max(0, _FIRST_ROUND - linked - len(nursery.child_tasks))
                for node, addresses in self._registry.entries(self, room).items():
                    self._tried.add(node)
                    nursery.start_soon(self._try_announced, node, addresses)
                if not nursery.child_tasks:
                    break
                with trio.move_on_at(until):
                    await self._ended.park()
        self._tried.clear()

    async def _look_at_book(self) -> None:
        """Go through the address book until one answers: most of those in it may be gone by now."""
        until = trio.current_time() + self._mesh.turns.patience()
        async with self._while_somebody_answers() as nursery:
            while trio.current_time() < until:
                self._dial(nursery, (AddressSource.BOOK,), found=nursery.cancel_scope.cancel)
                if not nursery.child_tasks:
                    break
                with trio.move_on_at(until):
                    await self._ended.park()

    def _dial_unknown(self, nursery: trio.Nursery) -> None:
        """Dial who was announced before, too, and is not known still.

        A node that has just started comes by itself, and so does one that is held dead and slow.  If everybody dialled
        it, it would be slower.
        """
        if self._registry is None:
            return
        unknown = self._registry.entries(self, _UNKNOWN_NODES)
        before, self._unknown_nodes = self._unknown_nodes, set(unknown)
        for node in [node for node in unknown if node in before][:_FIRST_ROUND]:
            self._announced.add(node)
            nursery.start_soon(self._try_announced, node, unknown[node])

    async def _stay_announced(self) -> None:
        """See that others on this machine find this node, also when its directory was cleared up.

        Systems do that with what nobody has touched for ten days in ``/tmp``, and when a user has logged out.
        """
        if self._announcer is None or self._registry is None or self._registry.holds(self._mesh.node):
            return
        try:
            await self._announcer.announce()
        except ConfigError as error:
            self._warn(self._mesh.node, error)
        else:
            self._say_back(self._mesh.node)

    def __contains__(self, node: object) -> bool:
        """Return True if a node that is announced need not be dialled."""
        return (
            node == self._mesh.node
            or node in self._mesh.peers
            or node in self._announced
            or node in self._tried
            or node in self._remains
            or self._nodes.knows(cast("NodeId", node))
        )

    # -- dialling -------------------------------------------------------------------------------------------

    async def _try_seed(self, url: str) -> None:
        """Try every address that a seed stands for, but those that are linked."""
        failures: dict[str, IrisError] = {}
        nodes: list[NodeId] = []
        try:
            urls = await self._seeds.resolve(url)
            async with trio.open_nursery() as nursery:
                for resolved in urls:
                    nursery.start_soon(self._try_address, url, resolved, nodes, failures)
        except NotSent as error:
            self._mesh.note_cut_off(error)
        finally:
            now = trio.current_time()
            if nodes:
                self._candidates.reached(url, nodes[0], now, until=now + self._seeds.asked_again(url))
            else:
                self._candidates.failed(url, now)
        self._report(url, failures, reached=bool(nodes))

    def _report(self, seed: str, failures: dict[str, IrisError], *, reached: bool) -> None:
        """Say what is wrong with the addresses that a seed stands for, or with some of them."""
        if reached:
            self._say_back(seed)
            for url, error in failures.items():
                if isinstance(error, Refused):  # one of several hosts is down, or listens by IPv4 only
                    _log.debug("%s", error, extra={"address": url})
                else:
                    self._warn(url, error)
        elif failures:
            errors = failures.values()
            self._warn(seed, next((e for e in errors if isinstance(e, AuthenticationError)), next(iter(errors))))

    async def _try_address(self, seed: str, url: str, nodes: list[NodeId], failures: dict[str, IrisError]) -> None:
        node = self._resolved.get(url)
        if node is not None and node in self._here:
            nodes.append(node)
            return
        if url != seed and url in self._mesh.advertised:  # this node is among those that the name stands for
            return
        self._resolved.pop(url, None)
        try:
            peer = await self._mesh.connect([url], source="seeds")
        except (NotSent, AuthenticationError, ConfigError) as error:
            failures[url] = error
            return
        self._say_back(url)
        if len(self._resolved) >= _REMEMBERED:
            self._resolved.clear()
        self._resolved[url] = peer.node
        nodes.append(peer.node)
        await self._exchange(peer.node)

    async def _try(self, url: str, found: Callable[[], None]) -> None:
        """Try an address that may well be out of date: nothing is reported."""
        node: NodeId | None = None
        try:
            node = (await self._mesh.connect([url], source="found", hearsay=True)).node
            await self._exchange(node)
            found()
        except (NotSent, AuthenticationError, ConfigError) as error:
            _log.debug("%s", error, extra={"address": url})
        finally:
            if node is not None:
                self._candidates.reached(url, node, trio.current_time())
            else:
                self._candidates.failed(url, trio.current_time())
            self._ended.unpark_all()

    async def _try_announced(self, node: NodeId, addresses: tuple[str, ...]) -> None:
        assert self._registry is not None
        try:
            peer = await self._mesh.connect(addresses, expected=node, source="registry")
            self._say_back(node)
            await self._exchange(peer.node, by_chance=True)
        except Refused:
            # Its process was killed and could not do it itself.
            if not self._registry.withdraw(node) and len(self._remains) < _REMEMBERED:
                self._remains.add(node)
        except (NotSent, AuthenticationError, ConfigError) as error:
            if self._is_former(node, addresses):
                _log.debug("%s", error, extra={"peer": node})
            else:
                self._warn(node, error)
        finally:
            self._announced.discard(node)
            self._ended.unpark_all()

    def _is_former(self, node: NodeId, addresses: tuple[str, ...]) -> bool:
        """Return True if a node has left meanwhile, or another one has its address: both are usual after a restart."""
        assert self._registry is not None
        if not self._registry.holds(node):
            return True
        return any(not set(addresses).isdisjoint(theirs) for theirs in self._registry.entries((node,)).values())

    def _say_back(self, where: str) -> None:
        if where in self._warned:
            self._warned.discard(where)
            _log.info("%s is back", where, extra={"address": where, "cause": where})

    def _warn(self, where: str, error: IrisError) -> None:
        """Say it once for each address, and again after it has worked."""
        self._mesh.note_cut_off(error)
        if where not in self._warned and not isinstance(error, HeldOff):
            if len(self._warned) >= _REMEMBERED:
                self._warned.clear()
            self._warned.add(where)
            _log.warning(
                "%s; trying again", error, extra={"address": where, "reason": type(error).__name__, "cause": where}
            )

    # -- the address book -----------------------------------------------------------------------------------

    def note(self) -> None:
        """Write down where linked members are."""
        members = filter(self._mesh.is_between_members, self._mesh.peers.values())
        urls = {url for peer in members for url in peer.addresses if is_lasting(url)}
        if urls:
            self._book.saw(urls, self._mesh.wall_clock())

    async def _keep_book(self) -> None:
        while True:
            await trio.sleep(_KEEP_BOOK)
            self.note()
            await self.save()

    async def save(self) -> None:
        """Put the book into its file, if there is something new in it.

        It takes at most a second where another process holds the file's lock; cancelling it leaves a thread that
        ends by itself.
        """
        if self._file is not None and self._book.unsaved:
            now, copy = self._mesh.wall_clock(), self._book.copy()
            await run_in_thread(self._file.save, copy, now, abandon_on_cancel=True)
            self._book.merge(copy, now)
