"""Framed payloads: what the options say of Avro and Protobuf, and the function that reads such payloads.

Without a registry schemas come from a directory (``7.avsc`` is number 7), or all payloads are of one schema and have no
frame.  Files are read where a query is planned and travel with it; a registry is asked by each worker.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.payloads.framing import Encoding, PayloadFraming, RegistrySchemas

_SUFFIXES: Final[dict[Encoding, str]] = {"avro": ".avsc", "protobuf": ".desc"}
_TIMEOUT: Final = 10
"""Seconds that the registry has for an answer, unless its settings say otherwise."""


def read_framing(
    encoding: Encoding, *, registry: str | None, settings: str | None, path: str | None, message: str | None
) -> PayloadFraming:
    """Read files, and make sure that what is named fits together and can be used.

    Args:
        encoding: of the payloads.
        registry: URL of a schema registry.
        settings: path of a JSON file with more settings for its client, such as credentials.
        path: of a file with a schema, or of a directory with such files.
        message: full name of the message in the file.

    Raises:
        ConfigError: something is missing, contradicts something else or cannot be read.
    """
    if registry is None and path is None:
        raise ConfigError(f"payloads in {encoding} need a schema: give option schemaRegistry or payloadSchema")
    if registry is None and settings is not None:
        raise ConfigError("option schemaRegistryConfig is about a registry: give schemaRegistry as well")
    is_directory = path is not None and Path(path).is_dir()
    if encoding == "protobuf" and registry is not None and path is not None:
        raise ConfigError("options schemaRegistry and payloadSchema contradict each other for protobuf: give one")
    if registry is not None and is_directory:
        raise ConfigError(
            "option payloadSchema is a directory, and schemaRegistry is given: give a file, or one of them"
        )
    if (message is not None) != (encoding == "protobuf" and path is not None and not is_directory):
        raise ConfigError("option payloadMessage names the message in a payloadSchema for protobuf: give both or none")
    files: list[tuple[int, bytes]] = []
    if path is not None and is_directory:
        suffix = _SUFFIXES[encoding]
        found = [file for file in sorted(Path(path).iterdir()) if file.suffix == suffix and file.stem.isdecimal()]
        files = [(int(file.stem), _read(file)) for file in found]
        if not files:
            raise ConfigError(f"option payloadSchema is {path!r}, and no file there has a name such as 7{suffix}")
    framing = PayloadFraming(
        encoding=encoding,
        registry=None if registry is None else _settings(registry, settings),
        files=tuple(files),
        single=None if path is None or is_directory else _read(Path(path)),
        message=message,
    )
    unpacker(framing)
    return framing


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"option payloadSchema is {str(file)!r}, which cannot be read: {error.strerror}") from None


def _settings(url: str, path: str | None) -> str:
    found: Any = {}
    if path is not None:
        try:
            found = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"option schemaRegistryConfig is {path!r}, no file with JSON: {error}") from None
        if not isinstance(found, dict):
            raise ConfigError(f"option schemaRegistryConfig is {path!r}: use an object with settings of the client")
    return json.dumps({"timeout": _TIMEOUT, **found, "url": url}, sort_keys=True)


@functools.lru_cache(maxsize=16)
def unpacker(framing: PayloadFraming) -> Callable[[bytes], dict[str, Any]]:
    """Return this process's function that turns a payload into fields; it raises Misfit and RegistryUnreachable.

    Raises:
        ConfigError: a library is not installed, or a schema cannot be used.
    """
    registry = None if framing.registry is None else RegistrySchemas(framing.registry)
    try:
        if framing.encoding == "avro":
            from iris.spark_bridge.datasource.payloads.avro import AvroReader

            return AvroReader(framing, registry).unpack
        from iris.spark_bridge.datasource.payloads.protobuf import ProtobufReader

        return ProtobufReader(framing, registry).unpack
    except ImportError as error:
        raise ConfigError(
            f"payloads in {framing.encoding} need {error.name}: pip install 'iris-mesh[{framing.encoding}]'"
        ) from None
