"""A worker's side of the tunnel to one member of a bridge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import trio

from iris.patterns.pubsub.queues.job import Job
from iris.patterns.pubsub.queues.member_link import MemberLink
from iris.patterns.tunnel import Tunnel


class Member:
    """The member's side of a tunnel: it takes back a job that it has not sent, and waits for what is said to that."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self._answered = trio.Event()

    async def send(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(message)
        if len(self.sent) == 2:
            self._answered.set()

    async def receive(self) -> Any:
        await trio.lowlevel.checkpoint()
        return {"now": 0.0}

    async def __aiter__(self) -> AsyncIterator[Any]:
        yield {"settled": [0, 7]}
        with trio.fail_after(5):
            await self._answered.wait()


class Receiver:
    """A worker that does nothing with its jobs."""

    def terms(self) -> dict[str, Any]:
        return {"group": "queue/jobs"}

    def arrived(self, jobs: Sequence[Job]) -> None:
        pass


async def test_a_worker_whose_job_is_taken_back_before_it_came_says_that_it_is_there() -> None:
    """To the member it stands still until it says a word, and its program waits: nothing else would make it."""
    member = Member()
    link = MemberLink("jobs", "bridge", Receiver())
    await link.run(cast("Tunnel", member), lambda: None)
    assert member.sent == [{"group": "queue/jobs", "held": []}, {}]
