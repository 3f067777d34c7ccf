"""Message types of the public API: requests, broadcasts and replies as handlers, subscribers and callers get them.

They are structs of msgspec: a frozen dataclass takes 2 us to make, which is a seventh of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, final

from msgspec import Struct

from iris.kernel.names import NodeId

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    N = TypeVarWithDefault("N", bound="OwnNode", default="OwnNode")
else:
    N = TypeVar("N")


class OwnNode:
    """A node of whichever kind of program: a handler's parameter of such a type gets the node that it runs at.

    Attributes:
        _shown_as: name of the class in programs.
    """

    __slots__ = ()

    _shown_as: ClassVar[str] = "iris.Node"

    @classmethod
    def _for_threads(cls, _node: OwnNode) -> AbstractAsyncContextManager[Self] | None:
        """Open a node like this in the run of a trio node, for its worker threads; None if this is none for threads."""
        return None


@final
class Sender(Struct, frozen=True):
    """The sender of a message, as its certificate proves it.

    Attributes:
        cluster: cluster that the sending node speaks for: the caller.  One of another realm is ``REALM/CLUSTER``.
        node: the node itself: one boot of one process.
    """

    cluster: str
    node: NodeId

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
class Request(Struct, Generic[N], frozen=True, kw_only=True):
    """One request, as its handler gets it.  The caller is ``sender.cluster``; ``cluster`` is the one that is asked.

    Type checkers know the ``node`` of an ``iris.Request`` as an ``iris.Node``; ``iris.aio.Request`` and
    ``iris.sync.Request`` are this class with the nodes of those.

    Attributes:
        payload: value that the caller sent, as it travelled: None, a bool, a number, str, bytes, a list or a dict.
        sender: the caller, as its certificate proves it: decide by ``sender.cluster`` what a caller may do.
        headers: texts that the caller wrote beside the payload.  Nobody has verified them.
        deadline: time at which the caller stops waiting, on ``trio.current_time()``'s clock, in a process on
            ``time.monotonic()``'s; the handler is cancelled then.
        cluster: the cluster that is asked and serves, a membership of this node; never the caller.
        operation: the operation that is asked for; None for a request without one.
        idempotency_key: idempotency key of the caller.  None if it sent none.
        attempt: number of the attempt.  Above 1: a member was lost in the middle of the one before, which may have had
            its effect.  Only of requests with an idempotency key, at a service whose ``Outcomes`` say ``rerun``.
        undoes: idempotency key of the step of a saga that this request undoes.  None for any other request.
        outbox: events that are stored together with the outcome; None without an idempotency key.
    """

    payload: Any
    sender: Sender
    headers: Mapping[str, str]
    deadline: float
    cluster: str
    operation: str | None
    idempotency_key: str | None = None
    attempt: int = 1
    undoes: str | None = None
    outbox: Outbox | None = None
    _node: N | None = None
    _part: Callable[[int, object], None] | None = None
    """Sends the answer to a survey, or the error, of one of so many for whom the handler stands; see ``EACH``."""

    @property
    def node(self) -> N:
        """The node that the handler runs at: to ask others, publish, open documents and the like.

        It acts with the rights of this member, and not with those of the caller.  In a handler of trio it is an
        ``iris.Node``, of asyncio an ``iris.aio.Node``, of ``iris.sync`` an ``iris.sync.Node``; a handler with
        ``thread=True`` has the last one where its parameter is an ``iris.sync.Request``.

        Raises:
            RuntimeError: the request was made by hand, or its handler runs in a process, which has no node.
        """
        if self._node is None:
            raise RuntimeError("this request has no node: it was made by hand, or its handler runs in a process")
        return self._node


@final
class Message(Struct, frozen=True, kw_only=True):
    """One broadcast, as its handler gets it.  The sender is ``sender.cluster``.

    Attributes:
        payload: value that the sender sent, as it travelled; see ``Request.payload``.
        sender: the sender, as its certificate proves it.
        headers: texts that the sender wrote beside the payload.  Nobody has verified them.
        cluster: the cluster that it was sent to, a membership of this node; never the sender.
    """

    payload: Any
    sender: Sender
    headers: Mapping[str, str]
    cluster: str


@final
class Answer(Struct, frozen=True):
    """One member's reply to a survey.

    Attributes:
        payload: value that the member's handler returned, as it travelled.
        member: the member, as ``answers.missing`` and ``RequestOptions.prefer`` name it.
    """

    payload: Any
    member: NodeId
