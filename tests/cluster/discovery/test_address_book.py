"""The address book: bounded, ages out, and survives whatever is in its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.discovery import address_book as address_file
from iris.cluster.discovery.address_book import LIFETIME, MAX_ADDRESSES, AddressBook, AddressFile
from iris.kernel.errors import ConfigError
from iris.security.files.private_files import locked

NOW = 1_800_000_000.0
HOUR = 3600.0


def test_an_address_too_long_is_not_taken() -> None:
    book = AddressBook()
    book.saw(["tcp://" + "x" * 300], NOW)
    assert len(book) == 0


def test_a_clock_that_is_set_back_makes_no_address_immortal() -> None:
    book = AddressBook()
    book.saw(["tcp://a:1"], NOW + 365 * 24 * HOUR)
    book.saw(["tcp://a:1"], NOW)
    book.saw([], NOW + LIFETIME + 1)
    assert book.urls() == []


def test_what_another_node_has_seen_is_added() -> None:
    book, other = AddressBook(), AddressBook()
    book.saw(["tcp://a:1", "tcp://b:1"], NOW)
    other.saw(["tcp://b:1", "tcp://c:1"], NOW + 50)
    book.load_untrusted(other.encode(), NOW + 60)
    assert set(book.urls()) == {"tcp://a:1", "tcp://b:1", "tcp://c:1"}
    assert book.urls()[-1] == "tcp://a:1"


def test_only_news_is_worth_writing() -> None:
    book = AddressBook()
    assert not book.unsaved
    book.saw(["tcp://a:1"], NOW)
    assert book.unsaved
    book.saved()
    book.saw(["tcp://a:1"], NOW + HOUR / 2)
    assert not book.unsaved
    book.saw(["tcp://a:1"], NOW + HOUR)
    assert book.unsaved
    book.saved()
    book.saw(["tcp://b:1"], NOW + HOUR)
    assert book.unsaved


@pytest.mark.parametrize("entry", [[], ["tcp://x:1"], [1, 2, 3], ["tcp://x:1", "1", "2"], ["tcp://x:1", 2, 1], None])
def test_an_entry_that_makes_no_sense_is_passed_over(entry: object) -> None:
    book = AddressBook()
    book.load_untrusted(json.dumps({"addresses": [entry, ["tcp://a:1", NOW - 1, NOW - 1]]}).encode(), NOW)
    book.load_untrusted(json.dumps({"addresses": [entry, ["tcp://b:1", int(NOW), int(NOW)]]}).encode(), NOW)
    assert book.urls() == ["tcp://b:1"]


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists).map(
    lambda value: json.dumps({"addresses": value}).encode()
))  # fmt: skip
def test_any_content_is_a_book_or_refused(content: bytes) -> None:
    book = AddressBook()
    try:
        book.load_untrusted(content, NOW)
    except ConfigError:
        assert len(book) == 0
    assert len(book) <= MAX_ADDRESSES


def test_the_file_is_private_and_shared_by_the_nodes_of_a_user(tmp_path: Path) -> None:
    one, other = AddressBook(), AddressBook()
    path = tmp_path / "realm.json"
    file = AddressFile(path)
    file.load(one, NOW)
    assert len(one) == 0
    one.saw(["tcp://a:1"], NOW)
    other.saw(["tcp://b:1"], NOW)
    file.save(one, NOW)
    AddressFile(path).save(other, NOW)
    read = AddressBook()
    file.load(read, NOW)
    assert set(read.urls()) == {"tcp://a:1", "tcp://b:1"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert not one.unsaved


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"x" * (2**20 + 1), b'{"addresses": 1}'])
def test_a_damaged_file_costs_one_line_and_is_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "realm.json"
    path.write_bytes(content)
    path.chmod(0o600)
    book, file = AddressBook(), AddressFile(path)
    file.load(book, NOW)
    book.saw(["tcp://a:1"], NOW)
    file.save(book, NOW)
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    read = AddressBook()
    AddressFile(path).load(read, NOW)
    assert read.urls() == ["tcp://a:1"]


def test_a_file_that_others_may_read_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "realm.json"
    path.write_text(json.dumps({"addresses": [["tcp://a:1", int(NOW), int(NOW)]]}))
    path.chmod(0o644)
    book = AddressBook()
    AddressFile(path).load(book, NOW)
    assert len(book) == 0
    assert "chmod 600" in caplog.text


def test_a_directory_that_cannot_be_written_to_costs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    book, file = AddressBook(), AddressFile(tmp_path / "missing" / "realm.json")
    for _ in range(3):
        book.saw(["tcp://a:1"], NOW)
        file.save(book, NOW)
    assert len(caplog.records) == 1


def test_a_copy_goes_its_own_way_and_comes_back_with_what_others_have_seen() -> None:
    book, other = AddressBook(), AddressBook()
    book.saw(["tcp://a:1"], NOW)
    copy = book.copy()
    book.saw(["tcp://b:1"], NOW + 10)
    other.saw(["tcp://c:1", "tcp://a:1"], NOW - 10)
    copy.load_untrusted(other.encode(), NOW + 20)
    assert set(copy.urls()) == {"tcp://a:1", "tcp://c:1"}
    copy.saved()
    book.merge(copy, NOW + 30)
    assert book.urls() == ["tcp://b:1", "tcp://a:1", "tcp://c:1"]
    assert book.unsaved, "what came in the meantime"


def test_a_file_that_another_process_has_locked_is_written_the_next_time_and_complained_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(address_file, "_PATIENCE", 0.02)
    path = tmp_path / "realm.json"
    book, file = AddressBook(), AddressFile(path)
    book.saw(["tcp://a:1"], NOW)
    with locked(tmp_path / "realm.json.lock", "address book"):
        for _ in range(2):
            file.save(book, NOW)
            assert book.unsaved
    assert len(caplog.records) == 1
    assert "until then, addresses are not remembered" in caplog.text
    file.save(book, NOW)
    assert not book.unsaved
    assert path.exists()
