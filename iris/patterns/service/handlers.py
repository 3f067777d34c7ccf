"""Handler adapters: how an operation's handler is called, and which error its caller gets.

A handler gets the request or a typed payload, and runs in this task, in a worker thread or in a process.  All of that
is decided once, when the handler is registered.  A plain ``async def`` that takes the request is called as it is, at no
cost.  An error that a handler raises becomes a code and a text for its caller.
"""

from __future__ import annotations

import inspect
import math
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, final

import trio
from msgspec import structs

from iris.kernel.errors import ConfigError, IrisError, RemoteError, summary_of, text_for_others, text_of
from iris.kernel.shapes import is_group
from iris.kernel.tasks import deadline_for_threads, run_in_thread
from iris.patterns.messages import OwnNode, Request
from iris.patterns.service.failure_log import HandlerKind, serving_log
from iris.patterns.service.outside import CutOff, RequestHandler
from iris.patterns.service.process_calls import PROCESS_DIED, HandlerPlace, ProcessDied, RaisedInProcess
from iris.patterns.service.signatures import Signature, handler_name, original_of, signature_of

_THREADS: Final = 40
"""Threads of one handler.  A call that finds all of them busy waits, within its deadline."""


@final
class Unserved(Exception):
    """A program for which the handler stands has not served the request, or nobody knows.

    Its caller is answered as by a member that has refused it or has left.

    Args:
        code: ``MEMBER_LEFT`` if the program is gone that had it, ``DRAINING`` or ``OVERLOADED`` if none has begun it.
        text: text for the caller.
        retry_after: seconds after which the caller may try again.
    """

    def __init__(self, code: str, text: str = "", retry_after: float = 0.0) -> None:
        super().__init__(code, text)
        self.code: Final = code
        self.text: Final = text
        self.retry_after: Final = retry_after


def prepared(
    handler: Callable[..., object], signature: Signature | None = None, *, thread: bool = False, process: bool = False
) -> RequestHandler:
    """Return the function that members call with each request.

    Args:
        handler: see ``Service.request``.
        signature: signature of the handler; None to read it here.
        thread: True to call it in a worker thread.
        process: True if it is called in a process, or will be: it has to be a plain ``def``.

    Raises:
        ConfigError: an ``async def`` cannot run in a thread or a process, or the parameters are none of a handler's.
    """
    if (thread or process) and is_async(handler):
        where = "thread" if thread else "process"
        raise ConfigError(
            f"{handler_name(handler)} is an async def and cannot run in a {where}: use def, or leave {where} out"
        )
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigError(f"{handler_name(handler)} yields, and a reply is one value: return a list, or use a tunnel")
    call = (signature or signature_of(handler)).adapted(handler)
    return InThread(call, "request") if thread else call


def is_async(handler: Callable[..., object]) -> bool:
    """Return whether a handler is an ``async def``; one that is prepared counts as what it was made of."""
    handler = original_of(handler)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


@final
class InProcess:
    """A handler that is called in a process, which finds it by its module and its name.

    Args:
        handler: function at the top of a module, or a static method or one of the class of a class that is.
        operation: see ``signature_of``.

    Raises:
        ConfigError: a process cannot find it.
    """

    __slots__ = ("_handler", "place")

    def __init__(self, handler: Callable[..., object], *, operation: bool) -> None:
        self._handler = handler
        self.place: Final = _place_of(handler, operation)

    def check(self) -> None:
        """Check that it is what a process will find; the module that defines it is complete by now.

        Raises:
            ConfigError: it is not.
        """
        if found_at(self.place) != self._handler:
            raise ConfigError(
                f"{handler_name(self._handler)} is not what {self.place} is, which a process would call: "
                "give each its own name, and put the decorator of the service above all others"
            )


def _place_of(handler: Callable[..., object], operation: bool) -> HandlerPlace:
    of_class = handler.__self__ if inspect.ismethod(handler) else None
    module = getattr(of_class or handler, "__module__", None)
    name = getattr(handler, "__qualname__", None)
    if inspect.isclass(of_class):
        name = f"{of_class.__qualname__}.{getattr(handler, '__name__', None)}"
    elif of_class is not None:
        raise ConfigError(
            f"{handler_name(handler)} is a method of an object, which a process does not have: make it a "
            "@staticmethod below @iris.operation, or a function of a module"
        )
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        raise ConfigError(
            f"{handler_name(handler)} cannot be found by a process: define it with def at the top of a module, "
            "and give it in the request what it takes from around it here"
        )
    return HandlerPlace(module, name, operation)


def found_at(place: HandlerPlace) -> Callable[..., object]:
    """Return the handler at a place in the modules that are loaded; raise ConfigError if there is none."""
    found: object = sys.modules.get(place.module)
    for name in place.name.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise ConfigError(
            f"the module {place.module} has no {place.name}, which a process is to call: define it at the top of a "
            "module, with the name that it has there"
        )
    return found


@final
class InThread:
    """A handler that is called in a worker thread.

    Args:
        handler: function that is called.
        kind: kind of handler, for the log.
    """

    __slots__ = ("_handler", "_kind", "_limiter")

    def __init__(self, handler: Callable[[Any], object], kind: HandlerKind) -> None:
        self._handler = handler
        self._kind: HandlerKind = kind
        self._limiter = trio.CapacityLimiter(_THREADS)

    def showing(self, node: OwnNode) -> InThread:
        """Return a handler of requests like this one, which sees ``node`` as the node of its requests."""
        return InThread(partial(_showing, node, self._handler), self._kind)

    async def __call__(self, given: Any) -> object:
        """Wait for the result.  Cancelled, it leaves the thread to itself: nothing can stop it but its own end."""
        token, log = trio.lowlevel.current_trio_token(), serving_log.get()
        errors: list[BaseException] = []
        abandoned = False

        def note_late(error: BaseException) -> None:
            if log is not None:
                log.failed(self._kind, error, getattr(given, "operation", None), given.sender, late=True)

        def call_and_report() -> object:
            try:
                return self._handler(given)
            except BaseException as error:
                errors.append(error)
                if abandoned:
                    with suppress(trio.RunFinishedError):
                        token.run_sync_soon(note_late, error)
                raise

        try:
            with deadline_for_threads():
                return await run_in_thread(call_and_report, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            abandoned = True
            for error in errors:  # it came with the cancellation
                note_late(error)
            raise


def _showing(node: OwnNode, handler: Callable[[Any], object], request: Request) -> object:
    structs.force_setattr(request, "_node", node)  # it was made for this call
    return handler(request)


_ENDS: Final = (KeyboardInterrupt, SystemExit)
"""Exceptions that end a program, wherever they are raised."""


def described(error: BaseException, *, tracebacks: bool) -> tuple[str, str]:
    """Return what a caller may know of an error: a stable word and a text; a traceback only if the service says so."""
    if isinstance(error, RemoteError):
        code, text = text_of(error.code)[:64], text_of(error.message)[:1024]
    elif isinstance(error, RaisedInProcess):
        code, text = error.code, error.text
    elif isinstance(error, ProcessDied):
        code, text = PROCESS_DIED, text_of(error)[:1024]
    elif isinstance(error, IrisError):
        code, text = type(error).__name__, text_for_others(error)[:1024]
    else:
        code, text = "error", summary_of(error)[:1024]
    if tracebacks:
        whole = error.traceback if isinstance(error, RaisedInProcess) else "".join(traceback.format_exception(error))
        text += "\n" + text_of(whole[-8192:])
    return code, text


def is_only(error: BaseException, kind: type[Exception]) -> bool:
    """Return whether an error is of a kind, or a group of nothing else."""
    return error.split(kind)[1] is None if is_group(error) else isinstance(error, kind)


def failure_in(error: BaseException) -> BaseException | None:
    """Return what went wrong in a handler besides its being cancelled.

    It may be a group: what a nursery raises that was cancelled, when a task of it failed at that.  It may be no
    ``Exception``: ``asyncio.CancelledError`` is none, and means nothing here.  Nor does a ``trio.Cancelled`` that was
    kept from another task, or an ended scope, while nothing around this task is cancelled.

    Returns:
        None if nothing did, or the program is to end: that is not for the caller of one handler.
    """
    if isinstance(error, CutOff):
        return None
    cancelled = trio.lowlevel.in_trio_task() and trio.current_effective_deadline() == -math.inf
    if is_group(error):
        rest = error.split(trio.Cancelled)[1] if cancelled else error
        return None if rest is None or rest.subgroup(_ENDS) is not None else rest
    return None if isinstance(error, (trio.Cancelled, *_ENDS) if cancelled else _ENDS) else error
