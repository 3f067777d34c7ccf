"""Latency: how long requests took, as one bounded histogram for each cluster and operation, and what failed.

Buckets grow with the time that they count: eight to each doubling, so a percentile is at most 6.3 % off.  Every power
of two is an edge, up to which counts are exact.  Two snapshots can be added and subtracted.  ``iris top``, ``/metrics``
and the survey of a realm all read these histograms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from math import frexp, ldexp
from typing import Final, final

from msgspec import field

from iris.kernel.statistics import Statistics

SHORTEST: Final = 2.0**-20
LONGEST: Final = 2.0**12
"""Seconds.  Shorter times count as the first, longer ones as the second, which keeps a histogram at 257 buckets."""

EDGES: Final = tuple(2.0**exponent for exponent in range(-12, 5))
"""Seconds, 0.24 ms to 16 s: the edges that ``/metrics`` shows, since each is a time series for Prometheus."""

OTHERS: Final = "(other)"
"""Cluster and operation of requests, or reason of errors, whose own found no room; no name can be this one."""

_MAX_SERIES: Final = 256
"""Pairs of cluster and operation of one node.  It is a bound, since peers may invent operations to ask for."""

_MAX_REASONS: Final = 32

_PER_OCTAVE: Final = 8

_UPTO: Final = tuple(ldexp(1 + step / _PER_OCTAVE, exponent) for exponent in range(-20, 12) for step in range(1, 9))
"""Upper bound of each bucket in seconds, exclusive; but for the last bucket, which has all longer times."""

_LAST: Final = LONGEST * (1 + 1 / _PER_OCTAVE)
"""Upper bound in seconds that the last bucket is shown with."""


@final
class LatencyStatistics(Statistics, frozen=True, kw_only=True):
    """A snapshot of one histogram.  Times are in seconds."""

    buckets: Mapping[float, int]
    """Requests by the upper bound of their bucket in seconds: they took less, and at least the bound before it.
    Ascending, without empty buckets."""
    total: float
    """Sum of all times, in seconds."""
    errors: Mapping[str, int] = field(default_factory=dict[str, int])
    """Requests that ended with an error, by its type.  Only errors that a handler has raised are measured as well."""

    @property
    def count(self) -> int:
        """Requests that were measured."""
        return sum(self.buckets.values())

    def below(self, seconds: float) -> int:
        """Return how many took less time; exact if ``seconds`` is an edge, as each power of two from 2**-20 on is."""
        return sum(count for edge, count in self.buckets.items() if edge <= seconds)

    def percentile(self, percent: float) -> float | None:
        """Return the time within which ``percent`` of the requests had their answer, at most 6.3 % off.

        None if there was no request.  A time outside of 1 us to 68 minutes is only known to lie outside.
        """
        before, wanted = 0, self.count * percent / 100
        for edge, count in self.buckets.items():
            before += count
            if before >= wanted:
                mantissa, exponent = frexp(edge)
                # An edge that is a power of two ends a bucket of the octave before it.
                width = ldexp(1 / (2 * _PER_OCTAVE), exponent - (mantissa == 0.5))
                return edge - width / 2
        return None

    def since(self, earlier: LatencyStatistics | None) -> LatencyStatistics:
        """Return what came since an earlier snapshot of the same histogram; all of it, if that was of another one."""
        if earlier is None or any(self.buckets.get(edge, 0) < count for edge, count in earlier.buckets.items()):
            return self
        left = ((edge, count - earlier.buckets.get(edge, 0)) for edge, count in self.buckets.items())
        return LatencyStatistics(
            buckets={edge: count for edge, count in left if count},
            total=self.total - earlier.total,
            errors=Counter(self.errors) - Counter(earlier.errors),
        )

    def __add__(self, other: LatencyStatistics) -> LatencyStatistics:
        """Return both together, as of two members of a cluster."""
        edges = sorted({*self.buckets, *other.buckets})
        return LatencyStatistics(
            buckets={edge: self.buckets.get(edge, 0) + other.buckets.get(edge, 0) for edge in edges},
            total=self.total + other.total,
            errors=Counter(self.errors) + Counter(other.errors),
        )


@final
class LatencyTable:
    """Measures requests by cluster and operation; of more than 256 pairs the later ones together as ``OTHERS``."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str | None], LatencySeries] = {}

    def series(self, cluster: str, operation: str | None) -> LatencySeries:
        """Return the histogram of a cluster and operation, for as long as the table is there."""
        return self._series.get((cluster, operation)) or self._open(cluster, operation)

    def failed(self, cluster: str, operation: str | None, reason: str) -> None:
        """Count a request that ended with an error; of more than 32 reasons the later ones together as ``OTHERS``."""
        errors = self.series(cluster, operation).errors
        errors[reason if reason in errors or len(errors) < _MAX_REASONS else OTHERS] += 1

    def statistics(self) -> dict[str, dict[str | None, LatencyStatistics]]:
        """Return a snapshot of each histogram, by cluster and operation."""
        snapshot: dict[str, dict[str | None, LatencyStatistics]] = {}
        for (cluster, operation), series in self._series.items():
            snapshot.setdefault(cluster, {})[operation] = series.statistics()
        return snapshot

    def _open(self, cluster: str, operation: str | None) -> LatencySeries:
        if len(self._series) >= _MAX_SERIES:
            cluster, operation = OTHERS, OTHERS
        return self._series.setdefault((cluster, operation), LatencySeries())


@final
class LatencySeries:
    """The histogram of one cluster and operation, and what failed."""

    __slots__ = ("counts", "errors", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_UPTO) + 1)
        self.errors: Counter[str] = Counter()
        self.total = 0.0

    def record(self, seconds: float) -> None:
        """Count a request that had its answer after ``seconds``."""
        self.total += seconds
        self.counts[bisect_right(_UPTO, seconds)] += 1

    def statistics(self) -> LatencyStatistics:
        """Return a snapshot."""
        return LatencyStatistics(
            buckets={edge: count for edge, count in zip((*_UPTO, _LAST), self.counts, strict=True) if count},
            total=self.total,
            errors=self.errors.copy(),
        )
