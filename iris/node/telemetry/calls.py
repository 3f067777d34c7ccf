"""Latency histograms, by cluster and operation.  Written by the node's own thread only, so without locks.

Those of prometheus-client lock, and look their labels up, for each value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final, final

BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds: a request on one machine takes half a millisecond, the default timeout is 5 s."""

_MAX_TARGETS: Final = 256
"""Clusters and operations that are told apart on each side of a node: each has 16 time series.  Programs may ask any
number of clusters."""

_MAX_REASONS: Final = 32

OTHER: Final = "(other)"
"""Stands for what is beyond a bound."""

Target = tuple[str, str, str]
"""Pattern, cluster and operation; of no operation it is empty."""


@final
class CallHistogram:
    """Durations of the calls to one target, and how many of them failed, by reason.

    Attributes:
        counts: by bucket, not cumulative; the last one holds what is above all bounds.
        sum: of all durations, in seconds.
        errors: calls that failed, by the type of the error.
    """

    __slots__ = ("counts", "errors", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0
        self.errors: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<CallHistogram of {sum(self.counts)} calls>"

    def observe(self, seconds: float) -> None:
        """Count one call."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def failed(self, error: BaseException) -> None:
        """Count that it failed."""
        reason = type(error).__name__
        known = reason in self.errors or len(self.errors) < _MAX_REASONS
        self.errors[reason if known else OTHER] += 1

    def copy(self) -> CallHistogram:
        """Return the same counts, for another thread to read."""
        made = CallHistogram()
        made.counts, made.sum, made.errors = self.counts.copy(), self.sum, self.errors.copy()
        return made


@final
class CallTable:
    """The histograms of one side of a node: of its calls, or of its handlers."""

    def __init__(self) -> None:
        self._histograms: dict[Target, CallHistogram] = {}
        self.known: Final[dict[tuple[str, str, str | None], CallHistogram]] = {}
        """The same by what is called, for who is in a hurry."""

    def __repr__(self) -> str:
        return f"<CallTable of {len(self._histograms)} targets>"

    def of(self, pattern: str, cluster: str, operation: str | None) -> CallHistogram:
        """Return the histogram of a target; beyond 256 of them all further ones share one."""
        target = (pattern, cluster, operation or "")
        known = self._histograms.get(target)
        if known is not None:
            return known
        if len(self._histograms) >= _MAX_TARGETS:
            return self._histograms.setdefault((OTHER, OTHER, OTHER), CallHistogram())
        made = self._histograms[target] = self.known[pattern, cluster, operation] = CallHistogram()
        return made

    def copy(self) -> dict[Target, CallHistogram]:
        """Return a snapshot, for another thread to read."""
        return {target: histogram.copy() for target, histogram in self._histograms.items()}
