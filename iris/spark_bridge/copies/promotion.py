"""Promotion: makes a copy the primary, if nothing that was confirmed is lost by it, or if that is accepted.

Nothing here decides that a primary is gone: a person does, or an outside lease (one of Kubernetes, a lock of etcd)
whose holder runs ``iris bridge promote``.  However often it is run, at most one log has a term, and a primary
of an earlier one confirms nothing any more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, final

import trio

from iris.kernel.errors import ConfigError
from iris.node.node import Node
from iris.patterns.pubsub.interest import copies_cluster
from iris.spark_bridge.copies.follower import ask_copies, later_term
from iris.spark_bridge.copies.terms import needed_promises
from iris.spark_bridge.copies.wire import CopyState, Promise, Promote

_PAUSE: Final = 0.2


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """Result of a promotion."""

    copy: str
    term: int
    min_copies: int
    lost: Sequence[str]
    """Possible losses that were accepted by force, a sentence each."""


async def promote(
    node: Node,
    bridge: str,
    shard: int,
    *,
    copy: str | None = None,
    min_copies: int | None = None,
    force: bool = False,
    succeeded: int | None = None,
    patience: float = 5.0,
) -> Promotion:
    """Make a copy of a shard's log the primary.  For nodes of the bridge's own cluster.

    Args:
        node: asks the copies.
        bridge: the bridge's cluster.
        shard: the lowest number of the member's shards.
        copy: name of the copy. None: the one that has most.
        min_copies: number of copies that the new primary waits for. None: as many as the former one did.
        force: promote even if events are lost by it.
        succeeded: term of the primary that is gone: nobody is promoted if a copy follows a later one. None: whichever.
        patience: seconds for copies to be found, and to catch up; the whole call may need some more.

    Raises:
        ConfigError: there is no such copy, or something would be lost, or another promotion came before; the message
            says what to do.
        NotAllowed: this node speaks for another cluster.
    """
    deadline = trio.current_time() + patience
    while True:
        states = await ask_copies(node, bridge, shard, "state")
        if succeeded is not None and (taken := [state.copy for state in states if state.followed > succeeded]):
            raise _overtaken(taken[0])
        named = [state for state in states if copy in (None, state.copy)]
        if named and not objections_to(_most(named), states):
            break
        if trio.current_time() + _PAUSE > deadline:
            break
        await trio.sleep(_PAUSE)
    if not states:
        term = await later_term(node, bridge, shard)
        there = f"; its primary is there, of term {term}" if term else ", and no primary that has copies"
        raise ConfigError(f"shard {shard} of bridge {bridge!r} has no copy that is there{there}")
    chosen = _choose(states, copy, bridge, shard)
    if (objections := objections_to(chosen, states)) and not force:
        raise _refused(chosen, objections)
    term = max(max(state.promised, state.term) for state in states) + 1
    promised = await ask_copies(node, bridge, shard, "promise", Promise(term=term, succeeded=succeeded))
    refusing = [state.copy for state in promised if not state.granted]
    if refusing:
        raise _overtaken(refusing[0])
    # Only now, when no copy accepts changes from the former primary any more, it is settled which copy has what.
    chosen = _choose(promised, chosen.copy, bridge, shard)
    if (objections := objections_to(chosen, promised)) and not force:
        raise _refused(chosen, objections)
    order = Promote(copy=chosen.copy, term=term, min_copies=min_copies)
    answers = await _order(node, bridge, shard, order)
    if True not in answers:
        raise ConfigError(
            f"copy {chosen.copy!r} has not answered that it is the primary of term {term}: look whether it is ('iris "
            "bridge status'), and promote again if nobody is"
        )
    return Promotion(
        copy=chosen.copy,
        term=term,
        min_copies=chosen.min_copies if min_copies is None else min_copies,
        lost=objections,
    )


async def _order(node: Node, bridge: str, shard: int, order: Promote) -> list[object]:
    async with node.survey(copies_cluster(bridge, shard), order, operation="promote", timeout=5.0) as survey:
        return [answer.payload async for answer in survey]


def _most(states: Sequence[CopyState]) -> CopyState:
    return max(states, key=lambda state: (state.whole, state.place, state.copy))


def _choose(states: Sequence[CopyState], copy: str | None, bridge: str, shard: int) -> CopyState:
    if copy is None:
        return _most(states)
    for state in states:
        if state.copy == copy:
            return state
    there = ", ".join(sorted(state.copy for state in states))
    raise ConfigError(
        f"shard {shard} of bridge {bridge!r} has no copy {copy!r} that is there; there: {there or 'none'}"
    )


def objections_to(chosen: CopyState, states: Sequence[CopyState]) -> list[str]:
    """Return what would be lost if a copy was promoted, as far as the reachable copies know."""
    found: list[str] = []
    newest = max(states, key=lambda state: state.revision)
    if not chosen.whole:
        found.append(
            f"copy {chosen.copy!r} is catching up: it lacks the last events, and of others it does not know who "
            "published them, so that they may be stored twice"
        )
    for other in states:
        more = sum(max(0, at - chosen.next.get(shard, 0)) for shard, at in other.next.items())
        if other.place > chosen.place:
            found.append(f"copy {other.copy!r} has more than {chosen.copy!r}: {more} events would be lost")
    needed = needed_promises(len(newest.copies), newest.min_copies)
    # One that counted and began anew has lost what it confirmed, until it is whole: its promise says nothing.
    emptied = {state.copy for state in states if state.emptied or (not state.number and state.copy in newest.counted)}
    away = sorted(set(newest.copies) - {state.copy for state in states} | emptied)
    if away and len(newest.copies) - len(away) < needed:
        names = ", ".join(f"{name} (empty now)" if name in emptied else name for name in away)
        found.append(
            f"of {len(newest.copies)} copies {needed} have to be there, and {names} {_are(away)} not: events "
            f"that only they have would be lost; 'iris bridge drop --copy {away[0]}/{min(chosen.next)}' takes one that "
            "is gone for good from the list as long as the primary is there"
        )
    if newest.min_copies == 0:
        found.append(
            "its primary confirms without waiting for copies: what it has confirmed since this copy heard of it last "
            "would be lost, and nobody here knows how much that is"
        )
    return found


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _overtaken(copy: str) -> ConfigError:
    return ConfigError(
        f"copy {copy!r} has promised itself to another promotion meanwhile: look who is primary now ('iris bridge "
        "status'), and promote again if nobody is"
    )


def _refused(chosen: CopyState, objections: Sequence[str]) -> ConfigError:
    return ConfigError(f"copy {chosen.copy!r} is not promoted: {'; '.join(objections)}. --force does it all the same")
