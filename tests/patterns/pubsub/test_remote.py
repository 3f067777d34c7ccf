"""Subscribers at other sites, as a publisher knows them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from iris.cluster.directory.directory import RemoteSubscriber
from iris.kernel.names import NodeId
from iris.patterns.pubsub import remote as foreign_subscribers
from iris.patterns.pubsub.interest import InterestTable
from iris.patterns.pubsub.remote import RemoteSubscribers

if TYPE_CHECKING:
    from iris.cluster.mesh.mesh import Mesh
    from iris.cluster.sites.sites import Sites

NODE = NodeId("a" * 32)


class Elsewhere:
    """Announcements of gateways about other sites, and the nodes that a publisher connects to for them."""

    def __init__(self) -> None:
        self.subscribers_version = 0
        self.present: set[RemoteSubscriber] = set()
        self.changes: dict[RemoteSubscriber, bool] = {}
        self.reached: list[set[tuple[str, NodeId]]] = []

    def resubscriptions(self) -> dict[RemoteSubscriber, bool]:
        changes, self.changes = self.changes, {}
        return changes

    def tell(self, *present: RemoteSubscriber) -> None:
        former, self.present = self.present, set(present)
        self.changes = dict.fromkeys(former - self.present, False) | dict.fromkeys(self.present - former, True)
        self.subscribers_version += 1

    async def reach_nodes(
        self, nodes: set[tuple[str, NodeId]], heard: Callable[[NodeId], bool], *, within: float | None = None
    ) -> int:
        assert within is None
        assert not heard(NODE)
        self.reached.append(nodes)
        return 0


class Local:
    """The part of the mesh that is needed."""

    identity = None

    def __init__(self) -> None:
        self.refusals: Counter[str] = Counter()


class Uncounted:
    """A publisher whose events are not counted."""

    def count_unlinked(self, topic: str, nodes: int) -> None:
        pass


async def test_patterns_of_one_site_cannot_make_every_match_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_subscribers, "MAX_SITE_SHAPES", 4)
    sites, mesh = Elsewhere(), Local()
    known = RemoteSubscribers(cast("Sites", sites), cast("Mesh", mesh), InterestTable(1000), Uncounted())
    patterns = [".".join(tokens) for tokens in itertools.product("*a", repeat=4)]
    many = [RemoteSubscriber("far", NODE, pattern) for pattern in patterns]
    one, other = RemoteSubscriber("other", NODE, "a.*.a.>"), RemoteSubscriber("far", NODE, "b.c")
    for _ in range(2):  # announced again, nothing changes
        sites.tell(*many, one, other)
        await known.reach("a.a.a.a")
        assert len(known._matcher.shapes) == 4 + 1
        assert sites.reached[-1] == {("far", NODE), ("other", NODE)}
        await known.reach("b.c")  # without wildcards there is no bound but that of the directory
        assert sites.reached[-1] == {("far", NODE)}
    refused = mesh.refusals["subscriber of another site beyond its patterns"]
    assert refused == 2**4 - 1 - 4
    sites.tell(one)
    await known.reach("a.a.a.a")
    assert sites.reached[-1] == {("other", NODE)}
    sites.tell(*many[-3:], one)
    await known.reach("a.a.a.a")
    assert mesh.refusals["subscriber of another site beyond its patterns"] == refused
    sites.tell()
    await known.reach("a.a.a.a")
    assert sites.reached[-1] == set()
    assert (len(known._matcher), known._known, known._refused, known._shapes) == (0, {}, set(), {})
