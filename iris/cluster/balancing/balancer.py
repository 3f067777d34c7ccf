"""Load balancer: power of two choices on latency times outstanding requests, own site first.

Plain calls: this is on the way of every request, and ``pick`` costs about a microsecond.  Two members are drawn and
the cheaper is taken: the moving average of its latency times the requests outstanding there plus one, plus the queue
delay that it reported.  Drawing two keeps the worst member almost free of load without a scan of all (Mitzenmacher,
"The Power of Two Choices in Randomized Load Balancing", 2001).

Rules of this file:

- A failure counts as a latency, twice the average and at least 50 ms: a member that fails fast is an outlier too, and
  each further failure keeps it out for longer.
- What is known of a member grows stale while it is not asked.  Each time it is drawn and loses, with nothing
  outstanding there, its average and the queue delay that it reported become 5 % less: so one that was slow or failed
  is tried again.  So they do with no more requests outstanding there than at the winner, while no more than five for
  each member are in progress and most members report no queue to speak of: a member that is ten times slower so gets
  its share of the capacity also from a single caller, 1.01 of it at 70 % load instead of 0.45.  Where work waits
  everywhere it would be tried beyond its share, and p99 would double: there, only with one and a half for each member
  in progress.
- A member that leaves several requests in a row unanswered is not asked at all for a while, unless all do
  (``iris.cluster.balancing.circuit_breaker``).
- However few requests there are, a member that failed gets one after a second, and after pauses that double up to half
  a minute while it fails; if that one is answered, its failures are forgotten.  So they are when its route opens
  again: what a process left unanswered while it stood still says nothing about it.
- Of a large cluster a caller asks a part (``iris.cluster.balancing.subset``).
- A member that stands for several is drawn as often as these would be, and its requests count as divided among them.
- A key goes to the same member as long as that one lives and can be reached, whatever its load: moving a key because
  of load would move it back a moment later.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Collection
from random import Random
from typing import Final, Protocol, final

from iris.cluster.balancing.circuit_breaker import CircuitBreaker, CircuitState
from iris.cluster.balancing.locality import AtSite, SiteOrder
from iris.cluster.balancing.retry_budget import RetryBudget
from iris.cluster.balancing.subset import MIN_APERTURE, Aperture
from iris.kernel.names import NodeId

_WEIGHT: Final = 0.2
"""Weight of the newest latency in the average: about the last ten requests count."""

_UNKNOWN: Final = 0.001
"""Seconds assumed of a member that has not answered yet: it is tried early, and not flooded."""

_FAILURE_FACTOR: Final = 2.0
_FAILURE_LATENCY: Final = 0.05
_MAX_LATENCY: Final = 30.0
"""An outlier's average stays below this, so that it is tried again after some 160 draws."""

_STALE: Final = 0.95

_FEW: Final = 1.5
_MANY: Final = 5
"""Requests in progress for each member, below which all have as many of them as others: if most members have a queue,
and if they have none."""

_GRAY_DELAY: Final = 1.0
"""A member whose work waits this many seconds gets none while there are others."""

_QUEUED: Final = 0.65
"""A member whose requests wait for this share of their time has a queue."""

_SPILL_DELAY: Final = 0.25
"""Farther sites are asked, too, when every member of the nearer ones reports at least this queue delay."""

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
"""Seconds until a member that failed is tried, whatever its average says."""

_SILENCE: Final = 0.1
"""A request that was given up sooner than after so many seconds says nothing about the member."""

_REPEATS_SHARE: Final = 0.1
_REPEATS_PER_SECOND: Final = 10.0
_REPEATS_RESERVE: Final = 100.0
"""Requests may be repeated elsewhere: 10 % of all, ten a second, and a hundred at once."""

_KEYS: Final = 4096
"""Keys whose member is remembered; finding it again costs a hash for each member."""


_KEPT: Final = 64
"""Entries of trials that hold no more, before they are looked for."""

_NO_ORDER: Final = SiteOrder()
_NEVER: Final = -math.inf


@final
class _Score:
    __slots__ = (
        "circuit",
        "delay",
        "distance",
        "latency",
        "node",
        "outstanding",
        "pause",
        "place",
        "queued",
        "reported",
        "share",
        "site",
        "suspended",
        "trial_at",
        "tried",
        "usual",
        "weight",
    )

    def __init__(self, node: NodeId, site: str, distance: int, place: float) -> None:
        self.node = node
        self.place = place
        """Position of the member in this caller's order."""
        self.site = site
        self.distance = distance
        self.weight = 1
        """Members that it stands for."""
        self.share = 1.0
        """Part that each of them has of its outstanding requests."""
        self.latency = _UNKNOWN
        self.outstanding = 0
        self.reported = self.delay = 0.0
        """The queue delay that it reported last, and what is left of that: it grows stale."""
        self.queued = False
        """True if waiting is much of the time that its requests take."""
        self.suspended = False
        self.circuit: CircuitBreaker | None = None
        self.usual: float | None = None
        """The average before the first of its failures, as long as these are not forgotten."""
        self.trial_at = math.inf
        self.tried = False
        """True while the request is in progress that may clear its failures."""
        self.pause = _FIRST_PAUSE

    @property
    def due(self) -> float:
        """Time at which a member that failed may be tried again."""
        circuit = self.circuit
        return circuit.until if circuit is not None and circuit.state is CircuitState.OPEN else self.trial_at

    def fail(self, latency: float, now: float) -> None:
        if self.usual is None:
            self.usual = self.latency
        if self.tried:
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        if (self.tried or self.trial_at == math.inf) and now > -math.inf:
            self.trial_at = now + self.pause
        self.tried = False
        self.latency = min(max(latency, self.latency * _FAILURE_FACTOR, _FAILURE_LATENCY), _MAX_LATENCY)

    def forgive(self, latency: float) -> None:
        """Forget all failures: the member is as good as ``latency``."""
        self.latency = latency
        self.usual = None
        self.trial_at = math.inf
        self.tried = False
        self.pause = _FIRST_PAUSE


class WorkSignal(Protocol):
    """Sleep of the task that looks after requests in progress."""

    def wake(self) -> None:
        """A request is on its way to a member that owed no answer.  Called also while nobody sleeps: must be cheap."""
        ...


@final
class Balancer:
    """Load balancer over the members of one cluster that can be asked.

    Args:
        random: draws the two candidates.
        order: the order of sites, for the asking node.
        aperture: chooses how many of the members are asked.
        work: woken with each request to a member that owes no other answer.
    """

    def __init__(
        self,
        random: Random,
        *,
        order: SiteOrder = _NO_ORDER,
        aperture: Aperture | None = None,
        work: WorkSignal | None = None,
    ) -> None:
        self._draw = random.random
        self._order = order
        self._aperture = aperture or Aperture()
        self._scores: dict[NodeId, _Score] = {}
        self._ordered: list[_Score] = []
        """All of them in this caller's order."""
        self._arranged = True
        self._asked: list[_Score] = []
        self._keys: dict[str, NodeId] = {}
        self._started = 0
        self._outstanding = 0
        self._queues = 0
        self._trials: list[tuple[float, float, _Score]] = []
        """Times at which open circuits, and members that failed, may be tried: a heap.  Some entries hold no more."""
        self._work = work
        self._repeats = RetryBudget(share=_REPEATS_SHARE, rate=_REPEATS_PER_SECOND, reserve=_REPEATS_RESERVE)

    def __repr__(self) -> str:
        if not self._arranged:
            self._arrange()
        return f"<Balancer over {len(self._scores)} members, {len(self._asked)} of them asked>"

    @property
    def nodes(self) -> Collection[NodeId]:
        """Every member here, suspended ones included."""
        return self._scores.keys()

    def owing(self) -> list[NodeId]:
        """Return the members from which answers are outstanding."""
        return [node for node, score in self._scores.items() if score.outstanding]

    # -- who can be asked -----------------------------------------------------------------------------------

    def add(self, node: NodeId, site: str = "", distance: int = 1) -> None:
        """Add a member; ``distance`` orders sites of the same priority that are not the own one."""
        score = self._scores[node] = _Score(node, site, self._order.rank(site, distance), self._draw())
        insort(self._ordered, score, key=_place)
        self._arranged = False

    def remove(self, node: NodeId) -> None:
        """Remove a member."""
        score = self._scores.pop(node)
        self._outstanding -= score.outstanding
        self._queues -= score.queued
        place = bisect_left(self._ordered, score.place, key=_place)
        del self._ordered[self._ordered.index(score, place)]
        self._arranged = False

    def weigh(self, node: NodeId, weight: int) -> None:
        """Note for how many members a member stands: each is an entry of the list that is drawn from."""
        score = self._scores[node]
        score.weight, score.share = weight, 1 / weight
        self._arranged = False

    def suspend(self, node: NodeId) -> None:
        """Give a member no work for now."""
        self._scores[node].suspended = True
        self._arranged = False

    def resume(self, node: NodeId) -> None:
        """Give it work again: what it left unanswered meanwhile is forgotten."""
        score = self._scores[node]
        if score.suspended and score.usual is not None:
            score.forgive(score.usual)
            score.circuit = None
        score.suspended = False
        self._arranged = False
        self._try_later(score)

    def gray(self, node: NodeId, delay: float) -> None:
        """Note the queue delay that a member reported, in seconds."""
        score = self._scores.get(node)
        if score is not None:
            before = score.reported
            score.reported = score.delay = delay
            self._queues += (delay > _QUEUED * score.latency) - score.queued
            score.queued = delay > _QUEUED * score.latency
            if any((before >= limit) != (delay >= limit) for limit in (_SPILL_DELAY, _GRAY_DELAY)):
                self._arranged = False

    def _arrange(self) -> None:
        """Work out who is asked at all: usable members at the nearest sites of which one is neither empty nor full.

        It looks at every member, so it waits for the next request: 10,000 that join at once would cost 15 s.
        """
        self._arranged = True
        self._keys.clear()
        at_work = [score for score in self._ordered if not score.suspended]
        at_work = [
            score for score in at_work if score.circuit is None or score.circuit.state is CircuitState.CLOSED
        ] or at_work
        lively = [score for score in at_work if score.reported < _GRAY_DELAY] or at_work
        nearest = min((score.distance for score in lively if score.reported < _SPILL_DELAY), default=None)
        if nearest is not None:
            lively = [score for score in lively if score.distance <= nearest]
        if any(score.weight > 1 for score in lively):
            lively = [score for score in lively for _ in range(score.weight)]
        self._asked = lively

    # -- for each request -----------------------------------------------------------------------------------

    def pick(
        self,
        *,
        exclude: Collection[NodeId] = (),
        key: str | None = None,
        prefer: NodeId | AtSite | None = None,
        now: float = -math.inf,
    ) -> NodeId | None:
        """Return the member to ask next, or None if there is none outside ``exclude``.

        ``prefer`` is taken as long as it is reachable and not gray, at whatever site; of a site, one of those at which
        work does not wait.  With ``key`` it is the same member for every asker, at whatever site, as long as that one
        is reachable (rendezvous hashing).  Without ``now`` no open circuit is tried, and it is drawn from all members:
        for what stays at its member.
        """
        if not self._arranged:
            self._arrange()
        preferred_site: list[_Score] | None = None
        if prefer is None:  # nearly always
            pass
        elif isinstance(prefer, AtSite):
            preferred_site = [
                score
                for score in self._scores.values()
                if score.site == prefer.site
                and not score.suspended
                and score.reported < _SPILL_DELAY
                and (score.circuit is None or score.circuit.state is CircuitState.CLOSED)
                and score.node not in exclude
            ]
        elif prefer not in exclude:
            preferred = self._scores.get(prefer)
            if preferred is not None and not preferred.suspended and preferred.reported < _GRAY_DELAY:
                return prefer
        if key is not None:
            return self._pick_by_key(key, exclude)
        if self._trials and now >= self._trials[0][0]:
            tried = self._begin_trial(now, exclude)
            if tried is not None:
                return tried
        asked = preferred_site or self._asked
        if exclude and not preferred_site:
            asked = [score for score in asked if score.node not in exclude] or [
                score for score in self._scores.values() if score.node not in exclude and not score.suspended
            ]
        count = len(asked)
        if count < 2:
            return asked[0].node if count else None
        if count > MIN_APERTURE and asked is self._asked and now > -math.inf:
            count = min(count, self._aperture.width(self._outstanding))
        draw = self._draw
        first = int(draw() * count)
        second = int(draw() * (count - 1))
        if second >= first:
            second += 1
        one = asked[first]
        other = asked[second]
        if (
            one.latency * (one.outstanding * one.share + 1) + one.delay
            > other.latency * (other.outstanding * other.share + 1) + other.delay
        ):
            one, other = other, one
        if other.latency > one.latency and (
            not other.outstanding
            or (
                other.outstanding * other.share <= one.outstanding * one.share
                and self._outstanding < (_FEW if 2 * self._queues >= len(self._scores) else _MANY) * count
            )
        ):
            other.latency *= _STALE
            other.delay *= _STALE
        return one.node

    def _pick_by_key(self, key: str, exclude: Collection[NodeId]) -> NodeId | None:
        node = self._keys.get(key)
        if node is not None and node not in exclude:
            return node
        nodes = [node for node, score in self._scores.items() if not score.suspended and node not in exclude]
        if not nodes:
            return None
        node = max(nodes, key=lambda node: _weight(key, node))
        if not exclude:
            if len(self._keys) >= _KEYS:
                self._keys.clear()
            self._keys[key] = node
        return node

    def _try_later(self, score: _Score) -> None:
        """Have a member tried when it is time for that."""
        if score.due < math.inf:
            heapq.heappush(self._trials, (score.due, score.place, score))
            if len(self._trials) > 2 * len(self._scores) + _KEPT:  # most of them hold no more
                self._trials = [(due, place, held) for due, place, held in self._trials if self._holds(due, held)]
                heapq.heapify(self._trials)

    def _holds(self, due: float, score: _Score) -> bool:
        return due == score.due and self._scores.get(score.node) is score

    def _begin_trial(self, now: float, exclude: Collection[NodeId]) -> NodeId | None:
        """Return a member whose time to be tried has come.

        It costs no look at the others.  With one, 10,000 members of which 1,000 leave requests unanswered took 9 ms for
        each that was tried, and 139 % of a core for 1,000 requests a second; it is 1.1 % now.
        """
        excluded: list[_Score] = []
        tried: NodeId | None = None
        while tried is None and self._trials and self._trials[0][0] <= now:
            due, _, score = heapq.heappop(self._trials)
            if not self._holds(due, score) or score.suspended:
                continue
            circuit = score.circuit
            open_ = circuit is not None and circuit.state is CircuitState.OPEN
            if score.tried and score.outstanding and not open_:
                score.trial_at = now + score.pause  # it has not ended yet
            elif score.node in exclude:
                excluded.append(score)
                continue
            else:
                if circuit is not None and open_:
                    circuit.begin_trial()
                # If it is never sent, because that may not be repeated or there is no room, another one comes then.
                score.tried = True
                score.trial_at = now + score.pause
                tried = score.node
            self._try_later(score)
        for score in excluded:
            self._try_later(score)
        return tried

    def has_other(self, exclude: Collection[NodeId]) -> bool:
        """Return whether there is a member outside ``exclude`` to ask; nothing is drawn, and nothing grows stale."""
        return any(not score.suspended and node not in exclude for node, score in self._scores.items())

    def may_repeat(self, now: float, *, forced: bool = False) -> bool:
        """Return whether a request may be made once more, and count it; see ``RetryBudget.spend``."""
        return self._repeats.spend(self._started, now, forced=forced)

    def started(self, node: NodeId) -> None:
        """Count a request as outstanding at ``node``."""
        self._started += 1
        score = self._scores.get(node)
        if score is not None:
            if not score.outstanding and self._work is not None:
                self._work.wake()
            score.outstanding += 1
            self._outstanding += 1

    def finished(
        self, node: NodeId, latency: float, *, ok: bool, answered: bool | None = True, now: float = -math.inf
    ) -> None:
        """Count it as ended after ``latency`` seconds.

        Args:
            node: the member.
            latency: seconds that it took.
            ok: the member did what it was asked.
            answered: the member said something; False if it had all the time there was, None if that shows nothing.
            now: this moment.
        """
        score = self._scores.get(node)
        if score is not None:
            if score.outstanding:
                score.outstanding -= 1
                self._outstanding -= 1
            if now > _NEVER:
                self._aperture.finished(now)
            if not ok:
                self._aperture.failed(len(self._asked))
                before = score.trial_at
                score.fail(latency, now)
                if score.trial_at != before:
                    self._try_later(score)
            elif score.tried:
                score.forgive(max(latency, score.usual or 0.0))
            else:
                score.latency += _WEIGHT * (latency - score.latency)
            if score.circuit is not None or answered is False:
                self._judge(score, answered if latency >= _SILENCE or answered else None, now)

    def _judge(self, score: _Score, answered: bool | None, now: float) -> None:
        """Have the circuit of a member know how a request ended."""
        circuit = score.circuit
        if circuit is None:
            circuit = score.circuit = CircuitBreaker()
        was_closed = circuit.state is CircuitState.CLOSED
        if answered is None:
            changed = circuit.undecided(now)
        else:
            changed = circuit.answered() if answered else circuit.failed(now)
        if answered:
            score.circuit = None
        if changed:
            # Nothing else is to be worked out for one that is not asked anyway, and is not asked for longer now.
            self._arranged = self._arranged and was_closed == (circuit.state is CircuitState.CLOSED)
            self._try_later(score)


def _place(score: _Score) -> float:
    return score.place


def _weight(key: str, node: NodeId) -> bytes:
    return hashlib.blake2b(f"{key}\0{node}".encode(), digest_size=8).digest()
