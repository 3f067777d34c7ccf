"""Survey: every member of a cluster is asked, answers are gathered until a rule ends it, and the missing are known."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, final

import trio

from iris.kernel.background import open_background
from iris.kernel.errors import IrisError, NoSuchCluster, RequestTimeout
from iris.kernel.ids import NodeId
from iris.patterns.directory import Directory
from iris.patterns.requests import Requests
from iris.patterns.stop_rules import StopReason, StopRules
from iris.patterns.values import Answer


@final
class Answers:
    """The answers to one survey, in the order of their arrival.  Iterate over it in one task.

    The iteration ends when every member has answered or failed, or when a rule ends it.  Cancelling a wait loses no
    answer; leaving the ``async with`` block stops the members that are still at work.

    Attributes:
        asked: the members the survey went to.
        errors: what went wrong, for each member that failed.
        ended_by: ``all`` (answered or failed), ``count``, ``quiet`` or ``deadline``; None while it goes on.
    """

    def __init__(self, asked: tuple[NodeId, ...], rules: StopRules) -> None:
        self.asked: Final = asked
        self.ended_by: StopReason | None = None
        self._rules = rules
        self._began = trio.current_time()
        self._scope = trio.CancelScope(deadline=rules.end(self._began, 0, self._began))
        self.errors: Final[dict[NodeId, IrisError]] = {}
        self._answered: set[NodeId] = set()
        self._send, self._receive = trio.open_memory_channel[Answer](len(asked))

    def __repr__(self) -> str:
        return f"<Answers: {len(self._answered)} of {len(self.asked)}>"

    @property
    def missing(self) -> tuple[NodeId, ...]:
        """The members that have not answered."""
        return tuple(member for member in self.asked if member not in self._answered)

    def __aiter__(self) -> AsyncIterator[Answer]:
        return self

    async def __anext__(self) -> Answer:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def ask_all(self, ask: Callable[[NodeId], Awaitable[Any]]) -> None:
        """Ask every member, until all have answered or failed or a rule ends it."""
        with self._scope:
            async with trio.open_nursery() as asking:
                for member in self.asked:
                    asking.start_soon(self._ask, ask, member)
        now = trio.current_time()
        if self._scope.cancelled_caught:
            self.ended_by = self._rules.reason(self._began, len(self._answered), now)
        else:
            self.ended_by = "all"
        if self.ended_by == "deadline":
            for member in self.missing:
                self.errors.setdefault(member, RequestTimeout(f"node {member} did not answer in time"))
        self._send.close()

    async def _ask(self, ask: Callable[[NodeId], Awaitable[Any]], member: NodeId) -> None:
        try:
            reply = await ask(member)
        except IrisError as error:
            self.errors[member] = error
        else:
            self._answered.add(member)
            self._send.send_nowait(Answer(reply, member))
            now = trio.current_time()
            self._scope.deadline = self._rules.end(self._began, len(self._answered), now)


@asynccontextmanager
async def open_survey(
    requests: Requests,
    directory: Directory,
    cluster: str,
    payload: object,
    rules: StopRules,
    operation: str | None,
    headers: Mapping[str, str] | None,
    *,
    timeout: float,
) -> AsyncIterator[Answers]:
    """See ``Node.survey``.  ``timeout`` is what is left of that in ``rules``."""
    rules = dataclasses.replace(rules, timeout=timeout)
    requests.check(payload, headers)
    members = tuple(directory.member_ids(cluster))
    if not members:
        raise NoSuchCluster(f"no reachable member serves the cluster {cluster!r}")
    answers = Answers(members, rules)

    async def ask(member: NodeId) -> Any:
        return await requests.request(
            cluster, payload, member=member, timeout=rules.timeout, operation=operation, headers=headers
        )

    async with open_background() as nursery:
        nursery.start_soon(answers.ask_all, ask)
        yield answers
