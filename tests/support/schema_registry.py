"""A schema registry for tests: what clients ask of Confluent's over HTTP, in memory."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit


class SchemaRegistry:
    """Schemas by number and by subject and version.  ``requests`` are the paths that were asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[str] = []
        self.schemas: list[dict[str, Any]] = []
        self.failing: int | None = None
        """Status of every answer, if the registry is out of order."""
        self.password: str | None = None
        """``user:password`` that clients have to give."""
        self._subjects: dict[str, list[int]] = {}

    def add(self, subject: str, schema: dict[str, Any]) -> int:
        """Register a schema under a subject; return its number."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self._subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        """Return the status and the body of an answer."""
        self.requests.append(path)
        if self.failing is not None:
            return self.failing, {"error_code": self.failing, "message": "out of order"}
        if self.password is not None and authorization != f"Basic {base64.b64encode(self.password.encode()).decode()}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        match [method, *(unquote(part) for part in urlsplit(path).path.strip("/").split("/"))]:
            case ["GET", "schemas", "ids", number] if number.isdecimal() and 0 < int(number) <= len(self.schemas):
                return 200, {**self.schemas[int(number) - 1], "id": int(number)}
            case ["GET", "subjects", subject, "versions", version] if subject in self._subjects:
                found = self._version(subject, int(version) if version.isdecimal() else None)
                if found is not None:
                    return 200, found
            case ["POST", "subjects", subject, "versions"]:
                kept = {key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)}
                return 200, {"id": self.add(subject, kept)}
            case ["POST", "subjects", subject] if subject in self._subjects:
                return 200, self._version(subject, None)
            case _:
                pass
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _version(self, subject: str, version: int | None) -> dict[str, Any] | None:
        """Return a version of a subject, by default the latest."""
        versions = self._subjects[subject]
        at = len(versions) if version is None else version
        if not 0 < at <= len(versions):
            return None
        number = versions[at - 1]
        return {"subject": subject, "version": at, "id": number, **self.schemas[number - 1]}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """Serve a registry on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        registry: ClassVar[SchemaRegistry]

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, answer = self.registry.answer(self.command, self.path, body, self.headers.get("Authorization"))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the server's name
            """Be silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Handler.registry = SchemaRegistry(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Handler.registry
        finally:
            server.shutdown()
            thread.join()
