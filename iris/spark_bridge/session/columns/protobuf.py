"""Payloads in Protobuf, read by Spark's ``from_protobuf``.

Spark makes a message of nulls of what it cannot read, as if that had been published.  So the message gets a field more,
and each payload a value for it, at its end: messages that follow each other are one.

Not promised: that a payload which has the field itself is found to be cut off.  Its publisher could as well have
published the message that is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.columns.avro import frame_of

if TYPE_CHECKING:
    from pyspark.sql import Column

MARK: Final = "__iris_mark"
_NUMBER: Final = 2**29 - 1
"""The greatest that a field may have."""
MARKED: Final = b"\xf8\xff\xff\xff\x0f\x01"
"""The field, and true."""


def read_protobuf(message: str, schemas: Mapping[int, bytes] | bytes | None, options: Mapping[str, str]) -> Column:
    """Return the expression that reads ``value``: the message with its mark.

    Raises:
        ConfigError: a descriptor set is wrong or missing, or Protobuf's library is.
    """
    from pyspark.sql import functions as fn
    from pyspark.sql.protobuf.functions import from_protobuf

    if schemas is None:
        raise ConfigError(
            "payloads in Protobuf need schemas: give descriptor sets by id, or one where there is no frame"
        )
    body = fn.col("value")
    if isinstance(schemas, bytes):
        descriptors, _ = marked(schemas, message)
    else:
        descriptors, _ = marked(schemas[max(schemas)], message)
        body = fn.lit(None).cast("binary")
        for number, one in schemas.items():
            for index in marked(one, message)[1]:
                head = frame_of(number) + index
                here = fn.substring("value", 1, len(head)) == fn.lit(head)
                body = fn.when(here, fn.substring("value", len(head) + 1, 2**31 - 1 - len(head))).otherwise(body)
    whole = fn.concat(body, fn.lit(MARKED))
    return from_protobuf(whole, message, options={**options, "mode": "PERMISSIVE"}, binaryDescriptorSet=descriptors)


def marked(descriptors: bytes, message: str) -> tuple[bytes, list[bytes]]:
    """Return a descriptor set whose message has the mark, and what stands behind a frame for the message's place."""
    try:
        from google.protobuf import descriptor_pb2
        from google.protobuf.message import DecodeError
    except ImportError:
        raise ConfigError("payloads in Protobuf need a library: pip install 'iris-mesh[protobuf]'") from None
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    except (DecodeError, TypeError):
        raise ConfigError(
            "schemas has what is no descriptor set: use what protoc --descriptor_set_out=FILE --include_imports writes"
        ) from None
    for file in found.file:
        for at, kind in enumerate(file.message_type):
            if f"{file.package}.{kind.name}".removeprefix(".") == message:
                kind.field.add(name=MARK, number=_NUMBER, type=descriptor_pb2.FieldDescriptorProto.TYPE_BOOL, label=1)
                return found.SerializeToString(), [b"\2" + _varint(2 * at), b"\0"][: 1 if at else 2]
    raise ConfigError(f"the descriptor set has no message {message!r}: give the full name of one outside of others")


def _varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + _varint(number >> 7) if number > 127 else bytes([number])
