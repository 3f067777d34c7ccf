"""Payloads in Avro, by fastavro: read with the schema of the writer, resolved to the reader's if there is one."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final, cast, final

import fastavro
from fastavro.schema import SchemaParseException

from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.payloads.framing import PayloadFraming, RegistrySchemas, split_frame
from iris.spark_bridge.datasource.payloads.kinds import Misfit


@final
class AvroReader:
    """Turns payloads into fields.

    Args:
        framing: where the schemas are.
        registry: the registry, if they are there.

    Raises:
        ConfigError: a file holds no schema, or one whose values are no records.
    """

    def __init__(self, framing: PayloadFraming, registry: RegistrySchemas | None) -> None:
        self._registry = registry
        self._writers: dict[int, Any] = {number: _from_file(data) for number, data in framing.files}
        single: Any = None if framing.single is None else _from_file(framing.single)
        self._framed: Final = registry is not None or bool(framing.files)
        self._reader: Final = single if self._framed else None
        self._single: Final = single

    def unpack(self, payload: bytes) -> dict[str, Any]:
        """Return the fields of a payload.

        Raises:
            Misfit: it is something else, or its schema is unknown.
            RegistryUnreachable: the registry does not answer.
        """
        if self._framed:
            number, rest = split_frame(payload)
            writer = self._writers.get(number)
            if writer is None:
                writer = self._writers[number] = self._fetch(number)
        else:
            writer, rest = self._single, memoryview(payload)
        stream = io.BytesIO(rest)
        try:
            found = fastavro.schemaless_reader(stream, writer, self._reader)
        except Exception as error:  # noqa: BLE001 -- it raises whatever its own code stumbles over
            raise Misfit(f"no Avro of its schema: {type(error).__name__}: {error}"[:200]) from None
        if stream.tell() < len(rest):
            raise Misfit("no Avro of its schema: something is behind it")
        if not isinstance(found, dict):
            raise Misfit("its schema is not one of records")
        return cast("dict[str, Any]", found)

    def _fetch(self, number: int) -> Any:
        if self._registry is None:
            raise Misfit(f"there is no file with schema {number}")
        schema = self._registry.get(number)
        if (schema.schema_type or "AVRO") != "AVRO":
            raise Misfit(f"schema {number} is of type {schema.schema_type}")
        named: dict[str, Any] = {}
        self._name_references(schema, named)
        try:
            return fastavro.parse_schema(json.loads(schema.schema_str), named)
        except (ValueError, KeyError, TypeError, SchemaParseException) as error:
            raise Misfit(f"schema {number} cannot be used: {error}"[:200]) from None

    def _name_references(self, schema: Any, named: dict[str, Any]) -> None:
        """Add what a schema refers to, and what that refers to, first."""
        assert self._registry is not None
        for reference in schema.references or ():
            if reference.name not in named:
                other = self._registry.version(reference.subject, reference.version)
                self._name_references(other, named)
                fastavro.parse_schema(json.loads(other.schema_str), named)


def _from_file(data: bytes) -> Any:
    try:
        parsed: Mapping[str, Any] = json.loads(data)
        return fastavro.parse_schema(dict(parsed))
    except Exception as error:  # noqa: BLE001 -- of the user's file
        raise ConfigError(f"option payloadSchema names a file that is no schema of Avro records: {error}") from None
