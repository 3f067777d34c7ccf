"""Schemas of a registry, and descriptor sets of Protobuf: what ``parse`` gets of them, without Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from iris.kernel.errors import ConfigError
from iris.spark_bridge import registered_schemas
from iris.spark_bridge.errors import RegistryUnreachable
from iris.spark_bridge.session.columns.protobuf import MARKED, _places, marked


@contextmanager
def registry(answers: dict[str, Any]) -> Iterator[str]:
    """Serve a registry's answers by path; it takes one password."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path) if self.headers.get("Authorization") == "Basic eA==" else None
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the server's name
            """Be silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def test_a_registry_gives_all_versions_of_a_subject_by_id() -> None:
    path = "/subjects/orders%2Fnew-value/versions"
    answers: dict[str, Any] = {
        path: [1, 3],
        f"{path}/1": {"id": 7, "schema": "one"},
        f"{path}/3": {"id": 9, "schema": "two", "schemaType": "AVRO", "references": []},
        "/subjects/other/versions": [1],
        "/subjects/other/versions/1": {"id": 8, "schema": "x", "schemaType": "PROTOBUF"},
        "/subjects/apart/versions": [1],
        "/subjects/apart/versions/1": {"id": 8, "schema": "x", "references": [{"name": "a"}]},
    }
    with registry(answers) as url:
        assert registered_schemas(url, "orders/new-value", authorization="Basic eA==") == {7: "one", 9: "two"}
        for subject in ("other", "apart"):
            with pytest.raises(ConfigError, match=f"version 1 of '{subject}' is .*give parse the schemas yourself"):
                registered_schemas(url, subject, authorization="Basic eA==")
        with pytest.raises(RegistryUnreachable, match=r"gives no schemas of 'absent': .*404"):
            registered_schemas(url, "absent", authorization="Basic eA==")
        with pytest.raises(RegistryUnreachable):
            registered_schemas(url, "orders/new-value")
    with pytest.raises(RegistryUnreachable):
        registered_schemas(url, "orders/new-value")
    with pytest.raises(ConfigError, match="begins with http"):
        registered_schemas("file:///etc", "x")


def test_a_payload_that_is_cut_off_has_no_mark() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    order.field.add(name="item", number=1, type=9, label=1)
    order.nested_type.add(name="Line")
    found, place = marked(files.SerializeToString(), "shop.Order")
    assert (place, _places(place)) == ((1,), [b"\2\2"])
    assert marked(files.SerializeToString(), "shop.Order.Line")[1] == (1, 0)
    assert _places((0,)) == [b"\0", b"\2\0"]
    assert _places((100,)) == [b"\2\xc8\1"]
    for name in ("Order", "shop.Line", "shop"):
        with pytest.raises(ConfigError, match="has no message"):
            marked(files.SerializeToString(), name)
    pool = descriptor_pool.DescriptorPool()
    for one in descriptor_pb2.FileDescriptorSet.FromString(found).file:
        pool.Add(one)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    whole = kind(item="a text of some length").SerializeToString()
    for end in range(len(whole) + 1):
        try:
            message = kind.FromString(whole[:end] + MARKED)
        except DecodeError:
            continue
        assert getattr(message, "__iris_mark") == (end in (0, len(whole))), end
