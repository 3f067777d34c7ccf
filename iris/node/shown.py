"""Attributes of a node, a tunnel and the like, shown by the objects that stand for them in other programs."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast, final

V = TypeVar("V")


@final
class Shown(Generic[V]):
    """The attribute of the same name of what is in a handle (``iris.aio``, ``iris.sync``)."""

    __slots__ = ("_name",)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, handle: Any, owner: type | None = None) -> V:
        return cast("V", self if handle is None else getattr(handle._inner, self._name))

    def __set__(self, handle: object, value: object) -> None:
        raise AttributeError(f"{self._name!r} cannot be set")
