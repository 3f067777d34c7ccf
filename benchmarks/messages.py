"""Messages as nobody's node sends them, and what is in a batch, whatever that is."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from iris.kernel.wire import BatchDecoder, Message, encode_batch, kinds

_decoder: Final[BatchDecoder[Message]] = BatchDecoder(*kinds.BY_KIND.values())


def raw(kind: type[Message], *fields: object) -> Any:
    """Return the array that a message of a kind would be with these fields, whatever they are."""
    return (kind.__struct_config__.tag, *fields)


def fields_of(message: Message) -> tuple[Any, ...]:
    """Return the fields of a message."""
    return tuple(getattr(message, name) for name in message.__struct_fields__)


def torn(message: Message) -> tuple[Any, ...]:
    """Return the fields of a message, with the messages in them as the arrays that they are."""
    return tuple(
        tuple(raw(type(one), *torn(one)) for one in field)
        if isinstance(field, tuple) and field and isinstance(field[0], Message)
        else field
        for field in fields_of(message)
    )


def array(*elements: object) -> Any:
    """Return an array that may be no message of any kind."""
    return elements


def decoded(batch: bytes) -> list[Any]:
    """Return the messages of a batch, as a node takes them."""
    return list(_decoder.decode_untrusted(batch))


def arrays(batch: bytes) -> list[Any]:
    """Return the arrays of a batch, which need not be messages of any kind."""
    return list(msgpack.unpackb(batch, use_list=False))


def arrived(kind: type[Message], *fields: object) -> Any:
    """Return the message of a kind that comes of these fields, whatever they are.

    Raises:
        RemoteProtocolError: a node does not take them.
    """
    return decoded(encode_batch([raw(kind, *fields)]))[0]
