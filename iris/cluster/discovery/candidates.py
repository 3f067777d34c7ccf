"""Dial candidates with backoff: addresses that may lead to a node of the realm, and when each is dialled.  Sans-IO.

Rules of this file:

- An address that led to a node which is linked now is left alone; when that link is lost, it is due at once.
- Each failure doubles the pause or more, up to a limit that depends on how good the source is.  Nothing is given up:
  a partition may end after a month.
- A linked node proves only the address at which it was dialled and found.  Others that it says it has are not left
  alone for that: seeds are dialled all the same, and what other sources offer now and then.
- Whatever a source offers, only so many of its addresses are dialled at a time.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Container, Iterable
from types import MappingProxyType
from typing import Final, final

from msgspec import Struct

from iris.cluster.balancing import RetryBudget
from iris.kernel.names import NodeId


@final
class AddressSource(enum.IntEnum):
    """The source that reports a node's address; the best one first."""

    SEED = 0
    """The user."""
    LAN = 1
    """Anybody on the local network."""
    BOOK = 2
    """The address book: there was one."""


PAUSES: Final = MappingProxyType(
    {
        AddressSource.SEED: (0.25, 0.5, 1.0, 2.0, 5.0),
        AddressSource.LAN: (1.0, 5.0, 15.0, 60.0),
        AddressSource.BOOK: (2.0, 5.0, 15.0, 60.0, 300.0),
    }
)
"""Seconds between attempts; the last one repeats."""

AT_ONCE: Final = MappingProxyType({AddressSource.SEED: 64, AddressSource.LAN: 8, AddressSource.BOOK: 4})
"""Addresses of a source that are dialled at one time."""

CLAIMED: Final = 600.0
"""Seconds that an address is left alone if a linked node says that it is there, but was never dialled there.  Most are
right: nodes have several addresses, and each is dialled by half of the others."""

LAN_RATE: Final = 4.0
LAN_BURST: Final = 64
"""Dials per second, and at once, to what is announced on the local network: a stranger who announces ever other
addresses there has a node dial them, and they may be anybody's."""

MAX_OFFERED: Final = 512
"""Addresses of one source that are remembered."""


@final
class _Candidate(Struct):
    source: AddressSource
    due: float
    since: float
    """Time at which it was offered, or dialled last."""
    failures: int = 0
    node: NodeId | None = None
    until: float = 0.0
    dialling: bool = False


@final
class Candidates:
    """The candidates of all sources, each with its backoff."""

    def __init__(self) -> None:
        self._held: dict[str, _Candidate] = {}
        self._lan_dials = RetryBudget(share=0.0, rate=LAN_RATE, reserve=LAN_BURST)

    def __repr__(self) -> str:
        return f"<Candidates: {len(self._held)}>"

    def offer(self, source: AddressSource, urls: Iterable[str], now: float) -> None:
        """Take what a source says now, in place of what it said before."""
        offered = dict.fromkeys(list(urls)[:MAX_OFFERED])
        for url in [url for url, held in self._held.items() if held.source is source and url not in offered]:
            del self._held[url]
        for url in offered:
            held = self._held.get(url)
            if held is None:
                self._held[url] = _Candidate(source, now, now)
            elif source < held.source:
                held.source, held.failures, held.due = source, 0, min(held.due, now)

    def due(
        self,
        now: float,
        linked: Container[NodeId],
        known: Container[str],
        sources: Iterable[AddressSource] = tuple(AddressSource),
        *,
        claimed: Container[str] = (),
    ) -> list[str]:
        """Return what to dial now, and count it as being dialled until ``reached`` or ``failed``.

        Args:
            now: present time in seconds.
            linked: nodes that need not be dialled.
            known: addresses at which linked nodes were found, and this node's own.
            sources: the sources that are asked.
            claimed: addresses that linked nodes say they have.
        """
        chosen: list[str] = []
        for source in sources:
            held = [(url, c) for url, c in self._held.items() if c.source is source]
            room = AT_ONCE[source] - sum(candidate.dialling for _, candidate in held)
            waiting = [
                (c.due, url) for url, c in held if c.due <= now and self._open(url, c, linked, known, claimed) <= now
            ]
            # The one that has waited longest first: so each has its turn, however many there are.
            for _, url in sorted(waiting, key=lambda pair: pair[0])[: max(0, room)]:
                if source is AddressSource.LAN and not self._lan_dials.spend(0, now):
                    break
                chosen.append(url)
        for url in chosen:
            self._held[url].dialling, self._held[url].since = True, now
        return chosen

    def _open(
        self,
        url: str,
        candidate: _Candidate,
        linked: Container[NodeId],
        known: Container[str],
        claimed: Container[str],
    ) -> float:
        """Return from when on an address is of interest."""
        if candidate.dialling:
            return math.inf
        if candidate.node is not None:
            return candidate.until if candidate.node in linked else 0.0
        if url in known:
            return math.inf
        return candidate.since + CLAIMED if url in claimed and candidate.source is not AddressSource.SEED else 0.0

    def next_due(self, linked: Container[NodeId], known: Container[str], claimed: Container[str] = ()) -> float:
        """Return when ``due`` is worth a call again, as far as it depends on time."""
        return min(
            (max(c.due, self._open(url, c, linked, known, claimed)) for url, c in self._held.items()), default=math.inf
        )

    def reached(self, url: str, node: NodeId, now: float, *, until: float = math.inf) -> None:
        """A node of the realm answers there.  ``until`` then the address is left alone while that one is linked."""
        held = self._held.get(url)
        if held is not None:
            held.dialling, held.failures, held.node, held.until = False, 0, node, until
            held.due = now + PAUSES[held.source][0]

    def retry(self, now: float) -> None:
        """Have all of them due: this node has another credential, and who has refused it may let it in."""
        for held in self._held.values():
            held.failures, held.due = 0, min(held.due, now)

    def failed(self, url: str, now: float) -> None:
        """Note that no node of the realm answers there."""
        held = self._held.get(url)
        if held is not None:
            pauses = PAUSES[held.source]
            held.due = now + pauses[min(held.failures, len(pauses) - 1)]
            held.dialling, held.node = False, None
            held.failures += 1
