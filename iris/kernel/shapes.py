"""Shapes of values from outside: checks of a container that type checkers follow.

``isinstance`` leaves them without a type of what is in it; here that is ``object``, to be checked in its turn.
"""

from __future__ import annotations

from typing import TypeGuard


def is_map(value: object) -> TypeGuard[dict[str, object]]:
    """Return whether a value of a payload or of JSON is a map: its keys are texts in both."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Return whether a value is a list."""
    return isinstance(value, list)


def is_tuple(value: object) -> TypeGuard[tuple[object, ...]]:
    """Return whether a value is a tuple, as the wire's codec and those of signed documents make of arrays."""
    return isinstance(value, tuple)


def are_texts(value: object) -> TypeGuard[tuple[str, ...]]:
    """Return whether a value is a tuple of texts."""
    return is_tuple(value) and all(isinstance(item, str) for item in value)


def are_numbers(value: object) -> TypeGuard[tuple[int, ...]]:
    """Return whether a value is a tuple of whole numbers, and no True or False among them."""
    return is_tuple(value) and all(type(item) is int for item in value)


def is_group(error: BaseException) -> TypeGuard[BaseExceptionGroup[BaseException]]:
    """Return whether an error is a group, of whatever errors."""
    return isinstance(error, BaseExceptionGroup)
