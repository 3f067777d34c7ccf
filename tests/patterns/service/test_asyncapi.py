"""The AsyncAPI document of a service: its schemas accept what handlers accept, and nothing else."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NewType

import jsonschema
import msgspec
import pydantic
import pytest

import iris
from iris.patterns.payloads import Converter, Mismatch, converter
from iris.patterns.service.asyncapi import Schemas, schema


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Item:
    name: str
    count: int = 1
    parts: list[Item] = field(default_factory=list)
    size: Size = Size.SMALL


class Model(pydantic.BaseModel, extra="forbid"):
    name: str
    inner: Inner | None = None


class Inner(pydantic.BaseModel):
    value: int


class Struct(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    other: OtherStruct | None = None


class OtherStruct(msgspec.Struct):
    value: int


Model.model_rebuild()
Number = NewType("Number", int)

TYPES: list[Any] = [
    None, bool, int, float, str, Any, object, list[int], list, tuple[int, str], tuple[int, ...], Sequence[str],
    set[int], dict[str, int], Mapping[str, float], dict, int | None, Literal["a", 3], Size, Item, Number,
    Annotated[str, "said"], Model, Struct,
]  # fmt: skip

VALUES: list[Any] = [
    None, True, 3, 3.5, "a", "s", [], [1], [1, "a"], ["a"], {}, {"a": 1}, {"a": "b"}, {"name": "x"},
    {"name": "x", "count": 2, "parts": [{"name": "y", "size": "l"}]}, {"name": "x", "count": "2"},
    {"name": "x", "size": "m"}, {"name": "x", "parts": [{"count": 1}]}, {"name": "x", "inner": {"value": 3}},
    {"name": "x", "inner": {"value": "no"}}, {"name": "x", "other": {"value": 3}}, {"name": "x", "other": {}},
]  # fmt: skip


@pytest.mark.parametrize("annotation", TYPES, ids=str)
def test_a_schema_accepts_what_the_converter_accepts(annotation: Any) -> None:
    schemas = Schemas()
    made = {**schema(annotation, schemas), "components": {"schemas": schemas}}
    jsonschema.Draft202012Validator.check_schema(made)
    validator: Any = jsonschema.Draft202012Validator(made)
    convert = converter(annotation)
    assert [value for value in VALUES if validator.is_valid(value)] == [
        value for value in VALUES if is_converted(convert, value)
    ]


def is_converted(convert: Converter, value: Any) -> bool:
    try:
        convert(value)
    except Mismatch:
        return False
    return True


def test_the_document_of_a_service() -> None:
    class Quotes(iris.Service, cluster="quotes"):
        @iris.operation
        async def look_up(self, item: Item) -> float:
            """Return a price."""
            return 3.0

        @iris.operation
        async def order(self, name: str, count: int = 1) -> None: ...

    quotes = Quotes()
    quotes.request(echo)
    document = quotes.asyncapi()
    assert json.loads(json.dumps(document)) == document
    assert (document["asyncapi"], document["info"]["title"]) == ("3.0.0", "quotes")
    assert document["operations"]["look_up"] == {
        "action": "receive",
        "channel": {"$ref": "#/channels/look_up"},
        "summary": "Return a price.",
        "reply": {"channel": {"$ref": "#/channels/look_up.reply"}},
    }
    channels = document["channels"]
    assert {name: channel["address"] for name, channel in channels.items()} == {
        "look_up": "quotes/look_up", "look_up.reply": None, "order": "quotes/order", "order.reply": None,
        "request": "quotes", "request.reply": None,
    }  # fmt: skip
    assert channels["order"]["messages"]["request"]["payload"] == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["name"],
    }
    assert channels["look_up"]["messages"]["request"]["payload"] == {"$ref": "#/components/schemas/Item"}
    assert channels["order.reply"]["messages"]["reply"]["payload"] == {"type": "null"}
    assert channels["request"]["messages"]["request"]["payload"] == {}


async def echo(request: iris.Request) -> object:
    return request.payload


def test_classes_of_one_name_have_a_schema_each() -> None:
    def other() -> type:
        @dataclass
        class Item:
            weight: float

        return Item

    schemas = Schemas()
    references = [schema(kind, schemas)["$ref"].rpartition("/")[2] for kind in (Item, other(), Item)]
    assert references == ["Item", f"{__name__}.test_classes_of_one_name_have_a_schema_each.other.Item", "Item"]
    assert [list(schemas[name]["properties"]) for name in references[:2]] == [
        ["name", "count", "parts", "size"], ["weight"],
    ]  # fmt: skip
