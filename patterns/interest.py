"""Who wants which topics: what this node tells the others, and what the others have told it.

Each node numbers the changes of its own interest.  A peer gets all of it when it is linked and each change from then
on, and answers with the number it has reached; so a subscriber knows when every publisher knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple, cast, final

from iris.kernel import kinds
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.ids import NodeId, is_name
from iris.kernel.wire import Message, number_untrusted
from iris.patterns.shards import is_share
from iris.patterns.topics import Matcher, is_pattern

TERMS_IN_ONE_MESSAGE: Final = 256
"""So that one message stays below 100 KiB."""

MAX_TERMS: Final = 262_144
"""Terms that one peer may hold here."""

MAX_FOREIGN_TERMS: Final = 4_096
"""Those of a node of another realm: about 2 MiB."""


class Terms(NamedTuple):
    """One entry of a node's interest; several subscriptions of a node may share it."""

    pattern: str
    group: str | None
    durable: bool
    patient: bool = False
    """Publishers are to wait for this node as long as it lives: a subscription has ``overflow="wait"``."""
    share: tuple[int, ...] = ()
    """Of a group that divides events by shard: how many shards it has, then this node's.  Empty: any member will do."""

    @property
    def is_plain(self) -> bool:
        """Whether nobody waits for this node, and every event goes to it alone."""
        return self.group is None and not (self.durable or self.patient)


class Wanted(NamedTuple):
    """A node's terms, as a publisher finds them under a topic."""

    node: NodeId
    terms: Terms


@final
class OwnInterest:
    """What this node subscribes to, with the number of the last change."""

    def __init__(self) -> None:
        self.version = 0
        self._terms: Counter[Terms] = Counter()

    def __len__(self) -> int:
        return len(self._terms)

    def add(self, terms: Terms) -> Message | None:
        """Count a subscription; return the message for the peers if it is the first with these terms."""
        self._terms[terms] += 1
        if self._terms[terms] > 1:
            return None
        self.version += 1
        return (kinds.INTEREST, self.version, False, (tuple(terms),), ())

    def remove(self, terms: Terms) -> Message | None:
        """Uncount a subscription; return the message for the peers if it was the last with these terms."""
        self._terms[terms] -= 1
        if self._terms[terms] > 0:
            return None
        del self._terms[terms]
        self.version += 1
        return (kinds.INTEREST, self.version, False, (), (tuple(terms),))

    def mark(self) -> Message:
        """Return a change that changes nothing: who confirms it has taken all that was told before."""
        self.version += 1
        return (kinds.INTEREST, self.version, False, (), ())

    def whole(self) -> Iterator[Message]:
        """Yield the messages that tell a peer everything.  Only the last one carries the version to confirm."""
        return self._whole([tuple(terms) for terms in self._terms])

    def whole_of(self, realm: str) -> Iterator[Message]:
        """Yield the messages that tell a node of a realm, by its alias, what of its topics is wanted here."""
        begin = f"{realm}/"
        theirs = [terms for terms in self._terms if terms.pattern.startswith(begin)]
        return self._whole([tuple(terms._replace(pattern=terms.pattern.removeprefix(begin))) for terms in theirs])

    def _whole(self, every: list[tuple[object, ...]]) -> Iterator[Message]:
        starts = range(0, len(every) or 1, TERMS_IN_ONE_MESSAGE)
        for start in starts:
            version = self.version if start == starts[-1] else 0
            yield (kinds.INTEREST, version, start == 0, tuple(every[start : start + TERMS_IN_ONE_MESSAGE]), ())


@final
class InterestTable:
    """What every node subscribes to."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with each change, so that what was derived from the table can be checked."""
        self.refused = 0
        """Terms that the subscriber's certificate does not permit."""
        self.added: Sequence[Terms] = ()
        """What the last message has added."""
        self._matcher: Matcher[Wanted] = Matcher()
        self._known: dict[NodeId, dict[Terms, Wanted]] = {}
        self._patient: Counter[tuple[NodeId, str]] = Counter()
        self._stale: dict[NodeId, set[Terms]] = {}
        """What nodes that are telling everything anew have not repeated so far; it goes with the last message."""

    def match(self, topic: str) -> tuple[Wanted, ...]:
        """Return whoever wants the topic; a node stands once for each of its terms that match."""
        return self._matcher.match(topic)

    def terms_of(self, node: NodeId) -> Collection[Terms]:
        """Return what a node subscribes to."""
        return self._known.get(node, {}).keys()

    def is_patient(self, node: NodeId, pattern: str) -> bool:
        """Tell whether a node subscribes to exactly this pattern and wants publishers to wait for it."""
        return (node, pattern) in self._patient

    def receive_untrusted(
        self,
        node: NodeId,
        message: Message,
        permit: Callable[[str], bool] = lambda _: True,
        *,
        foreign: bool = False,
    ) -> int:
        """Take an INTEREST message; return the version to confirm.

        Terms whose pattern ``permit`` refuses are counted in ``refused`` and get nothing.  So are those of a node of
        another realm (``foreign``) that are not plain: it would share our events, or hold up who publishes them.

        Raises:
            RemoteProtocolError: malformed, or too many terms; what was known of the node is unchanged.
        """
        _, version, whole, added, removed = message
        version = number_untrusted(version, "the version of an interest")
        if type(whole) is not bool:
            raise RemoteProtocolError("interest says whether it is whole")
        more, less = _terms_untrusted(added), _terms_untrusted(removed)
        permitted = [terms for terms in more if permit(terms.pattern) and (terms.is_plain or not foreign)]
        self.refused += len(more) - len(permitted)
        more = permitted
        known = self._known.setdefault(node, {})
        stale = set(known) if whole else self._stale.get(node, set())
        limit = MAX_FOREIGN_TERMS if foreign else MAX_TERMS
        # Who begins to tell everything again and again, and never ends, has all that was told before as stale.
        if len(known) - len(stale) + len(more) > limit or len(known) + len(more) > 2 * limit:
            raise RemoteProtocolError(f"node {node} subscribes to more than {limit} patterns")
        stale.difference_update(more)
        for terms in less if version == 0 else (*less, *stale):
            wanted = known.pop(terms, None)
            if wanted is not None:
                self._remove(wanted)
        self.added = [terms for terms in dict.fromkeys(more) if terms not in known]
        for terms in self.added:
            known[terms] = wanted = Wanted(node, terms)
            self._matcher.add(terms.pattern, wanted)
            if terms.patient:
                self._patient[node, terms.pattern] += 1
        if version == 0 and stale:
            self._stale[node] = stale
        else:
            self._stale.pop(node, None)
        self.version += 1
        return version

    def narrow(self, node: NodeId, permit: Callable[[str], bool]) -> bool:
        """Drop of a node's interest what it may have no more; tell whether there was any."""
        known = self._known.get(node, {})
        lost = [terms for terms in known if not permit(terms.pattern)]
        for terms in lost:
            self._remove(known.pop(terms))
        self.refused += len(lost)
        self.version += bool(lost)
        return bool(lost)

    def forget(self, node: NodeId) -> None:
        """Drop a node's interest."""
        self._stale.pop(node, None)
        for wanted in self._known.pop(node, {}).values():
            self._remove(wanted)
        self.version += 1

    def _remove(self, wanted: Wanted) -> None:
        node, terms = wanted
        self._matcher.remove(terms.pattern, wanted)
        if terms.patient:
            self._patient[node, terms.pattern] -= 1
            if not self._patient[node, terms.pattern]:
                del self._patient[node, terms.pattern]


def _terms_untrusted(field: object) -> list[Terms]:
    if type(field) is not tuple:
        raise RemoteProtocolError("interest lists its terms")
    items = cast("tuple[object, ...]", field)
    found: list[Terms] = []
    for item in items:
        match cast("tuple[object, ...]", item) if isinstance(item, tuple) else ():
            case (
                str() as pattern,
                (None | str()) as group,
                bool() as durable,
                bool() as patient,
                share,
            ) if (
                is_pattern(pattern)
                and (group is None or is_name(group))
                and (share == () or (group is not None and durable and is_share(share)))
            ):
                found.append(Terms(pattern, group, durable, patient, cast("tuple[int, ...]", share)))
            case _:
                raise RemoteProtocolError(
                    "terms are a pattern, a group, whether they are durable and patient, and the group's shards"
                )
    return found
