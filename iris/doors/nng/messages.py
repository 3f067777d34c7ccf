"""The form of messages: a line that says what for, then the payload.

::

    greeters text operation=greet timeout=2      a request or survey: a cluster
    orders.tea json                              an event: a topic
    200 json                                     an answer
    404 no_such_cluster                          an answer that says what went wrong, with a text for people

The line has words with a space between them.  The second one says what the payload is, ``bytes`` if it is left out, in
what clients send; options follow as ``NAME=VALUE``.  A message without a line end is a line without a payload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from iris.doors.problems import Problem
from iris.doors.values import flag, from_json, number, packed, to_json, unpacked

MAX_LINE: Final = 2048
"""Bytes of the first line."""

MAX_SENT: Final = 1 << 20
"""Bytes of a message to a client: what nng's sockets take if their program says nothing.  A larger one would end the
connection, whereupon a REQ comes back with the same request, for ever."""


class Received(NamedTuple):
    """What a client says."""

    name: str
    payload: Any
    options: Mapping[str, Any]


def whole(text: str) -> int:
    """Read a whole number."""
    return int(text)


def _text(data: bytes) -> str:
    """Read a payload that is a text.

    Raises:
        Problem: it is no UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Problem(400, "malformed", "the text is no UTF-8") from None


_FORMS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "bytes": bytes,
    "text": _text,
    "json": from_json,
    "msgpack": unpacked,
}
"""What reads each form of payload."""

_KINDS: Final[Mapping[Callable[[str], Any], str]] = {number: "a number", whole: "a whole number", flag: "true or false"}


def read_message(data: bytes, what: str, max_payload: int, **known: Callable[[str], Any]) -> Received:
    """Read a message of a client.

    Args:
        data: the message.
        what: the first word is, for the text of a problem.
        max_payload: bytes.
        known: the options that there are, and what reads the value of each.

    Raises:
        Problem: it is malformed or too large.
    """
    line, _, body = data.partition(b"\n")
    if len(line) > MAX_LINE:
        raise Problem(400, "malformed", f"the first line has {len(line)} bytes, and may have {MAX_LINE}")
    try:
        words = line.decode().split()
    except UnicodeDecodeError:
        raise Problem(400, "malformed", "the first line is no UTF-8") from None
    if not words:
        raise Problem(400, "malformed", f"the first line is empty: it begins with {what}")
    name, *rest = words
    form = rest.pop(0) if rest and "=" not in rest[0] else "bytes"
    if form not in _FORMS:
        raise Problem(400, "malformed", f"{form!r:.60} is no form of payload: there are {', '.join(_FORMS)}")
    options = _options_of(rest, known)
    if len(body) > max_payload:
        raise Problem(413, "too_large", f"the payload has {len(body)} bytes, and may have {max_payload}")
    return Received(name, _FORMS[form](body), options)


def _options_of(words: list[str], known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known or name in options:
            told = ", ".join(known)
            raise Problem(400, "malformed", f"{name!r:.60} is no option here, or stands twice; there are {told}")
        try:
            options[name] = known[name](value)
        except (ValueError, KeyError):
            wanted = _KINDS.get(known[name], "something else")
            raise Problem(400, "malformed", f"option {name}: expected {wanted}, got {value!r:.60}") from None
    return options


def form_of(payload: Any) -> tuple[str, bytes]:
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


def answer_of(payload: Any) -> bytes:
    """Return the answer that has a payload.

    Raises:
        Problem: it is larger than what clients take.
    """
    form, data = form_of(payload)
    answer = b"200 %s\n%s" % (form.encode(), data)
    if len(answer) > MAX_SENT:
        told = f"the answer has {len(answer)} bytes, and a message to a client of nng {MAX_SENT} at most"
        raise Problem(413, "too_large", told)
    return answer


def refusal_of(problem: Problem) -> bytes:
    """Return the answer that tells a problem."""
    document = problem.document()
    after = f" retry_after={document['retry_after']}" if "retry_after" in document else ""
    return f"{problem.status} {problem.code}{after}\n{problem.detail}".encode("utf-8", "backslashreplace")


def event_of(topic: str, payload: Any, number: str, *, missed: int, retained: bool) -> bytes:
    """Return an event as a message.  Behind the topic is a space in any case: a SUB can filter for one topic alone."""
    form, data = form_of(payload)
    words = [topic, form, f"id={number}"]
    if missed:
        words.append(f"missed={missed}")
    if retained:
        words.append("retained=true")
    return " ".join(words).encode() + b"\n" + data
