"""Public names of Iris: programs read them as ``iris.NAME``, which imports this module when the first one is read."""

from typing import TYPE_CHECKING, TypeAlias

from iris.cluster.discovery.seeds import SeedStatistics
from iris.cluster.membership.roster import Change, Member, NodeInfo, Watch
from iris.kernel.config import Config
from iris.kernel.errors import (
    AuthenticationError,
    ConfigError,
    DeliveryError,
    EventsLost,
    IrisError,
    LeaseLost,
    LocalProtocolError,
    MemberLost,
    NoSuchCluster,
    NotAllowed,
    NotSent,
    Overloaded,
    PayloadTooLarge,
    ProtocolError,
    RemoteError,
    RemoteProtocolError,
    RequestTimeout,
    SagaUndone,
    SubscriberTooSlow,
    TunnelBroken,
    Unknown,
)
from iris.kernel.link.link import LinkStatistics
from iris.node.blocked.handlers import BlockedStatistics
from iris.node.bridge import Bridge
from iris.node.environment import Environment
from iris.node.join import ClusterMembership
from iris.node.node import Node
from iris.node.open import open_node
from iris.node.statistics import NodeStatistics
from iris.patterns import state
from iris.patterns.books.counters import PatternStatistics
from iris.patterns.books.shown import BookRow, Books
from iris.patterns.books.watch import Loss, LossWatch
from iris.patterns.latency import LatencyStatistics
from iris.patterns.messages import Answer, Message, Outbox, Sender
from iris.patterns.multicast.answers import Answers
from iris.patterns.pubsub import queues
from iris.patterns.pubsub.interest.durable_subscribers import DurableSubscriber
from iris.patterns.pubsub.interest.shards import Share
from iris.patterns.pubsub.publish.accounts import PublishStatistics
from iris.patterns.pubsub.publish.ack_batch import ConfirmedEvents
from iris.patterns.pubsub.subscribe.events import Event
from iris.patterns.pubsub.subscribe.subscription import Subscription, SubscriptionLimits, SubscriptionStatistics
from iris.patterns.request.options import RequestOptions
from iris.patterns.service.dependencies import FromLifespan
from iris.patterns.service.outcomes import Outcomes
from iris.patterns.service.service import Limits, Requester, Service, operation
from iris.patterns.service.worker_pool import ServiceStatistics
from iris.patterns.tunnel.table import TunnelsStatistics
from iris.patterns.tunnel.tunnel import FileSummary, Tunnel, TunnelStatistics, TunnelStream
from iris.security.files.credential_file import CredentialWatch
from iris.security.identity.credential import Credential
from iris.security.identity.identity import PeerIdentity

if TYPE_CHECKING:
    from iris.patterns.messages import Request as _Request
    from iris.patterns.pubsub.queues import Consumer, Job, JobWorker, LogBatch, LogEvent, WorkQueue
    from iris.patterns.state import (
        Lease,
        Saga,
        SharedCounter,
        SharedMap,
        SharedSet,
        SharedState,
        StateChange,
        StateStatistics,
        StateWatch,
    )

    Request: TypeAlias = _Request[Node]
else:  # at run time it is the class itself, which requests are made of
    from iris.patterns.messages import Request

    def __getattr__(name: str) -> object:
        """Load a name of what few nodes do."""
        for room in (queues, state):
            if name in __all__ and hasattr(room, name):
                return getattr(room, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Answer",
    "Answers",
    "AuthenticationError",
    "BlockedStatistics",
    "BookRow",
    "Books",
    "Bridge",
    "Change",
    "ClusterMembership",
    "Config",
    "ConfigError",
    "ConfirmedEvents",
    "Consumer",
    "Credential",
    "CredentialWatch",
    "DeliveryError",
    "DurableSubscriber",
    "Environment",
    "Event",
    "EventsLost",
    "FileSummary",
    "FromLifespan",
    "IrisError",
    "Job",
    "JobWorker",
    "LatencyStatistics",
    "Lease",
    "LeaseLost",
    "Limits",
    "LinkStatistics",
    "LocalProtocolError",
    "LogBatch",
    "LogEvent",
    "Loss",
    "LossWatch",
    "Member",
    "MemberLost",
    "Message",
    "NoSuchCluster",
    "Node",
    "NodeInfo",
    "NodeStatistics",
    "NotAllowed",
    "NotSent",
    "Outbox",
    "Outcomes",
    "Overloaded",
    "PatternStatistics",
    "PayloadTooLarge",
    "PeerIdentity",
    "ProtocolError",
    "PublishStatistics",
    "RemoteError",
    "RemoteProtocolError",
    "Request",
    "RequestOptions",
    "RequestTimeout",
    "Requester",
    "Saga",
    "SagaUndone",
    "SeedStatistics",
    "Sender",
    "Service",
    "ServiceStatistics",
    "Share",
    "SharedCounter",
    "SharedMap",
    "SharedSet",
    "SharedState",
    "StateChange",
    "StateStatistics",
    "StateWatch",
    "SubscriberTooSlow",
    "Subscription",
    "SubscriptionLimits",
    "SubscriptionStatistics",
    "Tunnel",
    "TunnelBroken",
    "TunnelStatistics",
    "TunnelStream",
    "TunnelsStatistics",
    "Unknown",
    "Watch",
    "WorkQueue",
    "open_node",
    "operation",
]
