"""Answers to clients: who serves a cluster, and that this node is there.  Sans-IO.

What is kept of a client is a bucket of tokens.  A question costs as many of them as it has records sent, so what one
client has this node do in a second is bounded, whatever it asks and how often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, final

from iris.cluster.swim import NodeRecord, portions, view_hash
from iris.kernel.config import KIB
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.token_bucket import TokenBucket
from iris.kernel.wire import CHECK, Message, kinds

_TOKENS: Final = 128.0
_RATE: Final = 32.0
"""Questions of one client at once, and each second.  One takes 10 us, and 3 us more for each record that is sent."""

_PER_RECORD: Final = 0.25
"""Tokens for each record that is sent: a client gets 128 records a second, about 100 KiB."""

_PART: Final = 48 * KIB
"""Size of the records in one message, in bytes."""

_SMALL: Final = 64
_SIGNATURES: Final = 3


class ClusterRecords(Protocol):
    """The records of live members.  Asked with each question; must not block."""

    def records_of(self, cluster: str) -> Sequence[NodeRecord]:
        """Return the records of a cluster's live members."""
        ...


@final
class LookupAnswers:
    """Answers the clients of one node.

    Args:
        records: the records of live members.
    """

    def __init__(self, records: ClusterRecords) -> None:
        self._records = records
        self._tokens: dict[NodeId, TokenBucket] = {}

    def __repr__(self) -> str:
        return f"<LookupAnswers to {len(self._tokens)} clients>"

    def forget(self, client: NodeId) -> None:
        """A client is not linked any more."""
        self._tokens.pop(client, None)

    def to_untrusted(
        self, client: NodeId, message: kinds.OfMembership, now: float, queue_delay: float
    ) -> Iterator[tuple[Message, int]]:
        """Yield the answers to a message of a client, each with its size in bytes, roughly.

        Args:
            client: whose message it is.
            message: the client's message.
            now: present time in seconds.
            queue_delay: seconds that work waits on this node.

        Raises:
            RemoteProtocolError: it is no question, or there are too many of them.
        """
        tokens = self._tokens.get(client)
        if tokens is None:
            tokens = self._tokens[client] = TokenBucket(_TOKENS, _RATE, now)
        if not tokens.spend(now):
            raise RemoteProtocolError("a client asks too much about members")
        match message:
            case kinds.Probe(sequence):
                yield kinds.ProbeAnswer(sequence, min(int(queue_delay * 1e6), 10**12), ()), _SMALL
            case kinds.Lookup(sequence, cluster, known):
                records = self._records.records_of(cluster)
                if view_hash(records) == known:
                    yield kinds.Found(sequence, False, True, ()), _SMALL
                    return
                tokens.owe(_PER_RECORD * len(records))
                parts = list(portions(records, _PART)) or [[]]
                for number, part in enumerate(parts, 1):
                    updates = tuple(record.as_update() for record in part)
                    size = _SMALL + sum(record.size for record in part) + CHECK * _SIGNATURES * len(part)
                    yield kinds.Found(sequence, True, number == len(parts), updates), size
            case _:
                raise RemoteProtocolError("a client takes no part in membership")
