"""Outcomes of requests with an idempotency key: the member that began one, and its outcome, on a bridge's disk.

Promises: of all members that claim a key one at a time may run its request; its outcome is returned to all that ask
later, for as long as the service has stated; both are on the disk before they are reported.  Not here: effects of a
handler outside of Iris before it was lost.
"""

from iris.spark_bridge.outcomes.keeper import OutcomeKeeper, OutcomeStatistics

__all__ = ("OutcomeKeeper", "OutcomeStatistics")
