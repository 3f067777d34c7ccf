"""Revocation exchange: the newest list reaches every node of a running realm, and whom it names is cut off everywhere.

A node gets a list from a file that the realm's owner puts in its place, or from any peer; it keeps the newest one in
that file, so an older list is refused after a restart as well.  Each newer list goes to every peer at once: with a
link to each node that is one step, and nodes that were away get it when they are linked.

Rules of this file:

- A list may be large, and the message that asks for it is small.  ``RevocationPacing`` says how often one peer can have
  it sent.
- A peer that has shown a list is not sent that one, and nodes of other realms are sent none.  A node that was expelled
  from its realm gets nothing through the gateways of that any more.
- Whom the list names gets it once more, as the last message, or as the only one when it comes again: the owner's
  signature proves to that node that it is revoked.
- Whatever rests on somebody's certificates is verified again when a list comes: links here, the rest by those who asked
  for it with ``on_newer``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import trio

from iris.cluster.membership.revocation_pacing import RevocationPacing
from iris.cluster.mesh import Mesh, Peer, PeerObserver, let_flushers_run
from iris.kernel.errors import AuthenticationError, ConfigError, NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.tasks import run_in_thread
from iris.kernel.wire import kinds
from iris.security.files import FileLook, load_revocations, save_revocations
from iris.security.identity import NewestRevocations, RevocationList

_log: Final = logging.getLogger("iris")

LOOK: Final = 1.0
"""Seconds between looks whether the file was replaced."""

LOCAL_LOOK: Final = 10.0
"""Seconds between looks in the local realm, all of which belongs to one user.  A look takes a thread, as the file may
be on another machine: of what a node costs that idles, a tenth was for one look a second."""


@final
class RevocationExchange(PeerObserver):
    """Exchanges revocation lists with peers, and cuts off whom the newest one names.

    Args:
        realm: the public key of the realm's root.
        revocations: the newest list; the admission of every mesh of this node goes by it.
        path: the file of the newest list; None: it is in memory only.
        look: seconds between looks whether the file was replaced.
    """

    def __init__(
        self,
        mesh: Mesh,
        realm: bytes,
        revocations: NewestRevocations,
        path: Path | None,
        nursery: trio.Nursery,
        *,
        look: float = LOOK,
    ) -> None:
        self._mesh = mesh
        self._meshes: list[Mesh] = []
        self._turns = RevocationPacing()
        self._later: set[NodeId] = set()
        self._listeners: list[Callable[[], None]] = []
        self._path = path
        self._pause = look
        self._realm = realm
        self._nursery = nursery
        self._saving = trio.Lock()
        self._looking = trio.Lock()
        self._file: FileLook | None = None
        """Look at the file, made with the first one: the file may have been replaced since it was first read."""
        self.revocations: Final = revocations
        self._meshes.append(mesh)
        mesh.register(kinds.Revocations, self._receive)
        self._warn_if_expelled()

    def attach(self, mesh: Mesh) -> None:
        """Send lists to the peers of a further mesh of this node as well, and receive theirs."""
        self._meshes.append(mesh)
        mesh.register(kinds.Revocations, self._receive)
        mesh.observe(self)

    def detach(self, mesh: Mesh) -> None:
        """A mesh is about to end."""
        self._meshes.remove(mesh)

    def on_newer(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever another list is in force."""
        self._listeners.append(listener)

    def apply(self, signed: bytes) -> bool:
        """Take a list if it is newer than the one in force: cut off whom it names, keep it, tell every peer.

        Raises:
            AuthenticationError: it was not signed by this realm's root.
        """
        if not self.revocations.receive_untrusted(signed):
            return False
        self._warn_if_expelled()
        for mesh in self._meshes:
            for peer in list(mesh.peers.values()):
                if self.revocations.reason(peer.identity) is None:
                    self._send_list(peer)
                else:
                    self._nursery.start_soon(self._cut_off, mesh, peer)
        for listener in self._listeners:
            with self._mesh.survive("a newer revocation list"):  # whatever one does, the others are called
                listener()
        # The file last: a disk that is slow must not delay the cutting off.
        if self._path is not None:
            self._nursery.start_soon(self._save)
        return True

    async def run(self) -> None:
        """Look at the file now and then; run it in one task."""
        while self._path is not None:
            await trio.sleep(self._pause)
            await self.look()

    async def look(self) -> None:
        """Take the list in the file if the file was replaced by a newer one; put back the newest over an older one."""
        if self._path is not None:
            async with self._looking:  # who looks meanwhile is told when all is done that follows from the file
                await self._look(self._path)

    async def _look(self, path: Path) -> None:
        if self._file is None:
            self._file = await run_in_thread(FileLook, path)
        elif not await run_in_thread(self._file.is_due):
            return
        try:
            found = await run_in_thread(load_revocations, path, self._realm)
        except ConfigError as error:
            if self._file.failed(error):
                _log.warning("%s", error, extra={"path": str(path), "cause": "revocations"})
            return
        if found is None or self.apply(found.signed) or found.number >= self.revocations.number:
            return
        newest = self.revocations.number
        _log.warning(
            "%s: list %d is older than list %d, which stays in force",
            path,
            found.number,
            newest,
            extra={"path": str(path)},
        )
        await self._save()

    async def _save(self) -> None:
        """Put the list in force into the file, unless there is a newer one in it, which is then taken by ``look``."""
        async with self._saving:  # of two lists the one that came last is in force, and has to be written last
            current = self.revocations.current
            assert self._path is not None
            if current is None:
                return
            try:
                if await run_in_thread(self._save_newer, current) and self._file is not None:
                    await run_in_thread(self._file.note)
            except ConfigError as error:
                _log.warning(
                    "%s; after a restart this node will not know of revocation list %d",
                    error,
                    current.number,
                    extra={"path": str(self._path)},
                )

    def _save_newer(self, current: RevocationList) -> bool:
        assert self._path is not None
        try:
            found = load_revocations(self._path, self._realm)
        except ConfigError:
            found = None  # whatever it is, it is of no use
        if found is not None and found.number > current.number:
            return False
        save_revocations(self._path, current)
        return True

    def _warn_if_expelled(self) -> None:
        own = self._mesh.expelled()
        if own is not None:
            _log.warning(
                "nobody talks to this node any more, until it has another credential: %s",
                own,
                extra={"caller": self._mesh.identity.cluster, "peer": self._mesh.node},
            )

    async def _cut_off(self, mesh: Mesh, peer: Peer) -> None:
        """End a link outside the loop that reads its messages, and show the peer why."""
        for message in mesh.final_messages(peer.identity):
            with contextlib.suppress(NotSent):
                peer.link.post(message, 0, CONTROL_RESERVE)
        await let_flushers_run()
        reason = self.revocations.reason(peer.identity)
        if reason is not None and mesh.peers.get(peer.node) is peer:
            mesh.drop(peer.node, reason)

    def _send_list(self, peer: Peer) -> None:
        """Send a peer the list in force, now or when it is its turn; not if it has shown that it has it.

        Nor while this node closes: no task may begin any more.
        """
        current = self.revocations.current
        if current is None or peer.node in self._later or peer.other_realm or self._mesh.closing:
            return
        wait = self._turns.next_list(peer.node, current.signed, trio.current_time())
        if wait is None:
            return
        if wait > 0:
            self._later.add(peer.node)
            self._nursery.start_soon(self._send_list_later, peer.node, wait)
            return
        try:
            peer.link.post(kinds.Revocations(current.signed), len(current.signed))
        except NotSent:
            self._mesh.refusals["revocations without room on the link"] += 1

    async def _send_list_later(self, node: NodeId, wait: float) -> None:
        try:
            await trio.sleep(wait)
        finally:
            self._later.discard(node)
        for mesh in self._meshes:
            if (peer := mesh.peers.get(node)) is not None:
                self._send_list(peer)

    def _receive(self, peer: Peer, message: kinds.Revocations) -> None:
        signed = message.signed
        if not self._turns.may_show(peer.node, trio.current_time()):
            raise RemoteProtocolError("more revocation lists than there can be")
        self._turns.shown(peer.node, signed)
        try:
            newer = self.apply(signed)
        except AuthenticationError as error:
            raise RemoteProtocolError(str(error)) from None
        if not newer:
            self._send_list(peer)  # unless it is the same list, the peer's one is the older one

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def peer_connected(self, peer: Peer) -> None:
        """Send a new peer the list in force."""
        self._send_list(peer)

    def frames_lost(self, peer: Peer) -> None:
        """Send the list again: it may have been lost."""
        self._send_list(peer)
