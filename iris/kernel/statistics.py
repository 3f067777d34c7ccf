"""Statistics: frozen snapshots of counters, which programs may hand to ``dataclasses``."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, final

from msgspec import Struct


@cache
def _fields_of(owner: type[Statistics]) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a class as ``dataclasses`` has them, of a dataclass like it."""
    made: Any = dataclasses.make_dataclass(owner.__name__, owner.__annotations__.items())
    fields: dict[str, dataclasses.Field[Any]] = made.__dataclass_fields__
    return fields


@final
class _DataclassFields:
    """The attribute by which ``dataclasses`` knows its own."""

    def __get__(self, _: object, owner: type[Statistics]) -> dict[str, dataclasses.Field[Any]]:
        return _fields_of(owner)


class Statistics(Struct, frozen=True, kw_only=True):
    """Base of snapshots: ``dataclasses.asdict``, ``fields`` and ``replace`` take them.

    They are structs, because Python compiles a dataclass at each start: 0.9 ms for each of a dozen.
    """

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    else:
        __dataclass_fields__ = _DataclassFields()
