"""Payloads on the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import click
import pytest

from iris.cli.payload import as_fields, as_text, parse_payload, read_headers, read_payload


class _Input:
    """Standard input with these bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_a_text_is_sent_as_a_text() -> None:
    assert read_payload("hello", json_payload=False) == "hello"


def test_nothing_is_no_bytes() -> None:
    assert read_payload("", json_payload=False) == b""


def test_a_file_is_sent_as_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\x00\xff")
    assert read_payload(f"@{tmp_path / 'data'}", json_payload=False) == b"\x00\xff"


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", _Input(b"from a pipe"))
    assert read_payload("-", json_payload=False) == b"from a pipe"


@pytest.mark.parametrize("text", ["null", "true", "7", "1.5", '"text"', '[1,{"a":null}]', '{"a":[1,2]}'])
def test_json_is_sent_as_the_value_it_stands_for(text: str) -> None:
    assert read_payload(text, json_payload=True) == json.loads(text)


def test_a_file_may_hold_json(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"id": 7}')
    assert read_payload(f"@{tmp_path / 'data.json'}", json_payload=True) == {"id": 7}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=r"cannot read .*absent: No such file"):
        read_payload(f"@{tmp_path / 'absent'}", json_payload=False)


@pytest.mark.parametrize("text", ["", "{", "hello", b"\xff"])
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(click.UsageError, match="not JSON"):
        parse_payload(text, json_payload=True)


def test_json_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(click.UsageError, match="nested too deep"):
        parse_payload("[" * 1_000_000, json_payload=True)


def test_a_line_that_begins_with_an_at_sign_is_no_file() -> None:
    assert parse_payload("@/etc/passwd", json_payload=False) == "@/etc/passwd"


def test_headers_are_split_at_the_first_equals_sign() -> None:
    assert read_headers(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    assert read_headers([]) is None


@pytest.mark.parametrize("header", ["a", "", "=1", "=a=b"])
def test_a_header_without_name_or_value_is_refused(header: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        read_headers(["good=1", header])
    assert caught.value.message == f"{header!r} is not a header: write NAME=VALUE"


@pytest.mark.parametrize(
    ("payload", "text", "fields"),
    [
        ("text", "text", {"payload": "text"}),
        (b"text", "text", {"payload": "text", "encoding": "utf-8"}),
        (b"\xff", "base64:/w==", {"payload": "/w==", "encoding": "base64"}),
        (None, "null", {"payload": None}),
        ([b"text", {"a": b"\xff"}], '["text", {"a": "base64:/w=="}]', {"payload": [b"text", {"a": b"\xff"}]}),
        ({"a": [1, True]}, '{"a": [1, true]}', {"payload": {"a": [1, True]}}),
    ],
)
def test_payloads_are_shown_to_people_and_programs(payload: Any, text: str, fields: dict[str, Any]) -> None:
    assert as_text(payload) == text
    assert as_fields(payload) == fields
