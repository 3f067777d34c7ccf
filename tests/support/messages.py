"""Messages as nobody's node sends them, and what is in a batch, whatever that is."""

from __future__ import annotations

import random
from typing import Any, Final, cast

import msgpack
from msgspec import inspect
from msgspec.msgpack import Ext

from iris.kernel.wire import BatchDecoder, Message, encode_batch, kinds

_decoder: Final[BatchDecoder[Message]] = BatchDecoder(*kinds.BY_KIND.values())


def raw(kind: type[Message], *fields: object) -> Any:
    """Return the array that a message of a kind would be with these fields, whatever they are."""
    return (kind.__struct_config__.tag, *fields)


def made_up(kind: type[Message], rng: random.Random) -> list[Any]:
    """Return fields that a message of a kind can have by their types, whatever they say."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return [_value(field.type, rng) for field in described.fields]


_NAMES: Final = ("", "victim", "villain", "near", "far", "t.a", "t.>", ">", "a..b", "x" * 256, "\x9b", "é/é")


def _value(described: inspect.Type, rng: random.Random) -> Any:
    match described:
        case inspect.UnionType(types=types):
            return _value(rng.choice(types), rng)
        case inspect.NoneType():
            return None
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.IntType(ge=least, le=most):
            lowest, highest = -(2**62) if least is None else least, 2**62 if most is None else most
            near = (lowest, lowest + 1, highest - 1, highest, rng.randrange(16), 2**32, rng.randrange(2**62))
            return min(max(rng.choice(near), lowest), highest)
        case inspect.StrType(max_length=most):
            return rng.choice(_NAMES)[:most]
        case inspect.BytesType(min_length=least, max_length=most):
            size = rng.choice((least or 0, least or 16, 16, 64, rng.randrange(200)))
            return rng.randbytes(min(max(size, least or 0), 4096 if most is None else most))
        case inspect.ExtType():
            return Ext(1, rng.choice((b"\xc0", b"\x92\x01\x02", b"\x81\xa1a\x01")))
        case inspect.VarTupleType(item_type=item, min_length=least):
            return tuple(_value(item, rng) for _ in range(max(rng.randrange(4), least or 0)))
        case inspect.TupleType(item_types=types):
            return tuple(_value(item, rng) for item in types)
        case inspect.NamedTupleType(fields=fields):
            return tuple(_value(field.type, rng) for field in fields)
        case inspect.StructType(cls=cls, fields=fields):
            return (cls.__struct_config__.tag, *(_value(field.type, rng) for field in fields))
        case _:
            raise NotImplementedError(described)


def fields_of(message: Message) -> tuple[Any, ...]:
    """Return the fields of a message."""
    return tuple(getattr(message, name) for name in message.__struct_fields__)


def torn(message: Message) -> tuple[Any, ...]:
    """Return the fields of a message, with the messages in them as the arrays that they are."""
    return tuple(map(_torn_field, fields_of(message)))


def _torn_field(field: Any) -> Any:
    if isinstance(field, tuple) and field and isinstance(field[0], Message):
        return tuple(raw(type(one), *torn(one)) for one in cast("tuple[Message, ...]", field))
    return cast("Any", field)


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
