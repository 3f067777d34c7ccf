"""Neighbours: nodes that are announced on this machine, and that the node of this examination cannot link to."""

from __future__ import annotations

from typing import Final

import trio

import iris
from iris.cli.operators.doctor.findings import Diagnosis, problem
from iris.cli.operators.doctor.seeds import reach
from iris.cluster.discovery import Registry
from iris.cluster.mesh import NoWayBack, TurnedAway
from iris.kernel.names import NodeId
from iris.kernel.transport import Refused

_MOST: Final = 16
"""Neighbours that are dialled."""

_AT_ONCE: Final = 4


async def examine_neighbours(node: iris.Node, registry: Registry) -> list[Diagnosis]:
    """Dial each node that is announced and not linked, and return what is wrong with it.

    One that was killed is no neighbour: nobody listens at its address.
    """
    found: list[Diagnosis] = []
    limiter = trio.CapacityLimiter(_AT_ONCE)

    async def examine(other: NodeId, url: str) -> None:
        async with limiter:
            reached = await reach(node, url)
        if reached.peer is None and not isinstance(reached.error, Refused) and registry.holds(other):
            cause = f"node {other[:8]} of this machine is not linked: {_reason(reached.error)}"
            found.append(problem("neighbour-unlinked", cause, f"ss -lxp | grep {other[:8]}"))

    unlinked = registry.entries({node.id, *(other.node for other in node.nodes())}, _MOST)
    async with trio.open_nursery() as nursery:
        for other, addresses in unlinked.items():
            if addresses:
                nursery.start_soon(examine, other, addresses[0])
    return sorted(found, key=lambda finding: finding.cause)


def _reason(error: Exception | None) -> str:
    match error:
        case TurnedAway():
            return "it hangs up on this one, and speaks another version of the protocol or has no room for more"
        case NoWayBack():
            return "it takes connections and does not answer: it is stopped, or hangs"
        case None:
            return "it ends each link as soon as that is up"
        case _:
            return str(error)
