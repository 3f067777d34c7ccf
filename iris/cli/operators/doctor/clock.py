"""The clock of this machine against those of other nodes, as their delegations tell it.

A node with a portable credential dates its own delegation when it starts, and renews it 8 hours before it ends.  So its
clock shows no less than the beginning, and less than the end.  What a clock differs by within that cannot be seen from
one side; ``seeds.py`` tries, with a node that has the date of the other one's start, whether that makes the difference.
"""

from __future__ import annotations

from typing import Final

from iris.cli.operators.doctor.findings import Diagnosis, problem, warning
from iris.security.identity import CLOCK_TOLERANCE, NodeDelegation

_SET: Final = "timedatectl set-ntp true"
_NOTICEABLE: Final = 30.0
"""Seconds below which a difference is not worth a word."""

_WHOLE: Final = 32
"""Digits of a node's id in a delegation that the node has made itself; a sealed credential has the first half."""


def clock_difference(url: str, delegation: NodeDelegation | None, wall_now: float) -> Diagnosis | None:
    """Return by how much the clock here and that of a node differ at least, if its delegation shows it."""
    if delegation is None:
        return None
    behind = started(delegation) - wall_now
    if behind > CLOCK_TOLERANCE:
        return problem("clock-behind", f"the clock here is at least {_span(behind)} behind that of {url}", _SET)
    late = wall_now - delegation.not_after
    if late >= 0 and len(delegation.node) == _WHOLE:  # that of a sealed credential may well have ended
        return problem("clock-ahead", f"the clock here is at least {_span(late)} ahead of that of {url}", _SET)
    if behind > _NOTICEABLE:
        cause = f"the clock here is at least {_span(behind)} behind that of {url}; nodes bear {CLOCK_TOLERANCE} s"
        return warning("clock-peer", cause, _SET)
    return None


def started(delegation: NodeDelegation) -> float:
    """Return the date at which a node made its delegation, by its own clock."""
    return delegation.not_before + CLOCK_TOLERANCE


def ahead(url: str, delegation: NodeDelegation, wall_now: float) -> Diagnosis:
    """Return the finding for a node that accepts this one at an earlier date, and not today."""
    most = _span(wall_now - started(delegation))
    cause = f"the clock here is more than {CLOCK_TOLERANCE // 60} minutes ahead of that of {url}, by {most} at most"
    return problem("clock-ahead", cause, _SET)


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
