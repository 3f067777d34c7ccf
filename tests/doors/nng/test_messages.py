"""The messages of the door for nng: whatever comes is a message or a problem, and all payloads come back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.doors.nng.messages import MAX_SENT, answer_of, event_of, read_message, refusal_of
from iris.doors.options import flag, number, whole
from iris.doors.problems import Problem

KNOWN: Any = {"operation": str, "timeout": number, "count": whole, "idempotent": flag}

PIECES = st.sampled_from(
    [b"greeters", b" ", b"\n", b"\r", b"json", b"msgpack", b"text", b"=", b"timeout=", b"1e999", b"count=", b"\xff"]
)

PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.binary(max_size=200) | st.lists(PIECES | st.binary(max_size=9), max_size=12).map(b"".join))
def test_whatever_comes_is_a_message_or_a_problem(data: bytes) -> None:
    try:
        message = read_message(data, "a cluster", 100, KNOWN)
    except Problem as problem:
        assert refusal_of(problem)[:4] in (b"400 ", b"413 ")  # noqa: PT017 -- either may be
    else:
        assert message.name
        assert message.options.keys() <= KNOWN.keys()


@given(PAYLOADS)
def test_what_the_door_says_a_client_can_say(payload: Any) -> None:
    _, _, said = answer_of(payload).partition(b" ")
    assert read_message(b"greeters " + said, "a cluster", MAX_SENT, {}).payload == payload
    event = event_of("a.b", payload, "1-2", missed=3, retained=True)
    line, _, _ = event.partition(b"\n")
    assert line.split()[0::3] == [b"a.b", b"missed=3"]
    message = read_message(event, "a topic", MAX_SENT, {"id": str, "missed": whole, "retained": flag})
    assert message == ("a.b", payload, {"id": "1-2", "missed": 3, "retained": True})


@pytest.mark.parametrize("text", ["no problem", "zeile\nzwei", "\ud800"])
def test_a_problem_is_one_line_and_a_text(text: str) -> None:
    told = refusal_of(Problem(503, "overloaded", text, retry_after=0.2))
    line, _, detail = told.partition(b"\n")
    assert line == b"503 overloaded retry_after=1"
    assert detail == text.encode("utf-8", "backslashreplace")
