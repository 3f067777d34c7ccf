"""Books: every message that was sent is in one column, and both ends have counted it.

The room promises that the columns of a receiver add up to what it was sent, whatever broke in between; that a message
is in doubt only if its receiver is gone; and that a receiver can falsify its own rows and nothing else.  It costs one
small message for each sender and 100 ms, and nothing for each message.
"""

from iris.patterns.books.bookkeeper import Bookkeeper
from iris.patterns.books.columns import BROADCAST, EVENT, GROUP_EVENT, OTHER, RELAYED_EVENT, UNCOUNTED, Account
from iris.patterns.books.counters import PatternStatistics, Tally
from iris.patterns.books.ledger import NOBODY, EventPattern, ReceiverSet, LedgerRow, SendLedger
from iris.patterns.books.shown import BookRow, Books
from iris.patterns.books.watch import Loss, LossWatch, WaitGuard, compare_losses, matching

__all__ = (
    "BROADCAST", "EVENT", "GROUP_EVENT", "NOBODY", "OTHER", "RELAYED_EVENT", "UNCOUNTED", "Account", "BookRow",
    "Bookkeeper", "Books", "EventPattern", "LedgerRow", "Loss", "LossWatch", "PatternStatistics", "ReceiverSet",
    "SendLedger", "Tally", "WaitGuard", "compare_losses", "matching",
)  # fmt: skip
