"""Checks of reports: a node may report anything, and one that lies must not spoil what is said of all others."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Final

from msgspec import Struct, structs

from iris.kernel.names import is_node_id
from iris.kernel.shapes import is_list, is_map
from iris.node.report import MOST, MOST_BOOKS, MOST_LINKS, MOST_TOPICS, BooksReport, NodeReport, TopicsReport
from iris.patterns.latency import LONGEST
from iris.patterns.pubsub.interest import is_pattern, is_topic

_MOST_TEXT: Final = 512
_MOST_SECONDS: Final = 1e10
"""Three centuries; what is measured in seconds is less."""

_MOST_COUNT: Final = 2**63
_MOST_EDGES: Final = 512
"""A histogram has 260 buckets at most."""


def fault_of(report: NodeReport) -> str | None:
    """Return what in a report cannot be, None if nothing: it may be untrue all the same."""
    return next(_faults(report), None)


def fault_of_topics(report: TopicsReport) -> str | None:
    """Return the fault in a report of topics, as ``fault_of`` does."""
    if len(report.subscribed) > MOST_TOPICS or len(report.published) > MOST_TOPICS:
        return f"more than {MOST_TOPICS} entries"
    for name, value in _values(report, ""):
        if not _can_be(value):
            return f"{name} is {value!r:.40}"
    if not all(is_topic(of.topic) for of in report.published):
        return "published on what is no topic"
    if not all(is_pattern(of.pattern.rpartition("/")[2]) for of in report.subscribed):
        return "subscribed to what is no pattern"
    return None


def fault_of_books(report: BooksReport) -> str | None:
    """Return the fault in a report of books, as ``fault_of`` does."""
    if len(report.rows) > MOST_BOOKS or any(len(row.lost) > MOST for row in report.rows):
        return f"more than {MOST_BOOKS} rows, or {MOST} reasons in one"
    for name, value in _values(report, ""):
        if not _can_be(value):
            return f"{name} is {value!r:.40}"
    if not all(row.receiver is None or is_node_id(row.receiver) for row in report.rows):
        return "the receiver of a row is no node"
    return None


def of_members_only(report: NodeReport, clusters: Collection[str]) -> tuple[NodeReport, tuple[str, ...]]:
    """Return a report without what its node says of clusters that it is no member of, and their names.

    A node that has just joined or left one may be among them: others do not know it yet.
    """
    named = {of.cluster for of in report.clusters} | {of.cluster for of in report.latencies if of.served}
    others = named.difference(clusters)
    if not others:
        return report, ()
    left = structs.replace(
        report,
        clusters=[of for of in report.clusters if of.cluster not in others],
        latencies=[of for of in report.latencies if not (of.served and of.cluster in others)],
    )
    return left, tuple(sorted(others))


def _faults(report: NodeReport) -> Iterator[str]:
    bounds = {"clusters": MOST, "latencies": MOST, "lost": MOST, "refused": MOST, "blocked": MOST, "linked": MOST_LINKS}
    for name, most in bounds.items():
        if len(getattr(report, name)) > most:
            yield f"{name} has more than {most} entries"
    built = {"gateway": ("sites", "neighbours"), "bridge": ("lags",)}
    for name, fields in built.items():
        figure = getattr(report, name)
        if figure is not None and any(len(getattr(figure, field)) > MOST for field in fields):
            yield f"{name} has more than {MOST} entries"
    for histogram in report.latencies:
        edges, counts = histogram.edges, histogram.counts
        if len(edges) != len(counts) or len(edges) > _MOST_EDGES:
            yield "a histogram has other counts than edges"
        # Written so that NaN, which is neither more nor less than anything, fails.
        elif not all(0 < edge <= _TOP for edge in edges) or not all(one < other for one, other in pairwise(edges)):
            yield "the edges of a histogram do not ascend"
        elif not all(0 <= count < _MOST_COUNT for count in counts):
            yield "the counts of a histogram cannot be"
    for name, value in _values(report, ""):
        if not _can_be(value):
            yield f"{name} is {value!r:.40}"
    if len({of.cluster for of in report.clusters}) != len(report.clusters):
        yield "a cluster stands twice"
    if not all(is_node_id(link.peer) for link in report.linked):
        yield "the peer of a link is no node"


_TOP: Final = LONGEST * 2


def _values(value: object, name: str) -> Iterator[tuple[str, object]]:
    """Yield every number and text of a report, with the name of the field that it is in."""
    if isinstance(value, Struct):
        for field in value.__struct_fields__:
            if field not in ("edges", "counts"):  # which are looked at already, and may be many
                yield from _values(getattr(value, field), name or field)
    elif is_map(value):
        for key, one in value.items():
            yield name, key
            yield name, one
    elif is_list(value):
        for one in value:
            yield from _values(one, name)
    else:
        yield name, value


def _can_be(value: object) -> bool:
    match value:
        case None | bool():
            return True
        case str():
            return len(value) <= _MOST_TEXT
        case int():
            return 0 <= value < _MOST_COUNT
        case float():
            return math.isfinite(value) and 0 <= value <= _MOST_SECONDS
        case _:
            return False
