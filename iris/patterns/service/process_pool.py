"""Process pool: the processes in which one membership has its ``process=True`` handlers called.

The first process starts with the membership, and shows that the handlers can be imported; others start when all are at
work, up to one for each processor.  They are kept until the membership ends.  One task has each process from its start
to its end, so none is left as a zombie, and the end of one is noticed also while it is idle.

A call that is cancelled is told so in its process: the caller's place is free at once, the process after the handler's
end, and what goes on for ``GRACE`` is killed, with the programs that it has started.  See ``process_child`` for how.

Instead of a library, because none of them does what is promised here: ``concurrent.futures`` and ``multiprocessing``
cannot end one call; ``anyio.to_process`` and ``trio-parallel`` kill at once, without a word to the handler, leave a
busy process behind when the program is killed, import the program's ``__main__`` whether a handler needs it or not, and
pickle both ways.  The shape (spawned, kept, killed when cancelled) is theirs.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from math import inf
from typing import Final, final

import trio
from msgspec import DecodeError, Struct

from iris.kernel import wire
from iris.kernel.config import KIB
from iris.kernel.errors import ConfigError, RemoteError, RemoteProtocolError
from iris.patterns.bridge_protocol import MAX_OUTCOME
from iris.patterns.messages import Request
from iris.patterns.service.handlers import InProcess
from iris.patterns.service.process_calls import (
    IS_CHILD,
    LENGTH,
    NUMBER,
    Answer,
    Call,
    Cancelled,
    HandlerPlace,
    Malformed,
    Message,
    NotReady,
    ProcessDied,
    Raised,
    RaisedInProcess,
    Ready,
    Returned,
    Setup,
    decode_message,
    framed,
    to_bytes,
)

_log: Final = logging.getLogger("iris.handlers")

GRACE: Final = 1.0
"""Seconds that a handler has to end when it is told to, and a process to exit, before it is killed."""

_CHILD: Final = "iris.patterns.service.process_child"
_BEGIN: Final = (
    "import json, sys; "
    "sys.path[:] = json.loads(open(int(sys.argv[1]), 'rb', buffering=0, closefd=False).readline()); "
    f"from {_CHILD} import serve_calls; serve_calls(*map(int, sys.argv[1:4]))"
)
"""Program of a process.  It is found as the member's own modules are, with whatever was put into ``sys.path``."""

_BESIDE: Final = MAX_OUTCOME + 256 * KIB
"""Most bytes of an answer beside a reply: the events of an outbox, names and a traceback."""


@final
class ProcessStatistics(Struct, frozen=True, kw_only=True):
    """Counters of the processes of one membership.

    Attributes:
        processes: processes that run or start.
        died: processes that have ended by themselves, be it that they were killed by others.
        killed: processes that were killed because a handler went on after its time.
    """

    processes: int = 0
    died: int = 0
    killed: int = 0


def processors() -> int:
    """Return how many processors this program may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _interpreter() -> list[str]:
    """Return the command of this interpreter with its flags; raise ConfigError if there is none to start."""
    from multiprocessing import spawn  # here: few programs have processes, and it takes 10 ms

    command = spawn.get_command_line()[:-3]  # without its own program, and the argument that says whose it is
    if not command or not command[0]:
        raise ConfigError("this program has no Python interpreter to start processes with: use thread=True")
    return [os.fsdecode(part) for part in command]


def _main_of(handlers: Sequence[HandlerPlace]) -> dict[str, str]:
    """Return what imports this program's ``__main__``, as multiprocessing does, if a handler is defined there."""
    if all(place.module != "__main__" for place in handlers):
        return {}
    from multiprocessing import spawn

    found = spawn.get_preparation_data("iris")
    main: dict[str, str] = {}
    for name in ("init_main_from_name", "init_main_from_path"):
        if name in found:
            main[name] = str(found[name])
    if not main:
        raise ConfigError(
            "a handler with process=True is defined in a session or in text, which a process cannot import: "
            "move it into a module"
        )
    return main


@final
class NotBegun(ProcessDied):
    """The process has ended before it had read the call: another one can be asked."""


@final
class _Process:
    """One process, and the call that it is at.

    Args:
        process: the process, which has begun.
        calls, cancels, lifeline: this end of the socket and the pipes; see ``process_child``.
        largest: bytes of its largest message.
    """

    def __init__(
        self, process: trio.Process, calls: trio.socket.SocketType, cancels: int, lifeline: int, largest: int
    ) -> None:
        self._process = process
        self._calls = calls
        self._pipes: Final = (cancels, lifeline)
        self._largest = largest
        self._received = bytearray()
        self._exchanging = self._closed = False
        self._unsent = memoryview(b"")
        self.number = 0
        """Number of the last call."""
        self.is_ending = False
        """True if it takes no more calls: its handler has raised ``SystemExit``."""
        self.is_overdue = False
        """True if it is killed because a handler went on after its time."""

    @classmethod
    async def start(cls, command: Sequence[str], setup: Setup, cluster: str) -> _Process:
        """Start a process.  That takes milliseconds, and must not be cancelled.

        Raises:
            OSError: the machine has no more processes, or no more file descriptors.
        """
        path = json.dumps([one for one in sys.path if isinstance(one, str)]).encode() + b"\n"
        unsent = memoryview(path + framed(setup))
        output = 2 if sys.__stderr__ is not None else subprocess.DEVNULL  # else 2 may be any file of the program
        with ExitStack() as far, ExitStack() as near:
            calls, far_calls = socket.socketpair()
            near.callback(calls.close)
            far.callback(far_calls.close)
            far_cancels, cancels = os.pipe()
            near.callback(os.close, cancels)
            far.callback(os.close, far_cancels)
            far_lifeline, lifeline = os.pipe()
            near.callback(os.close, lifeline)
            far.callback(os.close, far_lifeline)
            passed = (far_calls.fileno(), far_cancels, far_lifeline)
            process = await trio.lowlevel.open_process(
                [*command, "-c", _BEGIN, *map(str, passed), f"cluster={cluster}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=passed,
                process_group=0,
            )
            near.pop_all()
        os.set_blocking(cancels, False)
        calls.setblocking(False)
        largest = setup.max_payload + _BESIDE
        started = cls(process, trio.socket.from_stdlib_socket(calls), cancels, lifeline, largest)
        started._unsent = unsent
        return started

    async def ready(self) -> str | None:
        """Wait until it has imported the handlers; return why it cannot."""
        try:
            message = await self._exchange()
        except ProcessDied as error:
            return str(error)
        return message.text if isinstance(message, NotReady) else None

    async def call(self, call: Call) -> Answer:
        """Have a handler called.  Cancelled, the call goes on until ``finish`` or ``kill``.

        Raises:
            ProcessDied: the process has ended; NotBegun: before that.
        """
        self._unsent = memoryview(framed(call))
        return await self._answer()

    async def finish(self) -> None:
        """Tell the handler to end, and wait until it has; kill the process if it goes on for ``GRACE``.

        Raises:
            ProcessDied: the process has ended.
        """
        self._signal_end()
        with trio.move_on_after(GRACE):
            await self._answer()
            return
        self.is_overdue = True
        self.kill()
        raise ProcessDied

    def _signal_end(self) -> None:
        """Tell the handler to end.  A process that is at no call does not mind."""
        if self.number and self._process.returncode is None:
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._pipes[0], NUMBER.pack(self.number))
            self._process.send_signal(signal.SIGINT)

    async def _answer(self) -> Answer:
        message = await self._exchange()
        if isinstance(message, Ready | NotReady) or message.number != self.number:
            self.kill()
            raise ProcessDied("the process of the handler was killed: it sent what is no answer to its call")
        self.is_ending = isinstance(message, Raised) and message.name == SystemExit.__name__
        return message

    async def _exchange(self) -> Message:
        """Send what is not sent yet, and return the next message."""
        self._exchanging = begun = True
        try:
            while self._unsent:
                self._unsent = self._unsent[await self._calls.send(self._unsent) :]
            while (message := self._parsed()) is None:
                data = await self._calls.recv(256 * KIB)
                if not data:
                    break
                self._received += data
        except (BrokenPipeError, ConnectionResetError):  # it ended, and had not read all that was sent
            message, begun = None, False
        except (OSError, DecodeError, OverflowError):  # it ends, or what it sent is no message
            message = None
        finally:
            self._exchanging = False
            if self._closed:
                self._calls.close()
        if message is None:
            self.kill()
            how = await self.wait()
            if not begun:
                raise NotBegun(f"the process of the handler {how}: it had not begun")
            raise ProcessDied(f"the process of the handler {how}: how far it came is not known")
        return message

    def _parsed(self) -> Message | None:
        if len(self._received) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self._received)
        if size > self._largest:
            raise OverflowError(size)
        end = LENGTH.size + size
        if len(self._received) < end:
            return None
        with memoryview(self._received) as view:
            message: Message = decode_message(view[LENGTH.size : end])
        del self._received[:end]
        return message

    async def wait(self) -> str:
        """Wait until it has ended; return how."""
        status = await self._process.wait()
        if status >= 0:
            return f"has exited with status {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")

    def end_reading(self) -> None:
        """Have who waits for an answer see the end, after what was sent: others may have the socket as well."""
        with suppress(OSError):
            self._calls.shutdown(socket.SHUT_RDWR)

    @property
    def has_ended(self) -> bool:
        """True once it has ended."""
        return self._process.returncode is not None

    async def exit(self) -> None:
        """Wait until it has ended by itself; kill it if a thread of a handler, or what runs at its exit, goes on."""
        with trio.move_on_after(GRACE):
            await self._process.wait()
        self.kill()

    def kill(self) -> None:
        """Kill it, and the programs that it has started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # it is ending
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()  # a handler may have moved it into another group

    async def aclose(self) -> None:
        """Let it exit, and wait for that; killed after ``GRACE``.  Not cancelled."""
        with trio.CancelScope(shield=True):
            self._signal_end()
            self.end_reading()
            with trio.move_on_after(GRACE):
                await self._process.wait()
            self.kill()
            await self._process.wait()
        self._closed = True
        if not self._exchanging:  # else what came before the end is still to be read
            self._calls.close()
        for one in self._pipes:
            os.close(one)


@final
class _Waiting:
    """A call that waits for a process."""

    def __init__(self) -> None:
        self.event: Final = trio.Event()
        self.found: _Process | str | None = None
        """The process, or why none can be started."""


@final
class ProcessPool:
    """Processes of one membership.

    Args:
        cluster: cluster that is served; ``ps`` shows it.
        handlers: handlers that they import.
        limit: processes at most.
        max_payload: bytes of a reply at most.
        nursery: nursery of their tasks; what it cancels ends them.

    Raises:
        ConfigError: a handler is not what is found under its name, or cannot be imported by others.
    """

    def __init__(
        self, cluster: str, handlers: Sequence[InProcess], limit: int, max_payload: int, nursery: trio.Nursery
    ) -> None:
        for handler in handlers:
            handler.check()
        self._cluster = cluster
        self._command = _interpreter()
        self._handlers: Final = {handler: index for index, handler in enumerate(handlers)}
        places = [handler.place for handler in handlers]
        self._setup = Setup(
            {name: to_bytes(value) for name, value in _main_of(places).items()},
            [to_bytes(argument) for argument in sys.argv],
            places,
            max_payload,
        )
        self._limit = limit
        self._nursery = nursery
        self._idle: list[_Process] = []
        """Processes without a call; the last one is the next, as its memory is warm."""
        self._waiting: deque[_Waiting] = deque()
        self._count = self._starting = 0
        self._died = self._killed = 0

    def statistics(self) -> ProcessStatistics:
        """Return a snapshot of the counters."""
        return ProcessStatistics(processes=self._count, died=self._died, killed=self._killed)

    async def open(self) -> None:
        """Start the first process.

        Raises:
            ConfigError: it cannot be started, or cannot import the handlers, or time is virtual.
        """
        if getattr(trio.lowlevel.current_clock(), "autojump_threshold", inf) < inf:
            raise ConfigError(
                "a handler with process=True answers in real time, and here time is virtual: leave autojump_clock out "
                "of this test"
            )
        if IS_CHILD.is_set():
            raise ConfigError(
                "this program runs again while a process imports its handlers: move what it does below "
                "'if __name__ == \"__main__\":'"
            )
        try:
            self._release(await self._wait_process())
        except ProcessDied as error:
            raise ConfigError(f"the processes of cluster {self._cluster!r} do not start: {error}") from None

    async def call(self, handler: InProcess, request: Request, payload: wire.Payload) -> wire.Payload:
        """Have a handler called in a process, and return its reply.

        Args:
            handler: one of the handlers.
            request: the request; its payload is not looked at.
            payload: the payload as it came.

        Cancelled, the handler is told, and its process killed if it goes on; nothing is waited for.

        Raises:
            RemoteProtocolError: the payload is malformed; the handler did not run.
            RemoteError, RaisedInProcess: the handler raised it.
            ProcessDied: the process has ended, or none can be started.
        """
        data, packed = wire.split_payload(payload)
        again = False
        while True:
            process = await self._wait_process()
            process.number += 1
            call = Call(
                number=process.number,
                handler=self._handlers[handler],
                data=data,
                packed=packed,
                caller=request.sender.cluster,
                node=request.sender.node,
                headers=dict(request.headers),
                remaining=request.deadline - trio.current_time(),
                cluster=request.cluster,
                operation=request.operation,
                idempotency_key=request.idempotency_key,
                attempt=request.attempt,
                undoes=request.undoes,
            )
            try:
                answer = await process.call(call)
            except trio.Cancelled:
                self._nursery.start_soon(self._stop, process)
                raise
            except NotBegun:  # it ended while it was idle
                if again:
                    raise
                again = True
                continue
            self._release(process)
            return _reply(answer, request)

    async def _wait_process(self) -> _Process:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._idle:
            return self._idle.pop()
        waiting = _Waiting()
        self._waiting.append(waiting)
        self._start()
        try:
            await waiting.event.wait()
        except trio.Cancelled:
            if isinstance(waiting.found, _Process):
                self._release(waiting.found)
            elif waiting.found is None:
                self._waiting.remove(waiting)
            raise
        if isinstance(waiting.found, str):
            raise ProcessDied(f"no process can be started: {waiting.found}")
        assert waiting.found is not None
        return waiting.found

    def _start(self) -> None:
        """Start a process, if more calls wait than processes are starting, and there may be more."""
        if self._starting < len(self._waiting) and self._count < self._limit:
            self._count += 1
            self._starting += 1
            self._nursery.start_soon(self._keep)

    def _release(self, process: _Process) -> None:
        """Give a process to the call that waits longest; to the next one that comes if none does."""
        if process.is_ending:
            self._nursery.start_soon(process.exit)
        elif not process.has_ended and not self._give(process):  # it may have ended right behind its answer
            self._idle.append(process)

    def _give(self, found: _Process | str) -> bool:
        if not self._waiting:
            return False
        waiting = self._waiting.popleft()
        waiting.found = found
        waiting.event.set()
        return True

    async def _keep(self) -> None:
        """Have one process, from its start to its end."""
        failed: str | None = None
        process: _Process | None = None
        try:
            try:
                with trio.CancelScope(shield=True):
                    process = await _Process.start(self._command, self._setup, self._cluster)
                assert process is not None
                failed = await process.ready()
            except (OSError, RuntimeError) as error:  # no process, descriptor, memory or thread is left
                failed = str(error)
            finally:
                self._starting -= 1
            if process is not None and failed is None:
                self._release(process)
                await process.wait()
                self._killed += process.is_overdue
                self._died += not process.is_overdue
        finally:
            self._count -= 1
            if process in self._idle:
                self._idle.remove(process)
            if process is not None:
                await process.aclose()
        if failed is not None:
            self._give(failed)
        self._start()

    async def _stop(self, process: _Process) -> None:
        """End the call of a process that nobody waits for any more."""
        try:
            await process.finish()
        except ProcessDied:
            if process.is_overdue:
                _log.warning(
                    "a handler of cluster %r went on for %g s after its time: its process was killed",
                    self._cluster,
                    GRACE,
                    extra={"cluster": self._cluster, "cause": "process killed"},
                )
        else:
            self._release(process)


def _reply(answer: Answer, request: Request) -> wire.Payload:
    """Return the reply in an answer, with the events of the outbox added to the request's; raise what it says."""
    match answer:
        case Returned():
            for event in answer.events:
                assert request.outbox is not None
                payload = wire.join_payload(event.data, packed=event.packed)
                request.outbox.publish(
                    event.topic, wire.decode_payload_untrusted(payload), key=event.key, headers=event.headers
                )
            return wire.join_payload(answer.data, packed=answer.packed)
        case Malformed():
            raise RemoteProtocolError(answer.text)
        case Raised(refused=True):
            refusal = RemoteError(answer.code, answer.text)
            refusal.received = answer.received
            raise refusal
        case Raised():
            raise RaisedInProcess(answer)
        case Cancelled():  # nobody told it to, so the handler itself did as if
            raise ProcessDied("the handler was interrupted in its process")
