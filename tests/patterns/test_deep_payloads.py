"""Values nested as deeply as the wire allows, and one level more: on the way out, and at a handler."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, cast

import msgspec
import pydantic
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import LocalProtocolError, RemoteError
from iris.kernel.names import NodeId
from iris.kernel.wire.payload import MAX_DEPTH, decode_payload_untrusted, encode_payload
from iris.patterns.messages import Request, Sender
from iris.patterns.payloads import encoded, plain
from iris.patterns.service.handlers import prepared

LIMIT = 1 << 20
SENDER = Sender("shop", NodeId("1" * 32))


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int = 1


@dataclasses.dataclass
class Person:
    name: str
    parent: Person | None = None


class Struct(msgspec.Struct):
    x: int = 1


class Model(pydantic.BaseModel):
    x: int = 1


def nested(leaf: Any, levels: int) -> Any:
    for level in range(levels):
        leaf = [leaf] if level % 2 else {"in": leaf}
    return leaf


def depth_of(value: object) -> int:
    depth = 0
    while isinstance(value, list | dict):
        inner = cast("list[object] | dict[str, object]", value)
        value = inner[0] if isinstance(inner, list) else next(iter(inner.values()))
        depth += 1
    return depth


def request(payload: object) -> Request:
    return Request(payload=payload, sender=SENDER, headers={}, deadline=1e9, cluster="c", operation=None)


@pytest.mark.parametrize("leaf", [Point(), Struct(), Model(), {"x": 1}], ids=lambda leaf: type(leaf).__name__)
def test_a_value_as_deep_as_the_wire_allows_travels_whatever_is_at_its_bottom(leaf: object) -> None:
    value = nested(leaf, MAX_DEPTH - 1)
    assert depth_of(decode_payload_untrusted(encoded(value, LIMIT))) == MAX_DEPTH


@pytest.mark.parametrize("leaf", [None, 5, Color.RED], ids=str)
def test_what_is_not_a_level_of_its_own_counts_for_none(leaf: object) -> None:
    assert depth_of(decode_payload_untrusted(encoded(nested(leaf, MAX_DEPTH), LIMIT))) == MAX_DEPTH


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, MAX_DEPTH + 2, 2 * MAX_DEPTH, 5000, 100_000])
@pytest.mark.parametrize("leaf", [None, Point(), Color.RED, complex(1)], ids=lambda leaf: type(leaf).__name__)
def test_one_level_more_is_the_callers_error_and_nothing_else(leaf: object, levels: int) -> None:
    value = nested(leaf, levels)
    with pytest.raises(LocalProtocolError, match=r"nested|cannot send"):
        encoded(value, LIMIT)
    with pytest.raises(LocalProtocolError, match=f"nested more than {MAX_DEPTH} levels"):
        plain(value)


def test_a_dataclass_at_the_bottom_of_all_levels_is_one_level_more() -> None:
    with pytest.raises(LocalProtocolError, match="nested more than"):
        encoded(nested(Point(), MAX_DEPTH), LIMIT)


def test_a_value_that_holds_itself_is_refused() -> None:
    people: list[Any] = [Point()]
    people.append(people)
    with pytest.raises(LocalProtocolError, match="nested more than"):
        encoded(people, LIMIT)
    family: dict[str, Any] = {"point": Point()}
    family["again"] = [family, family]
    with pytest.raises(LocalProtocolError, match="nested more than"):
        encoded(family, LIMIT)


def test_a_chain_of_dataclasses_travels_to_the_limit() -> None:
    person = Person("the last")
    for number in range(MAX_DEPTH - 1):
        person = Person(str(number), person)
    sent = decode_payload_untrusted(encoded(person, LIMIT))
    assert depth_of({"name": sent["parent"]}) == 2
    levels = 0
    while sent is not None:
        sent, levels = sent["parent"], levels + 1
    assert levels == MAX_DEPTH


@dataclasses.dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3) | st.binary(max_size=3) | st.just(Color.RED),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=20,
)


def simple(value: Any) -> Any:
    """Return what ``plain`` is documented to return, by recursion."""
    if type(value) is Color:
        return value.value
    if type(value) is Pair:
        return {"left": simple(value.left), "right": simple(value.right)}
    if isinstance(value, dict):
        return {key: simple(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [simple(item) for item in cast("list[Any]", value)]
    return value


@given(VALUES)
def test_any_mixture_becomes_what_can_travel_with_its_order_kept(value: object) -> None:
    made = plain(value)
    assert repr(made) == repr(simple(value)), "equal, and dicts in the same order"
    assert decode_payload_untrusted(encode_payload(made, LIMIT)) == made
    assert decode_payload_untrusted(encoded(value, LIMIT)) == made


@given(VALUES)
def test_the_callers_own_value_is_not_touched(value: object) -> None:
    before = repr(value)
    made = plain(value)
    if isinstance(made, dict):
        cast("dict[str, object]", made)["more"] = 1
    elif isinstance(made, list):
        cast("list[object]", made).append("more")
    assert repr(value) == before


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_payload_too_deep_for_a_handlers_type_is_a_bad_request(in_thread: bool) -> None:
    """As deep as a peer may send it is deeper than converters can go: the caller's error, not a crash with a trace."""

    def count(person: Person) -> int:
        raise AssertionError("the handler must not run")

    payload: dict[str, object] = {"name": "the last", "parent": 5}
    for number in range(MAX_DEPTH - 1):
        payload = {"name": str(number), "parent": payload}
    assert decode_payload_untrusted(encode_payload(payload, LIMIT)) == payload

    async def call() -> None:
        result = prepared(count, thread=in_thread)(request(payload))
        if in_thread:
            await result

    with pytest.raises(RemoteError) as caught:
        await call()
    assert caught.value.code == "bad_request"
    assert len(caught.value.message) < 10_000
    await trio.lowlevel.checkpoint()
