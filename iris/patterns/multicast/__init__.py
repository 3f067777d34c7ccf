"""One message to every member of a cluster: broadcast, survey, and the relay tree that carries both to many members.

Promises: at most once per member; a sender waits for credit instead of overrunning a member; a survey names the members
that did not answer.  Not here: messages by topic (iris.patterns.pubsub).
"""

from iris.patterns.multicast.answers import Answers, StopReason, StopRules
from iris.patterns.multicast.broadcast import Broadcasts
from iris.patterns.multicast.broadcast_credit import ReceiveWindow, ReceiveWindows, cost
from iris.patterns.multicast.relay import Relays
from iris.patterns.multicast.survey import Surveys
from iris.patterns.multicast.tree import arranged, divided

__all__ = (
    "Answers", "Broadcasts", "ReceiveWindow", "ReceiveWindows", "Relays", "StopReason", "StopRules", "Surveys",
    "arranged", "cost", "divided",
)  # fmt: skip
