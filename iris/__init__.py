"""Iris: programs address services by name, not hosts.

::

    async with iris.open_node() as node:
        print(await node.request("databases", b"hello"))
"""

from iris import _starting  # first: it decides what Ctrl-C does while the others load
from iris._environment import Environment
from iris._joining import ClusterMembership
from iris._node import Node
from iris._opening import open_node
from iris._statistics import NodeStatistics
from iris.cluster.roster import Change, Member, NodeInfo
from iris.cluster.watch import Watch
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
from iris.kernel.link_statistics import LinkStatistics
from iris.patterns.confirmed_events import ConfirmedEvents
from iris.patterns.counters import PatternStatistics
from iris.patterns.durable_subscribers import DurableSubscriber
from iris.patterns.events import Event
from iris.patterns.losses import PublishStatistics
from iris.patterns.member import ServiceStatistics
from iris.patterns.service import Limits, Service
from iris.patterns.shards import Share
from iris.patterns.subscription import Subscription, SubscriptionLimits, SubscriptionStatistics
from iris.patterns.survey import Answers
from iris.patterns.tunnel import FileSummary, Tunnel, TunnelStatistics, TunnelStream
from iris.patterns.tunnel_table import TunnelsStatistics
from iris.patterns.values import Answer, Message, Request, Sender
from iris.security.credential import Credential
from iris.security.credential_watch import CredentialWatch
from iris.security.identity import PeerIdentity

__all__ = [
    "Answer",
    "Answers",
    "AuthenticationError",
    "Change",
    "ClusterMembership",
    "Config",
    "ConfigError",
    "ConfirmedEvents",
    "Credential",
    "CredentialWatch",
    "DeliveryError",
    "DurableSubscriber",
    "Environment",
    "Event",
    "EventsLost",
    "FileSummary",
    "IrisError",
    "Limits",
    "LinkStatistics",
    "LocalProtocolError",
    "Member",
    "MemberLost",
    "Message",
    "NoSuchCluster",
    "Node",
    "NodeInfo",
    "NodeStatistics",
    "NotAllowed",
    "NotSent",
    "Overloaded",
    "PatternStatistics",
    "PayloadTooLarge",
    "PeerIdentity",
    "ProtocolError",
    "PublishStatistics",
    "RemoteError",
    "RemoteProtocolError",
    "Request",
    "RequestTimeout",
    "Sender",
    "Service",
    "ServiceStatistics",
    "Share",
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
    "open_node",
]

_starting.raise_when_interrupted()
