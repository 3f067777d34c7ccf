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
    """The cluster that the sending node speaks for; that of another realm is ``REALM/CLUSTER``."""
    node: NodeId
    """The node itself: one boot of one process."""

    @property
    def realm(self) -> str:
        """What the sender's realm is called here; empty if it is this node's own."""
        return self.cluster.rpartition("/")[0]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as its handler gets it."""

    payload: Any
    sender: Sender
    headers: Mapping[str, str]
    deadline: float
    """When the caller stops waiting, on ``trio.current_time()``'s clock; the handler is cancelled then."""
    cluster: str
    operation: str | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One broadcast, as its handler gets it."""

    payload: Any
    sender: Sender
    headers: Mapping[str, str]
    cluster: str


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """One member's reply to a survey."""

    payload: Any
    member: NodeId
