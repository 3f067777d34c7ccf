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

from examples.howto.registered_schemas import registered_schemas
from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.columns.protobuf import MARKED, marked


@contextmanager
def registry(answers: dict[str, Any]) -> Iterator[str]:
    """Serve a registry's answers by path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the server's name
            """Be silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_registry_gives_all_versions_of_a_subject_by_id() -> None:
    path = "/subjects/orders-value/versions"
    answers: dict[str, Any] = {
        path: [1, 3],
        f"{path}/1": {"id": 7, "schema": "one"},
        f"{path}/3": {"id": 9, "schema": "two", "schemaType": "AVRO"},
    }
    with registry(answers) as url:
        assert registered_schemas(url, "orders-value") == {7: "one", 9: "two"}


def test_a_payload_that_is_cut_off_has_no_mark() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    order.field.add(name="item", number=1, type=9, label=1)
    order.nested_type.add(name="Line")
    for at in range(98):
        file.message_type.add(name=f"More{at}")
    found, places = marked(files.SerializeToString(), "shop.Order")
    assert places == [b"\2\2"]
    assert marked(files.SerializeToString(), "shop.Other")[1] == [b"\2\0", b"\0"]
    assert marked(files.SerializeToString(), "shop.More97")[1] == [b"\2\xc6\1"]
    for name in ("Order", "shop.Line", "shop.Order.Line", "shop"):
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
