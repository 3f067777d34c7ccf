"""Trace: the route of one request, with the round trip time to each gateway on it and to the member that answered.

No two clocks are compared.  Each time is a duration that one node has measured by its own clock: the asking node that
of the whole and of round trips, the member how long the request waited for a handler, and how long that took.

- A request is sent as any other, to the member that the balancer picks.  Its headers begin a trace of W3C Trace
  Context, so members that record spans have them under ``trace_id``.
- Gateways are found as traceroute finds them: a small message goes where the frames of the request went, and the
  gateway at which its hops are used up answers it.  Each hop is asked three times, and the shortest time counts.
- The member is pinged by its link, which leads through the same gateways.

So a hop's time is from here to there and back, and grows along the way.  Answers may come back another way, as replies
do.  What a gateway says of itself nobody else vouches for.
"""

from __future__ import annotations

from typing import Final, Literal, final

import trio
from msgspec import Struct

from iris.cluster.routes import HOPS, parse_site_url
from iris.cluster.sites import reach_one
from iris.kernel.errors import RemoteError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.node.arguments import check_timeout, check_wait, check_whom
from iris.node.node import Node
from iris.patterns.picker import nobody_serves
from iris.patterns.request import Begun, failure_of

_ROUNDS: Final = 3

_HOP_PATIENCE: Final = 1.0
"""Seconds that a gateway has to answer, each time."""


@final
class TraceHop(Struct, frozen=True, kw_only=True):
    """One node on the route of a request."""

    kind: Literal["gateway", "member"]
    node: NodeId | None
    """Id of the node; None if the node that is there has not answered."""
    site: str
    """Site of the node; empty for none, and ``REALM/SITE`` in another realm."""
    round_trip: float | None
    """Seconds from here to there and back."""


@final
class RequestTrace(Struct, frozen=True, kw_only=True):
    """One request, and its route.  Times are in seconds."""

    cluster: str
    operation: str | None
    member: NodeId
    site: str
    trace_id: str
    """Trace id of W3C Trace Context: 32 hexadecimal digits."""
    taken: float
    """Time from asking to the reply."""
    waited: float | None
    """Time that it waited for a handler, as the member measures it.  None if the member did not report it."""
    ran: float | None
    """Time that the handler took, likewise."""
    error: str | None
    """The error in place of a reply.  None if there was a reply."""
    hops: tuple[TraceHop, ...]
    """The gateways in their order, then the member."""


async def trace_request(
    node: Node,
    cluster: str,
    payload: object = None,
    *,
    operation: str | None = None,
    timeout: float = 5.0,
    wait: float = 0.0,
) -> RequestTrace:
    """Ask one member of a cluster, once, and find the route to it.

    Args:
        node: the node that asks.
        cluster: see ``Node.request``, also for the others.

    Raises:
        NoSuchCluster: nobody serves it.
        PayloadTooLarge, LocalProtocolError: the payload cannot be sent.

    What comes instead of a reply, a timeout too, is in ``error``.  Cancelling it tells the member to stop, and leaves
    nothing behind.
    """
    node._guard.check()
    check_whom(cluster, operation)
    timeout = check_timeout(timeout)
    if wait:
        await node._first.wait(cluster, check_wait(wait))
    timeout = await reach_one(node._reach, cluster, None, timeout)
    numbers = node._environment.random  # as OpenTelemetry makes them: they are no secret
    trace_id, ended = numbers.randbytes(16).hex(), trio.Event()
    asked = trio.current_time()
    call = node._requests.call(
        cluster,
        payload,
        timeout=timeout,
        operation=operation,
        headers={"traceparent": f"00-{trace_id}-{numbers.randbytes(8).hex()}-01"},
        timed=True,
    )
    begun = node._requests.begin(call, ended.set)
    if begun is None:
        raise nobody_serves(cluster, node._mesh, node._membership)
    try:
        await ended.wait()
    except trio.Cancelled:
        begun.abandon()
        raise
    taken = trio.current_time() - asked
    error = await _error_of(begun, cluster, timeout)
    attempt = begun.attempt
    waited, ran = attempt.times or (None, None)
    hops = await _hops_to(node, attempt.member)
    return RequestTrace(
        cluster=cluster,
        operation=operation,
        member=attempt.member,
        site=hops[-1].site,
        trace_id=trace_id,
        taken=taken,
        waited=waited,
        ran=ran,
        error=error,
        hops=hops,
    )


async def _error_of(begun: Begun, cluster: str, timeout: float) -> str | None:
    """End a request of which the outcome is known; return its error as text, None for a reply."""
    outcome, member = begun.attempt.outcome, begun.attempt.member
    try:
        if begun.reply() is not None:
            return None
        if isinstance(outcome, kinds.Failure) and outcome.retry_after < 0:
            await begun.go_on()  # raises what the handler has
    except RemoteError as error:
        return str(error)
    begun.abandon()  # another member would be another request
    match outcome:
        case None:
            return f"no reply from cluster {cluster!r} within {timeout:g} s"
        case kinds.Failure():
            return str(failure_of(cluster, member, outcome))
        case _:
            return f"node {member}, a member of {cluster!r}, was lost: {outcome}"


async def _hops_to(node: Node, member: NodeId) -> tuple[TraceHop, ...]:
    peer, sites = node._mesh.peer(member), node._sites
    gateways: list[TraceHop] = []
    site = node.site
    if peer is not None and peer.at_remote_site and sites is not None:
        named = parse_site_url(peer.addresses[0])[0]
        site = sites.remote_members.name_of(named)
        for hops in range(HOPS):
            gateway, found = await _gateway(node, (named, member), hops)
            gateways.append(gateway)
            if found is None or found == named:
                break
    return (*gateways, TraceHop(kind="member", node=member, site=site, round_trip=await _ping(node, member)))


async def _gateway(node: Node, target: tuple[str, NodeId], hops: int) -> tuple[TraceHop, str | None]:
    """Return the gateway that is so many hops away, and its site as the directory names it; None: nobody answers."""
    sites = node._sites
    assert sites is not None
    best: tuple[float, str, NodeId] | None = None
    for _ in range(_ROUNDS):
        asked = trio.current_time()
        with trio.move_on_after(_HOP_PATIENCE):
            hop = await sites.find_hop(target, hops, int.from_bytes(node._environment.entropy(6)))
            if hop is not None:
                best = min(
                    best or (float("inf"), "", hop.gateway), (trio.current_time() - asked, hop.site, hop.gateway)
                )
        if best is None:
            return TraceHop(kind="gateway", node=None, site="", round_trip=None), None
    assert best is not None
    taken, named, gateway = best
    return TraceHop(kind="gateway", node=gateway, site=sites.remote_members.name_of(named), round_trip=taken), named


async def _ping(node: Node, member: NodeId) -> float | None:
    """Return the shortest of three round trips by the link to a node; None if it answers none."""
    times: list[float] = []
    for _ in range(_ROUNDS):
        asked = trio.current_time()
        with trio.move_on_after(_HOP_PATIENCE):
            await node._mesh.barrier(member)
            if node._mesh.peer(member) is not None:
                times.append(trio.current_time() - asked)
    return min(times, default=None)
