"""Receive limits: messages that exceed this node's own limits, or cannot be decoded, are refused and counted.

A peer may have another ``Config``, or be another program.  So it keeps its link, and gets a refusal where the pattern
has replies.  Every refusal is counted in ``Mesh.refusals``.  The first one of each peer, kind of message and reason is
logged as a warning, without any part of the payload.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from typing import Final, Literal, final

from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId

_log: Final = logging.getLogger("iris")

_MAX_LOGGED: Final = 4096
"""Peers, kinds and reasons that are remembered as logged; the oldest one is logged again when it has been forgotten."""

Arrival = Literal["request", "reply", "broadcast", "event", "tunnel"]

MALFORMED: Final = "with a malformed payload"
TOO_LARGE: Final = "above max_payload"
TOO_MANY_HEADERS: Final = "above max_headers"


@final
class Excess:
    """Limit of this node that a message exceeds.

    Attributes:
        reason: reason under which the refusal is counted.
        text: text for people: sizes and the limit.
    """

    __slots__ = ("reason", "text")

    def __init__(self, reason: str, text: str) -> None:
        self.reason: Final = reason
        self.text: Final = text


@final
class Arriving:
    """Checks arriving messages against the limits of a node.

    Args:
        refusals: counter of refused messages.
        node: node whose limits they are.
        config: config with ``max_payload`` and ``max_headers``.
    """

    def __init__(self, refusals: Counter[str], node: NodeId, config: Config) -> None:
        self.max_payload: Final = config.max_payload
        self.max_headers: Final = config.max_headers
        self._refusals = refusals
        self._node = node
        self._logged: OrderedDict[tuple[NodeId, str], None] = OrderedDict()

    def excess_of(self, payload: wire.Payload, headers: wire.Headers) -> Excess | None:
        """Return the limit that a message of a peer exceeds; None if it exceeds none."""
        size = len(payload) if type(payload) is bytes else wire.payload_size(payload)
        if size > self.max_payload:
            return self.payload_excess(size)
        return None if headers is None else self.headers_excess(headers)

    def payload_excess(self, size: int) -> Excess:
        """Return the excess of a payload of ``size`` bytes, which is above the limit."""
        text = f"a payload of {size} bytes: node {self._node} takes at most {self.max_payload} (its Config.max_payload)"
        return Excess(TOO_LARGE, text)

    def headers_excess(self, headers: wire.Headers) -> Excess | None:
        """Return the limit that headers exceed; None if they do not."""
        size = wire.headers_bytes(headers)
        if size <= self.max_headers:
            return None
        text = f"headers of {size} bytes: node {self._node} takes at most {self.max_headers} (its Config.max_headers)"
        return Excess(TOO_MANY_HEADERS, text)

    def refused(
        self, kind: Arrival, excess: Excess, node: NodeId, cluster: str, where: str | None, *, count: int = 1
    ) -> None:
        """Count and log messages that are too large.

        Args:
            kind: kind of message.
            excess: limit that they exceed.
            node: node that sent them.
            cluster: cluster for which that node speaks.
            where: topic, or cluster that was meant.
            count: number of messages.
        """
        self._note(kind, excess.reason, excess.text, node, cluster, where, count)

    def malformed(
        self, kind: Arrival, error: RemoteProtocolError, node: NodeId, cluster: str, where: str | None
    ) -> None:
        """Count and log a message whose payload cannot be decoded; the arguments are those of ``refused``."""
        self._note(kind, MALFORMED, str(error), node, cluster, where, 1)

    def _note(
        self, kind: Arrival, reason: str, text: str, node: NodeId, cluster: str, where: str | None, count: int
    ) -> None:
        what = f"{kind} {reason}"
        self._refusals[what] += count
        if (node, what) in self._logged:
            return
        self._logged[node, what] = None
        if len(self._logged) > _MAX_LOGGED:
            self._logged.popitem(last=False)
        _log.warning(
            "refused: %s%s, from cluster %r (node %s): %s; further ones of this node are only counted",
            what,
            "" if where is None else f", on {where!r}",
            cluster,
            node,
            text,
            extra={"caller": cluster, "peer": node, "reason": what, "topic" if kind == "event" else "cluster": where},
        )
