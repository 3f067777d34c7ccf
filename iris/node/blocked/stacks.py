"""Stacks: where the thread of an event loop stands, and for which handler.

A handler is found by the function of Iris that calls it: it has what the handler was given in a local variable.  So a
request writes nothing down for the watch, and costs nothing.  Frames are read by another thread, or by a signal handler
in the thread itself; nothing is changed in them.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, final

from iris.patterns.observer import Pattern

_CALLERS: Final[dict[tuple[str, str], tuple[str, Pattern | None]]] = {
    ("iris.patterns.service.worker_pool", "_call"): ("request", "request"),
    ("iris.patterns.service.worker_pool", "_hears"): ("message", "broadcast"),
    ("iris.patterns.service.worker_pool", "_talk"): ("tunnel", "tunnel"),
    ("iris.patterns.service.handlers", "call_and_report"): ("given", None),
    ("iris.aio.handlers", "awaited"): ("_given", None),
    ("iris.aio.handlers", "call"): ("request", None),
}
"""Functions that call handlers, by module and name: the variable with what a handler was given, and the pattern.  None:
its type tells."""

_ON_THE_WAY: Final = frozenset(
    {
        "iris.patterns.service.handlers",
        "iris.patterns.service.signatures",
        "iris.aio.handlers",
        "iris.sync.handlers",
    }
)
"""Modules between such a function and the program's handler.  They hold nothing half-changed while they call it."""

_WATCH: Final = f"{__package__}.watch"

_NEVER_BETWEEN: Final = ("iris", "trio", "outcome")
"""Packages of which no function may be at work where a handler is interrupted to send a message."""

_PATTERNS: Final[dict[str, Pattern]] = {"Request": "request", "Message": "broadcast", "Tunnel": "tunnel"}

_DEEPEST: Final = 30
"""Frames of a stack that are shown."""

_LONGEST_PLACE: Final = 200


@final
class Standing(NamedTuple):
    """Place at which a thread stands.

    Attributes:
        pattern: kind of the handler that it runs.  None if it runs none.
        cluster: cluster that the handler serves; empty without one.
        operation: operation of the handler.
        given: what the handler was given: its request, message or tunnel.
        file: file of the program's innermost line.
        line: number of the line.
        function: function that the line is in.
        interruptible: True if nothing of Iris is half-done on the stack: a message may be sent from there.
        stack: stack from the handler on, as tracebacks show it, innermost last.
    """

    pattern: Pattern | None
    cluster: str
    operation: str | None
    given: object
    file: str
    line: int
    function: str
    interruptible: bool
    stack: str

    @property
    def place(self) -> str:
        """The line, as others may see it: without the directories of this machine, and in one line."""
        place = f"{'/'.join(Path(self.file).parts[-2:])}:{self.line} in {self.function}"[-_LONGEST_PLACE:]
        return "".join(character if character.isprintable() else "?" for character in place)

    @property
    def handler(self) -> str:
        """The handler in words; of code that is no handler, a phrase for that."""
        if self.pattern is None:
            return "code of the program that is no handler"
        which = "" if self.operation is None else f", operation {self.operation!r},"
        return f"{self.pattern} handler of cluster {self.cluster!r}{which}"


def is_idle(frame: FrameType) -> bool:
    """Return whether an event loop waits for something to do.  False of loops that are not known, such as uvloop."""
    module = _module(frame)
    if module == "selectors":  # a handler may use it as well
        return frame.f_back is not None and _module(frame.f_back) == "asyncio.base_events"
    return module.startswith("trio._core._io_")


def standing_of(innermost: FrameType) -> Standing:
    """Return where a thread stands, by its innermost frame."""
    frames, caller = _up_to_handler(_beneath_the_watch(innermost))
    pattern, cluster, operation, given = None, "", None, None
    if caller is not None:
        name, pattern = _CALLERS[_module(caller), caller.f_code.co_name]
        given = caller.f_locals.get(name)
        pattern = pattern or _PATTERNS.get(type(given).__name__)
        cluster, operation = _target(given)
    own = next((frame for frame in frames if not frame.f_code.co_filename.startswith(_libraries())), frames[0])
    shown = [(frame, frame.f_lineno) for frame in reversed(frames[:_DEEPEST])]
    return Standing(
        pattern=pattern,
        cluster=cluster,
        operation=operation,
        given=given,
        file=own.f_code.co_filename,
        line=own.f_lineno,
        function=own.f_code.co_name,
        interruptible=caller is not None and not any(map(_is_half_done, frames)),
        stack="".join(traceback.StackSummary.extract(iter(shown)).format()),
    )


@cache
def _libraries() -> tuple[str, ...]:
    """Return the directories of code that is not the program's own."""
    import sysconfig  # it takes milliseconds, and is hardly ever needed

    paths = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return tuple({path for path in paths if path} | {str(Path(__file__).parents[2])})


def _up_to_handler(innermost: FrameType) -> tuple[list[FrameType], FrameType | None]:
    """Return the frames that a handler has called, innermost first, and the one that called the handler.

    Without a handler these are all frames, and there is no such one.
    """
    frames: list[FrameType] = []
    for frame in _outward(innermost):
        if (_module(frame), frame.f_code.co_name) in _CALLERS:
            return frames or [frame], frame
        frames.append(frame)
    return frames, None


def _beneath_the_watch(innermost: FrameType) -> FrameType:
    """Return the frame that a signal handler of the watch has interrupted; without one the innermost frame itself."""
    beneath = innermost
    for frame in _outward(innermost):
        if _module(frame) == _WATCH and frame.f_back is not None:
            beneath = frame.f_back
    return beneath


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_half_done(frame: FrameType) -> bool:
    module = _module(frame)
    return module.partition(".")[0] in _NEVER_BETWEEN and module not in _ON_THE_WAY


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _target(given: object) -> tuple[str, str | None]:
    """Return the cluster and the operation that a request, a broadcast or a tunnel is for."""
    return str(getattr(given, "cluster", "")), getattr(given, "operation", None)
