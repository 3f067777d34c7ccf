"""Damage to bytes by a network, a broken peer or an attacker.  Seeded, so that every run can be repeated."""

from __future__ import annotations

import random
from typing import Final, cast

# Starts of msgpack values that promise more than follows, are not allowed, or nest.
_TREACHEROUS: Final = (
    b"\xdd\xff\xff\xff\xff",  # arrays
    b"\xdc\xff\xff",
    b"\x9f" * 40,
    b"\xdc\x04\x00" * 30,
    b"\xdf\xff\xff\xff\xff",  # maps
    b"\x80",
    b"\x81\x01\x02",
    b"\xdb\xff\xff\xff\xff",  # strings and binaries
    b"\xd9\xff",
    b"\xa1\xff",  # not UTF-8
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",  # extensions
    b"\xd4\x07\x00",
    b"\xc7\x00\x01",
    b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
    b"\xc1",  # never used
    b"\xca\x7f\xc0\x00\x00",  # not a number
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return ``data``, which is not empty, with one thing done to it that a network or an attacker could do."""
    changed = bytearray(data)
    position = rng.randrange(len(changed))
    match rng.randrange(7):
        case 0:
            changed[position] ^= 1 << rng.randrange(8)
        case 1:
            del changed[position:]
        case 2:
            changed += rng.randbytes(rng.randrange(1, 40))
        case 3:
            changed[position : position + 8] = rng.randbytes(min(8, len(changed) - position))
        case 4:
            changed = bytearray(rng.randbytes(rng.randrange(2 * len(data))))
        case 5:  # the header of a frame around rubbish
            changed[16:] = rng.randbytes(rng.randrange(len(data)))
        case _:  # two parts change places
            changed = changed[position:] + changed[:position]
    return bytes(changed)


def malformed(batch: bytes, rng: random.Random) -> bytes:
    """Return a batch, which is not empty, as a broken or hostile member could have encoded it."""
    changed = bytearray(batch)
    for _ in range(rng.randrange(1, 4)):
        position = rng.randrange(len(changed) + 1)
        match rng.randrange(6):
            case 0:
                changed[position:position] = rng.choice(_TREACHEROUS)
            case 1:
                changed[position : position + 1] = rng.choice(_TREACHEROUS)
            case 2:
                del changed[position:]
            case 3:
                changed[position : position + 1] = bytes((rng.randrange(256),))
            case 4:
                changed[position:position] = changed[: rng.randrange(1, 30)]
            case _:
                changed[position:position] = rng.randbytes(rng.randrange(1, 12))
    return bytes(changed)


_EDGES: Final = (
    *(0, 1, -1, 2, 127, 128, 1023, 1024, 1025, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48),
    *(2**63 - 1, 2**63, 2**64 - 1, -(2**63), -7),
)
_TEXTS: Final = (
    *("", "a", ">", "*", ".", "a..b", "a.>", ">.a", "\0", "\n", "é" * 40, "x" * 300, "y" * 5000),
    *("t.a", "victim", "site://near/x", "mem://victim", "tcp://127.0.0.1:1", "..", "/etc/passwd"),
)


def changed_field(value: object, rng: random.Random) -> object:
    """Return what a hostile member could put in the place of a field: close to what belongs there, or anything."""
    if rng.random() < 0.25:
        value = rng.choice((None, True, 5, 1.5, "text", b"bytes", (), ((),), ("a", 1)))
    match value:
        case bool() | None:
            return rng.choice((None, True, False, 0, 1, "", b"", (), float("inf")))
        case int():
            near = rng.choice((*_EDGES, value, value + 1, value - 1, -value, rng.randrange(2**32)))
            return max(-(2**63), min(near, 2**64 - 1))
        case float():
            return rng.choice((0.0, -1.0, 1e300, float("inf"), float("-inf"), float("nan")))
        case str():
            return rng.choice((*_TEXTS, value, value[:-1], value + "x", value * 3))
        case bytes():
            other = rng.choice(
                (b"", bytes(8), bytes(16), rng.randbytes(16), rng.randbytes(64), value + value, value[1:])
            )
            return damaged(value, rng) if value and rng.random() < 0.5 else other
        case tuple():
            return _changed_tuple(list(cast("tuple[object, ...]", value)), rng)
        case _:  # a packed value
            return rng.choice((value, b"", None))


def _changed_tuple(items: list[object], rng: random.Random) -> tuple[object, ...]:
    for _ in range(rng.randrange(1, 4)):
        position = rng.randrange(len(items) + 1)
        match rng.randrange(5):
            case 0:
                items.insert(position, changed_field(None, rng))
            case 1 if items:
                del items[position - 1]
            case 2 if items:
                items = items * rng.choice((2, 3)) if len(items) < 400 else items[:3]
            case _ if items:
                items[position - 1] = changed_field(items[position - 1], rng)
            case _:
                items.append(changed_field(None, rng))
    return tuple(items)
