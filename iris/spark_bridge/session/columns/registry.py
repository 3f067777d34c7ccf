"""Schemas of a registry that speaks Confluent's protocol, fetched once, where a query is planned."""

from __future__ import annotations

import json
import urllib.request
from typing import Any, Final
from urllib.parse import quote

from iris.kernel.errors import ConfigError
from iris.spark_bridge.errors import RegistryUnreachable

_TIMEOUT: Final = 10
_MOST_BYTES: Final = 16 * 1024 * 1024


def registered_schemas(url: str, subject: str, *, authorization: str | None = None) -> dict[int, str]:
    """Return the Avro schemas of all versions of a subject, by id, for ``parse``.

    Args:
        url: of the registry.
        subject: such as ``orders-value``.
        authorization: the header of this name, such as ``Basic ...``.

    Raises:
        ConfigError: the subject has a schema of another kind, or one that refers to others, which Spark cannot follow.
        RegistryUnreachable: the registry does not answer within 10 s a request, or refuses to.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"the registry's URL is {url!r}: it begins with http:// or https://")

    def get(path: str) -> Any:
        request = urllib.request.Request(f"{url.rstrip('/')}{path}")  # noqa: S310 -- checked above
        if authorization is not None:
            request.add_header("Authorization", authorization)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
                return json.loads(answer.read(_MOST_BYTES))
        except (OSError, ValueError) as error:
            raise RegistryUnreachable(f"the schema registry {url} gives no schemas of {subject!r}: {error}") from None

    versions = f"/subjects/{quote(subject, safe='')}/versions"
    found: dict[int, str] = {}
    for number in get(versions):
        version = get(f"{versions}/{number}")
        if version.get("schemaType", "AVRO") != "AVRO" or version.get("references"):
            raise ConfigError(
                f"version {number} of {subject!r} is {version.get('schemaType', 'AVRO')}, or refers to other schemas: "
                "give parse the schemas yourself, each in one piece"
            )
        found[version["id"]] = version["schema"]
    return found
