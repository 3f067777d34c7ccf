"""Iris: programs address services by name, not hosts.

::

    async with iris.open_node() as node:
        print(await node.request("databases", b"hello"))
"""

from iris._environment import Environment
from iris._joining import ClusterMembership
from iris._node import Node
from iris._opening import open_node
from iris._statistics import NodeStatistics
from iris.cluster.roster import Change, Member
from iris.kernel.config import Config
from iris.kernel.errors import (
    AuthenticationError,
    ConfigError,
    DeliveryError,
    EventsLost,
    IrisError,
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
    TunnelBroken,
    Unknown,
)
from iris.patterns.durable_subscribers import DurableSubscriber
from iris.patterns.events import Event
from iris.patterns.service import Limits, Service
from iris.patterns.shards import Share
from iris.patterns.subscription import Subscription, SubscriptionLimits
from iris.patterns.survey import Answers
from iris.patterns.tunnel import Tunnel
from iris.patterns.values import Answer, Message, Request, Sender

__all__ = [
    "Answer",
    "Answers",
    "AuthenticationError",
    "Change",
    "ClusterMembership",
    "Config",
    "ConfigError",
    "DeliveryError",
    "DurableSubscriber",
    "Environment",
    "Event",
    "EventsLost",
    "IrisError",
    "Limits",
    "LocalProtocolError",
    "Member",
    "MemberLost",
    "Message",
    "NoSuchCluster",
    "Node",
    "NodeStatistics",
    "NotAllowed",
    "NotSent",
    "Overloaded",
    "PayloadTooLarge",
    "ProtocolError",
    "RemoteError",
    "RemoteProtocolError",
    "Request",
    "RequestTimeout",
    "Sender",
    "Service",
    "Share",
    "Subscription",
    "SubscriptionLimits",
    "Tunnel",
    "TunnelBroken",
    "Unknown",
    "open_node",
]
