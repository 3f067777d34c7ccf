"""Lookups of a client: the members of a cluster are found and linked when they are first asked, and not before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final, final

import trio

from iris.cluster.membership.membership import Membership
from iris.cluster.mesh import Mesh
from iris.cluster.swim import ClientView
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup, time_left

_OLD: Final = 5.0
"""Seconds after which it is asked again who serves a cluster, when that is used: a new member has work within so long,
and a name that is not used costs nothing."""

_FOLLOWED: Final = 1.0
"""Seconds between questions about a cluster whose members are waited for or watched."""


@final
class Lookups:
    """Finds the members that one client asks.

    Args:
        view: the client's view of the members.
    """

    def __init__(self, mesh: Mesh, membership: Membership, view: ClientView) -> None:
        self._mesh = mesh
        self._membership = membership
        self._view = view
        self._reached: dict[str, int] = {}
        """Versions of the membership at which all members of a cluster were linked, as far as they can be."""
        self._followed: Counter[str] = Counter()
        self._news = Wakeup()

    def __repr__(self) -> str:
        return f"<Lookups: {len(self._followed)} clusters followed>"

    def matters(self, address: str, *, keyed: bool = False) -> bool:
        """Return whether members have to be looked up before a cluster is asked, or, ``keyed``, all to be linked."""
        is_old = trio.current_time() - self._view.answered(_cluster(address)) >= _OLD
        return is_old or (keyed and self._lacks(address))

    def _lacks(self, address: str) -> bool:
        version = self._membership.version
        if self._reached.get(address) == version:
            return False
        if self._membership.unlinked(address):
            return True
        if self._membership.member_ids(address):  # names that nobody has are not remembered
            self._reached[address] = version
        return False

    def lists(self, address: str) -> bool:  # noqa: ARG002 -- the same whatever it is
        """Return whether members have to be looked up before all of a cluster are asked: there may be new ones."""
        return True

    async def reach(
        self, address: str, timeout: float, *, everybody: bool, keyed: bool = False, tried: Collection[NodeId] = ()
    ) -> float:
        """Find the members of a cluster and link to them, as far as that is needed to ask one of them, or each.

        Returns what is left of ``timeout``, when it has come to something or to nothing, at the latest when a handshake
        must have ended.  Cancelling it leaves handshakes in progress that end by themselves.

        Raises:
            ConfigError: more clusters were asked for than a client may.
        """
        await trio.lowlevel.checkpoint()
        cluster, began, each = _cluster(address), trio.current_time(), everybody or keyed
        self._look(cluster, 0.0 if everybody else _OLD)
        # Those who cannot be linked must not take from the others the time in which these answer.
        with trio.move_on_after(min(timeout / 2 if each else timeout, self._mesh.config.handshake_timeout)):
            while each or not self._can_be_asked(address, tried):
                is_answered = self._view.answered(cluster) >= (began if everybody else began - _OLD)
                if is_answered and all(map(self._membership.is_settled, self._view.listed(cluster))):
                    break
                await self._membership.wait_news()
        return time_left(began + timeout)

    async def reach_node(self, node: NodeId, timeout: float) -> float:
        """See ``Reach.reach_node``."""
        return await self._membership.link(node, timeout)

    def without_link(self, address: str) -> list[NodeId]:
        """Return the members of a cluster that were found, and are not linked."""
        return self._membership.without_link(address)

    def _look(self, cluster: str, again_after: float) -> None:
        self._membership.perform(self._view.look(cluster, trio.current_time(), again_after=again_after))

    def _can_be_asked(self, address: str, tried: Collection[NodeId]) -> bool:
        picker = self._membership.picker(address)
        return picker is not None and picker.has_other(tried)

    @contextmanager
    def following(self, address: str) -> Iterator[None]:
        """Look the members of a cluster up each second, for the length of the block."""
        cluster = _cluster(address)
        self._followed[cluster] += 1
        self._look(cluster, 0.0)
        self._news.wake()
        try:
            yield
        finally:
            self._followed[cluster] -= 1
            if not self._followed[cluster]:
                del self._followed[cluster]

    async def run(self) -> None:
        """Look up what is followed; run it in one task."""
        while True:
            if not self._followed:
                await self._news.wait()
            await trio.sleep(_FOLLOWED)
            for cluster in list(self._followed):
                self._look(cluster, _FOLLOWED / 2)


def _cluster(address: str) -> str:
    return address.partition("@")[0]
