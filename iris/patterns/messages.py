"""Message types of the public API: requests, broadcasts and replies as handlers, subscribers and callers get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from iris.kernel.names import NodeId


@final
@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a message, as its certificate proves it."""

    cluster: str
    """The cluster that the sending node speaks for: who asks.  That of another realm is ``REALM/CLUSTER``."""
    node: NodeId
    """The node itself: one boot of one process."""

    @property
    def realm(self) -> str:
        """What the sender's realm is called here; empty if it is this node's own."""
        return self.cluster.rpartition("/")[0]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as its handler gets it.  Who asks is ``sender.cluster``; ``cluster`` is who is asked."""

    payload: Any
    """What the caller sent, as it travelled: None, a bool, a number, str, bytes, a list or a dict."""
    sender: Sender
    """Who asks, as its certificate proves it: decide by ``sender.cluster`` what a caller may do."""
    headers: Mapping[str, str]
    """What the caller wrote beside the payload.  Nobody has verified it."""
    deadline: float
    """When the caller stops waiting, on ``trio.current_time()``'s clock; the handler is cancelled then."""
    cluster: str
    """The cluster that is asked and serves, a membership of this node; never the caller."""
    operation: str | None
    """The operation that is asked for; None for a request without one."""
    idempotency_key: str | None = None
    """That of the caller; None if it gave none."""
    attempt: int = 1
    """Above 1: a member was lost in the middle of the attempt before, which may have had its effect.  Only of requests
    with an idempotency key, at a service whose ``Outcomes`` say ``rerun``."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One broadcast, as its handler gets it.  Who sent it is ``sender.cluster``."""

    payload: Any
    """What the sender sent, as it travelled; see ``Request.payload``."""
    sender: Sender
    """Who sent it, as its certificate proves it."""
    headers: Mapping[str, str]
    """What the sender wrote beside the payload.  Nobody has verified it."""
    cluster: str
    """The cluster that it was sent to, a membership of this node; never the sender."""


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """One member's reply to a survey."""

    payload: Any
    member: NodeId
