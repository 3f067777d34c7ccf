"""Message types of the public API: requests, broadcasts and replies as handlers, subscribers and callers get them.

They are structs of msgspec: a frozen dataclass takes 2 us to make, which is a seventh of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from msgspec import Struct

from iris.kernel.names import NodeId


@final
class Sender(Struct, frozen=True):
    """The sender of a message, as its certificate proves it."""

    cluster: str
    """Cluster that the sending node speaks for: the caller.  One of another realm is ``REALM/CLUSTER``."""
    node: NodeId
    """The node itself: one boot of one process."""

    @property
    def realm(self) -> str:
        """Name of the sender's realm at this node; empty if it is this node's own realm."""
        return self.cluster.rpartition("/")[0]


@final
class Outbox:
    """Events that a bridge stores together with the outcome of a request: all of them, once, or none.

    They are in the log before the caller has its reply.  If the handler raises, or its member is lost before the
    outcome is recorded, or another member has taken over, none is stored.  Consumers, queues and Spark get them; they
    are not sent to those who subscribe now.
    """

    __slots__ = ("_add",)

    def __init__(self, add: Callable[[str, Any, str | None, Mapping[str, str] | None], None]) -> None:
        self._add = add

    def publish(
        self, topic: str, payload: Any, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Store an event with the outcome.  It does not wait, and may be called in threads.

        Args:
            topic: tokens joined by dots; a job is an event on the topic that has its queue's name.
            payload: as for ``Node.request``.
            key: as for ``Node.publish``.
            headers: as for ``Node.request``.

        Raises:
            ConfigError: the topic or the key is malformed.
            PayloadTooLarge: the outbox would have more than 64 events, or 256 KiB.
            LocalProtocolError: the payload or the headers cannot be sent.

        What the bridge refuses becomes the error of the request: ``NotAllowed``, for a topic that this node may not
        publish on, and ``no_outbox``, if the members of the bridge divide its events.
        """
        self._add(topic, payload, key, headers)


@final
class Request(Struct, frozen=True, kw_only=True):
    """One request, as its handler gets it.  The caller is ``sender.cluster``; ``cluster`` is the one that is asked."""

    payload: Any
    """Value that the caller sent, as it travelled: None, a bool, a number, str, bytes, a list or a dict."""
    sender: Sender
    """The caller, as its certificate proves it: decide by ``sender.cluster`` what a caller may do."""
    headers: Mapping[str, str]
    """Texts that the caller wrote beside the payload.  Nobody has verified them."""
    deadline: float
    """Time at which the caller stops waiting, on ``trio.current_time()``'s clock; the handler is cancelled then."""
    cluster: str
    """The cluster that is asked and serves, a membership of this node; never the caller."""
    operation: str | None
    """The operation that is asked for; None for a request without one."""
    idempotency_key: str | None = None
    """Idempotency key of the caller.  None if it sent none."""
    attempt: int = 1
    """Number of the attempt.  Above 1: a member was lost in the middle of the one before, which may have had its
    effect. Only of requests with an idempotency key, at a service whose ``Outcomes`` say ``rerun``."""
    undoes: str | None = None
    """Idempotency key of the step of a saga that this request undoes.  None for any other request."""
    outbox: Outbox | None = None
    """Events that are stored together with the outcome; None without an idempotency key."""


@final
class Message(Struct, frozen=True, kw_only=True):
    """One broadcast, as its handler gets it.  The sender is ``sender.cluster``."""

    payload: Any
    """Value that the sender sent, as it travelled; see ``Request.payload``."""
    sender: Sender
    """The sender, as its certificate proves it."""
    headers: Mapping[str, str]
    """Texts that the sender wrote beside the payload.  Nobody has verified them."""
    cluster: str
    """The cluster that it was sent to, a membership of this node; never the sender."""


@final
class Answer(Struct, frozen=True):
    """One member's reply to a survey."""

    payload: Any
    member: NodeId
