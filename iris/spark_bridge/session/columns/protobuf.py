"""Payloads in Protobuf, read by Spark's ``from_protobuf``.

Spark makes a message of nulls of what it cannot read, as if that had been published.  So the message gets a field more,
and each payload a value for it, at its end: messages that follow each other are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.columns.frame import MARK, PARSED, UNFIT, frame_of

if TYPE_CHECKING:
    from pyspark.sql import Column

_NUMBER: Final = 2**29 - 1
"""The greatest that a field may have."""
MARKED: Final = b"\xf8\xff\xff\xff\x0f\x01"
"""The field, and true."""


def protobuf_columns(
    message: str, schemas: Mapping[int, bytes] | bytes | None, options: dict[str, str]
) -> tuple[Column, None, Column]:
    """Return the expression for payloads, None for the field of it that has them, and when one does not fit."""
    from pyspark.sql import functions as fn
    from pyspark.sql.protobuf.functions import from_protobuf

    if schemas is None:
        raise ConfigError("payloads in Protobuf need schemas: descriptor sets by id, or one where there is no frame")
    body = fn.col("value")
    if isinstance(schemas, bytes):
        descriptors, _ = marked(schemas, message)
    else:
        descriptors, _ = marked(schemas[max(schemas)], message)
        heads = [frame_of(number) + at for number, one in schemas.items() for at in _places(marked(one, message)[1])]
        body = fn.lit(None).cast("binary")
        for head in heads:
            here = fn.substring("value", 1, len(head)) == fn.lit(head)
            body = fn.when(here, fn.substring("value", len(head) + 1, 2**31 - 1 - len(head))).otherwise(body)
    whole = fn.concat(body, fn.lit(MARKED))
    parsed = from_protobuf(whole, message, options={**options, "mode": "PERMISSIVE"}, binaryDescriptorSet=descriptors)
    return parsed, None, fn.when(fn.col(PARSED).getField(MARK).isNull(), UNFIT)


def marked(descriptors: bytes, message: str) -> tuple[bytes, Sequence[int]]:
    """Return a descriptor set whose message has the mark, and the message's place in its file.

    Raises:
        ConfigError: it is none, or has no such message; or Protobuf's library is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2
        from google.protobuf.message import DecodeError
    except ImportError:
        raise ConfigError("payloads in Protobuf need a library: pip install 'iris-mesh[protobuf]'") from None
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    except DecodeError:
        raise ConfigError(
            "schemas has what is no descriptor set: use what protoc --descriptor_set_out=FILE --include_imports writes"
        ) from None
    for file in found.file:
        prefix = f"{file.package}." if file.package else ""
        for kind, name, place in _messages(file.message_type, prefix, ()):
            if name == message:
                kind.field.add(name=MARK, number=_NUMBER, type=descriptor_pb2.FieldDescriptorProto.TYPE_BOOL, label=1)
                return found.SerializeToString(), place
    raise ConfigError(f"the descriptor set has no message {message!r}: give its full name")


def _messages(inner: Any, prefix: str, place: tuple[int, ...]) -> Iterator[tuple[Any, str, tuple[int, ...]]]:
    for at, kind in enumerate(inner):
        yield kind, f"{prefix}{kind.name}", (*place, at)
        yield from _messages(kind.nested_type, f"{prefix}{kind.name}.", (*place, at))


def _places(place: Sequence[int]) -> list[bytes]:
    """Return what may stand behind the frame: how long the path to the message is, and the path, in zigzag encoding."""
    written = b"".join(map(_varint, [len(place), *place]))
    return [b"\0", written] if [*place] == [0] else [written]


def _varint(number: int) -> bytes:
    number, found = 2 * number, bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
