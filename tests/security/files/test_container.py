from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import ConfigError
from iris.security.files.container import Container, encode_binary, encode_container, open_container, wrap
from tests.support.realms import seeded_entropy

SECRET = b"S" * 32
FIELDS = {"text": "t", "number": 7, "binary": encode_binary(SECRET), "texts": ["a"], "numbers": {"a": 1}}


def container(**changes: object) -> Container:
    return Container(encode_container("credential", "portable", {**FIELDS, **changes}), "credential")


def test_fields_come_back_as_they_were_written() -> None:
    read = container(binaries=[encode_binary(SECRET)])
    assert read.kind == "portable"
    assert read.text("text") == "t"
    assert read.number("number") == 7
    assert read.binary("binary") == read.binary("binary", 32) == SECRET
    assert read.texts("texts") == ("a",)
    assert read.binaries("binaries", 32) == (SECRET,)
    assert read.numbers("numbers") == {"a": 1}


WRONG: list[Callable[[Container], object]] = [
    lambda c: c.text("number"),
    lambda c: c.text("missing"),
    lambda c: c.number("text"),
    lambda c: c.number("negative"),
    lambda c: c.number("true"),
    lambda c: c.number("huge"),
    lambda c: c.binary("number"),
    lambda c: c.binary("not base64"),
    lambda c: c.binary("binary", 31),
    lambda c: c.texts("text"),
    lambda c: c.texts("numbers"),
    lambda c: c.texts("mixed"),
    lambda c: c.binaries("texts", 32),
    lambda c: c.binaries("binary", 32),
    lambda c: c.numbers("texts"),
    lambda c: c.numbers("wrong numbers"),
]


@pytest.mark.parametrize("read", WRONG)
def test_a_wrong_field_is_named_and_its_value_is_not_shown(read: Callable[[Container], object]) -> None:
    damaged = container(
        **{
            "negative": -1,
            "true": True,
            "huge": 2**63,
            "not base64": "!" + "S" * 32,
            "mixed": ["a", 1],
            "wrong numbers": {"a": "SSSSSS"},
        }
    )
    with pytest.raises(ConfigError, match=r"the credential file is damaged: '.*' is missing or malformed") as caught:
        read(damaged)
    assert "SSSS" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not the JSON"),
        (b"{", "not the JSON"),
        (b"\xff\xfe", "not the JSON"),
        (b"[" * 100_000, "not the JSON"),
        (b'{"iris": "credential", "version": NaN}', "not the JSON"),
        (b'{"iris": "credential", "iris": "credential"}', "not the JSON"),
        (b"[]", "not a credential file"),
        (b"7", "not a credential file"),
        (b"{}", "not a credential file"),
        (b'{"iris": "realm", "version": 1, "kind": "root"}', "not a credential file"),
        (b'{"iris": "credential", "version": 2, "kind": "portable"}', "of another version than 1"),
        (b'{"iris": "credential", "version": 1}', "'kind' is missing"),
    ],
)
def test_other_files_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Container(data, "credential")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_arbitrary_files_are_an_error_of_one_line(data: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        open_container(data, "credential", None)
    assert "\n" not in str(caught.value)


def test_a_wrapped_file_opens_with_its_passphrase_only() -> None:
    content = encode_container("credential", "portable", FIELDS)
    wrapped = wrap(content, "credential", "seven brave otters", seeded_entropy(1))
    assert b"portable" not in wrapped
    assert open_container(wrapped, "credential", "seven brave otters").binary("binary") == SECRET
    with pytest.raises(ConfigError, match="give its passphrase"):
        open_container(wrapped, "credential", None)
    with pytest.raises(ConfigError, match="passphrase of this credential is wrong") as caught:
        open_container(wrapped, "credential", "another")
    assert "another" not in str(caught.value)


def test_each_wrapping_has_its_own_key() -> None:
    content = encode_container("credential", "portable", FIELDS)
    entropy = seeded_entropy(1)
    first, second = (json.loads(wrap(content, "credential", "same", entropy)) for _ in range(2))
    assert first["salt"] != second["salt"]
    assert first["ciphertext"] != second["ciphertext"]


def test_a_wrapped_file_of_one_sort_is_none_of_another() -> None:
    wrapped = wrap(encode_container("realm", "root", FIELDS), "realm", "same", seeded_entropy(1))
    renamed = wrapped.replace(b'"iris": "realm"', b'"iris": "credential"')
    with pytest.raises(ConfigError, match="is wrong, or the file is damaged"):
        open_container(renamed, "credential", "same")


@pytest.mark.parametrize("log_n", [0, 13, 21, 62])
def test_a_file_cannot_ask_for_gigabytes(log_n: int) -> None:
    fields = {"log_n": log_n, "salt": encode_binary(bytes(16)), "ciphertext": encode_binary(bytes(40))}
    with pytest.raises(ConfigError, match="not between 14 and 20"):
        open_container(encode_container("credential", "wrapped", fields), "credential", "x")


def test_an_empty_passphrase_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        wrap(b"", "credential", "", seeded_entropy(1))


def test_a_container_shows_no_values() -> None:
    assert repr(container()) == "<Container of a credential, portable>"
