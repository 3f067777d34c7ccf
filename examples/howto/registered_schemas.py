"""The Avro schemas of a subject, by id, from a registry that speaks Confluent's protocol."""

import json
import urllib.request
from typing import Any


def registered_schemas(url: str, subject: str) -> dict[int, str]:
    def get(path: str) -> Any:
        with urllib.request.urlopen(f"{url}/subjects/{subject}/versions{path}", timeout=10) as answer:
            return json.load(answer)

    versions = [get(f"/{number}") for number in get("")]
    return {version["id"]: version["schema"] for version in versions}
