"""Model of a run of requests: the effects that members may have, given the outcomes that callers got (sans-IO).

The model, for each request:

=================  ====================================  =======================================================
request            its caller got                        its effects
=================  ====================================  =======================================================
idempotent         a reply, always                       one at least; one at most at each member
not idempotent     a reply                               exactly one
not idempotent     ``NotSent``, ``Overloaded``           none
not idempotent     ``Unknown``, ``RequestTimeout``       none or one
=================  ====================================  =======================================================

Members remember for themselves, so an idempotent request has a second effect where a second member is asked while the
first has run it, or still will.  Two classes, distinguished by the moments of the effects:

*after death*      every member that ran it before had been killed when it ran again: what the killing is for.
*beside*           one of them lived: the caller presumed it dead, because it was silent for too long or its connection
                   broke.  It may happen, and is never hidden: there are at most as many requests with several effects
                   as the caller has counted as ``moved`` in its statistics.

A member has no effects after its death; else it was not killed.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, final

_SHOWN: Final = 10
"""Violations of one kind that are described; the others are counted."""


@final
class Outcome(enum.IntEnum):
    """Outcome of a request for its caller."""

    NOTHING = 0
    REPLY = 1
    NOT_RUN = 2
    UNKNOWN = 3
    FAILED = 4


class Effects(NamedTuple):
    """Effects of one member: the requests that it ran."""

    numbers: Sequence[int]
    """Numbers of the requests, in order."""
    moments: Sequence[int]
    """Times at which each began, in nanoseconds of one clock for everything."""


class Death(NamedTuple):
    """Death of a member: when it was killed, by the same clock."""

    killed: int
    dead: int
    """Time at which it was seen to be dead: milliseconds later."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on the history."""

    violations: tuple[str, ...]
    lost: int
    """Idempotent requests without a reply."""
    doubled: int
    """Requests with more effects than the model allows."""
    after_death: int
    """Idempotent requests that another member ran when all that had run them before were killed: allowed."""
    beside: int
    """Requests that ran again while a member that had run them lived: allowed if the caller has counted them."""
    outcomes: Mapping[str, int]
    """Outcomes of the requests that are not idempotent."""


def judge(
    idempotent: Sequence[int],
    plain: Sequence[int],
    effects: Mapping[str, Effects],
    plain_effects: Mapping[str, Effects],
    deaths: Mapping[str, Death],
    moved: int,
) -> Verdict:
    """Compare a history with the model.

    Args:
        idempotent: the outcome of each idempotent request, by number.
        plain: the outcome of each other one.
        effects: of the idempotent requests, by member.
        plain_effects: of the others.
        deaths: of the members that were killed.
        moved: requests that the caller says it gave to another member while the one before may have run them.
    """
    violations: Counter[str] = Counter()
    texts: list[str] = []

    def violated(kind: str, text: str) -> None:
        violations[kind] += 1
        if violations[kind] <= _SHOWN:
            texts.append(f"{kind}: {text}")

    for kind in (effects, plain_effects):
        for member, death in deaths.items():
            for moment in kind[member].moments if member in kind else ():
                if moment > death.dead:
                    violated("undead", f"{member} ran a request {(moment - death.dead) / 1e9:.3f} s after its death")
    ran: dict[int, list[str]] = {}
    for member, of_member in effects.items():
        for number, times in Counter(of_member.numbers).items():
            ran.setdefault(number, []).append(member)
            if times > 1:
                violated("doubled", f"idempotent request {number} ran {times} times at {member}")
    for number, outcome in enumerate(idempotent):
        if outcome != Outcome.REPLY:
            violated("lost", f"idempotent request {number}: {Outcome(outcome).name}")
        elif number not in ran:
            violated("invented", f"idempotent request {number} has a reply and no effect")
    several = {number for number, members in ran.items() if len(members) > 1}
    if len(several) > moved:
        violated("unexplained", f"{len(several)} requests ran at several members, the caller has counted {moved}")
    beside = sum(_lived(order, deaths) for order in _orders(effects, several).values())
    plain_ran = Counter(number for of_member in plain_effects.values() for number in of_member.numbers)
    for number, outcome in enumerate(plain):
        times = plain_ran[number]
        if times > 1:
            violated("doubled", f"request {number} ran {times} times")
        if outcome == Outcome.REPLY and not times:
            violated("invented", f"request {number} has a reply and no effect")
        if outcome == Outcome.NOT_RUN and times:
            violated("denied", f"request {number} ran, and its caller was told that it did not")
        if outcome in (Outcome.NOTHING, Outcome.FAILED):
            violated("silent", f"request {number}: {Outcome(outcome).name}")
    for number in ran.keys() - set(range(len(idempotent))) | plain_ran.keys() - set(range(len(plain))):
        violated("invented", f"request {number} ran and was never made")
    return Verdict(
        violations=(*texts, *(f"{kind}: {count} in all" for kind, count in violations.items())),
        lost=violations["lost"],
        doubled=violations["doubled"],
        after_death=len(several) - beside,
        beside=beside,
        outcomes={Outcome(code).name: count for code, count in sorted(Counter(plain).items())},
    )


def _orders(effects: Mapping[str, Effects], wanted: set[int]) -> dict[int, list[tuple[int, str]]]:
    """Return when and where each of some requests ran, in order."""
    orders: dict[int, list[tuple[int, str]]] = {number: [] for number in wanted}
    for member, (numbers, moments) in effects.items():
        for number, moment in zip(numbers, moments, strict=True):
            if number in wanted:
                orders[number].append((moment, member))
    for order in orders.values():
        order.sort()
    return orders


def _lived(order: Sequence[tuple[int, str]], deaths: Mapping[str, Death]) -> bool:
    """Return whether a member that had run a request had not been killed when another one ran it."""
    return any(
        before != member and (before not in deaths or deaths[before].killed >= moment)
        for place, (moment, member) in enumerate(order)
        for _, before in order[:place]
    )
