"""Survey: every member of a cluster is asked, answers are gathered until a deadline, and who is missing is known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, final

import trio

from iris.kernel.background import open_background
from iris.kernel.errors import IrisError, NoSuchCluster
from iris.kernel.ids import NodeId
from iris.patterns.directory import Directory
from iris.patterns.requests import Requests
from iris.patterns.values import Answer


@final
class Answers:
    """The answers to one survey, in the order of their arrival.  Iterate over it in one task.

    The iteration ends when every member has answered or failed, or when the time is over.  Cancelling a wait loses
    no answer; leaving the ``async with`` block stops the members that are still at work.

    Attributes:
        asked: the members the survey went to.
        errors: what went wrong, for each member that failed.
    """

    def __init__(self, asked: tuple[NodeId, ...]) -> None:
        self.asked: Final = asked
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

    async def ask(self, requests: Requests, member: NodeId, cluster: str, payload: object, **options: Any) -> None:
        """Ask one member and take its answer."""
        try:
            reply = await requests.request(cluster, payload, member=member, **options)
        except IrisError as error:
            self.errors[member] = error
        else:
            self._answered.add(member)
            self._send.send_nowait(Answer(reply, member))

    def end(self) -> None:
        """No more answers will come."""
        self._send.close()


@asynccontextmanager
async def open_survey(
    requests: Requests,
    directory: Directory,
    cluster: str,
    payload: object,
    *,
    timeout: float,
    operation: str | None,
    headers: Mapping[str, str] | None,
) -> AsyncIterator[Answers]:
    """See ``Node.survey``."""
    requests.check(payload, headers)
    members = tuple(directory.member_ids(cluster))
    if not members:
        raise NoSuchCluster(f"no reachable member serves the cluster {cluster!r}")
    answers = Answers(members)

    async def ask_all() -> None:
        async with trio.open_nursery() as asking:
            for member in members:

                async def ask(member: NodeId = member) -> None:
                    await answers.ask(
                        requests, member, cluster, payload, timeout=timeout, operation=operation, headers=headers
                    )

                asking.start_soon(ask)
        answers.end()

    async with open_background() as nursery:
        nursery.start_soon(ask_all)
        yield answers
