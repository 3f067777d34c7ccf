"""A worker's side of the tunnel to one member of a bridge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import trio
from msgspec import Struct

from iris.patterns.bridge_protocol import JobReport, TakeJobs
from iris.patterns.pubsub.queues.job import Job
from iris.patterns.pubsub.queues.member_link import MemberLink
from iris.patterns.pubsub.queues.member_stream import ReachAttempts
from iris.patterns.tunnel import Tunnel


class Member:
    """The member's side of a tunnel: it takes back a job that it has not sent, and waits for what is said to that."""

    def __init__(self) -> None:
        self.sent: list[Struct] = []
        self._answered = trio.Event()

    async def _send_message(self, message: Struct) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(message)
        if len(self.sent) == 2:
            self._answered.set()

    async def receive(self) -> Any:
        await trio.lowlevel.checkpoint()
        return {"now": 0.0}

    async def __aiter__(self) -> AsyncIterator[Any]:
        yield {"settled": [[0, 7]]}
        with trio.fail_after(5):
            await self._answered.wait()


TERMS = TakeJobs(group="queue/jobs", limit=1, lease=1.0, attempts=1, dead="jobs.dead", backoff=0.0)


class Program:
    """A worker whose program waits for jobs, and gets none."""

    def terms(self) -> TakeJobs:
        return TERMS

    def arrived(self, jobs: Sequence[Job]) -> None:
        assert not jobs


async def test_a_worker_whose_job_is_taken_back_before_it_came_says_that_it_is_there() -> None:
    """To the member it stands still until it says a word, and its program waits: nothing else would make it."""
    member = Member()
    link = MemberLink("jobs", "bridge", Program())
    await link.run(cast("Tunnel", member), ReachAttempts("queue jobs", {}))
    assert member.sent == [TERMS, JobReport()]
