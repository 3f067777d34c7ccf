"""Payloads as types: what fits, what is said of what does not, and the way back."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import enum
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NewType

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import ConfigError, LocalProtocolError
from iris.patterns.payloads import Mismatch, converter, encoded, plain


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


Number = NewType("Number", int)


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass(frozen=True)
class Room:
    x: int
    z: int = 0


@dataclasses.dataclass
class Order:
    id: Number
    price: float
    items: list[Point]
    color: Color = Color.RED
    note: str | None = None
    tags: frozenset[str] = frozenset()
    sizes: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    parent: Order | None = None
    total: float = dataclasses.field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if self.price < 0:
            raise ValueError("price below 0")
        self.total = self.price * len(self.items)


class Struct(msgspec.Struct):
    name: str
    age: int = 0
    raw: bytes = b""


class Model(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(default=0, ge=0)


class StrictStruct(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class StrictModel(pydantic.BaseModel, extra="forbid"):
    name: str


class Dated(pydantic.BaseModel):
    day: datetime.date | None = None
    number: uuid.UUID | None = None
    sums: dict[str, list[decimal.Decimal]] = {}
    raw: bytes = b""
    anything: Any = None


@dataclasses.dataclass
class Odd:
    """Its own check fails in ways of its own."""

    how: str

    def __post_init__(self) -> None:
        assert self.how != "assert", "not that"
        if self.how == "key":
            raise KeyError(self.how)


@dataclasses.dataclass
class Unresolvable:
    field: Nowhere  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("annotation", "payload", "value"),
    [
        (Any, [1], [1]),
        (object, None, None),
        (None, None, None),
        (int, 5, 5),
        (float, 5, 5.0),
        (bytes, b"x", b"x"),
        (Number, 7, 7),
        (Annotated[str, "what"], "x", "x"),
        (int | None, None, None),
        (int | str, "x", "x"),
        (Literal["a", 1], 1, 1),
        (list, [1, "x"], [1, "x"]),
        (list[int], [1, 2], [1, 2]),
        (Sequence[int], [1], [1]),
        (tuple, [1], (1,)),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, str], [1, "x"], (1, "x")),
        (set[int], [1, 1], {1}),
        (dict, {"a": 1}, {"a": 1}),
        (Mapping[str, list[float]], {"a": [1]}, {"a": [1.0]}),
        (Color, "blue", Color.BLUE),
        (Point, {"x": 1}, Point(1)),
        (list[Point], [{"x": 1, "y": 2}], [Point(1, 2)]),
        (
            Order,
            {"id": 1, "price": 2, "items": [{"x": 1}], "color": "blue", "tags": ["a"], "sizes": {"m": 2}},
            Order(Number(1), 2.0, [Point(1)], Color.BLUE, None, frozenset({"a"}), {"m": 2}),
        ),
        (Order, {"id": 1, "price": 2, "items": [], "total": 7.0}, Order(Number(1), 2.0, [])),
        (Point, {"x": 1, "z": {"new": [1]}}, Point(1)),
        (list[Point], [{"x": 1, "z": 2}, {"z": 2, "x": 2}], [Point(1), Point(2)]),
        (Point | Room, {"x": 1, "z": 2}, Room(1, 2)),
        (Room | Point, {"x": 1, "y": 2}, Point(1, 2)),
        (Point | Room, {"x": 1, "w": 2}, Point(1)),
        (list[Point | Room] | list[Room], [{"x": 1, "z": 2}], [Room(1, 2)]),
        (Struct, {"name": "a", "age": 3}, Struct("a", 3)),
        (Struct, {"name": "a", "new": 3}, Struct("a")),
        (Model, {"name": "a", "new": 3}, Model(name="a")),
        (Model, {"name": "a", "age": 3}, Model(name="a", age=3)),
        (dict[str, Model], {"a": {"name": "b"}}, {"a": Model(name="b")}),
    ],
)  # fmt: skip
def test_what_fits_becomes_what_was_declared(annotation: Any, payload: object, value: object) -> None:
    made = converter(annotation)(payload)
    assert (type(made), made) == (type(value), value)


@pytest.mark.parametrize(
    ("annotation", "payload", "text"),
    [
        (int, True, "payload: expected int, got bool True"),
        (int, 1.0, "payload: expected int, got float 1.0"),
        (float, "1", "payload: expected float, got str '1'"),
        (float, 10**400, "too large"),
        (None, 0, "payload: expected None, got int 0"),
        (str, b"x", "expected str, got bytes"),
        (int | None, "x", "got str 'x'"),
        (Literal["a", 1], True, "expected one of 'a', 1, got bool True"),
        (list[int], [1, "x"], "payload[1]: expected int, got str 'x'"),
        (list[int], {"a": 1}, "payload: expected list, got dict"),
        (set[Any], [[1]], "unhashable"),
        (tuple[int, str], [1], "expected a list of 2"),
        (tuple[int, str], [1, 2], "payload[1]: expected str"),
        (dict[str, int], {"a": "x"}, "payload.a: expected int, got str 'x'"),
        (dict[str, int], [], "expected dict, got list []"),
        (Color, "green", "expected a value of Color ('red', 'blue'), got str 'green'"),
        (Color, [1], "expected a value of Color"),
        (Point, b"x", "payload: expected dict, got bytes"),
        (Point, {}, "payload: x missing"),
        (Point, {"z": 2, "y": 1}, "payload: x missing; not known: z"),
        (Point, dict.fromkeys("abcdefg", 1), "payload: x missing; not known: a, b, c, d, ..."),
        (Point, {"a" * 1000: 1}, f"payload: x missing; not known: {'a' * 64}"),
        (Point, {"x": 1, "y": "no", "z": 2}, "payload.y: expected int, got str 'no'"),
        (Order, {"id": 1, "price": -1, "items": []}, "payload: price below 0"),
        (Order, {"id": 1, "price": 1, "items": [{"x": 1}, {"x": None}]}, "payload.items[1].x: expected int, got None"),
        (Order, {"id": 1, "price": 1, "total": 3.0}, "payload: items missing"),
        (
            Order,
            {"id": 1, "price": 1, "items": [], "parent": {"id": 1, "price": 1, "items": [{"x": "a"}]}},
            "payload.parent.items[0].x: expected int, got str 'a'",
        ),
        (Struct, {"name": 1}, "str"),
        (Model, {"name": "a", "age": -1}, "age: Input should be greater than or equal to 0"),
        (Model, 3, "payload: Input should be"),
        (Odd, {"how": "assert"}, "payload: not that"),
        (list[Odd], [{"how": "key"}], "payload[0]: KeyError: 'key'"),
        (list[Struct], [{"age": 1}], "payload[0]: "),
        (StrictStruct, {"name": "a", "new": 3}, "unknown field `new`"),
        (StrictModel, {"name": "a", "new": 3}, "new: Extra inputs are not permitted"),
        (str, 0 + 5, "expected str, got int 5"),
        (str, [0] * 1000, "expected str, got list"),
    ],
)
def test_what_does_not_fit_is_described_with_its_place(annotation: Any, payload: object, text: str) -> None:
    with pytest.raises(Mismatch) as caught:
        converter(annotation)(payload)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "annotation", [complex, dict[int, str], type, "text", Unresolvable, list[complex], lambda: None, Exception]
)
def test_a_type_that_no_payload_can_have_is_refused_when_it_is_declared(annotation: Any) -> None:
    with pytest.raises(ConfigError):
        converter(annotation)


@dataclasses.dataclass
class Dates:
    since: list[datetime.datetime]


def test_the_error_for_a_type_that_no_payload_can_have_names_the_field() -> None:
    with pytest.raises(ConfigError, match=r"^Dates\.since: datetime cannot be the type of a payload: dates.*isoformat"):
        converter(list[Dates])


def test_the_error_for_a_date_that_is_sent_names_its_place() -> None:
    with pytest.raises(
        LocalProtocolError, match=r"^cannot send a datetime \(payload\.list\[1\]\.since\[0\]\): dates.*isoformat"
    ):
        encoded({"list": [1, Dates([datetime.datetime.now(tz=datetime.UTC)])]}, 1000)
    with pytest.raises(LocalProtocolError, match=r"^cannot send a date \(payload\): dates"):
        encoded(datetime.date(2026, 11, 22), 1000)


class Holder(msgspec.Struct):
    held: object


def test_the_error_for_a_struct_with_something_that_cannot_be_sent_names_both() -> None:
    for value in (Holder(converter), [Holder(converter)]):
        with pytest.raises(LocalProtocolError, match=r"^cannot send a Holder \(.*function.*\): use bytes, "):
            encoded(value, 1000)


KEYS = st.sampled_from(["id", "price", "items", "x", "a"])
PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@given(
    PAYLOADS, st.sampled_from([Order, Point, list[Order], Color, dict[str, Point], tuple[int, Order], Struct, Model])
)
def test_whatever_comes_is_converted_or_refused(payload: object, annotation: Any) -> None:
    with contextlib.suppress(Mismatch):
        converter(annotation)(payload)


@pytest.mark.parametrize(
    ("value", "simple"),
    [
        (Point(1, 2), {"x": 1, "y": 2}),
        ([Point(1)], [{"x": 1, "y": 0}]),
        ({"a": (Color.RED, {1})}, {"a": ["red", [1]]}),
        (Struct("a", 1, b"\xff"), {"name": "a", "age": 1, "raw": b"\xff"}),
        (Model(name="a"), {"name": "a", "age": 0}),
        (
            [Dated(day=datetime.date(2026, 11, 22), number=uuid.UUID(int=1), sums={"a": [decimal.Decimal("1.50")]})],
            [
                {
                    "day": "2026-11-22",
                    "number": "00000000-0000-0000-0000-000000000001",
                    "sums": {"a": ["1.50"]},
                    "raw": b"",
                    "anything": None,
                }
            ],
        ),
        ((1, [b"x", None, 1.5, True, "t"]), [1, [b"x", None, 1.5, True, "t"]]),
    ],
)
def test_the_way_back_leaves_what_can_travel(value: object, simple: object) -> None:
    assert plain(value) == simple


def test_what_no_package_knows_stays_as_it_is_and_a_date_by_itself_does(monkeypatch: pytest.MonkeyPatch) -> None:
    thing, day = object(), datetime.date(2026, 11, 22)
    assert plain(Dated(raw=b"\xff", anything=thing))["anything"] is thing
    assert plain([day]) == [day]


def test_what_is_neither_comes_back_as_it_is() -> None:
    thing = object()
    assert plain(thing) is thing


@given(st.builds(Order, st.integers(), st.floats(0, 1e9), st.lists(st.builds(Point, st.integers(), st.integers()))))
def test_there_and_back_again(order: Order) -> None:
    simple = plain(order)
    del simple["total"]
    assert converter(Order)(simple) == order


def test_neither_package_is_imported_for_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("msgspec", "pydantic"):
        monkeypatch.delitem(sys.modules, package)
    assert converter(Point)({"x": 1}) == Point(1)
    assert plain(Point(1)) == {"x": 1, "y": 0}
    assert not {"msgspec", "pydantic"} & sys.modules.keys()
