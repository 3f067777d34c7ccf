"""Process of handlers: imports them once, and calls one after the other until its member closes the connection.

It is started anew and never forked, so it has no thread, lock or file descriptor of the member but what it is given:

- a socket, by which calls come and answers go
- a pipe, by which it is told which call is to end; SIGINT says that something is there.  The handler then gets
  ``KeyboardInterrupt``, which is what libraries and C code that can be interrupted know
- a pipe that nobody writes to, whose other end only the member has.  The kernel closes that however the member ends,
  and ends this process and what it has started at once, even while C code does not let go of the interpreter
"""

from __future__ import annotations

import fcntl
import importlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from functools import partial
from types import FrameType
from typing import Any, Final, NoReturn, cast, final

from iris.kernel import wire
from iris.kernel.errors import RemoteError, RemoteProtocolError, text_of
from iris.kernel.names import NodeId
from iris.patterns.bridge_protocol import OutboxEvent
from iris.patterns.messages import Outbox, Request, Sender
from iris.patterns.payloads import encoded
from iris.patterns.service.failure_log import raised_at
from iris.patterns.service.handlers import described, found_at, prepared
from iris.patterns.service.outcomes import add_to_outbox
from iris.patterns.service.outside import RequestHandler
from iris.patterns.service.process_calls import (
    IS_CHILD,
    LENGTH,
    MAX_TRACEBACK,
    NUMBER,
    Answer,
    Call,
    Cancelled,
    HandlerPlace,
    Malformed,
    Message,
    NotReady,
    Raised,
    Ready,
    Returned,
    Setup,
    decode_call,
    decode_setup,
    framed,
    from_bytes,
)
from iris.patterns.service.signatures import signature_of

_NICENESS: Final = 10
"""A member that wakes up goes before its processes: small requests beside busy ones take 2 ms, and 8 without (p50)."""


def serve_calls(calls_fd: int, cancels_fd: int, lifeline_fd: int) -> None:
    """Be a process of handlers, until the member closes the connection.

    Args:
        calls_fd: socket by which calls come.
        cancels_fd: pipe by which it is told which of them is to end.
        lifeline_fd: pipe whose other end is closed when the member has ended.
    """
    IS_CHILD.set()
    os.nice(_NICENESS)
    _end_with(lifeline_fd)
    # The member says when this ends.  A service manager sends its signal to every process of the service, and calls
    # that the member waits for would be lost.  What is started from here has the default again, as these are functions.
    for ignored in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, _nothing)
    if sys.stdout is not None:
        cast("Any", sys.stdout).reconfigure(line_buffering=True)  # nothing that was printed is lost if it is killed
    caller = Caller(cancels_fd)
    with socket.socket(fileno=calls_fd) as calls:
        first = _received(calls)
        if first is None:
            return
        setup = decode_setup(first)
        sys.argv[:] = map(from_bytes, setup.argv)
        try:
            handlers = imported(setup)
        except BaseException as error:  # noqa: BLE001 -- whatever importing a module raises, SystemExit of a script, too
            _send(calls, NotReady(_shortened("".join(traceback.format_exception(error)))))
            return
        _send(calls, Ready())
        while (message := _received(calls)) is not None:
            answer = caller.answer(decode_call(message), handlers, setup)
            _send(calls, answer)
            if isinstance(answer, Raised) and answer.name == SystemExit.__name__:
                return


def _nothing(_: int, __: FrameType | None) -> None:
    pass


def _end_with(lifeline_fd: int) -> None:
    """Have this process, and what it starts, killed when the other end of a pipe is closed."""
    if sys.platform == "linux":
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
        try:
            closed = os.read(lifeline_fd, 1) == b""
        except BlockingIOError:
            return
        if closed:  # before the kernel was told
            _end()
    else:  # which needs the interpreter: C code that holds it comes first
        threading.Thread(target=_end_after, args=(lifeline_fd,), daemon=True).start()


def _end_after(lifeline_fd: int) -> None:
    os.read(lifeline_fd, 1)
    _end()


def _end() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("a signal that cannot be caught")


def _received(calls: socket.socket) -> bytes | None:
    """Return the next message; None at the end of the connection."""
    head = _exactly(calls, LENGTH.size)
    return None if head is None else _exactly(calls, LENGTH.unpack(head)[0])


def _exactly(calls: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    with memoryview(data) as view:
        got = 0
        while got < size:
            more = calls.recv_into(view[got:])
            if more == 0:
                return None
            got += more
    return bytes(data)


def _send(calls: socket.socket, message: Message) -> None:
    try:
        calls.sendall(framed(message))
    except BrokenPipeError:  # the member has ended, or waits for nothing more
        sys.exit()


def imported(setup: Setup) -> list[RequestHandler]:
    """Import the handlers, as they are registered; raise what importing them raises, or ConfigError."""
    if setup.main:
        from multiprocessing import spawn  # here: most programs have their handlers elsewhere

        spawn.prepare({name: from_bytes(value) for name, value in setup.main.items()})
    return [_imported(place) for place in setup.handlers]


def _imported(place: HandlerPlace) -> RequestHandler:
    importlib.import_module(place.module)
    found = found_at(place)
    return prepared(found, signature_of(found, operation=place.operation))


@final
class Caller:
    """Calls handlers, and ends the one that runs when it is told to.

    Args:
        cancels_fd: pipe by which the numbers of calls that are to end come.
    """

    def __init__(self, cancels_fd: int) -> None:
        self._cancels = cancels_fd
        self._told = 0
        """Highest number of a call that is to end."""
        self._running = 0
        """Number of the call that runs, and may be interrupted; else 0."""
        os.set_blocking(cancels_fd, False)
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, _: int, __: FrameType | None) -> None:
        try:
            numbers = os.read(self._cancels, 65536)
        except BlockingIOError:  # somebody else's signal: it is for the member
            return
        if len(numbers) >= NUMBER.size:  # else the member has ended
            (self._told,) = NUMBER.unpack(numbers[-NUMBER.size :])
        if self._told and self._running == self._told:
            self._running = 0  # once for each call: what the handler does on its way out is not interrupted again
            raise KeyboardInterrupt

    def answer(self, call: Call, handlers: list[RequestHandler], setup: Setup) -> Answer:
        """Call a handler; return what came of it, which includes ``SystemExit`` and ``KeyboardInterrupt``."""
        number = call.number
        answer: Answer = Cancelled(number)
        signal.signal(signal.SIGINT, self._interrupt)  # modules, and handlers before this one, may have set another
        try:
            try:
                self._running = number
                if self._told < number:
                    answer = self._called(call, handlers[call.handler], setup.max_payload)
            except BaseException as error:  # noqa: BLE001 -- whatever a handler raises is its caller's answer
                if self._running == number:
                    answer = _raised(number, error)
            self._running = 0
        except KeyboardInterrupt:  # it came when the handler had ended
            return Cancelled(number)
        return answer

    def _called(self, call: Call, handler: RequestHandler, max_payload: int) -> Answer:
        events: list[OutboxEvent] = []
        try:
            value = wire.decode_payload_untrusted(wire.join_payload(call.data, packed=call.packed))
        except RemoteProtocolError as error:
            return Malformed(call.number, str(error))
        result = handler(
            Request(
                payload=value,
                sender=Sender(call.caller, NodeId(call.node)),
                headers=call.headers,
                deadline=time.monotonic() + call.remaining,
                cluster=call.cluster,
                operation=call.operation,
                idempotency_key=call.idempotency_key,
                attempt=call.attempt,
                undoes=call.undoes,
                outbox=None if call.idempotency_key is None else Outbox(partial(add_to_outbox, events)),
            )
        )
        data, packed = wire.split_payload(encoded(result, max_payload))
        return Returned(call.number, data, packed, events)


def _raised(number: int, error: BaseException) -> Raised:
    code, text = described(error, tracebacks=False)
    if isinstance(error, SystemExit):
        text += ": its process ends, and is replaced"
    file, line = raised_at(error)
    return Raised(
        number=number,
        name=type(error).__name__,
        code=code,
        text=text,
        refused=isinstance(error, RemoteError),
        received=isinstance(error, RemoteError) and error.received,
        traceback=_shortened("".join(traceback.format_exception(error))),
        file=text_of(file),
        line=line,
    )


def _shortened(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()
    left_out = len(text) - MAX_TRACEBACK
    if left_out <= 0:
        return text
    half = MAX_TRACEBACK // 2
    return f"{text[:half]}\n... {left_out} characters left out ...\n{text[-half:]}"
