"""``iris request``: what is asked, what is printed, and every way it can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

import iris
from tests.support.desk import Desk


@pytest.fixture
def store(desk: Desk) -> Desk:
    """A desk beside one member of ``store``, which echoes, reports its state, and fails in several ways."""
    service = iris.Service("store")

    @service.request
    async def give_back(request: iris.Request) -> object:
        return request.payload

    @service.request("tell")
    async def tell(request: iris.Request) -> object:
        left = request.deadline - trio.current_time()
        return {"headers": dict(request.headers), "left": left}

    @service.request("sleep")
    async def sleep(request: iris.Request) -> object:
        await trio.sleep_forever()

    @service.request("fail")
    async def fail(request: iris.Request) -> object:
        raise iris.RemoteError("out_of_stock", "come back\ntomorrow")

    @service.request("refuse")
    async def refuse(request: iris.Request) -> object:
        raise iris.NotAllowed("not you")

    @service.request("count")
    async def count(items: list[str]) -> int:
        return len(items)

    desk.service = service
    return desk


@pytest.mark.parametrize(
    ("given", "out"),
    [
        (["hello"], b"hello\n"),
        ([""], b""),
        (["7"], b"7\n"),
        (["7", "--json-payload"], b"7\n"),
        (['"text"', "--json-payload"], b"text\n"),
        (["null", "--json-payload"], b"null\n"),
        (['{"a": [1.5, true]}', "--json-payload"], b'{"a": [1.5, true]}\n'),
    ],
)
def test_the_reply_is_printed_as_people_read_it(store: Desk, given: list[str], out: bytes) -> None:
    done = store.run("request", "store", *given)
    assert (done.status, done.out, done.err) == (0, out, "")


@pytest.mark.parametrize("data", [b"", b"\x00\xff\n", b"text without end"])
def test_bytes_come_back_as_they_were_sent(store: Desk, data: bytes) -> None:
    assert store.run("request", "store", "-", given=data).out == data
    Path("file").write_bytes(data)
    assert store.run("request", "store", "@file").out == data


def test_json_tells_bytes_from_texts_and_how_long_it_took(store: Desk) -> None:
    text = json.loads(store.run("request", "store", "text", "--json").out)
    data = json.loads(store.run("request", "store", "-", "--json", given=b"text").out)
    rest = json.loads(store.run("request", "store", "-", "--json", given=b"\xff").out)
    assert 0 < text.pop("seconds") < 5
    assert text == {"payload": "text"}
    assert (data["payload"], data["encoding"]) == ("text", "utf-8")
    assert (rest["payload"], rest["encoding"]) == ("/w==", "base64")


def test_bytes_inside_of_a_value_are_shown_although_json_has_none(store: Desk) -> None:
    assert store.service is not None

    @store.service.request("mixed")
    async def mixed(request: iris.Request) -> object:
        return {"text": b"Gr\xc3\xbc\xc3\x9fe", "rest": [b"\xff"]}

    assert store.run("request", "store", "--operation", "mixed").out == (
        b'{"text": "Gr\\u00fc\\u00dfe", "rest": ["base64:/w=="]}\n'
    )
    said = json.loads(store.run("request", "store", "--operation", "mixed", "--json").out)
    assert said["payload"] == {"text": "Grüße", "rest": ["base64:/w=="]}


def test_headers_and_what_is_left_of_the_time_arrive(store: Desk) -> None:
    options = ["--header", "a=1", "--header", "b=x=y", "--header", "a=2", "--timeout", "30"]
    told = json.loads(store.run("request", "store", "--operation", "tell", *options).out)
    assert told["headers"] == {"a": "2", "b": "x=y"}
    assert 20 < told["left"] <= 30
    assert 0 < json.loads(store.run("request", "store", "--operation", "tell").out)["left"] <= 5


def test_every_option_of_a_request_is_that_of_the_node(store: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    async def request(node: iris.Node, cluster: str, payload: object, **options: object) -> object:
        asked.append((cluster, payload, options))
        return b""

    monkeypatch.setattr(iris.Node, "request", request)
    plain = {"operation": None, "key": None, "timeout": 5.0, "headers": None, "wait": 0.0}
    every = {"operation": "o", "key": "k", "timeout": 0.5, "headers": {"h": ""}, "wait": 2.0}
    once, again = ({"options": iris.RequestOptions(idempotent=idempotent)} for idempotent in (False, True))
    given = ["--timeout", ".5", "--idempotent", "--operation", "o", "--key", "k", "--header", "h=", "--wait", "2"]
    assert store.run("request", "a").status == store.run("request", "b", "x", *given).status == 0
    assert asked == [("a", b"", plain | once), ("b", "x", every | again)]


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (
            ["nobody"],
            1,
            "no reachable member serves the cluster 'nobody'; this node knows of 'store': see 'iris clusters'",
        ),
        (["stor"], 1, "no reachable member serves the cluster 'stor'; did you mean 'store'? 'iris clusters' shows all"),
        (["bad name"], 2, "'bad name' is not a cluster name: use 1 to 128 of letters"),
        (["store", "--operation", "absent"], 1, "no_such_operation: cluster 'store' does not serve"),
        (
            ["store", "[]", "--operation", "count"],
            1,
            "bad_request: payload: expected list, got str '[]'; without --json-payload PAYLOAD is a text or bytes",
        ),
        (["store", "[2]", "--operation", "count", "--json-payload"], 1, "payload[0]: expected str, got int 2"),
        (["store", "--operation", "fail"], 1, "out_of_stock: come back tomorrow"),
        (["store", "--operation", "refuse"], 1, "not you"),
        (["store", "--operation", "sleep", "--timeout", "0.05"], 1, "'store'"),
        (["store", "--timeout", "nan"], 2, "Invalid value for '--timeout': 'nan' is not a finite number (see"),
        (["store", "[" * 100_000, "--json-payload"], 2, "the payload is not JSON that can be read: it is nested too"),
        (["store", "[" * 501 + "]" * 501, "--json-payload"], 1, "cannot send a value nested more than 500 levels"),
        (["store", str(2**64), "--json-payload"], 1, "cannot send a int (an int of more than 64 bits)"),
        (["store", '"\\ud800"', "--json-payload"], 1, "cannot send a str"),
        (["store", "--header", f"a={'x' * 9000}"], 1, "1 headers of 9001 bytes: the limit is 512 headers and 8192 by"),
    ],
)
def test_a_request_that_fails_is_one_line(store: Desk, arguments: list[str], status: int, complaint: str) -> None:
    done = store.run("request", *arguments)
    assert complaint in done.complaint
    assert done.status == status


def test_an_oversize_payload_is_refused_with_its_size_the_limit_and_a_way_out(store: Desk) -> None:
    Path("big").write_bytes(bytes(1024 * 1024 + 1))
    done = store.run("request", "store", "@big")
    assert done.status == 1
    assert done.complaint.startswith("payload of 1048577 bytes: the limit is 1048576 bytes")
    assert "tunnel" in done.complaint
    Path("big").write_bytes(bytes(1024 * 1024))
    assert store.run("request", "store", "@big").out == bytes(1024 * 1024)


def test_a_file_that_cannot_be_read_is_named_before_any_node_is_opened(
    store: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("iris.cli.connection.NodeOptions.open")
    assert store.run("request", "store", "@absent").complaint == (
        "cannot read absent: No such file or directory (see iris request --help)"
    )
    assert store.run("request", "store", "@.").complaint.startswith("cannot read .: Is a directory")
