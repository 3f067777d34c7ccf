"""The address book beside a plain model, and whatever a file may say of times."""

from __future__ import annotations

import json
import random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.discovery.address_book import LIFETIME, MAX_ADDRESSES, AddressBook
from iris.kernel.errors import ConfigError

NOW: Final = 1_800_000_000.0
HOUR: Final = 3600.0


class PlainBook:
    """Two dictionaries and three rules."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def saw(self, urls: list[str], now: float) -> None:
        for url in urls:
            self.first[url] = min(self.first.get(url, now), now)
            self.last[url] = now
        self.tidy(now)

    def tidy(self, now: float) -> None:
        for url in [url for url, last in self.last.items() if now - last > LIFETIME]:
            del self.first[url], self.last[url]
        while len(self.last) > MAX_ADDRESSES:
            worst = min(self.last, key=lambda url: (self.last[url] - self.first[url], self.last[url]))
            del self.first[worst], self.last[worst]


@given(st.integers(0, 2**32))
def test_any_sightings_leave_the_same_addresses_as_plain_rules_do(seed: int) -> None:
    rng = random.Random(seed)
    book, plain = AddressBook(), PlainBook()
    now = NOW
    for _ in range(30):
        now += rng.choice([0.0, rng.random(), HOUR * rng.random(), LIFETIME * rng.random()])
        fresh = [f"tcp://10.0.{rng.randrange(256)}.1:{rng.randrange(9)}" for _ in range(rng.choice([1, 5, 60]))]
        known = rng.sample(sorted(plain.last), min(len(plain.last), 5))
        book.saw([*fresh, *known], now)
        plain.saw([*fresh, *known], now)
        assert len(book) == len(plain.last) <= MAX_ADDRESSES
        assert {plain.last[url] for url in book.urls()} == set(plain.last.values())
    seen = [plain.last[url] for url in book.urls() if url in plain.last]
    assert seen == sorted(seen, reverse=True), "the last seen comes first"


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=5), min_size=1, max_size=5), st.randoms())
def test_books_of_nodes_that_share_a_file_come_to_hold_the_same_in_any_order(
    sightings: list[list[int]], rng: random.Random
) -> None:
    books: list[AddressBook] = []
    for number, sighted in enumerate(sightings):
        book = AddressBook()
        book.saw([f"mem://{one}" for one in sighted], NOW + number)
        books.append(book)
    merged: list[bytes] = []
    for _ in range(3):
        shared = AddressBook()
        for book in rng.sample(books, len(books)):
            shared.load_untrusted(book.encode(), NOW + 100)
        merged.append(shared.encode())
    assert len(set(merged)) == 1
    again = AddressBook()
    again.load_untrusted(merged[0], NOW + 100)
    again.load_untrusted(merged[0], NOW + 100)
    assert again.encode() == merged[0], "the same twice is the same"


TIMES = st.one_of(
    st.integers(-(10**20), 10**20),
    st.sampled_from([-(10**400), 10**400, 0, -1, int(NOW), int(NOW) - 1, int(NOW) + 10**6]),
)


@given(st.lists(st.tuples(TIMES, TIMES), max_size=MAX_ADDRESSES + 20))
def test_no_times_in_a_file_do_any_harm(times: list[tuple[int, int]]) -> None:
    """Numbers in a file may be of any size: larger than any clock, larger than any float."""
    entries = [[f"mem://{number}", first, last] for number, (first, last) in enumerate(times)]
    book = AddressBook()
    book.load_untrusted(json.dumps({"addresses": entries}).encode(), NOW)
    assert len(book) <= MAX_ADDRESSES
    book.saw(["mem://now"], NOW + 1)
    assert book.urls()[0] == "mem://now"
    again = AddressBook()
    again.load_untrusted(book.encode(), NOW + 1)
    assert set(again.urls()) == set(book.urls())
    assert not again.unsaved
    book.saw([], NOW + LIFETIME + 2)
    assert book.urls() == [], "nothing that a file says lives longer than what was seen"


def test_more_addresses_than_there_is_room_for_are_weighed_whatever_their_times() -> None:
    """Three hundred entries from before time began, and one that was really used."""
    entries: list[list[object]] = [[f"mem://{number}", -(10**400), int(NOW)] for number in range(300)]
    entries.append(["mem://real", int(NOW) - 1000, int(NOW)])
    book = AddressBook()
    book.load_untrusted(json.dumps({"addresses": entries}).encode(), NOW)
    assert book.urls() == ["mem://real"]


@pytest.mark.parametrize("url", ["", "x" * 256, "tcp://\u00e4:1", "tcp://\ud800:1", "\0"])
def test_what_an_address_looks_like_is_not_the_books_affair(url: str) -> None:
    """The dialler checks it; but it has to survive the file."""
    book, other = AddressBook(), AddressBook()
    book.saw([url], NOW)
    other.load_untrusted(book.encode(), NOW)
    assert other.urls() == [url]
    assert repr(other) == "<AddressBook of 1>"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"7", b'{"addresses": 7}', b'{"addresses": null}', b'{"addresses": [',
        b'{"addresses": {}}', b'"addresses"', b"[1e999]", b"\xff\xfe", b"1" * 5000, b"[" * 100_000,
    ],
)  # fmt: skip
def test_damage_leaves_what_was_known_and_what_was_unsaved(content: bytes) -> None:
    book = AddressBook()
    book.saw(["mem://a"], NOW)
    with pytest.raises(ConfigError):
        book.load_untrusted(content, NOW)
    assert book.urls() == ["mem://a"]
    assert book.unsaved
