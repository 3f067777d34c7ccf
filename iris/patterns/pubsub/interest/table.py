"""Interest table: which patterns this node and its peers subscribe to, and the exchange of changes.

Each node numbers the changes of its own interest.  A peer gets the full interest when it is linked and each change from
then on, and acknowledges the number that it has reached.  So a subscriber knows when every publisher knows.

Limits for one node follow its cost to publishers: the memory of its terms, the number of pattern shapes, since each
match looks at every shape, and the number of its terms with one pattern, since all of these match at once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self, TypeVar, final

from iris.kernel.config import DEFAULTS
from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.names import NodeId, is_name
from iris.kernel.wire import kinds
from iris.patterns.pubsub.interest.shards import is_share
from iris.patterns.pubsub.interest.topics import Matcher, Shape, is_pattern, shape_of

TERMS_IN_ONE_MESSAGE: Final = 256
"""Terms in one message, which so stays below 100 KiB."""

MAX_SHAPES: Final = 64
"""Shapes of patterns with wildcards that one node may subscribe to: all there are of up to 4 tokens, and more.  A match
looks at each shape that fits the number of tokens, for 1 us.  All nodes together have 62 shapes that fit a topic of 5
tokens, 510 that fit one of 8."""

MAX_VARIANTS: Final = 16
"""Terms of one node with the same pattern and a group, or for which publishers wait: an event goes to the node once for
each of its groups."""

MAX_WIDE: Final = 256
"""The same for terms with wildcards, whatever their patterns: an event may match all of them."""

_LIMIT: Final = DEFAULTS.interest_bytes

OTHER_REALM_SHARE: Final = 8
"""Divisor of ``Config.interest_bytes`` for a node of another realm."""

_TERMS_BYTES: Final = 576
"""Memory of terms besides their texts and shards, in bytes, with their places in all tables (at most 565 were
measured)."""

_SHARD_BYTES: Final = 28


_ANY: Final = -1
"""Stand-in for a shard: any."""

T = TypeVar("T")


class Terms(kinds.InterestEntry):
    """One entry of a node's interest; several subscriptions of a node may share it."""

    __slots__ = ()

    def __new__(
        cls, pattern: str, group: str | None, durable: bool, patient: bool = False, share: tuple[int, ...] = ()
    ) -> Self:
        """Return terms; most have neither of the last two."""
        return super().__new__(cls, pattern, group, durable, patient, share)

    @property
    def is_plain(self) -> bool:
        """True if no publisher waits for this node, and every event goes to it alone."""
        return self.group is None and not (self.durable or self.patient)

    @property
    def is_direct(self) -> bool:
        """True if publishers wait for this node, or for its answers, with every event of its own."""
        return self.group is None and (self.durable or self.patient)

    @property
    def size(self) -> int:
        """Memory that they take at a publisher at most, in bytes."""
        texts = sys.getsizeof(self.pattern) + (0 if self.group is None else sys.getsizeof(self.group))
        return _TERMS_BYTES + texts + _SHARD_BYTES * len(self.share)


class NodeTerms(NamedTuple):
    """The terms of one node, as a match on a topic returns them."""

    node: NodeId
    terms: Terms


@final
class _Extent:
    """Cost of the terms of one node.

    Attributes:
        bytes: bytes of memory.
        shapes: number of its patterns by shape.
        variants: number of its terms that are not plain, by pattern.
        direct: number of its terms that have publishers wait for the node, or for its answers.
        wide: number of its terms that are not plain and have wildcards.
    """

    __slots__ = ("bytes", "direct", "shapes", "variants", "wide")

    def __init__(self) -> None:
        self.bytes = self.direct = self.wide = 0
        self.shapes: Counter[Shape] = Counter()
        self.variants: Counter[str] = Counter()

    def add(self, terms: Terms) -> None:
        """Count terms in."""
        self._count(terms, 1)

    def remove(self, terms: Terms) -> None:
        """Count terms out."""
        self._count(terms, -1)

    def _count(self, terms: Terms, sign: int) -> None:
        self.bytes += sign * terms.size
        self.direct += sign * terms.is_direct
        shape = shape_of(terms.pattern)
        if shape is not None:
            _add(self.shapes, shape, sign)
            self.wide += sign * (not terms.is_plain)
        if not terms.is_plain:
            _add(self.variants, terms.pattern, sign)

    def excess(self, more: Collection[Terms], limit: int, times: int = 1) -> str | None:
        """Return the limit that more terms, which are not among them, would exceed; None if none.

        Args:
            more: the terms.
            limit: limit of the bytes.
            times: factor of each limit.
        """
        if not more:
            return None
        if self.bytes + sum(terms.size for terms in more) > times * limit:
            return f"patterns that take more than {times * limit} bytes (Config.interest_bytes)"
        shapes = [(terms, shape) for terms in more if (shape := shape_of(terms.pattern)) is not None]
        if len({shape for _, shape in shapes} - self.shapes.keys()) + len(self.shapes) > times * MAX_SHAPES:
            return f"patterns with their wildcards at more than {times * MAX_SHAPES} different places"
        if self.wide + sum(not terms.is_plain for terms, _ in shapes) > times * MAX_WIDE:
            return f"more than {times * MAX_WIDE} patterns with wildcards for groups and the like"
        variants = Counter(terms.pattern for terms in more if not terms.is_plain)
        for pattern, count in variants.items():
            if count + self.variants[pattern] > times * MAX_VARIANTS:
                return f"{pattern!r} in more than {times * MAX_VARIANTS} ways"
        return None


def _add(counter: Counter[T], key: T, sign: int) -> None:
    counter[key] += sign
    if not counter[key]:
        del counter[key]


@final
class OwnInterest:
    """This node's own interest, with the number of its last change.

    Args:
        limit: bytes that its terms may take at a publisher.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self.version = 0
        self._limit = limit
        self._terms: Counter[Terms] = Counter()
        self._heads: Counter[str] = Counter()
        """First tokens of the patterns of topics of this realm, ``*`` for those that match any."""
        self._extent = _Extent()

    def __len__(self) -> int:
        return len(self._terms)

    def wants(self, roots: Collection[str]) -> bool:
        """Return whether a topic of these roots may match; the root ``>`` stands for all."""
        heads = self._heads
        return bool(heads) and ("*" in heads or ">" in roots or not heads.keys().isdisjoint(roots))

    def check(self, terms: Terms) -> None:
        """Raise ConfigError unless publishers with this node's limits would accept further terms."""
        excess = None if terms in self._terms else self._extent.excess((terms,), self._limit)
        if excess is not None:
            raise ConfigError(
                f"cannot subscribe to {terms.pattern!r}: publishers would refuse a node that subscribes to {excess}; "
                "use fewer and wider patterns, and drop what is not wanted of their events"
            )

    def add(self, terms: Terms) -> kinds.Interest | None:
        """Count a subscription; return the message for the peers if it is the first with these terms."""
        self._terms[terms] += 1
        if self._terms[terms] > 1:
            return None
        self._extent.add(terms)
        self._count_head(terms, 1)
        self.version += 1
        return kinds.Interest(self.version, False, (terms,), ())

    def remove(self, terms: Terms) -> kinds.Interest | None:
        """Uncount a subscription; return the message for the peers if it was the last with these terms."""
        self._terms[terms] -= 1
        if self._terms[terms] > 0:
            return None
        del self._terms[terms]
        self._extent.remove(terms)
        self._count_head(terms, -1)
        self.version += 1
        return kinds.Interest(self.version, False, (), (terms,))

    def _count_head(self, terms: Terms, sign: int) -> None:
        head = terms.pattern.partition(".")[0]
        if "/" not in head:
            _add(self._heads, "*" if head == ">" else head, sign)

    def mark(self) -> kinds.Interest:
        """Return an empty change: a peer that confirms it has received all changes before it."""
        self.version += 1
        return kinds.Interest(self.version, False, (), ())

    def whole(self) -> Iterator[kinds.Interest]:
        """Yield the messages of the full interest for a new peer.  Only the last one carries the version to confirm."""
        return self._whole(list(self._terms))

    def whole_of(self, realm: str) -> Iterator[kinds.Interest]:
        """Yield the messages to a node of a realm, by its alias, about the topics of it that are wanted here."""
        begin = f"{realm}/"
        theirs = [terms for terms in self._terms if terms.pattern.startswith(begin)]
        return self._whole([terms._replace(pattern=terms.pattern.removeprefix(begin)) for terms in theirs])

    def _whole(self, every: list[Terms]) -> Iterator[kinds.Interest]:
        starts = range(0, len(every) or 1, TERMS_IN_ONE_MESSAGE)
        for start in starts:
            version = self.version if start == starts[-1] else 0
            yield kinds.Interest(version, start == 0, tuple(every[start : start + TERMS_IN_ONE_MESSAGE]), ())


@final
class _Member:
    """The interest of one node.

    Attributes:
        owner: other realm that it is of; empty for this one.
        terms: its terms, and the entry of each in the matcher.
        extent: cost of the terms.
        repeated: terms sent so far, while it sends everything anew; else None.  The others go with the last message.
        repeated_extent: cost of these.
        is_whole: True once it has sent everything.
    """

    __slots__ = ("extent", "has_subscribed", "is_whole", "owner", "repeated", "repeated_extent", "terms")

    def __init__(self, owner: str = "") -> None:
        self.owner: Final = owner
        self.terms: dict[Terms, NodeTerms] = {}
        self.has_subscribed = self.is_whole = False
        self.extent = _Extent()
        self.repeated: set[Terms] | None = None
        self.repeated_extent = _Extent()


@final
class InterestTable:
    """The interest of every peer, indexed by pattern.

    Args:
        limit: bytes that the terms of one node may take.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self.version = 0
        """Number that grows with each change, so that what was derived from the table can be checked."""
        self.refused = 0
        """Terms that the subscriber's certificate does not permit."""
        self.added: Sequence[Terms] = ()
        self.removed: Sequence[Terms] = ()
        """Terms that the last change has added, and removed."""
        self._matcher: Matcher[NodeTerms] = Matcher()
        self._known: dict[NodeId, _Member] = {}
        self._patient: Counter[tuple[NodeId, str]] = Counter()
        self._bytes_of: Counter[str] = Counter()
        """Size of the terms of all nodes of each other realm, in bytes."""
        self._storing: dict[tuple[str | None, int], Counter[NodeId]] = {}
        """Nodes with durable terms, and how many, by group or None, and by shard (``_ANY`` for any)."""

    @property
    def shapes(self) -> int:
        """Number of shapes of the patterns: the cost of a match."""
        return len(self._matcher.shapes)

    def match(self, topic: str) -> tuple[NodeTerms, ...]:
        """Return the subscribers of a topic; a node stands once for each of its terms that match."""
        return self._matcher.match(topic)

    def terms_of(self, node: NodeId) -> Collection[Terms]:
        """Return the terms of a node."""
        member = self._known.get(node)
        return () if member is None else member.terms.keys()

    def stored(self) -> list[str]:
        """Return the patterns of the durable terms of all nodes."""
        return sorted({terms.pattern for member in self._known.values() for terms in member.terms if terms.durable})

    def stores(self, node: NodeId) -> bool:
        """Return whether a node has durable terms that are no group's."""
        return node in self._storing.get((None, _ANY), ())

    def storing(self, group: str, share: tuple[int, ...]) -> Collection[NodeId]:
        """Return the nodes with durable terms of a group; if there is a share, with one of its shards."""
        found: dict[NodeId, int] = {}
        for shard in share[1:] if share else (_ANY,):
            found.update(self._storing.get((group, shard), {}))
        return found.keys()

    def is_whole(self, node: NodeId) -> bool:
        """Return whether a node has sent all that it subscribes to since it came."""
        member = self._known.get(node)
        return member is not None and member.is_whole

    def has_subscribed(self, node: NodeId) -> bool:
        """Return whether a node subscribes to anything, or did since it came."""
        member = self._known.get(node)
        return member is not None and member.has_subscribed

    def needs_link(self, node: NodeId) -> bool:
        """Return whether publishers have to deal with a node directly: they wait for it, or for its answers."""
        member = self._known.get(node)
        return member is not None and member.extent.direct > 0

    def is_patient(self, node: NodeId, pattern: str) -> bool:
        """Return whether a node subscribes to exactly this pattern and wants publishers to wait for it."""
        return (node, pattern) in self._patient

    def receive_untrusted(
        self,
        node: NodeId,
        message: kinds.Interest,
        permit: Callable[[str], bool] = lambda _: True,
        *,
        realm_id: str = "",
    ) -> int:
        """Accept an INTEREST message; return the version to confirm.

        Terms whose pattern ``permit`` refuses are counted in ``refused`` and get nothing.  So are those of a node of
        another realm (``realm_id``) that are not plain: it would share our events, or delay their publishers.  All
        nodes of that realm have together what one of this realm has.

        Raises:
            RemoteProtocolError: malformed, or more than a node may have; what was known of the node is unchanged.
        """
        version, whole = message.version, message.whole
        added, less = dict.fromkeys(_terms_untrusted(message.added)), _terms_untrusted(message.removed)
        more = [terms for terms in added if permit(terms.pattern) and (terms.is_plain or not realm_id)]
        member = self._known.get(node) or _Member(realm_id)
        repeated = set[Terms]() if whole else member.repeated
        repeated_extent = _Extent() if whole else member.repeated_extent
        new = [terms for terms in more if terms not in member.terms]
        again = [] if repeated is None else [terms for terms in more if terms not in repeated]
        limit = self._limit // OTHER_REALM_SHARE if realm_id else self._limit
        # A peer that restarts its full interest again and again, and never ends it, keeps the former one beside it.
        excess = member.extent.excess(new, limit, 1 if repeated is None else 2) or repeated_extent.excess(again, limit)
        if realm_id and self._bytes_of[realm_id] + sum(terms.size for terms in new) > self._limit:
            excess = f"more than there is room for: the nodes of its realm have {self._limit} bytes together"
        if excess is not None:
            raise RemoteProtocolError(f"node {node} subscribes to {excess}")
        self.refused += len(added) - len(more)
        self._known[node] = member
        for terms in again:
            repeated_extent.add(terms)
        if repeated is not None:
            repeated.update(more)
            if version:
                less = [*less, *(terms for terms in member.terms if terms not in repeated)]
        member.repeated, member.repeated_extent = repeated, repeated_extent
        if repeated is not None and (version or not added):  # without a version: it never subscribed to anything
            member.is_whole = True
        if version:
            member.repeated, member.repeated_extent = None, _Extent()
        self._remove(member, less)
        self.added = [terms for terms in more if terms not in member.terms]
        for terms in self.added:
            self._add(node, member, terms)
        self.version += 1
        return version

    def narrow(self, node: NodeId, permit: Callable[[str], bool]) -> bool:
        """Drop the part of a node's interest that it is no longer permitted; return whether there was any."""
        member = self._known.get(node)
        if member is None:
            return False
        lost = [terms for terms in member.terms if not permit(terms.pattern)]
        self.added = ()
        self._remove(member, lost)
        self.refused += len(lost)
        self.version += bool(lost)
        return bool(lost)

    def forget(self, node: NodeId) -> None:
        """Drop a node's interest."""
        member = self._known.pop(node, _Member())
        self.added = ()
        self._remove(member, list(member.terms))
        self.version += 1

    def _add(self, node: NodeId, member: _Member, terms: Terms) -> None:
        member.terms[terms] = wanted = NodeTerms(node, terms)
        member.has_subscribed = True
        member.extent.add(terms)
        if member.owner:
            self._bytes_of[member.owner] += terms.size
        self._matcher.add(terms.pattern, wanted)
        if terms.patient:
            self._patient[node, terms.pattern] += 1
        if terms.durable:
            self._count_storing(node, terms, 1)

    def _remove(self, member: _Member, less: Iterable[Terms]) -> None:
        self.removed = [terms for terms in dict.fromkeys(less) if terms in member.terms]
        for terms in self.removed:
            wanted = member.terms.pop(terms)
            member.extent.remove(terms)
            if member.owner:
                self._bytes_of[member.owner] -= terms.size
            self._matcher.remove(terms.pattern, wanted)
            if terms.patient:
                _add(self._patient, (wanted.node, terms.pattern), -1)
            if terms.durable:
                self._count_storing(wanted.node, terms, -1)

    def _count_storing(self, node: NodeId, terms: Terms, sign: int) -> None:
        for shard in (_ANY, *terms.share[1:]):
            place = (terms.group, shard)
            nodes = self._storing.setdefault(place, Counter())
            _add(nodes, node, sign)
            if not nodes:
                del self._storing[place]


def _terms_untrusted(entries: Iterable[kinds.InterestEntry]) -> list[Terms]:
    for one in entries:
        if not (
            is_pattern(one.pattern)
            and (one.group is None or is_name(one.group))
            and (one.share == () or (one.group is not None and one.durable and is_share(one.share)))
        ):
            raise RemoteProtocolError("terms are a pattern, and perhaps a group and the shards that it divides")
    return list(map(Terms._make, entries))
