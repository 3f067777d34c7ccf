"""Work limit of a frame: what one frame may have its receiver do, with all that is carried in it.  Sans-IO.

A frame is dealt with in one go, and others wait meanwhile.  Its batch has at most ``wire.MAX_MESSAGES`` messages; but
frames are carried in messages, and messages in relayed ones, with a signature for each.  So what is in them is counted
together.  Links keep what they send within these bounds (``Link.post_carrying``, ``wire.CHECK``); what is beyond them
is an error of the peer, and is not taken.

What is carried, a frame's own messages, and copies of events have bounds that do not depend on each other: their
senders do not know what a link puts into one frame.  Copies beyond their bound wait, and so does what a frame frees
that had waited before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, final

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import MAX_CARRIED, MAX_CHECKS, MAX_ELEMENTS, MAX_MESSAGES, RELAYED_CHECK, Elements

_LEAST: Final = 12
"""Least size of an event, in bytes: it bounds how many a copy, or the body of a relayed message, holds."""


class TooMuchWork(RemoteProtocolError):
    """A frame would bring about more than one may.  What is beyond that is lost, though its sender can be genuine."""


@final
class Work:
    """The work that the present frame may still bring about.

    Attributes:
        frame: grows with each frame that came over a connection.
        is_frame: True while such a frame is handled; False for work that no frame has brought about.
        later: calls to be made once when the frame has been handled, by their subject.
    """

    __slots__ = ("_checks", "_counted", "_elements", "_messages", "_waiting", "frame", "is_frame", "later")

    def __init__(self) -> None:
        self.frame = 0
        self._elements: Final = Elements(2 * MAX_ELEMENTS)
        self._counted = 0  # the frame whose elements these are
        self.later: Final[dict[Hashable, Callable[[], None]]] = {}
        self.is_frame = False
        self.begin()

    def __repr__(self) -> str:
        return f"<Work: {self._messages} messages, {self._waiting} of what can wait and {self._checks} signatures left>"

    def begin(self, *, is_frame: bool = False) -> None:
        """Begin with another frame, or with something that no frame has brought about."""
        self.frame += 1
        self.is_frame = is_frame
        self._messages = self._waiting = MAX_CARRIED
        # Those of the frame's own messages, which their size bounds, and those in what it carries.
        self._checks = 2 * MAX_CHECKS

    @property
    def elements(self) -> Elements:
        """Elements of arrays that may still be decoded, in bodies of relayed messages."""
        if self._counted != self.frame:
            self._counted = self.frame
            self._elements.begin()
        return self._elements

    def finish(self) -> None:
        """End with a frame: do what was to be done then."""
        self.is_frame = False
        while self.later:
            self.later.pop(next(iter(self.later)))()

    def once(self, what: Hashable, do: Callable[[], None]) -> None:
        """Do something once for all the messages of a frame, at its end; at once if no frame has brought it about."""
        if self.is_frame:
            self.later.setdefault(what, do)
        else:
            do()

    def add_messages(self, messages: int) -> None:
        """Count messages that came in others; raise TooMuchWork beyond what there may be."""
        if messages > self._messages:
            raise TooMuchWork(f"a frame carries more than {MAX_CARRIED} messages")
        self._messages -= messages

    def may_open(self, size: int) -> bool:
        """Return whether a batch that may wait for that may be opened now, by its size in bytes; if so, count it."""
        messages = max(min(MAX_MESSAGES, size // _LEAST), RELAYED_CHECK)
        if messages > self._waiting:
            return False
        self._waiting -= messages
        return True

    def check(self, signatures: int = 1) -> None:
        """Count signatures that are to be checked; raise TooMuchWork beyond what there may be."""
        if signatures > self._checks:
            raise TooMuchWork(f"a frame has more than {2 * MAX_CHECKS} signatures checked")
        self._checks -= signatures
