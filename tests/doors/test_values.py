"""Payloads as JSON: what comes back is what was said, and what JSON cannot hold travels in an envelope."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest

from iris.doors.problems import Problem
from iris.doors.values import enveloped, from_json, opened, to_json, unpacked

JSON: list[Any] = [None, True, 7, -1.5, "tea", [], {}, [1, ["2", None]], {"a": {"b": [3]}}, "ä\U0001f600"]
OTHER: list[Any] = [{"a": b"x"}, [math.inf], [b""], math.inf]


@pytest.mark.parametrize("value", JSON)
def test_what_json_can_hold_is_json(value: Any) -> None:
    text = to_json(value)
    assert text is not None
    assert from_json(text) == value
    assert enveloped(value) == {"payload": value}
    assert opened(enveloped(value)) == value


@pytest.mark.parametrize("value", [b"", b"\x00\xff", *OTHER])
def test_what_it_cannot_hold_travels_in_an_envelope(value: Any) -> None:
    assert to_json(value) is None
    envelope = enveloped(value)
    assert envelope["encoding"] == ("base64" if isinstance(value, bytes) else "msgpack")
    assert opened(from_json(json.dumps(envelope))) == value


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Expecting value"), ("{", "Expecting property"), ("NaN", "NaN is not JSON"), (b"\xff", "decode"),
        ("[" * 60_000, "nested too deeply|Expecting value"), ("1" * 5_000, "4300 digits"),  # 3.14 follows any nesting
        ("[1e400]", "1e400 is beyond"),
        ("[" + "[]," * 65_536 + "1]", "more than 65536 lists"), ("{}," * 65_537, "more than 65536 maps"),
    ],
)  # fmt: skip
def test_what_is_no_json_is_told(text: str | bytes, told: str) -> None:
    with pytest.raises(Problem, match=told) as caught:
        from_json(text)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "envelope",
    [
        None, [], {}, {"payload": 1, "more": 2}, {"payload": "x", "encoding": "gzip"},
        {"payload": 1, "encoding": "base64"}, {"payload": "?", "encoding": "base64"},
        {"payload": "wQ==", "encoding": "msgpack"}, {"payload": 1, "encoding": []},
    ],
)  # fmt: skip
def test_what_is_no_envelope_is_told(envelope: Any) -> None:
    with pytest.raises(Problem) as caught:
        opened(envelope)
    assert caught.value.status == 400


def test_texts_may_have_what_looks_like_lists_and_maps() -> None:
    for value in ("[" * 70_000, '"[{\\' * 70_000, ["{" * 70_000, "\\"]):
        assert from_json(json.dumps(value)) == value


BOMBS = [
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 1_000_000,
    b"\xdc\xff\xff" * 300_000, b"\xdd\x00\x0f\xff\x00" + b"\x80" * 0xFFF00, b"\xdd\x00\x0f\xff\x00" + b"\x90" * 0xFFF00,
]  # fmt: skip


@pytest.mark.parametrize("data", [b"\xc1", b"", b"\x01\x01", b"\xd6\xff\x00\x00\x00\x00", *BOMBS])
def test_messagepack_that_is_malformed_or_a_bomb_is_told_and_makes_nothing(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Problem, match=r"no MessagePack that can be used .*1,024 levels deep") as caught:
            unpacked(data)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.status == 400
