"""Answers of a survey, and the rules that end it.

The result names the members that did not answer.  The stop rules, which may end a survey before everybody has answered,
are a machine (sans-IO).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Literal, final

import trio
from msgspec import Struct, structs

from iris.kernel import wire
from iris.kernel.errors import ConfigError, IrisError, RequestTimeout
from iris.kernel.names import NodeId
from iris.kernel.numerals import as_float, as_whole, shown
from iris.kernel.tasks import checkpointed
from iris.kernel.wire import kinds
from iris.patterns.messages import Answer

StopReason = Literal["all", "count", "quiet", "deadline"]

_MAX_BYTES: Final = 64 << 20
"""Most bytes of the answers of those for whom one member stands."""

_PART: Final = 256
"""Overhead of one of them beside its payload, in bytes."""


@final
class StopRules(Struct, frozen=True, kw_only=True):
    """Stop rules of a survey: the first that applies ends it, if not all have answered or failed before."""

    timeout: float
    """Seconds since it began."""
    count: int | None = None
    """Answers that are enough.  None for all."""
    quiet: float | None = None
    """Seconds since the last answer; before the first one only the timeout counts.  None for no such rule."""

    def __post_init__(self) -> None:
        count, quiet = self.count, self.quiet
        if count is not None and (as_whole(count) or 0) < 1:
            raise ConfigError(f"count is {shown(count)}: use a whole number above 0, or None")
        if quiet is not None:
            seconds = as_float(quiet)
            if not seconds > 0:
                raise ConfigError(f"quiet is {shown(quiet)}: use seconds above 0, or None")
            structs.force_setattr(self, "quiet", seconds)

    def end(self, began: float, answered: int, last: float) -> float:
        """Return when the survey ends if no further answer comes.

        Args:
            began: time at which it began.
            answered: members that have answered.
            last: time of the last answer.
        """
        if self.count is not None and answered >= self.count:
            return last
        end = began + self.timeout
        return end if self.quiet is None or not answered else min(end, last + self.quiet)

    def reason(self, began: float, answered: int, now: float) -> StopReason:
        """Return what ended a survey in which not all have answered or failed."""
        if self.count is not None and answered >= self.count:
            return "count"
        return "quiet" if now < began + self.timeout else "deadline"


@final
class Answers:
    """The answers to one survey, in the order of their arrival.  Iterate over it in one task.

    The iteration ends when every member has answered or failed, or when a rule ends it.  Cancelling a wait loses no
    answer; leaving the ``async with`` block stops the members that are still at work.  Afterwards the answers that had
    come can still be read; where others were cut off, ``trio.ClosedResourceError`` follows them.

    Attributes:
        asked: ids of the members that the survey went to.
        errors: a dict: by the id of each member that failed the ``IrisError`` that says why; of a door the last one of
            its programs.
        ended_by: ``all`` (answered or failed), ``count``, ``quiet`` or ``deadline``; None while it goes on, and if
            the block was left before.
    """

    def __init__(self, asked: tuple[NodeId, ...], rules: StopRules, weights: Mapping[NodeId, int]) -> None:
        self.asked: Final = asked
        self._weights: Final = dict(weights)
        """Members that each stands for, itself included."""
        self.ended_by: StopReason | None = None
        self._rules = rules
        self._began = trio.current_time()
        self._scope = trio.CancelScope(deadline=rules.end(self._began, 0, self._began))
        self.errors: Final[dict[NodeId, IrisError]] = {}
        self._answered: Counter[NodeId] = Counter()
        self._parts: Counter[NodeId] = Counter()
        """Answers and errors of members that stand for several, without the last one of each."""
        self._bytes: Counter[NodeId] = Counter()
        self._send, self._receive = trio.open_memory_channel[Answer](math.inf)

    def __repr__(self) -> str:
        return f"<Answers: {self._answered.total()} of {self.expected}>"

    @property
    def expected(self) -> int:
        """Number of answers if all answer: one of each member, of a door one of each program that serves there."""
        return sum(self._weights.values())

    @property
    def missing(self) -> tuple[NodeId, ...]:
        """The members that have not answered, and the doors of which a program has not."""
        return tuple(member for member in self.asked if self._answered[member] < self._weights[member])

    def __aiter__(self) -> AsyncIterator[Answer]:
        return self

    @checkpointed
    async def __anext__(self) -> Answer:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            if self.ended_by is None:
                raise trio.ClosedResourceError(
                    "the block of the survey was left before it had ended: iterate over its answers within the block"
                ) from None
            raise StopAsyncIteration from None

    def close(self) -> None:
        """End the answers: no further one comes."""
        self._send.close()

    async def _gather(self, *routes: Callable[[], Awaitable[None]]) -> None:
        """Run all of these inquiries at once, until all have answered or failed or a rule ends the survey."""
        with self._scope:
            async with trio.open_nursery() as asking:
                for route in routes:
                    asking.start_soon(route)
        now = trio.current_time()
        if self._scope.cancelled_caught or self._is_counted:
            self.ended_by = self._rules.reason(self._began, self._answered.total(), now)
        else:
            self.ended_by = "all"
        if self.ended_by == "deadline":
            for member in self.missing:
                self.errors.setdefault(member, RequestTimeout(f"node {member} did not answer in time"))
        self.close()

    @property
    def _is_counted(self) -> bool:
        return self._rules.count is not None and self._answered.total() >= self._rules.count

    def _admits(self, member: NodeId, part: kinds.Part) -> bool:
        """Count a part of what a member answers; return False if it has sent more than it may."""
        outcome = part.outcome
        size = len(outcome.text) if isinstance(outcome, kinds.Failure) else wire.payload_size(outcome.payload)
        self._weights[member] = part.members
        if self._parts[member] >= part.members - 1 or self._bytes[member] + size > _MAX_BYTES:
            return False
        self._parts[member] += 1
        self._bytes[member] += size + _PART
        return True

    def _receive_answer(self, member: NodeId, reply: Any, *, last: bool = False) -> None:
        """Accept a member's reply; those that came in one batch with the last one that counts are too many."""
        if self._is_counted:
            return
        self._answered[member] += 1
        if last and not self._parts[member]:  # it has answered as one, whatever it stands for
            self._weights[member] = 1
        self._send.send_nowait(Answer(reply, member))
        self._scope.deadline = self._rules.end(self._began, self._answered.total(), trio.current_time())

    def _receive_failure(self, member: NodeId, error: IrisError) -> None:
        """Note why a member does not answer."""
        self.errors[member] = error
