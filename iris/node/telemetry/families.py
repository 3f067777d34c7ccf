"""The metrics: their names, types, labels and meaning, and where each value is taken from.

``FAMILIES`` is the table of docs/reference/telemetry.md, and the dashboard is compared with it.  Values are read from
snapshots, so that another thread may write them out.  Labels are what the program itself has named (clusters that it
joins or asks, operations that it serves, shards) and reasons, which are words of Iris; each list of them is cut off at
a bound.  No label is the id of a peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, final

from msgspec import Struct

from iris.kernel.names import NodeId
from iris.node.statistics import NodeStatistics
from iris.patterns.books import PatternStatistics
from iris.patterns.latency import OTHERS, LatencyStatistics
from iris.patterns.pubsub.subscribe import SubscriptionStatistics
from iris.patterns.service import ServiceStatistics
from iris.patterns.state import StateStatistics

_MAX_LABELS: Final = 128
"""Values of one label that are told apart: reasons, clusters that are served, groups of a bridge's readers."""

Kind = Literal["counter", "gauge", "histogram"]


@final
class Family(Struct, frozen=True, kw_only=True):
    """One metric."""

    kind: Kind
    labels: tuple[str, ...]
    help: str


class Sample(NamedTuple):
    """One value: the name of its metric, and its labels in the order of the family's."""

    name: str
    labels: tuple[str, ...]
    value: float


@final
class NodeSnapshot(Struct, frozen=True, kw_only=True):
    """A node at one moment."""

    node: NodeId
    cluster: str
    site: str
    version: str
    unready: str | None
    nodes: int
    statistics: NodeStatistics
    reports: Mapping[str, Any]
    """Reports of what is built on the node: statistics of a "gateway" and of a "door.PROTOCOL", the report of a
    "bridge" and of its "queues", "leases" and "outcomes"."""


def _counter(text: str, *labels: str) -> Family:
    return Family(kind="counter", labels=labels, help=text)


def _gauge(text: str, *labels: str) -> Family:
    return Family(kind="gauge", labels=labels, help=text)


def _histogram(text: str, *labels: str) -> Family:
    return Family(kind="histogram", labels=labels, help=text)


FAMILIES: Final[Mapping[str, Family]] = {
    # The node.
    "iris_info": _gauge("Always 1; what this process is.", "node", "cluster", "site", "version"),
    "iris_ready": _gauge("1 if new work may come to this process, as /healthz says; else 0."),
    "iris_nodes": _gauge("Other nodes of this site that are known."),
    "iris_links": _gauge("Nodes that are linked, or are being linked again."),
    "iris_sessions": _gauge("Encrypted sessions with other nodes."),
    "iris_handshakes_total": _counter("Handshakes that were finished: new links, reconnects, renewed sessions."),
    "iris_link_messages_total": _counter("Messages given to links, by what became of them.", "outcome"),
    "iris_link_waiting_messages": _gauge("Messages that wait on links."),
    "iris_link_waiting_bytes": _gauge("Bytes that wait on links."),
    "iris_link_incomplete_bytes": _gauge("Bytes that have come of frames that are not complete."),
    "iris_link_pooled_bytes": _gauge("Bytes that this process keeps for its next large frames."),
    "iris_link_sent_frames_total": _counter("Frames sent."),
    "iris_link_sent_bytes_total": _counter("Bytes sent."),
    "iris_refusals_total": _counter("Frames and messages of peers that were refused.", "reason"),
    "iris_seed_lookups_total": _counter("Look-ups of seeds, by who was asked and how it ended.", "source", "outcome"),
    # The caller's side.
    "iris_call_duration_seconds": _histogram(
        "Time from a request to its reply or the error of its handler, as the caller sees it.", "cluster", "operation"
    ),
    "iris_call_errors_total": _counter(
        "Requests that ended with an error, by its type.", "cluster", "operation", "reason"
    ),
    "iris_messages_sent_total": _counter("Messages that callers handed over; one for each receiver.", "pattern"),
    "iris_messages_ended_total": _counter("Messages whose outcome is known and good, or late.", "pattern", "outcome"),
    "iris_messages_refused_total": _counter("Messages that a limit or a rule turned away.", "pattern", "reason"),
    "iris_messages_lost_total": _counter("Messages that vanished.", "pattern", "reason"),
    "iris_messages_waiting": _gauge("Messages without an outcome yet.", "pattern"),
    "iris_requests_repeated_total": _counter("Requests made once more at another member."),
    "iris_requests_moved_total": _counter("Repeated requests that the first member may have run, too."),
    "iris_requests_fallbacks_total": _counter("Requests that ended with their fallback, by the error.", "reason"),
    "iris_requests_unrepeated_total": _counter("Requests not repeated, because too many were."),
    "iris_requests_hedged_total": _counter("Requests that a second member was asked as well."),
    # The member's side.
    "iris_handler_duration_seconds": _histogram(
        "Time from when a request came to when it was answered, waiting included.", "cluster", "operation"
    ),
    "iris_handler_errors_total": _counter(
        "Requests of which the handler raised, by the type of the error.", "cluster", "operation", "reason"
    ),
    "iris_service_received_total": _counter("Messages that came for a service.", "cluster", "pattern"),
    "iris_service_ended_total": _counter("Those of them that have an outcome.", "cluster", "pattern", "outcome"),
    "iris_service_running": _gauge("Handlers that run.", "cluster", "pattern"),
    "iris_service_queued": _gauge("Messages that wait for a handler.", "cluster", "pattern"),
    "iris_service_queue_delay_seconds": _gauge("How long requests waited for a handler lately.", "cluster"),
    "iris_service_concurrency": _gauge("Handlers of requests that may run at the same time now.", "cluster"),
    "iris_service_processes": _gauge("Processes for handlers.", "cluster"),
    "iris_service_processes_ended_total": _counter(
        "Those that died, or were killed because a handler went on after its time.", "cluster", "reason"
    ),
    "iris_service_shed_total": _counter("Refused requests that would have waited too long.", "cluster"),
    "iris_service_paused_total": _counter("Refused because the service was paused.", "cluster"),
    "iris_service_repeats_total": _counter("Requests that were known already, and not run again.", "cluster"),
    "iris_blocked_total": _counter(
        "Times that a handler, or other code of the program, held up the event loop for half a second or more.",
        "cluster",
        "operation",
    ),
    "iris_blocked_seconds_total": _counter("Seconds for which these held it up.", "cluster", "operation"),
    "iris_service_replays_total": _counter(
        "Requests with a key that were answered with a recorded outcome.", "cluster"
    ),
    # Events.
    "iris_events_published_total": _counter("Events published."),
    "iris_events_without_subscriber_total": _counter("Published events that nobody subscribed to."),
    "iris_events_reported_total": _counter("Published events that subscribers report not to have taken.", "reason"),
    "iris_events_retained": _gauge("Last values that this node keeps."),
    "iris_events_retained_bytes": _gauge("Bytes of the last values that this node keeps."),
    "iris_events_posted": _gauge("Events of threads that are not published yet."),
    "iris_events_posted_bytes": _gauge("Bytes of the events of threads that are not published yet."),
    "iris_subscriptions": _gauge("Subscriptions of this node."),
    "iris_subscription_events_total": _counter("Events for them, by what became of them.", "outcome"),
    "iris_subscription_waiting_events": _gauge("Events that wait to be taken."),
    "iris_subscription_waiting_bytes": _gauge("Bytes of the events that wait to be taken."),
    "iris_subscriptions_too_slow_total": _counter("Subscriptions that have ended as they were too slow."),
    # Tunnels.
    "iris_tunnels": _gauge("Ends of tunnels that are open or being opened."),
    "iris_tunnels_opened_total": _counter("Tunnels that this node asked for."),
    "iris_tunnels_accepted_total": _counter("Tunnels of others that this node took."),
    "iris_tunnels_refused_total": _counter("Tunnels of others that this node did not take."),
    "iris_tunnels_ended_total": _counter("Ends of tunnels that are no more.", "reason"),
    # Documents.
    "iris_state_keys": _gauge("Values in a document.", "cluster"),
    "iris_state_bytes": _gauge("Bytes of a document.", "cluster"),
    "iris_state_writers": _gauge("Numbers of writers that were used in a document.", "cluster"),
    "iris_state_edits_total": _counter("Edits of a document that were sent, and that came.", "cluster", "what"),
    "iris_state_comparisons_total": _counter("Comparisons of a document with members.", "cluster", "outcome"),
    "iris_state_evicted_total": _counter("Entries removed because a document had too many bytes.", "cluster"),
    "iris_state_failed_saves_total": _counter("Times that the copy on disk was not written.", "cluster"),
    "iris_state_refused_total": _counter("Updates of a document that were refused.", "cluster", "reason"),
    # A gateway.
    "iris_gateway_sites": _gauge("Other sites that can be reached."),
    "iris_gateway_neighbours": _gauge("Gateways of other sites that are linked."),
    "iris_gateway_received_frames_total": _counter("Frames that came to be carried."),
    "iris_gateway_carried_frames_total": _counter("Frames carried."),
    "iris_gateway_carried_bytes_total": _counter("Bytes of the frames carried."),
    "iris_gateway_refused_frames_total": _counter("Frames that were not carried.", "reason"),
    "iris_gateway_waiting_bytes": _gauge("Memory that events take which wait for a route to their site."),
    "iris_gateway_rejected_total": _counter(
        "Frames of other gateways that were forged, malformed or too old.", "reason"
    ),
    "iris_gateway_unreached": _gauge("Gateways that this one dials and is not linked to."),
    "iris_gateway_advertised_messages_total": _counter("Messages about sites that went to neighbours."),
    "iris_gateway_advertised_bytes_total": _counter("About how large they were."),
    "iris_gateway_unadvertised": _gauge("Gateways and exports that are not advertised, for there are too many."),
    # A member of a bridge.
    "iris_bridge_received_events_total": _counter("Events that came."),
    "iris_bridge_events_total": _counter("Events by what became of them.", "outcome"),
    "iris_bridge_waiting_events": _gauge("Events that wait for the disk."),
    "iris_bridge_missed_events_total": _counter("Events noticed to be missing: gaps in the log."),
    "iris_bridge_damaged_events": _gauge("Events known to be damaged in the log."),
    "iris_bridge_commits_total": _counter("Groups of events written to the disk."),
    "iris_bridge_failed_commits_total": _counter("Groups that found no room on the disk; they are tried again."),
    "iris_bridge_unpublished_events_total": _counter("Rows that Spark wrote, stored and not published."),
    "iris_bridge_expired_groups_total": _counter("Groups of readers that nobody used, and that were forgotten."),
    "iris_bridge_log_events": _gauge("Events in the log.", "shard"),
    "iris_bridge_log_bytes": _gauge("Bytes of the log.", "shard"),
    "iris_bridge_lag_events": _gauge("Events that a group of readers has still to read here.", "group"),
    "iris_bridge_copy_lag_events": _gauge("Events that a copy of the log has still to write.", "copy"),
    "iris_bridge_copies": _gauge(
        "Copies of the log by what they do: in step, not counted, catching up, away.", "state"
    ),
    "iris_bridge_tier_bytes": _gauge("Bytes of the objects of a shard in the tier.", "shard"),
    "iris_bridge_tier_lag_bytes": _gauge("Bytes of a shard that are sealed and not in the tier.", "shard"),
    "iris_bridge_tier_failures_total": _counter("Attempts to write to the tier that failed.", "shard"),
    # The queues of a member of a bridge.
    "iris_queue_jobs": _gauge("Jobs that are not done.", "queue", "state"),
    "iris_queue_unread_events": _gauge("Events of the log that a queue has not looked at yet.", "queue"),
    "iris_queue_workers": _gauge("Workers that take from a queue.", "queue"),
    "iris_queue_jobs_total": _counter("Jobs that are over, and failed attempts, by what it was.", "queue", "outcome"),
    # The leases of a member of a bridge.
    "iris_leases": _gauge("Leases that are held."),
    "iris_leases_total": _counter("Leases by what became of them: granted, released, expired.", "outcome"),
    # The outcomes that a member of a bridge keeps.
    "iris_outcomes": _gauge("Idempotency keys that are remembered."),
    "iris_outcomes_total": _counter(
        "Claims of keys by the answer: claimed, retaken (among those), replayed, doubtful, reused; and recorded.",
        "answer",
    ),
    # A door.
    "iris_door_connections": _gauge("Connections of clients.", "protocol"),
    "iris_door_turned_away_total": _counter("Connections beyond the limit, and of strangers.", "protocol"),
    "iris_door_stalled_total": _counter("Connections that ended because their client did not read.", "protocol"),
    "iris_door_messages_total": _counter("What was done for clients, by what it was.", "protocol", "outcome"),
    "iris_door_refusals_total": _counter("What clients were refused, by the status of HTTP.", "protocol", "status"),
    "iris_door_paused_total": _counter("Times that messages waited for the rate of a token.", "protocol"),
    "iris_door_missed_events_total": _counter("Events that clients did not get.", "protocol", "reason"),
    "iris_door_programs": _gauge("Programs that serve a cluster.", "protocol"),
    "iris_door_unheard_broadcasts_total": _counter("Broadcasts that such a program did not get.", "protocol"),
}

NEVER_BACK: Final = frozenset(
    ("iris_messages_sent_total", "iris_messages_ended_total", "iris_door_missed_events_total")
)
"""Counters that may go back by what is found out later: a copy that was handed over and then refused, an event
that a client takes late.  They are shown as the most that they have been, because Prometheus takes a counter that goes
back for a process that began anew."""


def samples(snapshot: NodeSnapshot) -> Iterator[Sample]:
    """Yield every value but those of histograms."""
    statistics, labels = snapshot.statistics, (snapshot.node, snapshot.cluster, snapshot.site, snapshot.version)
    yield Sample("iris_info", labels, 1)
    yield Sample("iris_ready", (), int(snapshot.unready is None))
    yield Sample("iris_nodes", (), snapshot.nodes)
    yield from _of_links(statistics)
    for reason, count in bounded(statistics.refusals).items():
        yield Sample("iris_refusals_total", (reason,), count)
    yield from _of_seeds(statistics)
    yield from _of_pattern("request", "answered", statistics.requests)
    yield from _of_pattern("broadcast", "handed_over", statistics.broadcasts)
    yield from _of_pattern("relayed", "handed_over", statistics.relayed)
    yield from _of_pattern("event", "handed_over", statistics.events)
    yield from _of_pattern("tunnel", "answered", statistics.tunnels.messages)
    yield Sample("iris_requests_repeated_total", (), statistics.repeated)
    yield Sample("iris_requests_moved_total", (), statistics.moved)
    for reason, count in statistics.fallbacks.items():
        yield Sample("iris_requests_fallbacks_total", (reason,), count)
    yield Sample("iris_requests_unrepeated_total", (), statistics.not_repeated)
    yield Sample("iris_requests_hedged_total", (), statistics.hedged)
    for cluster, service in list(statistics.services.items())[:_MAX_LABELS]:
        yield from _of_service(cluster, service)
    for one in statistics.blocked:
        yield Sample("iris_blocked_total", (one.cluster, one.operation or ""), one.count)
        yield Sample("iris_blocked_seconds_total", (one.cluster, one.operation or ""), one.seconds)
    yield from _of_events(statistics)
    tunnels = statistics.tunnels
    yield Sample("iris_tunnels", (), tunnels.open)
    yield Sample("iris_tunnels_opened_total", (), tunnels.opened)
    yield Sample("iris_tunnels_accepted_total", (), tunnels.accepted)
    yield Sample("iris_tunnels_refused_total", (), tunnels.refused)
    for reason, count in bounded(tunnels.ended).items():
        yield Sample("iris_tunnels_ended_total", (reason,), count)
    for cluster, state in list(statistics.states.items())[:_MAX_LABELS]:
        yield from _of_state(cluster, state)
    if "gateway" in snapshot.reports:
        yield from _of_gateway(snapshot.reports["gateway"])
    if "bridge" in snapshot.reports:
        yield from _of_bridge(snapshot.reports["bridge"])
    for queue in snapshot.reports.get("queues", ())[:_MAX_LABELS]:
        yield from _of_queue(queue)
    if "leases" in snapshot.reports:
        yield from _of_leases(snapshot.reports["leases"])
    if "outcomes" in snapshot.reports:
        yield from _of_outcomes(snapshot.reports["outcomes"])
    for name, report in snapshot.reports.items():
        if name.startswith("door."):
            yield from _of_door(name.removeprefix("door."), report)
    for side, target, latency in histograms(statistics):
        for reason, count in latency.errors.items():
            yield Sample(f"iris_{side}_errors_total", (*target, reason), count)


def histograms(
    statistics: NodeStatistics,
) -> Iterator[tuple[str, tuple[str, str], LatencyStatistics]]:
    """Yield the side, "call" or "handler", the cluster and operation, and the histogram."""
    for cluster, asked in statistics.latency.items():
        for operation, latency in asked.items():
            yield "call", (cluster, operation or ""), latency
    for cluster, service in list(statistics.services.items())[:_MAX_LABELS]:
        for operation, latency in service.latency.items():
            yield "handler", (cluster, operation or ""), latency


def bounded(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by reason; what is beyond the bound is one.  The first ones stay, so that none goes back."""
    kept = dict(list(counts.items())[:_MAX_LABELS])
    beyond = sum(counts.values()) - sum(kept.values())
    return {**kept, OTHERS: beyond} if beyond else kept


def _of_links(statistics: NodeStatistics) -> Iterator[Sample]:
    yield Sample("iris_links", (), len(statistics.links))
    yield Sample("iris_sessions", (), statistics.sessions)
    yield Sample("iris_handshakes_total", (), statistics.handshakes)
    links = [*statistics.links.values()]
    yield Sample("iris_link_waiting_messages", (), sum(link.waiting for link in links))
    yield Sample("iris_link_waiting_bytes", (), sum(link.bytes_waiting for link in links))
    yield Sample("iris_link_incomplete_bytes", (), statistics.incomplete_bytes)
    yield Sample("iris_link_pooled_bytes", (), statistics.pooled_bytes)
    if statistics.links_ended is not None:
        links.append(statistics.links_ended)
    for outcome in ("sent", "lost", "refused"):
        yield Sample("iris_link_messages_total", (outcome,), sum(getattr(link, outcome) for link in links))
    yield Sample("iris_link_sent_frames_total", (), sum(link.frames_sent for link in links))
    yield Sample("iris_link_sent_bytes_total", (), sum(link.bytes_sent for link in links))


def _of_seeds(statistics: NodeStatistics) -> Iterator[Sample]:
    counts: Counter[tuple[str, str]] = Counter()
    for seed in statistics.seeds.values():
        counts[seed.source, "answered"] += seed.answered
        counts[seed.source, "failed"] += seed.failed
    for labels, count in counts.items():
        yield Sample("iris_seed_lookups_total", labels, count)


def _of_state(cluster: str, state: StateStatistics) -> Iterator[Sample]:
    for gauge in ("keys", "bytes", "writers"):
        yield Sample(f"iris_state_{gauge}", (cluster,), getattr(state, gauge))
    for what in ("edits", "received", "early"):
        yield Sample("iris_state_edits_total", (cluster, what), getattr(state, what))
    for outcome in ("compared", "uncompared"):
        yield Sample("iris_state_comparisons_total", (cluster, outcome), getattr(state, outcome))
    yield Sample("iris_state_evicted_total", (cluster,), state.evicted)
    yield Sample("iris_state_failed_saves_total", (cluster,), state.unsaved)
    for reason, count in bounded(state.refused).items():
        yield Sample("iris_state_refused_total", (cluster, reason), count)


def _of_pattern(pattern: str, good: str, counters: PatternStatistics) -> Iterator[Sample]:
    yield Sample("iris_messages_sent_total", (pattern,), counters.sent)
    for outcome in (good, "expired"):
        yield Sample("iris_messages_ended_total", (pattern, outcome), getattr(counters, outcome))
    explained = sum(counters.refused_because.values())
    for reason, count in bounded(counters.refused_because).items():
        yield Sample("iris_messages_refused_total", (pattern, reason), count)
    if pattern != "broadcast":
        yield Sample("iris_messages_refused_total", (pattern, ""), counters.refused - explained)
    for reason, count in bounded(counters.lost).items():
        yield Sample("iris_messages_lost_total", (pattern, reason), count)
    yield Sample("iris_messages_waiting", (pattern,), counters.waiting)


def _of_service(cluster: str, service: ServiceStatistics) -> Iterator[Sample]:
    outcomes = {
        "request": {
            "served": service.served,
            "failed": service.failed,
            "expired": service.expired,
            "cancelled": service.cancelled,
            "refused": service.refused,
        },
        "broadcast": {
            "served": service.broadcasts,
            "failed": service.broadcasts_failed,
            "cancelled": service.broadcasts_cancelled,
            "refused": service.broadcasts_refused,
        },
        "tunnel": {
            "served": service.tunnels_served,
            "failed": service.tunnels_failed,
            "cancelled": service.tunnels_cancelled,
        },
    }
    for pattern, counts in outcomes.items():
        for outcome, count in counts.items():
            yield Sample("iris_service_ended_total", (cluster, pattern, outcome), count)
    yield Sample("iris_service_received_total", (cluster, "request"), service.received)
    yield Sample("iris_service_received_total", (cluster, "broadcast"), service.broadcasts_received)
    yield Sample("iris_service_received_total", (cluster, "tunnel"), service.tunnels_received)
    yield Sample("iris_service_running", (cluster, "request"), service.running)
    yield Sample("iris_service_running", (cluster, "tunnel"), service.tunnels_running)
    yield Sample("iris_service_queued", (cluster, "request"), service.queued)
    yield Sample("iris_service_queued", (cluster, "broadcast"), service.broadcasts_queued)
    yield Sample("iris_service_queue_delay_seconds", (cluster,), service.queue_delay)
    yield Sample("iris_service_concurrency", (cluster,), service.concurrency)
    yield Sample("iris_service_processes", (cluster,), service.processes)
    yield Sample("iris_service_processes_ended_total", (cluster, "died"), service.processes_died)
    yield Sample("iris_service_processes_ended_total", (cluster, "killed"), service.processes_killed)
    yield Sample("iris_service_shed_total", (cluster,), service.shed)
    yield Sample("iris_service_paused_total", (cluster,), service.paused)
    yield Sample("iris_service_repeats_total", (cluster,), service.repeated)
    yield Sample("iris_service_replays_total", (cluster,), service.replayed)


def _of_events(statistics: NodeStatistics) -> Iterator[Sample]:
    publishing = statistics.publishing
    yield Sample("iris_events_published_total", (), statistics.published)
    yield Sample("iris_events_without_subscriber_total", (), statistics.without_subscriber)
    yield Sample("iris_events_reported_total", ("dropped",), publishing.dropped)
    yield Sample("iris_events_reported_total", ("refused",), publishing.refused)
    yield Sample("iris_events_retained", (), publishing.retained)
    yield Sample("iris_events_retained_bytes", (), publishing.retained_bytes)
    yield Sample("iris_events_posted", (), publishing.posted)
    yield Sample("iris_events_posted_bytes", (), publishing.posted_bytes)
    open_now = [one for listed in statistics.subscriptions.values() for one in listed]
    yield Sample("iris_subscriptions", (), len(open_now))
    yield Sample("iris_subscription_waiting_events", (), sum(one.waiting for one in open_now))
    yield Sample("iris_subscription_waiting_bytes", (), sum(one.waiting_bytes for one in open_now))
    ended = statistics.subscriptions_ended
    left = 0 if ended is None else ended.waiting  # what waited when the block was left is dropped
    counted: list[SubscriptionStatistics] = open_now if ended is None else [*open_now, ended]
    for outcome in ("delivered", "dropped", "malformed", "expired", "missed", "refused"):
        count = sum(getattr(one, outcome) for one in counted) + (left if outcome == "dropped" else 0)
        yield Sample("iris_subscription_events_total", (outcome,), count)
    yield Sample("iris_subscriptions_too_slow_total", (), sum(one.too_slow for one in counted))


_GATEWAY: Final = {
    "iris_gateway_received_frames_total": "received",
    "iris_gateway_carried_frames_total": "carried",
    "iris_gateway_carried_bytes_total": "carried_bytes",
    "iris_gateway_waiting_bytes": "waiting_bytes",
    "iris_gateway_advertised_messages_total": "sent",
    "iris_gateway_advertised_bytes_total": "sent_bytes",
    "iris_gateway_unadvertised": "not_advertised",
}
"""Fields of ``GatewayStatistics``."""


def _of_gateway(statistics: Any) -> Iterator[Sample]:
    for name, field in _GATEWAY.items():
        yield Sample(name, (), getattr(statistics, field))
    yield Sample("iris_gateway_sites", (), len(statistics.sites))
    yield Sample("iris_gateway_neighbours", (), len(statistics.neighbours))
    for reason, count in bounded(statistics.refused).items():
        yield Sample("iris_gateway_refused_frames_total", (reason,), count)
    for reason, count in bounded(statistics.rejected).items():
        yield Sample("iris_gateway_rejected_total", (reason,), count)
    yield Sample("iris_gateway_unreached", (), len(statistics.unreached))


_BRIDGE: Final = {
    "iris_bridge_received_events_total": "received",
    "iris_bridge_waiting_events": "waiting",
    "iris_bridge_missed_events_total": "missed",
    "iris_bridge_damaged_events": "damaged",
    "iris_bridge_commits_total": "commits",
    "iris_bridge_failed_commits_total": "refusals",
    "iris_bridge_unpublished_events_total": "unannounced",
    "iris_bridge_expired_groups_total": "expired_groups",
}
"""Fields of ``BridgeStatistics``."""


def _of_bridge(report: Any) -> Iterator[Sample]:
    for name, field in _BRIDGE.items():
        yield Sample(name, (), getattr(report.statistics, field))
    for outcome in ("stored", "repeats", "stale", "misrouted"):
        yield Sample("iris_bridge_events_total", (outcome,), getattr(report.statistics, outcome))
    for shard in report.shards:
        yield Sample("iris_bridge_log_events", (str(shard.number),), shard.next - shard.earliest)
        yield Sample("iris_bridge_log_bytes", (str(shard.number),), shard.size)
    for group, lag in bounded(report.lags).items():
        yield Sample("iris_bridge_lag_events", (group,), lag)
    for copy in report.copies:
        if copy.behind is not None:
            yield Sample("iris_bridge_copy_lag_events", (copy.name,), copy.behind)
    for state, count in Counter(copy.state for copy in report.copies).items():
        yield Sample("iris_bridge_copies", (state,), count)
    for tier in report.tier:
        yield Sample("iris_bridge_tier_bytes", (str(tier.shard),), tier.bytes)
        yield Sample("iris_bridge_tier_lag_bytes", (str(tier.shard),), tier.behind_bytes)
        yield Sample("iris_bridge_tier_failures_total", (str(tier.shard),), tier.failures)


def _of_queue(status: Any) -> Iterator[Sample]:
    for state in ("waiting", "delayed", "in_hand"):
        yield Sample("iris_queue_jobs", (status.queue, state), getattr(status, state))
    yield Sample("iris_queue_unread_events", (status.queue,), status.unread)
    yield Sample("iris_queue_workers", (status.queue,), status.workers)
    for outcome in ("done", "dead", "expired", "retried", "lapsed"):
        yield Sample("iris_queue_jobs_total", (status.queue, outcome), getattr(status, outcome))


def _of_leases(statistics: Any) -> Iterator[Sample]:
    yield Sample("iris_leases", (), statistics.held)
    for outcome in ("granted", "released", "expired"):
        yield Sample("iris_leases_total", (outcome,), getattr(statistics, outcome))


def _of_outcomes(statistics: Any) -> Iterator[Sample]:
    yield Sample("iris_outcomes", (), statistics.keys)
    for answer in ("claimed", "retaken", "replayed", "doubtful", "reused", "recorded"):
        yield Sample("iris_outcomes_total", (answer,), getattr(statistics, answer))


def _of_door(protocol: str, statistics: Any) -> Iterator[Sample]:
    """Yield what a door has counted; each protocol has some of the fields."""
    connections: int | Mapping[str, int] = statistics.connections
    if isinstance(connections, Mapping):  # by the protocol of the client
        connections = sum(connections.values())
    yield Sample("iris_door_connections", (protocol,), connections)
    yield Sample("iris_door_turned_away_total", (protocol,), statistics.turned_away)
    if hasattr(statistics, "paused"):
        yield Sample("iris_door_paused_total", (protocol,), statistics.paused)
    if hasattr(statistics, "stalled"):
        yield Sample("iris_door_stalled_total", (protocol,), statistics.stalled)
    for outcome in ("answered", "given_up", "published", "called", "served", "delivered", "followed"):
        if hasattr(statistics, outcome):
            yield Sample("iris_door_messages_total", (protocol, outcome), getattr(statistics, outcome))
    for status, count in bounded({str(status): count for status, count in statistics.refused.items()}).items():
        yield Sample("iris_door_refusals_total", (protocol, status), count)
    for reason in ("missed", "unread", "untellable"):
        if hasattr(statistics, reason):
            yield Sample("iris_door_missed_events_total", (protocol, reason), getattr(statistics, reason))
    if hasattr(statistics, "programs"):
        yield Sample("iris_door_programs", (protocol,), statistics.programs)
        yield Sample("iris_door_unheard_broadcasts_total", (protocol,), statistics.unheard)
