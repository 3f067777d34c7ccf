"""What a run of requests may look like, given what its callers were told and what its members did (sans-IO).

The model, for each request:

=================  ====================================  =======================================================
request            its caller was told                   its effects
=================  ====================================  =======================================================
idempotent         a reply, always                       one at least; one at most at each member; at several
                                                         members only if all but one of them may have been lost
not idempotent     a reply                               exactly one
not idempotent     ``NotSent``, ``Overloaded``           none
not idempotent     ``Unknown``, ``RequestTimeout``       none or one
=================  ====================================  =======================================================
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, final

_SHOWN: Final = 10
"""Violations of one kind that are described; the others are counted."""


@final
class Outcome(enum.IntEnum):
    """What a caller was told."""

    NOTHING = 0
    REPLY = 1
    NOT_RUN = 2
    UNKNOWN = 3
    FAILED = 4


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the history shows."""

    violations: tuple[str, ...]
    lost: int
    """Idempotent requests without a reply."""
    doubled: int
    """Requests with more effects than the model allows."""
    repeated: int
    """Idempotent requests that a second member ran because the first one was lost: allowed."""
    moved: int
    """Idempotent requests that two members ran which both live: each was held dead for a while by the caller."""
    outcomes: Mapping[str, int]
    """Of the requests that are not idempotent."""


def judge(
    idempotent: Sequence[int],
    plain: Sequence[int],
    effects: Mapping[str, Sequence[int]],
    plain_effects: Mapping[str, Sequence[int]],
    killed: Collection[str],
) -> Verdict:
    """Compare a history with the model.

    Args:
        idempotent: the outcome of each idempotent request, by number.
        plain: the outcome of each other one.
        effects: numbers of the idempotent requests that each member ran, in order.
        plain_effects: the same of the others.
        killed: members that were killed.
    """
    violations: Counter[str] = Counter()
    texts: list[str] = []

    def violated(kind: str, text: str) -> None:
        violations[kind] += 1
        if violations[kind] <= _SHOWN:
            texts.append(f"{kind}: {text}")

    ran: dict[int, list[str]] = {}
    for member, numbers in effects.items():
        for number, times in Counter(numbers).items():
            ran.setdefault(number, []).append(member)
            if times > 1:
                violated("doubled", f"idempotent request {number} ran {times} times at {member}")
    repeated = moved = 0
    for number, outcome in enumerate(idempotent):
        members = ran.get(number, [])
        if outcome != Outcome.REPLY:
            violated("lost", f"idempotent request {number}: {Outcome(outcome).name}")
        elif not members:
            violated("invented", f"idempotent request {number} has a reply and no effect")
        if len(members) > 1:
            living = sum(member not in killed for member in members)
            repeated += living <= 1
            moved += living > 1
    plain_ran = Counter(number for numbers in plain_effects.values() for number in numbers)
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
        repeated=repeated,
        moved=moved,
        outcomes={Outcome(code).name: count for code, count in sorted(Counter(plain).items())},
    )
