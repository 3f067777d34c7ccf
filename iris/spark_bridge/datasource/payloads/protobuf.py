"""Payloads in Protobuf, by Google's library: messages of a file that the registry has, or of a descriptor set.

A descriptor set is what ``protoc --descriptor_set_out=FILE --include_imports`` writes.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Sequence
from typing import Any, Final, cast, final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.payloads.framing import PayloadFraming, RegistrySchemas, split_frame
from iris.spark_bridge.datasource.payloads.kinds import Misfit

_TIMESTAMP: Final = timestamp_pb2.Timestamp.DESCRIPTOR.full_name
_WRAPPERS: Final = frozenset(message.full_name for message in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())
_LONGEST_PLACE: Final = 32


@final
class ProtobufReader:
    """Turns payloads into fields.

    Args:
        framing: where the schemas are.
        registry: the registry, if they are there.

    Raises:
        ConfigError: a file is no descriptor set, or has no such message.
    """

    def __init__(self, framing: PayloadFraming, registry: RegistrySchemas | None) -> None:
        self._registry = registry
        self._files: dict[int, Any] = {number: _set_from_file(data) for number, data in framing.files}
        self._classes: dict[tuple[int, tuple[int, ...]], type[Message]] = {}
        self._single: type[Message] | None = None
        if framing.single is not None:
            assert framing.message is not None
            pool, _ = _set_from_file(framing.single)
            try:
                self._single = message_factory.GetMessageClass(pool.FindMessageTypeByName(framing.message))
            except KeyError:
                raise ConfigError(
                    f"option payloadMessage is {framing.message!r}, and option payloadSchema has no such message"
                ) from None

    def unpack(self, payload: bytes) -> dict[str, Any]:
        """Return the fields of a payload.

        Raises:
            Misfit: it is something else, or its schema is unknown.
            RegistryUnreachable: the registry does not answer.
        """
        kind, rest = self._single, payload
        if kind is None:
            number, framed = split_frame(payload)
            place, rest = _split_place(framed)
            kind = self._classes.get((number, place))
            if kind is None:
                kind = self._classes[number, place] = self._class(number, place)
        message = kind()
        try:
            message.ParseFromString(rest)
        except (DecodeError, RuntimeError) as error:
            raise Misfit(f"no Protobuf of its schema: {error}"[:200]) from None
        return _fields(message)

    def _class(self, number: int, place: Sequence[int]) -> type[Message]:
        if number not in self._files:
            self._files[number] = self._fetch(number)
        _, file = self._files[number]
        messages: Sequence[Descriptor] = list(file.message_types_by_name.values())
        kind: Descriptor | None = None
        for index in place:
            if not 0 <= index < len(messages):
                raise Misfit(f"schema {number} has no message at {list(place)}")
            kind = messages[index]
            messages = kind.nested_types
        assert kind is not None
        made: type[Message] = message_factory.GetMessageClass(kind)
        return made

    def _fetch(self, number: int) -> Any:
        if self._registry is None:
            raise Misfit(f"there is no file with schema {number}")
        schema = self._registry.get(number, "serialized")
        if schema.schema_type != "PROTOBUF":
            raise Misfit(f"schema {number} is of type {schema.schema_type or 'AVRO'}")
        pool = descriptor_pool.DescriptorPool()
        try:
            name = self._add(pool, schema, f"{number}.proto", set())
            return pool, pool.FindFileByName(name)
        except (TypeError, ValueError, KeyError, DecodeError, binascii.Error) as error:
            raise Misfit(f"schema {number} cannot be used: {error}"[:200]) from None

    def _add(self, pool: Any, schema: Any, name: str, added: set[str]) -> str:
        """Add a file and those that it imports, these first."""
        assert self._registry is not None
        for reference in schema.references or ():
            if reference.name not in added:
                added.add(reference.name)
                other = self._registry.version(reference.subject, reference.version, "serialized")
                self._add(pool, other, reference.name, added)
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.schema_str, validate=True))
        file.name = name
        for dependency in file.dependency:
            _add_well_known(pool, dependency)
        pool.Add(file)
        return name


def _add_well_known(pool: Any, name: str) -> None:
    """Add a file that comes with Protobuf, if this is one."""
    if not name.startswith("google/protobuf/"):
        return
    try:
        pool.FindFileByName(name)
    except KeyError:
        file = descriptor_pb2.FileDescriptorProto()
        try:
            importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        except ImportError:
            raise ValueError(f"it imports {name}, which Protobuf does not have") from None
        descriptor_pool.Default().FindFileByName(name).CopyToProto(file)
        for dependency in file.dependency:
            _add_well_known(pool, dependency)
        pool.Add(file)


def _set_from_file(data: bytes) -> Any:
    """Return a pool with the files of a descriptor set, and the last of them, which imports the others."""
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data).file
        for file in files:
            for dependency in file.dependency:
                _add_well_known(pool, dependency)
            pool.Add(file)
        return pool, pool.FindFileByName(files[-1].name)
    except (TypeError, ValueError, KeyError, IndexError, DecodeError) as error:
        raise ConfigError(
            f"option payloadSchema names a file that is no descriptor set, as protoc --descriptor_set_out "
            f"--include_imports writes it: {error}"
        ) from None


def _split_place(rest: memoryview) -> tuple[tuple[int, ...], bytes]:
    """Return the place of a message in its file, as a path of numbers, and what follows it."""
    count, at = _varint(rest, 0)
    if count == 0:
        return (0,), bytes(rest[at:])
    if not 0 < count <= _LONGEST_PLACE:
        raise Misfit("the place of its message is none")
    place: list[int] = []
    for _ in range(count):
        number, at = _varint(rest, at)
        place.append(number)
    return tuple(place), bytes(rest[at:])


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a number in zigzag encoding, and where it ends."""
    value = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise Misfit("the place of its message is cut off")


def _fields(message: Message) -> dict[str, Any]:
    """Return fields by name; one that is not set is missing, unless its value is its kind's zero then."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            entry = field.message_type
            if entry is not None and entry.GetOptions().map_entry:
                item = entry.fields_by_name["value"]
                found[field.name] = {_key(key): _value(item, value[key]) for key in value}
            else:
                found[field.name] = [_value(field, one) for one in value]
        else:
            found[field.name] = _value(field, value)
    return found


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value(field: Any, value: Any) -> Any:  # a field descriptor of either implementation
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            try:
                return cast("timestamp_pb2.Timestamp", value).ToJsonString()
            except ValueError:
                raise Misfit(f"{field.name} is no timestamp") from None
        return value.value if name in _WRAPPERS else _fields(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value
