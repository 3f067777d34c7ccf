"""Frozen values behave as frozen dataclasses do: each test asks both."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle  # noqa: TID251 -- of our own values
from collections.abc import Callable
from typing import Any

import pytest

from iris.kernel.config import Config
from iris.kernel.frozen import dataclass

Decorator = Callable[..., Callable[[type], Any]]


def declared(decorator: Decorator, *, kw_only: bool) -> Any:
    """A class with every sort of field that is in use, made by ``decorator``."""

    class Berth:
        """A place for a ship."""

        quay: str
        number: int
        code: bytes = dataclasses.field(default=b"k", repr=False)
        noticed: int = dataclasses.field(default=0, compare=False)
        ships: list[str] = dataclasses.field(default_factory=list[str])

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("a berth has a number from 0 on")

    return decorator(frozen=True, slots=True, kw_only=kw_only)(Berth)


KEYWORDS = declared(dataclass, kw_only=True)
POSITIONS = declared(dataclass, kw_only=False)
both = pytest.mark.parametrize(
    "berth",
    [
        pytest.param(KEYWORDS, id="values"),
        pytest.param(declared(dataclasses.dataclass, kw_only=True), id="dataclasses"),
    ],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knot:
    """One that pickle can find by its name."""

    name: str
    turns: int = 2

    def __repr__(self) -> str:
        return f"<{self.name}>"


@dataclass(frozen=True, slots=True)
class Nothing:
    """A value without fields."""


@dataclass(frozen=True, slots=True)
class One:
    """A value of one field."""

    item: object


@both
def test_fields_are_given_by_name_and_have_defaults(berth: Any) -> None:
    made = berth(quay="north", number=3)
    assert (made.quay, made.number, made.code, made.noticed, made.ships) == ("north", 3, b"k", 0, [])
    assert made.ships is not berth(quay="north", number=3).ships
    assert berth(quay="north", number=3, ships=["a"]).ships == ["a"]


@both
def test_what_is_missing_or_unknown_is_a_type_error_that_names_it(berth: Any) -> None:
    with pytest.raises(TypeError, match=r"Berth\.__init__.*'number'"):
        berth(quay="north")
    with pytest.raises(TypeError, match=r"Berth\.__init__.*'depth'"):
        berth(quay="north", number=1, depth=4)
    with pytest.raises(TypeError):
        berth("north", 1)


@both
def test_the_check_after_making_is_called(berth: Any) -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        berth(quay="north", number=-1)


@both
def test_equality_and_hash_ask_the_fields_that_count(berth: Any) -> None:
    one, other = berth(quay="north", number=3, ships=()), berth(quay="north", number=3, ships=(), noticed=9)
    assert one == other
    assert hash(one) == hash(other)
    assert one != berth(quay="south", number=3, ships=())
    assert one != ("north", 3, b"k", ())
    assert len({one, other}) == 1


@both
def test_a_value_of_what_has_no_hash_has_none(berth: Any) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(berth(quay="north", number=3))


@both
def test_it_shows_its_fields_but_for_the_hidden_ones(berth: Any) -> None:
    shown = repr(berth(quay="north", number=3, code=b"hidden"))
    assert shown.endswith("Berth(quay='north', number=3, noticed=0, ships=[])")


@both
def test_nothing_can_be_set_or_deleted(berth: Any) -> None:
    made = berth(quay="north", number=3)
    with pytest.raises(dataclasses.FrozenInstanceError, match="quay"):
        made.quay = "south"
    with pytest.raises(dataclasses.FrozenInstanceError, match="quay"):
        del made.quay
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
        made.other = "south"  # what dataclasses raises here depends on the version of Python
    assert made.quay == "north"
    assert not hasattr(made, "__dict__")


@both
def test_the_functions_of_dataclasses_take_it(berth: Any) -> None:
    made = berth(quay="north", number=3)
    assert [field.name for field in dataclasses.fields(made)] == ["quay", "number", "code", "noticed", "ships"]
    assert dataclasses.replace(made, quay="south") == berth(quay="south", number=3)
    assert dataclasses.asdict(made) == {"quay": "north", "number": 3, "code": b"k", "noticed": 0, "ships": []}


@both
def test_its_parameters_can_be_read(berth: Any) -> None:
    parameters = inspect.signature(berth).parameters
    assert list(parameters) == ["quay", "number", "code", "noticed", "ships"]
    assert parameters["noticed"].default == 0
    assert parameters["quay"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["number"].annotation == "int"


def test_fields_may_be_given_by_position_where_that_is_wanted() -> None:
    made = POSITIONS("north", 3, b"c")
    assert (made.quay, made.number, made.code) == ("north", 3, b"c")
    assert POSITIONS.__match_args__[:3] == ("quay", "number", "code")


@pytest.mark.parametrize("value", [Knot(name="bowline"), Nothing(), One("x"), Config(max_payload=77)])
def test_values_can_be_copied_and_pickled(value: object) -> None:
    for made in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert made == value
        assert hash(made) == hash(value)
        assert type(made) is type(value)


def test_methods_of_the_class_itself_stay() -> None:
    assert repr(Knot(name="bowline")) == "<bowline>"


def test_values_without_fields_or_with_one_are_compared_by_them() -> None:
    assert Nothing() == Nothing()
    assert One((1, 2)) == One((1, 2)) != One(1)
    assert repr(One(1)) == "One(item=1)"
