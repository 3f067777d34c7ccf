"""Updates of others: what is malformed, lies or counts too far never reaches the library of documents."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.kernel.errors import RemoteProtocolError
from iris.patterns.state.replica import MissingUpdates
from iris.patterns.state.shared_types import SharedMap
from iris.patterns.state.updates import MAX_CLOCK, read_update_untrusted, read_vector_untrusted, write_vector
from tests.support.states import EDITS, content, edit, give, replica


def number(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes((*digits, value))


def update_of(*structs: bytes, start: int = 0, writer: int = 9, deletes: bytes = b"\x00") -> bytes:
    return b"\x01" + number(len(structs)) + number(writer) + number(start) + b"".join(structs) + deletes


def item(content_: bytes, kind: int = 8) -> bytes:
    return bytes([kind, 1]) + number(6) + b"list/l" + content_


def value(data: bytes) -> bytes:
    return item(b"\x01" + data)


def test_what_members_write_is_read_as_it_is() -> None:
    rng = random.Random(3)
    one = replica(5)
    for _ in range(300):
        edit(one, rng.randrange(EDITS), rng)
        extent = read_update_untrusted(one.difference(b""))
        assert extent.blocks.get(5, (0, 0)) == (0, one.vector.get(5, 0))
        assert all(end <= one.vector[5] for end in extent.needs.values())
        assert read_vector_untrusted(write_vector(one.vector)) == one.vector


@pytest.mark.parametrize(
    ("update", "text"),
    [
        (b"", "malformed"),
        (b"\xff" * 12, "more than 53 bits"),
        (b"\x00\x00\x00", "1 bytes come after its end"),
        (number(2**40) + b"\x00", "malformed"),
        (update_of(), "with nothing"),
        (update_of(b"\x00" + number(2**31 - 5), start=10), f"further than {MAX_CLOCK}"),
        (update_of(b"\x00\x00"), "no length"),
        (update_of(b"\x0a\x05"), "left out in the middle"),
        (update_of(item(b"\x01", kind=9)), "no kind of content 9"),
        (update_of(item(b"\x01", kind=7)), "a shared type is within another one"),
        (update_of(item(b"\x01\x011", kind=2)), "no kind of content 2"),
        (update_of(value(b"\x7e"), b"\x88\x09\x01\x01\x7e"), "builds on what comes after it"),
        (update_of(item(number(2**30), kind=8)), "malformed"),
        (update_of(item(number(2**30) + b"x", kind=4)), "malformed"),
        (update_of(item(b"\x02\xff\xfe", kind=4)), "malformed"),
        (update_of(item(b"\x02{]", kind=5)), "malformed"),
        (update_of(item(number(20_000) + b"[" * 20_000, kind=5)), "malformed"),
        (update_of(value(b"\x05")), "no kind of value 5"),
        (update_of(value(b"\x75\x01" * 40 + b"\x7e")), "nested deeper than 32"),
        (update_of(value(b"\x76" + number(2**50))), "malformed"),
        (update_of(value(b"\x74" + number(2**31) + b"abc")), "malformed"),
        (update_of(b"\x08\x02\x01\x7e"), "a parent is no shared type"),
        (update_of(value(b"\x7e"), b"\x08\x00\x09\x00\x01\x7e"), "a parent is no shared type"),
        (update_of(value(b"\x7e"), deletes=b"\x01\x09\x01\x00" + number(2**40)), f"further than {MAX_CLOCK}"),
    ],
)
def test_a_lie_is_refused_by_what_it_is(update: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        read_update_untrusted(update)


def test_what_is_well_formed_and_has_no_ground_is_not_taken() -> None:
    one = replica(1)
    for update in (
        update_of(value(b"\x7e"), start=7),  # far ahead of what is there
        update_of(bytes([0x88]) + number(77) + number(3) + b"\x01\x7e"),  # beside what nobody has written
        update_of(value(b"\x7e"), deletes=b"\x01\x4d\x01\x00\x05"),  # deletes that
    ):
        with pytest.raises(MissingUpdates):
            one.apply(update, one.extent_untrusted(update))
    assert one.vector == {}


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        read_update_untrusted(data)
    with suppress(RemoteProtocolError):
        read_vector_untrusted(data)


@pytest.mark.parametrize("text", [b"NaN", b"1e999", b'"\\ud800"', b"[" * 200 + b"]" * 200])
def test_what_only_the_library_refuses_is_malformed_like_the_rest(text: bytes) -> None:
    """Python reads this JSON, and the library does not."""
    victim = replica(1)
    update = update_of(item(number(len(text)) + text, kind=5))
    with pytest.raises(RemoteProtocolError, match=r"malformed: .*JSON parsing error"):
        victim.apply(update, victim.extent_untrusted(update))
    SharedMap(victim, "values")["a"] = 1
    assert victim.vector == {1: 1}


def mutated(rng: random.Random, updates: list[bytes]) -> bytes:
    data = bytearray(rng.choice(updates))
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2 if len(data) > 1:
                del data[at]
            case 3:
                data.insert(at, rng.choice([0, 1, 2, 127, 128, 255]))
            case _:
                other = rng.choice(updates)
                data[at : at + 4] = other[rng.randrange(len(other)) :][: rng.randrange(8)]
                data = data or bytearray(b"\x00")
    return bytes(data)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_document_works_on_after_whatever_passed(seed: int) -> None:
    """Nothing that passes makes the library panic, which no ``except Exception`` would catch."""
    rng = random.Random(seed)
    first, second = replica(1), replica(2)
    for _ in range(12):
        edit(rng.choice([first, second]), rng.randrange(EDITS), rng)
        give(first, second)
    updates = [first.difference(b""), second.difference(b"")]
    for _ in range(30):
        victim = replica(3)
        if rng.random() < 0.7:
            give(first, victim)
        update = mutated(rng, updates)
        try:
            victim.apply(update, victim.extent_untrusted(update))
        except (RemoteProtocolError, MissingUpdates):
            continue
        for kind in range(EDITS):
            edit(victim, kind, rng)
        content(victim)
        SharedMap(victim, "values")["last"] = 1
        new = replica(4)
        give(victim, new)
        assert new.vector == victim.vector
