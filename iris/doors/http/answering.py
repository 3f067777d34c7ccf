"""Answers of the door: a payload, a problem, or a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from iris.doors.clients import Client
from iris.doors.problems import Problem, problem_of
from iris.doors.values import packed, to_json
from iris.kernel.errors import IrisError

T = TypeVar("T")
MSGPACK: Final = "application/msgpack"

Begin = Callable[[], Awaitable[None]]
"""Function that sends the head of a stream."""

Hold = Callable[[int], None]
"""Function that counts bytes for a client as long as its call lasts; raises ``Problem`` if they are too many."""

Write = Callable[[bytes], Awaitable[None]]
"""Function that sends a piece of a stream; it waits while the client does not read."""


class HungUp(Exception):
    """The client has closed its connection: nobody waits for an answer."""


async def first_of(*works: Coroutine[object, object, T]) -> T:
    """Do several things until the first of them ends, stop the others, and return or raise what it has come to."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # what fails while it is stopped is of no interest
    return next(task.result() for task in tasks if task in done)


async def while_connected(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """Do work for a client whose request was read, and stop it when the client hangs up.

    The work is part of this task, which waits for no other one when it is done: each of these steps is a turn of the
    loop, and a turn is as long as what all clients do in it.

    Raises:
        HungUp: it has.
    """
    working = asyncio.current_task()
    assert working is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        working.cancel()

    watching = asyncio.ensure_future(watch())
    cancelling = working.cancelling()
    try:
        return await work
    except BaseException:
        if gone and working.uncancel() <= cancelling:
            raise HungUp from None
        raise
    finally:
        watching.cancel()


async def send_held(client: Client, pieces: AsyncIterable[bytes], send: Write) -> None:
    """Send pieces as they come.  Those that wait for a client that does not read are counted among its bytes.

    Raises:
        Problem: these are as many as it may have.
    """
    waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
    held = 0

    async def fill() -> None:
        nonlocal held
        async for piece in pieces:
            client.hold(len(piece))
            held += len(piece)
            waiting.put_nowait(piece)
            await asyncio.sleep(0)  # of many that are here already, the first are sent meanwhile
        waiting.put_nowait(None)
        await asyncio.Event().wait()  # the other task ends it all

    async def give() -> None:
        nonlocal held
        while (piece := await waiting.get()) is not None:
            await send(piece)
            client.release(len(piece))
            held -= len(piece)

    try:
        await first_of(give(), fill())
    finally:
        client.release(held)


def answer(http: Request, payload: object) -> Response:
    """Return a payload in the form that its client accepts: MessagePack on demand, else JSON or bytes if it can be."""
    if MSGPACK in http.headers.get("accept", ""):
        return Response(packed(payload), media_type=MSGPACK)
    if isinstance(payload, bytes):
        return Response(payload, media_type="application/octet-stream")
    text = to_json(payload)
    if text is None:
        return Response(packed(payload), media_type=MSGPACK)
    return Response(text, media_type="application/json")


def refusal(problem: Problem) -> Response:
    """Return what tells a client of a problem."""
    # A stranger has one try on a connection: what it costs until its token is known is bounded.
    headers = {"www-authenticate": "Bearer", "connection": "close"} if problem.status == 401 else {}
    document = problem.document()
    if "retry_after" in document:
        headers["retry-after"] = str(document["retry_after"])
    body = json.dumps(document).encode() + b"\n"
    return Response(body, problem.status, headers, media_type="application/problem+json")


class CallAnswer(Response):
    """The answer to a call, which lasts from the first byte of its body until its client has taken the answer."""

    def __init__(self, client: Client, work: Callable[[Hold], Awaitable[Response]]) -> None:
        super().__init__()
        self._client = client
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do the work, and send what it comes to."""

        async def forward(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                await send({**message, "more_body": True})
                message = {"type": "http.response.body"}  # which waits until there is room behind what was sent
            await send(message)

        with self._client.calling(), self._client.holding() as hold:
            response = await self._work(hold)
            try:
                hold(len(response.body))
            except Problem as problem:
                detail = f"the member has answered, and this client has no room for it: {problem.detail}"
                raise Problem(problem.status, problem.code, detail) from None
            await response(scope, receive, forward)


class Stream(Response):
    """An answer that comes piece by piece, for as long as its client reads.

    Args:
        media_type: media type of the whole.
        write: writes it; gets a function to call when it has begun, so that what fails before is an error like any
            other, and one that sends a piece.
        end: returns the bytes that report a problem after that to the client.
    """

    def __init__(
        self,
        media_type: str,
        write: Callable[[Begin, Write], Coroutine[object, object, None]],
        end: Callable[[Problem], bytes],
    ) -> None:
        super().__init__(media_type=media_type, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._write = write
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 -- of ASGI
        """Send it."""
        began = False

        async def begin() -> None:
            nonlocal began
            began = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await write(b"")  # so that the client sees its beginning

        async def write(piece: bytes) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        last = b""
        try:
            await while_connected(receive, self._write(begin, write))
        except HungUp:
            return
        except (Problem, IrisError) as error:
            if not began:
                raise
            last = self._end(problem_of(error) if isinstance(error, IrisError) else error)
        await send({"type": "http.response.body", "body": last})
