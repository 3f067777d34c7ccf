"""Hedged requests: when a reply is late, a second member is asked, and the first answer counts.

Hedging cuts tail latency where slowness is an accident of one member (Dean and Barroso, "The Tail at Scale", 2013).
It applies to idempotent requests only, since both members may run them.  At most 5 % of the requests are hedged: a
cluster in which every reply is late has no use for twice the requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, final

import trio

from iris.cluster.balancing import RetryBudget
from iris.kernel.errors import IrisError

_SHARE: Final = 0.05
_RESERVE: Final = 20.0
"""Second requests that may have been saved up."""


@asynccontextmanager
async def _cancelled_once() -> AsyncIterator[None]:
    """Raise a cancellation that reached several tasks as one, as any other call does."""
    try:
        yield
    except BaseExceptionGroup as group:
        if group.split(trio.Cancelled)[1] is None:
            await trio.lowlevel.checkpoint_if_cancelled()
        raise


@final
class Hedging:
    """The hedged requests to one cluster.

    Attributes:
        requests: requests made so far; asking a second member does not count as another one.
        second: requests of them that went to a second member as well.
        won: requests of them that the second member answered first.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.second = 0
        self.won = 0
        self._allowance = RetryBudget(share=_SHARE, rate=0.0, reserve=_RESERVE)
        self._allowance.tokens = 1.0

    async def ask(
        self,
        ask: Callable[[], Awaitable[Any]],
        delay: float,
        has_other: Callable[[], bool],
    ) -> Any:
        """Call ``ask``, and once more if it has not returned after ``delay`` seconds; return the first result.

        Args:
            ask: makes the request to a member that was not asked yet.
            delay: seconds to wait for the first reply.
            has_other: returns whether there is another member.

        Raises:
            IrisError, trio.ClosedResourceError: what the first call raised, when both have failed or there was no
                second one.

        Cancelling it cancels both.
        """
        self.requests += 1
        replies: list[Any] = []
        failures: list[IrisError | trio.ClosedResourceError] = []
        ended = trio.Event()
        async with _cancelled_once(), trio.open_nursery() as nursery:

            async def run(number: int) -> None:
                try:
                    reply = await ask()
                except (IrisError, trio.ClosedResourceError) as error:
                    # The first one's error is the caller's, whenever it comes: the second one was our idea.
                    failures.insert(0 if number == 1 else len(failures), error)
                else:
                    self.won += number == 2
                    replies.append(reply)
                    nursery.cancel_scope.cancel()
                ended.set()

            nursery.start_soon(run, 1)
            with trio.move_on_after(delay):
                await ended.wait()
            late = not ended.is_set() and has_other()
            if late and self._allowance.spend(self.requests, trio.current_time()):
                self.second += 1
                nursery.start_soon(run, 2)
        if replies:
            return replies[0]
        raise failures[0]
