"""Framing: the number before a payload in Avro or Protobuf, and the schemas by number, of a registry or of files.

The frame is Confluent's: a zero, the number of the schema in four bytes, for Protobuf the place of the message in its
file, and what the schema's encoding says.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any, Final, Literal, final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.payloads.kinds import Misfit
from iris.spark_bridge.errors import RegistryUnreachable

Encoding = Literal["avro", "protobuf"]

_HEAD: Final = 5
_MAGIC: Final = 0
_UNKNOWN: Final = 60.0
"""Seconds for which a schema that the registry has not got is not asked for again."""
_MOST_UNKNOWN: Final = 4096


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PayloadFraming:
    """How payloads are encoded, and where their schemas are.  Made by ``read_framing``."""

    encoding: Encoding
    registry: str | None = None
    """Settings of the registry's client, in JSON; its URL is among them."""
    files: tuple[tuple[int, bytes], ...] = ()
    """Schemas by number."""
    single: bytes | None = None
    """The schema of all payloads; beside a registry that of the reader, to which those of the writers are resolved."""
    message: str | None = None
    """Full name of the message, for Protobuf without a frame."""


@final
class RegistrySchemas:
    """A schema registry, which is asked once for each schema.

    Args:
        settings: of the client.

    Raises:
        ConfigError: the client is not installed, or does not know a setting.
    """

    def __init__(self, settings: str) -> None:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError:
            raise ConfigError(
                "option schemaRegistry needs a client: pip install 'iris-mesh[avro]' or 'iris-mesh[protobuf]'"
            ) from None
        conf = json.loads(settings)
        self._url: Final[str] = conf["url"]
        try:
            self._client = SchemaRegistryClient(conf)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"option schemaRegistry: {error}") from None
        self._unknown: dict[int, float] = {}

    def get(self, number: int, form: str | None = None) -> Any:
        """Return a schema of the client's.

        Raises:
            Misfit: the registry has none of this number.
            RegistryUnreachable: it does not answer, or refuses to.
        """
        if time.monotonic() < self._unknown.get(number, 0.0):
            raise self._misfit(number)
        try:
            return self._ask(lambda: self._client.get_schema(number, fmt=form))
        except KeyError:
            if len(self._unknown) >= _MOST_UNKNOWN:
                self._unknown.clear()
            self._unknown[number] = time.monotonic() + _UNKNOWN
            raise self._misfit(number) from None

    def _misfit(self, number: int) -> Misfit:
        return Misfit(f"schema {number} is not in the registry {self._url}")

    def version(self, subject: str, number: int, form: str | None = None) -> Any:
        """Return a version of a subject, which a schema refers to.

        Raises:
            Misfit: there is none.
            RegistryUnreachable: as ``get``.
        """
        try:
            return self._ask(lambda: self._client.get_version(subject, number, fmt=form)).schema
        except KeyError:
            raise Misfit(f"version {number} of {subject!r} is not in the registry {self._url}") from None

    def _ask(self, ask: Callable[[], Any]) -> Any:
        """Ask the registry; KeyError: it has not got that."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return ask()
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                raise KeyError from None
            why = f"it answers {error.http_status_code}: {error.error_message}"
        except Exception as error:  # noqa: BLE001 -- the client raises what its HTTP library does
            why = f"{type(error).__name__}: {error}"
        raise RegistryUnreachable(
            f"the schema registry {self._url} gives no schema ({why}). Payloads cannot be read without: look at option "
            "schemaRegistry and at the credentials in schemaRegistryConfig, and start the query again"
        )


def split_frame(payload: bytes) -> tuple[int, memoryview]:
    """Return the number of the schema in a frame, and what follows.

    Raises:
        Misfit: there is no frame.
    """
    if len(payload) < _HEAD or payload[0] != _MAGIC:
        raise Misfit("it does not begin with a zero and the number of a schema")
    return int.from_bytes(payload[1:_HEAD]), memoryview(payload)[_HEAD:]
