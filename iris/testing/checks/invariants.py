"""Checks: what must hold of a system whatever goes wrong.  Each raises AssertionError and says what does not.

Those of histories are in ``iris/testing/history.py``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Final

import trio

from iris.kernel.errors import DeliveryError
from iris.node.node import Node
from iris.node.statistics import NodeStatistics

if TYPE_CHECKING:
    import iris.aio

_PAUSE: Final = 0.5


def check_books(node: Node | iris.aio.Node | NodeStatistics) -> None:
    """Check that what a node has counted adds up: nothing that was sent is unaccounted for.

    In each pattern *sent = answered + handed over + expired + refused + lost + waiting*, and nothing waits in a node
    that is closed.  Each link has passed on what was posted, or has lost it, or it waits there.  ``simulate`` checks
    every node at the end of its run.
    """
    inner = node if isinstance(node, Node | NodeStatistics) else node._inner
    statistics = inner.statistics() if isinstance(inner, Node) else inner
    tunnels = statistics.tunnels
    patterns = {
        "requests": statistics.requests,
        "broadcasts": statistics.broadcasts,
        "relayed": statistics.relayed,
        "events": statistics.events,
        "tunnels": tunnels.messages,
    }
    closed = isinstance(inner, Node) and inner._guard.is_closed
    for name, pattern in patterns.items():
        assert pattern.waiting >= 0, f"the books of {name} do not balance: more ended than was sent: {pattern}"
        assert not closed or pattern.waiting == 0, f"the books of {name} do not balance: some never ended: {pattern}"
    publishing = statistics.publishing
    accounted = publishing.handed_over + sum(publishing.lost.values())
    assert publishing.sent == accounted, f"the books of publishing do not balance: sent {publishing.sent}: {publishing}"
    for link in statistics.links.values():
        assert link.posted == link.sent + link.lost + link.waiting, f"the books of a link do not balance: {link}"
    for cluster, service in statistics.services.items():
        came = service.received
        went = service.served + service.failed + service.expired + service.cancelled + service.refused
        assert came == went + service.running + service.queued, f"the books of {cluster} do not balance: {service}"
    unexpected = [reason for reason in statistics.refusals if reason.startswith("unexpected error")]
    assert not unexpected, f"a peer's messages have brought about errors that nobody expects: {unexpected}"


def check_fifo(received: Iterable[tuple[Hashable, int]]) -> None:
    """Check that what came from each publisher came in its order, and nothing twice; some may be missing.

    Args:
        received: the publisher, and the number that it has given the event, in the order of arrival.
    """
    latest: dict[Hashable, int] = {}
    for publisher, number in received:
        before = latest.get(publisher)
        assert before is None or number > before, (
            f"not in the order of {publisher!r}: {number} came {'twice' if number == before else f'after {before}'}"
        )
        latest[publisher] = number


def check_at_most_once(effects: Iterable[Hashable]) -> None:
    """Check that no effect is there twice: a payment, say, by the number of its order."""
    seen: set[Hashable] = set()
    for effect in effects:
        assert effect not in seen, f"{effect!r} has happened more than once"
        seen.add(effect)


async def check_answers(
    node: Node, cluster: str, payload: object = b"", *, within: float = 60.0, **options: object
) -> None:
    """Check that a cluster answers again: liveness, after everything was healed.

    Args:
        node: the node that asks.
        cluster: the one asked.
        payload: the payload of the request; asked again until it is answered, so one that may be repeated.
        within: seconds that it may take.
        options: further ones of ``Node.request``.
    """
    last: Exception | None = None
    with trio.move_on_after(within):
        while True:
            try:
                await node.request(cluster, payload, **options)  # type: ignore[arg-type]
            except DeliveryError as error:
                last = error
                await trio.sleep(_PAUSE)
            else:
                return
    raise AssertionError(f"{cluster} has answered nothing for {within:g} s after the faults were over: {last!r}")
