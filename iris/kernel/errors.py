"""Every error that Iris raises, in one tree.

Each docstring draws three boundaries: whose fault it is, whether the object in hand is still usable, and
whether the operation may be tried again.  A resource that is misused (used after close, used by two
tasks at once) raises trio's own ``ClosedResourceError``, ``BrokenResourceError`` or ``BusyResourceError``.
"""

from __future__ import annotations

from collections.abc import Sequence


def text_of(value: object) -> str:
    """Return the text of what a user's program has raised or given, in UTF-8, whatever its own ``__str__`` does."""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 -- it is the user's own code that makes it
        return f"a {type(value).__name__} without a text"


def summary_of(error: BaseException) -> str:
    """Return the name of an error's type, and its text."""
    return f"{type(error).__name__}: {text_of(error)}"


class IrisError(Exception):
    """Base of every error that Iris raises."""

    _of_realm = ""
    """Part of the text that is for nobody but programs of this realm."""


def keep_in_realm(error: IrisError, part: str) -> None:
    """Have a part of an error's text go to nobody but programs of this realm; see ``text_for_others``."""
    error._of_realm = part


def text_for_others(error: IrisError) -> str:
    """Return the text of an error for its caller, be it a program of another realm or a browser."""
    text = text_of(error)
    return text.replace(error._of_realm, "") if error._of_realm else text


class ConfigError(IrisError):
    """An option, a name, a URL, a credential file or a limit of this program cannot be used.

    The caller's fault; nothing was sent or changed.  The message says what to do about it.
    """


class ProtocolError(IrisError):
    """The rules of the wire were broken; the two children say by whom."""


class LocalProtocolError(ProtocolError):
    """This side tried something that the protocol forbids.  A bug here; the state machine is unchanged."""


class RemoteProtocolError(ProtocolError):
    """A peer sent what the protocol forbids.  Only the frame or session it came in is affected."""


class AuthenticationError(IrisError):
    """A peer, a certificate or a sealed frame could not be verified.  No session exists because of it."""


class PayloadTooLarge(IrisError):
    """A payload or its headers exceed the limit named in the message, this node's own or the receiver's.

    No handler got it.  Send larger things through a tunnel, or give the node that is named a larger ``Config``.
    """


class DeliveryError(IrisError):
    """A message did not have its effect, or its effect is not known; the children say which."""


class NoSuchCluster(DeliveryError):
    """No reachable member serves the cluster.  Nothing was sent.

    Known at once, without waiting, unless the caller has said ``wait=``, or an idempotent request waited because there
    was a member a moment ago.  Notes of the exception (``__notes__``) say which clusters the node knows of, where that
    may help; ``str`` does not, for handlers and doors pass it on.
    """


class NotSent(DeliveryError):
    """The message certainly did not reach a handler.  Safe to try again."""


class Unknown(DeliveryError):
    """The message was sent and its outcome cannot be known: it ran never or once.

    Raised only for requests that are not idempotent.  Trying again may run the handler twice.
    """


class MemberLost(DeliveryError):
    """The member that had accepted the work died before it finished; its handler may have run.

    Of an idempotent request it is the cause (``__cause__``) of the ``RequestTimeout``: others were tried until then.
    It is raised itself where the request has blocked its member, or two members fell silent while they had it: then no
    further member is asked, and trying again may block one more.
    """


class Overloaded(DeliveryError):
    """The members are at their limits; the handler did not run.  Try again after ``retry_after`` seconds."""

    def __init__(self, message: str, *, retry_after: float = 0.1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotAllowed(DeliveryError):
    """The other side knows who is calling and refuses.  Trying again will not help."""


class RemoteError(DeliveryError):
    """The handler ran and failed.  ``code`` is a short stable word, ``message`` a text for people."""

    received = False
    """True if the error is the answer to a request that this program has made."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str]]:
        return type(self), (self.code, self.message)


class RequestTimeout(DeliveryError, TimeoutError):
    """The time given had passed before the outcome was known.  The handler, if it runs, is being cancelled.

    It is a ``TimeoutError`` of Python, too, and so an ``OSError``: an ``except OSError`` catches it.
    """


class LeaseLost(DeliveryError):
    """A lease was over before the block that held it, which was cancelled, or before a job was done: another has it.

    What the block had begun may go on beside what the next holder does, unless the resource checks the token.  Trying
    again asks for the lease anew.
    """


class SagaUndone(DeliveryError):
    """A saga has failed, and what it had done was undone; its ``__cause__`` is why, where it happened in this process.

    ``failed`` are the compensations that raised, cannot be asked for, or of which nobody knows how far they came, each
    with its error: they are not called again.  Every other step that may have run was undone.
    """

    def __init__(self, message: str, *, failed: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.failed = tuple(failed)


class EventsLost(DeliveryError):
    """Subscribers did not get events that this node has published: ``count`` of them since the last such error.

    Raised only by ``raise_for_losses``, once for each loss; publishing again would reach others twice.
    """

    def __init__(self, message: str, *, count: int = 1) -> None:
        super().__init__(message)
        self.count = count


class SubscriberTooSlow(DeliveryError):
    """More events came than the limits of a subscription with ``overflow="fail"`` permit, so it has ended.

    ``waiting`` events waited, none of which is delivered any more, nor what came later: ``statistics()`` counts all.
    Trying again is to subscribe anew, with larger limits or a faster consumer; other subscriptions are unaffected.
    """

    def __init__(self, message: str, *, waiting: int = 0) -> None:
        super().__init__(message)
        self.waiting = waiting


class TunnelBroken(DeliveryError):
    """The tunnel ended before both sides had finished.  What ``receive`` returned before this arrived whole."""
