"""The form of messages: a line that says what for, then the payload.

::

    greeters text operation=greet timeout=2      a request or survey: a cluster
    orders.tea json                              an event: a topic
    200 json                                     an answer
    404 no_such_cluster                          an answer that says what went wrong, with a text for people
    orders json sender=web timeout=4.9           a request to a program that serves, which answers in the form above

The line has words with a space between them.  The second one says what the payload is, ``bytes`` if it is left out, in
what clients send; options follow as ``NAME=VALUE``.  A message without a line end is a line without a payload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from iris.doors.options import TIMEOUT, Options, Readers, read_options
from iris.doors.problems import Problem
from iris.doors.values import from_json, packed, to_json, unpacked
from iris.kernel.errors import RemoteError
from iris.kernel.names import is_name
from iris.patterns.messages import Request

MAX_LINE: Final = 2048
"""Size limit of the first line, in bytes."""

MAX_SENT: Final = 1 << 20
"""Size limit of a message to a client, in bytes: the default of nng's sockets.  A larger one would end the connection,
whereupon a REQ comes back with the same request, for ever."""


_ERROR: Final = re.compile(r"[45][0-9]{2}\Z")
_MAX_CODE: Final = 64
_MAX_DETAIL: Final = 1024


class Received(NamedTuple):
    """Message of a client."""

    name: str
    payload: object
    options: Options


def _text(data: bytes) -> str:
    """Read a payload that is a text; raise Problem if it is no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Problem(400, "malformed", "the text is no UTF-8") from None


_FORMS: Final[Mapping[str, Callable[[bytes], object]]] = {
    "bytes": bytes,
    "text": _text,
    "json": from_json,
    "msgpack": unpacked,
}
"""Readers of each form of payload."""


def read_message(data: bytes, what: str, max_payload: int, known: Readers, timeout: float = TIMEOUT) -> Received:
    """Read a message of a client.

    Args:
        data: the message.
        what: the first word is, for the text of a problem.
        max_payload: bytes.
        known: the options that there are.
        timeout: seconds, if the client does not say and there is such an option.

    Raises:
        Problem: it is malformed or too large, or the call would take too long.
    """
    (name, *rest), body = _parted(data, what)
    form = rest.pop(0) if rest and "=" not in rest[0] else "bytes"
    pairs = [(name, value) for name, _, value in (word.partition("=") for word in rest)]
    options = read_options(pairs, known, timeout)
    return Received(name, _payload(form, body, max_payload), options)


def read_answer(data: bytes, max_payload: int) -> object:
    """Return the payload that a program has answered with.

    Raises:
        RemoteError: it has answered with an error.
        Problem: the answer is malformed or too large.
    """
    (status, *rest), body = _parted(data, "a status")
    word = rest[0] if rest else "bytes"
    if status == "200":
        return _payload(word, body, max_payload)
    if not _ERROR.match(status) or not rest or not is_name(word) or len(word) > _MAX_CODE:
        raise Problem(400, "malformed", "an answer begins with 200 and its form, or with 4xx or 5xx and a code")
    raise RemoteError(word, body[:_MAX_DETAIL].decode("utf-8", "replace"))


def _parted(data: bytes, what: str) -> tuple[list[str], bytes]:
    """Return the words of a message's line, one at least, and what stands below it."""
    line, _, body = data.partition(b"\n")
    if len(line) > MAX_LINE:
        raise Problem(400, "malformed", f"the first line has {len(line)} bytes, and may have {MAX_LINE}")
    try:
        words = line.decode().split()
    except UnicodeDecodeError:
        raise Problem(400, "malformed", "the first line is no UTF-8") from None
    if not words:
        raise Problem(400, "malformed", f"the first line is empty: it begins with {what}")
    return words, body


def _payload(form: str, body: bytes, max_payload: int) -> object:
    if form not in _FORMS:
        raise Problem(400, "malformed", f"{form!r:.60} is no form of payload: there are {', '.join(_FORMS)}")
    if len(body) > max_payload:
        raise Problem(413, "too_large", f"the payload has {len(body)} bytes, and may have {max_payload}")
    return _FORMS[form](body)


def form_of(payload: object) -> tuple[str, bytes]:
    """Return a payload as bytes, and what they are."""
    if isinstance(payload, bytes):
        return "bytes", payload
    if isinstance(payload, str):
        try:
            return "text", payload.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return "msgpack", packed(payload)
    text = to_json(payload)
    return ("msgpack", packed(payload)) if text is None else ("json", text)


def answer_of(payload: object) -> bytes:
    """Return the answer that has a payload; raise Problem if it is larger than what clients take."""
    form, data = form_of(payload)
    answer = b"200 %s\n%s" % (form.encode(), data)
    if len(answer) > MAX_SENT:
        detail = f"the answer has {len(answer)} bytes, and a message to a client of nng {MAX_SENT} at most"
        raise Problem(413, "too_large", detail)
    return answer


def request_message(request: Request, timeout: float) -> bytes:
    """Return a request as a program gets it that serves.

    Args:
        request: the request.
        timeout: seconds that are left.
    """
    form, data = form_of(request.payload)
    words = [request.cluster, form, f"sender={request.sender.cluster}", f"timeout={timeout:.3f}"]
    if request.operation is not None:
        words.append(f"operation={request.operation}")
    return " ".join(words).encode() + b"\n" + data


def refusal_of(problem: Problem) -> bytes:
    """Return the answer that tells a problem."""
    document = problem.document()
    after = f" retry_after={document['retry_after']}" if "retry_after" in document else ""
    return f"{problem.status} {problem.code}{after}\n{problem.detail}".encode("utf-8", "backslashreplace")


def event_of(topic: str, payload: object, number: str, *, missed: int, retained: bool) -> bytes:
    """Return an event as a message.  Behind the topic is a space in any case: a SUB can filter for one topic alone."""
    form, data = form_of(payload)
    words = [topic, form, f"id={number}"]
    if missed:
        words.append(f"missed={missed}")
    if retained:
        words.append("retained=true")
    return " ".join(words).encode() + b"\n" + data
