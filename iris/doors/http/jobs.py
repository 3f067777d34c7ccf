"""Programs that take jobs from a queue on a bridge's log, by one WebSocket each.

A job that a program has is begun, and its lease runs.  One whose program is lost has failed once, as that of a worker
that is killed: it comes again after a pause, or becomes a dead letter.  ``docs/reference/doors/work.md`` has the
protocol.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, final

from starlette.websockets import WebSocket, WebSocketDisconnect

import iris.aio
from iris.doors.clients import Client
from iris.doors.http.bridging import WAIT, Dialogue, DoorBridge, unknown
from iris.doors.http.encoding import Head, number_of
from iris.doors.http.reading import options_of
from iris.doors.http.tunnels import until_closed
from iris.doors.options import TAKE
from iris.doors.problems import Problem

PROTOCOL: Final = "iris.take.1"
"""The WebSocket protocol of a program that takes jobs."""

_LIMIT: Final = 16
"""Jobs that a program has at a time, if it does not say."""

_MAX_LIMIT: Final = 1024


async def take_jobs(bridge: DoorBridge, client: Client, socket: WebSocket, max_message: int) -> int:
    """Have a program take the jobs of the queue that it names, until one of both ends it.

    Returns the status of the problem by which it ended, or 0.
    """

    async def take() -> None:
        options = options_of(socket, TAKE)
        name = str(socket.path_params["name"])
        client.check("take", name)
        if "dead" in options:
            client.check("publish", options["dead"])
        limit, wait = options.pop("limit", _LIMIT), options.pop("wait", WAIT)
        if not 0 < limit <= _MAX_LIMIT:
            raise Problem(400, "malformed", f"limit is a whole number from 1 to {_MAX_LIMIT}")
        client.check_rate()
        async with (
            client.streaming(),
            bridge.lent(client, wait),
            bridge.handle.queue(name, **options) as queue,
        ):
            taking = _Taking(client, socket, queue.receive(limit))
            taking.post({"type": "ready", "queue": name, "limit": limit, "max_message": max_message})
            await bridge.converse(taking)

    return await until_closed(socket, PROTOCOL, take)


@final
class _Taking(Dialogue):
    """A program that takes jobs."""

    def __init__(self, client: Client, socket: WebSocket, jobs: iris.aio.JobWorker) -> None:
        super().__init__(client, socket)
        self._jobs = jobs
        self._has: dict[int, iris.aio.Job] = {}

    async def work(self) -> None:
        """See ``Dialogue``."""
        async for job in self._jobs:
            if self.drains:
                job.release()
                break
            try:
                number = self.give((_head(job), job.payload))
            except Problem:
                job.release()
                if not self.is_at:
                    raise
                await self.until_done()  # which makes room
                continue
            self._has[number] = job
            await self.pace()
        await asyncio.Event().wait()

    def handle(self, head: Head, payload: object) -> None:  # noqa: ARG002 -- no message here has one
        """See ``Dialogue``."""
        kind = head.get("type")
        if kind not in ("commit", "fail", "release", "extend"):
            raise unknown(head)
        number, error = number_of(head), head.get("detail", "")
        if not isinstance(error, str):
            raise Problem(400, "malformed", "a detail is a text")
        job = self._has.get(number)
        if job is None:
            return
        if kind == "extend" and not job.is_lost:
            job.extend()
            return
        del self._has[number]
        if kind == "extend":
            self.post({
                "type": "error", "id": number, "code": "lease_lost",
                "detail": "the lease of this job has ended: another worker may have it",
            })  # fmt: skip
            self.done_with(number)
        elif kind == "commit":
            self.settle(number, job.commit)
        else:
            if kind == "fail":
                job.fail(error, permanent=head.get("permanent") is True)
            else:
                job.release()
            self.done_with(number)

    async def receive(self) -> tuple[Head, object]:
        """See ``Dialogue``; a program that is gone has failed with what it had begun, as a worker that is killed."""
        try:
            return await super().receive()
        except WebSocketDisconnect:
            for job in self._has.values():
                job.fail("the program that had it is gone")
            self._has.clear()
            raise


def _head(job: iris.aio.Job) -> dict[str, Any]:
    key = {} if job.key is None else {"key": job.key}
    return {
        "type": "job", "attempt": job.attempt, **key, "headers": dict(job.headers), "sender": job.sender,
        "timestamp": job.timestamp,
    }  # fmt: skip
