"""Counters of the door, and its log of what nng cannot report to clients."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from iris.doors.problems import Problem

_logger: Final = logging.getLogger("iris")

_PAUSE: Final = 1.0
"""Seconds until what has failed begins anew."""


@final
@dataclass(slots=True)
class NngStatistics:
    """Counters of what a door has done since it was opened.

    Attributes:
        connections: connections now, by the protocol of the client; of programs, with the cluster before it.
        turned_away: connections beyond the limit.
        answered: requests and surveys that were answered, by what went wrong too.
        refused: answers of these that were an error, messages of PUSH that became no events, answers of programs that
            cannot be read, and programs that may not serve, by status.
        given_up: requests and surveys whose client ended its connection before the answer.
        stalled: connections that were ended because their client did not read answers, or events.
        published: messages of PUSH that became events.
        paused: messages of PUSH, and answers of programs, that waited, as the token has a rate.
        followed: events handed over for the clients that were connected then.
        missed: events that this node lost before they could be handed over, or that were too large.
        unread: events that connections of SUB did not take: dropped as they were slow, or unsent when they ended.
    """

    connections: Mapping[str, int] = field(default_factory=dict[str, int])
    turned_away: int = 0
    answered: int = 0
    refused: Counter[int] = field(default_factory=Counter[int])
    given_up: int = 0
    stalled: int = 0
    published: int = 0
    paused: int = 0
    followed: int = 0
    missed: int = 0
    unread: int = 0


@final
class LoggedOnce:
    """Problems that are in the log, once for each sort: a client may have the same one a thousand times a second."""

    def __init__(self) -> None:
        self._codes: set[str] = set()

    def once(self, what: str, problem: Problem) -> None:
        """Log a problem that its client is not told."""
        if problem.code not in self._codes:
            self._codes.add(problem.code)
            _logger.warning(
                "the door for nng: %s: %s (logged once of this sort)",
                what,
                problem.detail,
                extra={"door": "nng", "reason": problem.code, "cause": problem.code},
            )


async def keep_running(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do work until it returns; what fails is in the log with all that is known, and begins anew after a pause."""
    while True:
        try:
            await work()
        except Exception:
            _logger.exception(
                "the door for nng: %s has failed, and begins anew", what, extra={"door": "nng", "reason": what}
            )
            await asyncio.sleep(_PAUSE)
        else:
            return
