"""Blocked event loops: a watch outside of the loop names the handler that holds it up.

Promises: a handler that blocks for half a second is named in the log within a second, with file, line and stack, once
for each cause; its node's peers are told, as long as the loop's thread can be interrupted for that; requests cost
nothing.  Not here: what callers make of it (iris.patterns.request).
"""

from iris.node.blocked.handlers import BlockedHandlers, BlockedStatistics
from iris.node.blocked.watch import BlockObserver, watch_loop

__all__ = ("BlockObserver", "BlockedHandlers", "BlockedStatistics", "watch_loop")
