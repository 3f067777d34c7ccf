"""Use of a bridge's log without Spark: put jobs and take them, read events in groups.

Promises: a job that was put is done at least once, or becomes a dead letter, or expires; a worker has at most ``limit``
jobs in hand, and reports again what a bridge has not confirmed; a consumer gets each event from its group's position
on.  Not here: the choice of the receiver (iris.spark_bridge.queues, iris.spark_bridge.consumers).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iris.patterns.pubsub.queues.api import *
    from iris.patterns.pubsub.queues.api import __all__ as __all__
else:
    from iris.kernel.tasks import late_names
    from iris.patterns.pubsub.queues.bridge_user import BridgeUser as BridgeUser

    __getattr__ = late_names(__name__)
