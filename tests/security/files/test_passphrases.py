"""Passphrases: whatever is typed or stands in the environment opens what it closed, and nothing else does."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from iris.kernel.errors import ConfigError
from iris.security.authority.issuing import create_realm, issue_cluster
from iris.security.files.container import encode_container, open_container, wrap
from iris.security.files.credential_file import CredentialWatch, load_credential, save_credential
from tests.support.realms import WALL, seeded_entropy

SORT = "credential"
CONTENT = encode_container(SORT, "portable", {"a": "b"})


@pytest.mark.parametrize(
    "passphrase",
    ["x", " ", "correct horse", "p\u00e4ss", "\U0001f511" * 20, "x" * 10_000, "\0", "a\nb"],
    ids=ascii,
)
def test_any_text_opens_what_it_closed(passphrase: str) -> None:
    wrapped = wrap(CONTENT, SORT, passphrase, os.urandom)
    assert open_container(wrapped, SORT, passphrase).text("a") == "b"
    with pytest.raises(ConfigError, match="wrong, or the file is damaged"):
        open_container(wrapped, SORT, passphrase + " ")


@pytest.mark.parametrize("raw", [b"\xff", b"p\xe4ss", b"ok\xc3", b"\xed\xa0\x80"])
def test_bytes_of_the_environment_that_are_no_utf_8_are_a_passphrase_like_any_other(
    raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell that is set to Latin-1 hands such bytes on."""
    monkeypatch.setitem(os.environb, b"IRIS_PASSPHRASE", raw)
    passphrase = os.environ["IRIS_PASSPHRASE"]
    wrapped = wrap(CONTENT, SORT, passphrase, os.urandom)
    assert open_container(wrapped, SORT, passphrase).text("a") == "b"
    with pytest.raises(ConfigError, match="wrong"):
        open_container(wrapped, SORT, "pass")


@pytest.mark.parametrize("passphrase", ["\ud800", "a\udfffb"])
def test_what_is_no_text_at_all_is_refused_in_one_line(passphrase: str) -> None:
    with pytest.raises(ConfigError, match="no text can have"):
        wrap(CONTENT, SORT, passphrase, os.urandom)
    with pytest.raises(ConfigError, match="no text can have"):
        open_container(wrap(CONTENT, SORT, "right", os.urandom), SORT, passphrase)


def test_letters_that_look_the_same_are_not() -> None:
    """Nothing is normalised: what was typed counts, byte by byte."""
    composed = "caf\u00e9"
    decomposed = unicodedata.normalize("NFD", composed)
    assert composed != decomposed
    with pytest.raises(ConfigError, match="wrong"):
        open_container(wrap(CONTENT, SORT, composed, os.urandom), SORT, decomposed)


@pytest.mark.parametrize("name", ["iris", "version", "log_n", "salt", "ciphertext"])
def test_a_wrapped_file_with_any_field_changed_is_refused_and_shows_nothing(name: str) -> None:
    wrapped = bytearray(wrap(CONTENT, SORT, "right", os.urandom))
    place = wrapped.index(f'"{name}": '.encode()) + len(name) + 5  # the second character of the value
    wrapped[place] = ord("2") if wrapped[place] != ord("2") else ord("9")
    with pytest.raises(ConfigError) as caught:
        open_container(bytes(wrapped), SORT, "right")
    assert "right" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_watch_of_a_wrapped_file_takes_the_next_one_and_keeps_the_last_good_one(tmp_path: Path) -> None:
    entropy = seeded_entropy(1)
    _, first = issue_cluster(create_realm(entropy), "shop", entropy=entropy, wall_now=WALL, seeds=("tcp://a:1",))
    file = tmp_path / "shop.json"
    save_credential(file, first, passphrase="swordfish", entropy=entropy)
    watch = CredentialWatch(file, passphrase="swordfish")
    assert watch.credential.seeds == ("tcp://a:1",)
    assert not watch.poll()
    save_credential(file, first, passphrase="other", replace=True, entropy=entropy)
    with pytest.raises(ConfigError, match="wrong"):
        watch.poll()
    assert not watch.poll(), "said once"
    assert watch.credential.seeds == ("tcp://a:1",)
    save_credential(file, first, replace=True)
    assert watch.poll(), "one that is not wrapped any more needs none"
    assert "swordfish" not in repr(watch)
    assert load_credential(file).name == "shop"


def test_a_watch_that_is_told_no_passphrase_says_that_one_is_needed(tmp_path: Path) -> None:
    entropy = seeded_entropy(1)
    _, credential = issue_cluster(create_realm(entropy), "shop", entropy=entropy, wall_now=WALL)
    save_credential(tmp_path / "shop.json", credential, passphrase="open", entropy=entropy)
    with pytest.raises(ConfigError, match="give its passphrase"):
        CredentialWatch(tmp_path / "shop.json")
