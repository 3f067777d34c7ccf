"""Protocol of a bridge, as far as every node may speak it: shards, queues, consumers, leases and idempotency keys.

One class for each request, each reply and each message of a tunnel.  A request travels as a map of its fields, without
those that have their defaults.  ``read_request`` and ``read_reply`` make these types of what a peer has sent, and are
the only ones that do: what does not fit is refused there, to its sender, before anything is made of it.  Fields that
are not known here are left out: the other side may be of a newer version.

The operations that only readers and writers with Spark and operators need are in ``iris.spark_bridge.protocol``, and so
is the table of all of them.  A class without an operation or a permission is refused when that table is made.
"""

# Not ``from __future__ import annotations``: msgspec would evaluate the text of each annotation, 2 ms at every start.

import reprlib
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, final, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from iris.kernel.config import KIB
from iris.kernel.errors import NotAllowed, RemoteError, RemoteProtocolError
from iris.kernel.statistics import Statistics
from iris.kernel.topic_syntax import MAX_TOPIC, TOPIC_FORM, is_own_topic, is_pattern, is_topic
from iris.security.identity import MAX_PATTERNS

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

# -- limits and forms ------------------------------------------------------------------------------------------

GROUP: Final = "queue/"
"""Prefix of a queue's name in that of the group under which a bridge keeps its progress."""

MAX_LABEL: Final = 256
"""Size limit of a group's name, and of each part of an idempotency key, in bytes."""

MAX_LIMIT: Final = 4096
"""Jobs that a worker has in hand at a time."""

MAX_REPORTED: Final = 2 * MAX_LIMIT
"""Jobs that one report names: the beginning and the end of all that a worker may have in hand."""

MAX_ATTEMPTS: Final = 1000
MIN_LEASE: Final = 0.1
MAX_LEASE: Final = 7 * 24 * 3600.0
MAX_BACKOFF: Final = 3600.0
MAX_ERROR: Final = 1024
"""Characters of the error that a job has failed with; the rest is cut off."""

MIN_TTL: Final = 1.0
MAX_TTL: Final = 3600.0
MAX_WAIT: Final = 5.0
"""Seconds that a bridge waits at most for a lease, or for another member's outcome, before it answers."""

MIN_KEEP: Final = 1.0
MAX_KEEP: Final = 366 * 24 * 3600.0
MAX_OUTCOME: Final = 256 * KIB
"""Size limit of a reply, and of an outbox, kept with an idempotency key, in bytes."""
MAX_BUDGET: Final = 2.0**32 / 1000
"""Seconds of a claim."""
MAX_EVENTS: Final = 64
"""Events of an outbox."""
_FRAMING: Final = 16
"""Size of an outcome beside the reply, in bytes."""

_NAME: Final = r"[A-Za-z0-9_.-]{1,128}"
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Offset
Name = Annotated[str, Meta(pattern=rf"^{_NAME}\Z")]
Cluster = Annotated[str, Meta(pattern=rf"^(?:{_NAME}/)?{_NAME}\Z")]
"""A cluster of this realm, or ``REALM/CLUSTER``."""
NodeName = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Label = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL)]
"""A group, or another text of at most 256 bytes."""
ShardId = Annotated[str, Meta(pattern=r"^[0-9]{1,9}@[ -~]{1,64}\Z")]
"""An id of a shard: its number, and what distinguishes its log from others."""
Offsets = dict[ShardId, Offset]
Topic = Annotated[str, Meta(pattern=TOPIC_FORM, max_length=MAX_TOPIC)]
Topics = Annotated[tuple[str, ...], Meta(max_length=MAX_PATTERNS)]
"""Patterns of topics."""
Token = Annotated[bytes, Meta(min_length=16, max_length=16)]
Outcome = Annotated[bytes, Meta(max_length=MAX_OUTCOME + _FRAMING)]


# -- requests and rights ---------------------------------------------------------------------------------------

Kind = Literal["group", "query"]
"""Kinds of names that belong to a cluster; also the field of a request with the name."""

Caller = Literal["reader", "subscriber", "writer", "bridge", "member"]

Moved = Literal["none", "named", "wanted", "queue", "written"]
"""Topics that a caller needs rights to.

- none: the operation moves no events.
- named: topics that the request names, to subscribe; without any the answer has numbers alone.
- wanted: the same, and without any all topics.
- queue: topic of the queue that the request names, to subscribe.
- written: topics of the rows that the caller writes, to publish.

An operation that owns a group needs the right to the topic of a queue besides, if the group is a queue's
(``queue/NAME``).
"""


class Permission(Struct, frozen=True):
    """Permission for one operation: who may call it."""

    caller: Caller
    topics: Moved = "none"
    owns: Kind | None = None
    """Kind of a name in the request that must belong to the caller's cluster; a free name belongs to it from now on.
    Only a consumer that looks names none."""


class Ask(Struct, Generic[R_co], omit_defaults=True, kw_only=True):
    """A request to a member of a bridge, whose reply is an ``R``; the subclass is its operation."""

    operation: ClassVar[str]
    permission: ClassVar[Permission]
    is_tunnel: ClassVar[bool] = False
    """True if it is the first message of a tunnel, and the reply the first one that comes back."""

    def check(self) -> None:
        """Raise ValueError if what a peer has sent is malformed in a way that the types do not say."""
        group: object = getattr(self, "group", None)
        if isinstance(group, str) and len(group.encode()) > MAX_LABEL:
            raise ValueError(f"group: use 1 to {MAX_LABEL} bytes of text")
        if not all(map(is_pattern, getattr(self, "topics", ()))):
            raise ValueError(f"topics: use a list of topic patterns, {MAX_PATTERNS} at most")


class Bridges(Protocol):
    """Port of leases, sagas and outcomes to the bridges of the realm: a node asks them by its ``Calls``."""

    async def ask(self, bridge: str, request: Ask[R], timeout: float, /) -> R:
        """Ask a cluster, within seconds.  It blocks until there is a reply.

        Raises:
            RemoteProtocolError: what it answers is no reply to that.
            DeliveryError: as ``Node.request``.
        """
        ...

    def entropy(self, size: int, /) -> bytes:
        """Return random bytes, for the names of claims and holders.  It does not block."""
        ...


def read_request(kind: type[T], payload: object) -> T:
    """Read a request, or a message of a tunnel; raise RemoteError ``bad_request`` if it is something else.

    No payload is a request without fields.
    """
    try:
        fields: object = {} if payload in (None, b"") else payload
        request = msgspec.convert(fields, kind, builtin_types=(bytes,), str_keys=True)
        asked: object = request
        if isinstance(asked, Ask):
            asked.check()
    except msgspec.ValidationError as error:
        raise RemoteError("bad_request", _explained(error, payload)) from None
    except ValueError as error:
        raise RemoteError("bad_request", str(error)) from None
    return request


def read_reply(kind: type[T], payload: object) -> T:
    """Return what a member of a bridge has answered, or has sent through a tunnel.

    Raises:
        RemoteProtocolError: it is something else.
        NotAllowed, RemoteError: it is the error that ends a tunnel.
    """
    refusal = read_refusal(payload)
    if refusal is not None:
        raise refusal
    try:
        return msgspec.convert(payload, kind, builtin_types=(bytes,), str_keys=True)
    except msgspec.ValidationError as error:
        text = f"a member of the bridge answered in a form that is not understood: {_explained(error, payload)}"
        raise RemoteProtocolError(text) from None


def read_answer(request: Ask[R], payload: object) -> R:
    """Read the reply that the class of a request names; raise RemoteProtocolError if it is something else."""
    (kind,) = get_args(vars(type(request))["__orig_bases__"][0])
    reply: R = read_reply(kind, payload)
    return reply


def read_refusal(payload: object) -> NotAllowed | RemoteError | None:
    """Return the error that a member has sent through a tunnel. None if it is another message."""
    match payload:
        case {"error": str(code), "message": str(message)}:
            return NotAllowed(message) if code == "NotAllowed" else RemoteError(code, message)
        case _:
            return None


def _explained(error: msgspec.ValidationError, payload: object) -> str:
    text, _, place = str(error).partition(" - at `")
    name = place.removeprefix("$.").removesuffix("`")
    if isinstance(payload, dict) and name in payload:
        return f"{name} is {reprlib.repr(payload[name])}: {text}"  # pyright: ignore[reportUnknownArgumentType]
    return f"{name}: {text}" if name else text


def as_fields(message: object) -> Any:
    """Return a message, or a reply, as it travels: in C, and not value by value as ``encoded`` does it."""
    return msgspec.to_builtins(message, builtin_types=(bytes,), str_keys=True)


# -- shards ----------------------------------------------------------------------------------------------------


class RemoteShard(Struct, kw_only=True, frozen=True):
    """A shard of a bridge, and the cluster through which it is reached."""

    id: ShardId
    number: Number
    address: Name
    earliest: Offset
    next: Offset
    size: Number
    timestamp: Number
    of: Number
    """Number of shards of the bridge if its members divide the events; else 0."""
    gap: Annotated[int, Meta(ge=-1, le=2**63 - 1)]
    """The greatest offset before which events are missing, or whose event is damaged; -1: there is none."""
    term: Number
    """Term of the primary that answered: each promotion of a copy begins a new term."""

    def __post_init__(self) -> None:
        if self.earliest > self.next or not self.id.startswith(f"{self.number}@"):
            raise ValueError(f"shard {self.id!r} of number {self.number}, {self.earliest} to {self.next}, is none")


class MemberShards(Struct, kw_only=True, frozen=True):
    """The shards of a bridge, as its members report them."""

    shards: tuple[RemoteShard, ...]
    """Shards that the members have."""
    known: dict[Number, Name]
    """Number of every shard that the bridge is known to have, with the cluster that served it last."""


class ListShards(Ask[MemberShards], kw_only=True):
    """Ask for the shards that a member has, and knows of the others."""

    operation = "shards"
    permission = Permission("reader")


# -- queues ----------------------------------------------------------------------------------------------------
#
# A worker begins with ``TakeJobs``, and the bridge answers with ``TakeAnswer``.  Then both send what there is to say.
# A worker that waits for jobs, and has not begun others in time before, says so by a report without any field.


class Place(NamedTuple):
    """Place of a job in the log."""

    shard: Number
    offset: Offset


Places = Annotated[tuple[Place, ...], Meta(max_length=MAX_REPORTED)]


class TakeAnswer(Struct, kw_only=True):
    """The first answer to a worker."""

    now: float
    """Seconds of the bridge's clock, which is monotonic."""
    shards: tuple[ShardId, ...] = ()
    """The shards of the member now.  Places of a shard that has another id by then mean other jobs: none of these is
    held or reported."""


class QueueAsk(Ask[R_co], Generic[R_co], kw_only=True):
    """A request about a queue."""

    group: Label
    """``queue/NAME``."""

    def check(self) -> None:
        super().check()
        if not self.group.startswith(GROUP) or not is_topic(self.name):
            raise ValueError(f"group is {self.group!r:.100}: use {GROUP}NAME, and a topic as the queue's name")

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self.group.removeprefix(GROUP)


class TakeJobs(QueueAsk[TakeAnswer], kw_only=True):
    """Terms of a worker: the first message of its tunnel."""

    operation = "take"
    permission = Permission("subscriber", "queue", owns="group")
    is_tunnel = True

    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
    lease: Annotated[float, Meta(ge=MIN_LEASE, le=MAX_LEASE)]
    attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)]
    dead: str
    """Topic of the dead letters."""
    backoff: Annotated[float, Meta(ge=0.0, le=MAX_BACKOFF)]
    held: Places = ()
    """Jobs that it has begun."""
    shards: tuple[str, ...] | None = None
    """Ids of the shards of what it holds.  None: it does not know them."""

    def check(self) -> None:
        super().check()
        if not is_own_topic(self.dead) or self.dead == self.name:
            raise ValueError(f"dead is {self.dead!r:.100}: use a topic, another one than that of the queue")


class JobFailure(NamedTuple):
    """A job whose attempt has failed."""

    shard: Number
    offset: Offset
    attempt: int
    error: str
    permanent: bool
    """True if trying again is of no use."""


class JobReport(Struct, omit_defaults=True, kw_only=True):
    """Report of a worker."""

    begun: Places = ()
    """Jobs on which it works from now on."""
    done: Places = ()
    failed: Annotated[tuple[JobFailure, ...], Meta(max_length=MAX_REPORTED)] = ()
    released: Places = ()
    """Jobs that it returns."""
    expired: Places = ()
    """Jobs that had expired before they were begun."""
    extended: Places = ()
    """Jobs whose lease begins anew."""

    def __post_init__(self) -> None:
        outcomes = len(self.done) + len(self.failed) + len(self.released)
        named = outcomes + len(self.begun) + len(self.expired) + len(self.extended)
        if named > MAX_REPORTED:
            raise ValueError(f"a worker's report names {named} jobs: use {MAX_REPORTED} at most")


class SentJob(NamedTuple):
    """A job, as a bridge sends it."""

    shard: Number
    offset: Offset
    attempt: Number
    expires: float | None
    """Seconds of the bridge's clock; None: never."""
    key: str | None
    headers: dict[str, str]
    sender: str
    encoding: str
    timestamp: Number
    """Microseconds since 1970."""
    value: bytes | Number
    """A value of more than 64 KiB is its size; its bytes follow as messages of their own, before any other."""


class JobNews(Struct, omit_defaults=True, kw_only=True):
    """Message of a bridge to a worker."""

    settled: tuple[Place, ...] = ()
    """Jobs that the worker need not remember any more."""
    taken: tuple[Place, ...] = ()
    """Jobs of ``settled`` that the worker has lost: their leases have ended, or another worker has reported them done.
    They come in a message of their own, which answers no report: that answer comes as well."""
    late: tuple[Place, ...] = ()
    """Jobs of ``settled`` reported done in vain: another worker has begun or done them, or their outcome was there."""
    suspect: tuple[Place, ...] = ()
    """Jobs that come next, of which each is begun only when that is confirmed."""
    confirmed: tuple[Place, ...] = ()
    """Suspects that are known to be begun."""
    jobs: tuple[SentJob, ...] = ()


@final
class QueueStatus(Statistics, frozen=True, kw_only=True):
    """Status of a queue on one member of a bridge."""

    queue: str
    unread: Number
    """Events of the log that were not read yet; some may be on other topics."""
    waiting: Number
    """Jobs that may be assigned, or wait for another one of their key."""
    delayed: Number
    """Delayed jobs, including those that wait for a retry."""
    in_hand: Number
    """Jobs at workers."""
    workers: Number
    done: Number
    dead: Number
    """Dead letters that were written."""
    expired: Number
    """Jobs that nobody got because they had expired."""
    retried: Number
    """Attempts that were followed by another one, since the bridge was started."""
    lapsed: Number
    """Failed attempts whose lease ran out or whose worker was lost."""


class ShowQueue(QueueAsk[QueueStatus], kw_only=True):
    """Ask for the status of a queue."""

    operation = "queue"
    permission = Permission("subscriber", "queue")


class ShownJob(Struct, kw_only=True):
    """A job that waits, or is in hand."""

    shard: Number
    offset: Offset
    state: str
    attempts: Number
    error: str
    due_in: float
    """Seconds until it may be handed out."""
    expires_in: float | None
    key: str | None
    headers: dict[str, str]
    sender: str
    timestamp: Number
    encoding: str
    value: bytes
    """Value of the job, cut off after 4,096 bytes."""
    size: Number
    """Size of the whole value, in bytes."""


class PeekJobs(QueueAsk[tuple[ShownJob, ...]], kw_only=True):
    """The jobs of a queue that come first in the log."""

    operation = "peek"
    permission = Permission("subscriber", "queue", owns="group")
    most: Annotated[int, Meta(ge=0, le=256)]


class PurgeQueue(QueueAsk[Number], kw_only=True):
    """Forget the jobs of a queue; how many those were."""

    operation = "purge"
    permission = Permission("subscriber", "queue", owns="group")


# -- consumers -------------------------------------------------------------------------------------------------


class StartTime(Struct, tag_field="at", tag="time", frozen=True):
    """Begin with the first event that is not older."""

    time: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    """Microseconds since 1970."""


class StartOffset(Struct, tag_field="at", tag="offset", frozen=True):
    """Begin at this offset of every shard."""

    offset: Offset


Start = Literal["earliest", "latest"] | StartTime | StartOffset


class Consuming(Struct, omit_defaults=True, kw_only=True):
    """The first answer to a consumer, when no other one of its group is served here: where it begins."""

    at: Offsets
    until: Offsets | None = None
    """Offsets at which it ends, if it is to end."""


class Consume(Ask[Consuming], kw_only=True):
    """Terms of a consumer: the first message of its tunnel."""

    operation = "consume"
    permission = Permission("subscriber", "wanted", owns="group")
    is_tunnel = True

    group: Label | None = None
    """None: it only looks. No place is kept, and nothing is committed."""
    topics: Topics
    start: Start = "earliest"
    """Start of a group that is new, or is to be replayed, and of a look."""
    replay: bool = False
    at: Offsets = {}
    """Offsets that this consumer has reached since it began."""
    until: Literal["now"] | Offsets | None = None
    """End of what is sent: that of the log now, or the one that was answered when this consumer began. None: it has
    none."""


class DropGroup(Ask[bool], kw_only=True):
    """Forget a group; whether it was known.  ``Drop`` of ``iris.spark_bridge.protocol`` is the whole operation."""

    operation = "drop"
    permission = Permission("bridge")

    group: Label


class ConsumerReport(Struct, omit_defaults=True, kw_only=True):
    """Report of a consumer."""

    commit: Offsets = {}
    """Offsets that the group has reached."""
    taken: Number | None = None
    """Batches of this tunnel that the program has received. None: as many as before."""


class SentEvent(NamedTuple):
    """An event of a log, as a bridge sends it."""

    offset: Offset
    topic: str
    key: str | None
    headers: dict[str, str]
    sender: str
    encoding: str
    timestamp: Number
    """Microseconds since 1970."""
    value: bytes | Number
    """Value, or its size if it has more than 64 KiB; see ``SentJob``."""


class SentBatch(Struct, kw_only=True):
    """Consecutive events of one shard."""

    shard: ShardId
    end: Offset
    lag: Number
    """Events of the shard that come behind it."""
    missed: Number
    """Events that were trimmed before these could be read."""
    gaps: Number
    """Events that the bridge never got."""
    expired: Number
    events: tuple[SentEvent, ...]


class LogNews(Struct, omit_defaults=True, kw_only=True):
    """Message of a bridge to a consumer: one of the three."""

    committed: Offsets = {}
    """Offsets that the group has reached, on the disk."""
    batch: SentBatch | None = None
    ended: bool = False
    """True if everything up to ``until`` was sent."""


# -- leases ----------------------------------------------------------------------------------------------------


class LeaseAnswer(Struct, omit_defaults=True, kw_only=True):
    """The lease is granted, or held by another one for so many seconds at most, or granted elsewhere."""

    token: Number | None = None
    at: Name | None = None
    """Cluster where it is renewed and released."""
    busy: float | None = None
    elsewhere: Name | None = None


class MemberAsk(Ask[R_co], Generic[R_co], kw_only=True):
    """A request for a cluster, of one of its members."""

    permission = Permission("member")

    cluster: Cluster
    holder: Token
    """Random identity of this holder of a lease or key."""


class AskLease(MemberAsk[LeaseAnswer], kw_only=True):
    """Ask for a lease."""

    operation = "lease"

    name: Name
    ttl: Annotated[float, Meta(ge=MIN_TTL, le=MAX_TTL)]
    wait: Annotated[float, Meta(ge=0.0, le=MAX_WAIT)] = 0.0


class RenewLease(MemberAsk[bool], kw_only=True):
    """Prolong a lease; whether the caller still has it."""

    operation = "renew"

    name: Name


class ReleaseLease(MemberAsk[bool], kw_only=True):
    """End a lease; whether the caller had it."""

    operation = "release"

    name: Name


# -- idempotency keys ------------------------------------------------------------------------------------------


class KeyAnswer(Struct, omit_defaults=True, kw_only=True):
    """Answer to a claim: run the request, or what it has come to, or that another member has it, or where to ask."""

    attempt: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    notes: bytes = b""
    """With an attempt: what former ones have left."""
    undone: bytes | UnsetType | None = UNSET
    """With an attempt that undoes another request: what that one has come to. None: it never began."""
    outcome: bytes | None = None
    busy: float | None = None
    """Seconds, at most, until another member's claim is over."""
    doubt: str | None = None
    """Node that began it, and was lost; with its attempt."""
    elsewhere: Name | None = None

    def __post_init__(self) -> None:
        if self.attempt is None and self.outcome is None and self.busy is None and self.elsewhere is None:
            raise ValueError("an answer to a claim that says nothing")


class KeyCounts(Struct, omit_defaults=True, kw_only=True):
    """Answer to a report about a key: it counts if no other member has taken over.  Or where to ask."""

    counts: bool | None = None
    elsewhere: Name | None = None

    def __post_init__(self) -> None:
        if self.counts is None and self.elsewhere is None:
            raise ValueError("an answer that says nothing")


class StepName(Struct, kw_only=True, frozen=True):
    """Another request of the same cluster and caller."""

    operation: Label | None = None
    key: Label


class KeyAsk(MemberAsk[R_co], Generic[R_co], kw_only=True):
    """A request about an idempotency key, which is that of a cluster, a caller's cluster and an operation."""

    caller: Label
    on: Label | None = field(default=None, name="operation")
    """Operation of the request that has the key."""
    key: Label

    def check(self) -> None:
        step: StepName | None = getattr(self, "undoes", None)
        texts = (self.cluster, self.caller, self.on, self.key, *((step.operation, step.key) if step else ()))
        if any(len(text.encode()) > MAX_LABEL for text in texts if text is not None):
            raise ValueError(f"a part of an idempotency key is too long: use 1 to {MAX_LABEL} bytes of text")
        if step is not None and (step.operation, step.key) == (self.on, self.key):
            raise ValueError("a request undoes another one, and not itself")


class KeyTerms(KeyAsk[R_co], Generic[R_co], kw_only=True):
    """Terms of a claim, which the record of its outcome repeats."""

    fingerprint: Token
    """Fingerprint of the payload that the key stands for."""
    budget: Annotated[float, Meta(ge=0.0, le=MAX_BUDGET)] = 0.0
    """Seconds of the claim."""
    keep: Annotated[float, Meta(ge=MIN_KEEP, le=MAX_KEEP)]
    rerun: bool
    undoes: StepName | None = None


class NoteKey(KeyAsk[KeyCounts], kw_only=True):
    """Leave notes for the next one that claims the key."""

    operation = "key.note"

    notes: Outcome
    room: bytes = b""
    """Padding as long as the record of the end may be more: a member that cannot send that learns it now."""


class OutboxEvent(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An event of an outbox, as a member sends it with an outcome."""

    topic: Annotated[str, Meta(max_length=1024)]
    key: Annotated[str, Meta(max_length=MAX_LABEL)] | None
    headers: Annotated[dict[str, str], Meta(max_length=512)]
    data: bytes
    packed: bool

    def __post_init__(self) -> None:
        if not is_own_topic(self.topic):
            raise ValueError(f"topic is {self.topic!r:.100}: use tokens joined by dots")


class RecordKey(KeyTerms[KeyCounts], kw_only=True):
    """Record what a request has come to, with the events of its outbox."""

    operation = "key.record"
    permission = Permission("member", "written")

    attempt: Annotated[int, Meta(ge=1, lt=2**31)]
    outcome: Outcome
    events: Annotated[tuple[OutboxEvent, ...], Meta(max_length=MAX_EVENTS)] = ()

    def check(self) -> None:
        super().check()
        if sum(len(event.data) for event in self.events) > MAX_OUTCOME:
            raise ValueError(f"an outbox has {MAX_EVENTS} events of {MAX_OUTCOME} bytes together at most")


class ReleaseKey(KeyAsk[KeyCounts], kw_only=True):
    """Release a claim that cannot be finished."""

    operation = "key.release"

    begun: bool


class ClaimKey(KeyTerms[KeyAnswer], kw_only=True):
    """Claim a key, to run the request."""

    operation = "key.claim"

    wait: Annotated[float, Meta(ge=0.0, le=MAX_WAIT)] = 0.0

    def release(self, *, begun: bool) -> ReleaseKey:
        """Return what releases this claim."""
        return ReleaseKey(
            cluster=self.cluster, caller=self.caller, on=self.on, key=self.key, holder=self.holder, begun=begun
        )

    def note(self, notes: bytes, room: bytes) -> NoteKey:
        """Return what leaves notes with this claim."""
        return NoteKey(
            cluster=self.cluster,
            caller=self.caller,
            on=self.on,
            key=self.key,
            holder=self.holder,
            notes=notes,
            room=room,
        )

    def record(self, attempt: int, outcome: bytes, events: tuple[OutboxEvent, ...] = ()) -> RecordKey:
        """Return what records the outcome of the request that has this claim."""
        return RecordKey(
            cluster=self.cluster, caller=self.caller, on=self.on, key=self.key, holder=self.holder,
            fingerprint=self.fingerprint, budget=self.budget, keep=self.keep, rerun=self.rerun, undoes=self.undoes,
            attempt=attempt, outcome=outcome, events=events,
        )  # fmt: skip
