"""Scenarios of a realm, each a function of size and seed that returns what was measured.  Times in seconds."""

from __future__ import annotations

import dataclasses
import math
from typing import Final, final

from benchmarks.membership.callers import Callers
from benchmarks.membership.overlays import Overlay
from benchmarks.membership.realm import Realm
from iris.cluster.swim.records import MemberState
from iris.kernel.names import NodeId

_SETTLE: Final = 3.0
"""Seconds before anything happens: every machine is in the middle of its rounds."""

_STEP: Final = 0.05
"""Seconds between looks at a condition."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One member's end, as the others saw it.  ``inf`` where not everybody saw it in time."""

    suspected_first: float
    dead_first: float
    dead_everywhere: float
    routed_out_half: float
    routed_out_everywhere: float
    last_request: float
    """Time at which the last of its callers sent it something."""
    false_deaths: int


def _end(realm: Realm, victim: NodeId, since: float, callers: Callers | None) -> Death:
    dead = realm.times(victim, MemberState.DEAD, since)
    closed = realm.closed(victim, since)
    suspected = realm.times(victim, MemberState.SUSPECT, since)
    survivors = len(realm.machines)
    return Death(
        suspected_first=min(suspected, default=math.inf),
        dead_first=min(dead, default=math.inf),
        dead_everywhere=dead[-1] if len(dead) == survivors else math.inf,
        routed_out_half=closed[len(closed) // 2] if closed else math.inf,
        routed_out_everywhere=closed[-1] if len(closed) == survivors else math.inf,
        last_request=max(callers.last_sent.values()) - since if callers and callers.last_sent else math.nan,
        false_deaths=sum(noted.subject != victim for noted in realm.deaths()),
    )


def silent_death(
    size: int, seed: int, *, loss: float = 0.0, callers: int = 10, overlay: Overlay | None = None
) -> Death:
    """A host vanishes without a word while some have work for a member on it."""
    realm = Realm(size, seed, loss=loss, overlay=overlay)
    victim, *others = realm.random.sample(realm.nodes, min(size, callers + 1))
    sending = Callers(realm, others, victim)
    realm.run(_SETTLE + realm.random.random())
    since = realm.now
    realm.vanish(victim)
    realm.run(12.0)
    return _end(realm, victim, since, sending)


def killed(size: int, seed: int, *, linked: float = 1.0) -> Death:
    """A process is killed: ``linked`` of the others see their connection break."""
    realm = Realm(size, seed)
    victim = realm.random.choice(realm.nodes)
    realm.run(_SETTLE + realm.random.random())
    since = realm.now
    realm.kill(victim, linked=linked)
    realm.run(4.0)
    return _end(realm, victim, since, None)


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Seconds until everybody had seen each join, and each leave."""

    joins: list[float]
    leaves: list[float]
    handshakes: list[int]
    """Links that each newcomer made, or others to it."""


def arrivals(size: int, seed: int, *, count: int = 20, overlay: Overlay | None = None) -> Arrivals:
    """Nodes join one after the other, and leave again."""
    realm = Realm(size, seed, overlay=overlay)
    realm.run(_SETTLE)
    joins: list[float] = []
    leaves: list[float] = []
    handshakes: list[int] = []
    for _ in range(count):
        since = realm.now
        node = realm.start(realm.random.choice(realm.nodes))
        realm.run(4.0)
        seen = realm.times(node, MemberState.ALIVE, since)
        joins.append(seen[-1] if len(seen) == len(realm.machines) - 1 else math.inf)
        handshakes.append(size if realm.links is None else realm.links.made[node])
        since = realm.now
        realm.perform(node, realm.machines[node].leave(since))
        realm.run(0.2)
        realm.vanish(node)
        realm.run(3.8)
        seen = realm.times(node, MemberState.LEFT, since)
        leaves.append(seen[-1] if len(seen) == len(realm.machines) else math.inf)
        realm.noted.clear()
    return Arrivals(joins=joins, leaves=leaves, handshakes=handshakes)


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The cost of nothing happening."""

    messages: float
    """Per second and node."""
    suspected: int
    closed_routes: int
    deaths: int
    node_hours: float
    handshakes: float
    """Links made per minute and node, to pass on what travels over none that is kept."""


def steady(size: int, seed: int, *, seconds: float = 30.0, loss: float = 0.0, overlay: Overlay | None = None) -> Rate:
    """Nothing happens, but for messages that are lost."""
    realm = Realm(size, seed, loss=loss, overlay=overlay)
    realm.run(_SETTLE)
    before, made = realm.messages, 0 if realm.links is None else realm.links.made.total()
    suspected = closed = deaths = 0
    left = seconds
    while left > 0:
        realm.run(min(left, 600.0))
        left -= 600.0
        for noted in realm.noted:
            closed += noted.closes
            suspected += noted.shows(MemberState.SUSPECT)
            deaths += noted.shows(MemberState.DEAD)
        realm.noted.clear()
    return Rate(
        messages=(realm.messages - before) / seconds / size,
        suspected=suspected,
        closed_routes=closed,
        deaths=deaths,
        node_hours=size * seconds / 3600,
        handshakes=0.0 if realm.links is None else (realm.links.made.total() - made) / seconds / size * 60,
    )


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """The end of a partition."""

    full_view: float
    """Seconds from its end until everybody saw everybody alive."""
    lost_within: int
    """Deaths and closed routes between members of one side, while it lasted."""
    separated: bool
    """True if each side had given the other up."""


def partition(
    size: int, seed: int, *, minority: float = 0.5, seconds: float = 60.0, overlay: Overlay | None = None
) -> Healing:
    """The network falls in two for a while."""
    realm = Realm(size, seed, overlay=overlay)
    realm.run(_SETTLE)
    few = set(realm.random.sample(realm.nodes, int(size * minority)))
    realm.cut = lambda one, other: (one in few) != (other in few)
    realm.run(30.0)
    lost = _within(realm, few)
    elapsed = 30.0
    while elapsed < seconds:
        step = min(300.0, seconds - elapsed)
        realm.noted.clear()
        realm.run(step)
        lost += _within(realm, few)
        elapsed += step
    separated = all(
        machine.statistics().alive == (len(few) if node in few else size - len(few)) - 1
        for node, machine in realm.machines.items()
    )
    realm.cut = None
    since = realm.now
    while realm.now < since + 60.0 and not realm.complete():
        realm.run(_STEP)
    return Healing(full_view=realm.now - since if realm.complete() else math.inf, lost_within=lost, separated=separated)


def _within(realm: Realm, few: set[NodeId]) -> int:
    inside = [noted for noted in realm.noted if (noted.observer in few) == (noted.subject in few)]
    return sum(noted.closes or noted.shows(MemberState.DEAD) for noted in inside)


def decimated(size: int, seed: int, *, overlay: Overlay | None = None) -> float:
    """Half of the hosts vanish in one moment; return the seconds until each of the others sees all of them dead."""
    realm = Realm(size, seed, overlay=overlay)
    realm.run(_SETTLE)
    for node in realm.random.sample(realm.nodes, size // 2):
        realm.vanish(node)
    since = realm.now
    others = len(realm.machines) - 1
    while any(machine.statistics().alive > others for machine in realm.machines.values()):
        if realm.now > since + 120.0:
            return math.inf
        realm.run(_STEP)
    return realm.now - since


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Members that now and then do not run."""

    healthy_deaths: int
    """Number of times that a node concluded that a member that ran all the time was dead."""
    stalled_deaths: int
    full_view: float
    """Seconds after the last stall until everybody saw everybody alive."""


def stalls(size: int, seed: int, *, stalled: int, seconds: float = 300.0, longest: float = 10.0) -> Stalls:
    """Some members stand still for up to ``longest`` seconds, run a little, stand still, ..."""
    realm = Realm(size, seed)
    realm.run(_SETTLE)
    slow = realm.random.sample(realm.nodes, stalled)
    end = realm.now + seconds

    def stand_still(node: NodeId) -> None:
        if realm.now < end:
            pause = 0.1 + (longest - 0.1) * realm.random.random() ** 2
            realm.stall(node, pause)
            realm.after(pause + 3 * realm.random.random(), stand_still, node)

    for node in slow:
        realm.after(realm.random.random() * 5, stand_still, node)
    realm.run(seconds + longest)
    deaths = [noted.subject for noted in realm.deaths()]
    since = realm.now
    while realm.now < since + 60.0 and not realm.complete():
        realm.run(_STEP)
    among = set(slow)
    return Stalls(
        healthy_deaths=sum(node not in among for node in deaths),
        stalled_deaths=sum(node in among for node in deaths),
        full_view=realm.now - since if realm.complete() else math.inf,
    )


def one_way(size: int, seed: int, *, seconds: float = 120.0) -> tuple[int, int]:
    """Nothing from one member reaches one other; return (deaths, members that still give that other one work)."""
    realm = Realm(size, seed)
    realm.run(_SETTLE)
    deaf, mute = realm.random.sample(realm.nodes, 2)
    realm.cut = lambda one, other: one == mute and other == deaf
    realm.run(seconds)
    closed = {noted.observer for noted in realm.noted if noted.closes and noted.subject == mute}
    return len(realm.deaths()), size - 1 - len(closed)
