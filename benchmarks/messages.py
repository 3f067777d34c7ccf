"""Messages as nobody's node sends them."""

from __future__ import annotations

from typing import Any

from iris.kernel.wire import Message


def raw(kind: type[Message], *fields: object) -> Any:
    """Return the array that a message of a kind would be with these fields, whatever they are."""
    return (kind.__struct_config__.tag, *fields)


def fields_of(message: Message) -> tuple[Any, ...]:
    """Return the fields of a message, with the messages in them as the arrays that they are."""
    return tuple(
        tuple(raw(type(one), *fields_of(one)) for one in field)
        if isinstance(field, tuple) and field and isinstance(field[0], Message)
        else field
        for field in (getattr(message, name) for name in message.__struct_fields__)
    )
