"""The HTTP door: requests, surveys, broadcasts and events by plain HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

from iris.doors import grant
from iris.doors.clients import ClientLimits
from iris.doors.http import HttpLimits
from tests.support.doors import Answer, Place, Run, rest_of, with_door

PAYLOADS: list[tuple[str, bytes, str, bytes]] = [
    ("", b"\x00\xff", "application/octet-stream", b"\x00\xff"),
    ("application/x-www-form-urlencoded", b"a=1", "application/octet-stream", b"a=1"),
    ("application/json", b'{"a": [1, null, "\\u00e4"]}', "application/json", '{"a":[1,null,"ä"]}'.encode()),
    ("application/json; charset=utf-8", b"7", "application/json", b"7"),
    ("text/plain", "ä".encode(), "application/json", '"ä"'.encode()),
    ("application/msgpack", b"\x81\xa1a\xc4\x01x", "application/msgpack", b"\x81\xa1a\xc4\x01x"),
]


@with_door()
async def test_payloads_go_in_and_come_out_in_the_form_that_their_types_say(place: Place) -> None:
    for kind, body, wanted, reply in PAYLOADS:
        told = await place.post("/request/greeters", body, {**place.bearer, "content-type": kind})
        assert (told.status, told.headers["content-type"], told.body) == (200, wanted, reply)
    packed = {**place.bearer, "content-type": "application/json", "accept": "application/msgpack"}
    assert (await place.post("/request/greeters", b"[1]", packed)).body == b"\x91\x01"
    nested = await place.post("/request/greeters?operation=nested")
    assert nested.headers["content-type"] == "application/msgpack"


OPTIONS = "timeout=20&idempotent=true&key=k&priority=high&wait=1&hedge=5"


@with_door()
async def test_options_and_headers_go_along(place: Place) -> None:
    sent = {**place.bearer, "Iris-Header-Trace": "7", "iris-header-iris-client": "somebody else"}
    told = await place.post(
        "/request/greeters?operation=headers&timeout=20&idempotent=true&key=k&priority=high", b"", sent
    )
    assert told.json() == {"trace": "7", "iris-client": "web"}
    assert (await place.post("/request/greeters?operation=square", 7)).json() == 49


PROBLEMS: list[tuple[str, Any, int, str, str]] = [
    ("/request/nobody", b"", 404, "no_such_cluster", "nobody"),
    ("/request/greeters?operation=fail", 1, 502, "error", "KeyError: 1"),
    ("/request/greeters?operation=square", "x", 400, "bad_request", "expected int"),
    ("/request/greeters?operation=cube", 1, 404, "no_such_operation", "square(number: int) -> int"),
    ("/request/greeters?operation=never&timeout=0.05", b"", 504, "timeout", "within 0.05 s"),
    ("/request/greeters?timout=1", b"", 400, "malformed", "there are operation, timeout"),
    ("/request/greeters?timeout=1&timeout=2", b"", 400, "malformed", "stands twice"),
    ("/request/greeters?timeout=soon", b"", 400, "malformed", "expected a number, got 'soon'"),
    ("/request/greeters?timeout=nan", b"", 400, "malformed", "expected a number"),
    ("/request/greeters?idempotent=yes", b"", 400, "malformed", "expected true or false"),
    ("/request/greeters?timeout=-1", b"", 400, "malformed", "timeout is above 0"),
    ("/request/greeters?timeout=0", b"", 400, "malformed", "timeout is above 0"),
    ("/request/greeters?timeout=1e300", b"", 400, "malformed", "50 s together at most"),
    ("/request/greeters?wait=inf", b"", 400, "malformed", "expected a number, got 'inf'"),
    ("/request/nobody?wait=45.1", b"", 400, "malformed", "50 s together at most"),
    ("/broadcast/greeters?wait=51", b"", 400, "malformed", "50 s together at most"),
    ("/survey/greeters?timeout=30&wait=30", b"", 400, "malformed", "50 s together at most"),
    ("/publish/a?timeout=1e300&confirm=true", b"", 400, "malformed", "50 s together at most"),
    ("/request/greeters?hedge=-1&idempotent=true", b"", 400, "malformed", "hedge"),
    ("/request/greeters?hedge=1", b"", 400, "malformed", "idempotent=True or an idempotency_key only"),
    ("/survey/greeters?count=-1", b"", 400, "malformed", "a whole number above 0"),
    ("/survey/greeters?count=" + "9" * 5000, b"", 400, "malformed", "expected a whole number"),
    ("/survey/greeters?quiet=-1", b"", 400, "malformed", "seconds above 0"),
    ("/request/greeters", 10**30, 400, "malformed", "an int of more than 64 bits"),
    ("/request/greeters", "\ud800", 400, "malformed", "surrogates not allowed"),
    ("/request/@lab", b"", 400, "malformed", "not a cluster name"),
    ("/request/a@b@c", b"", 400, "malformed", "not a site name"),
    ("/request/greeters?key=" + "k" * 257, b"", 400, "malformed", "a text of at most 256 bytes"),
    ("/publish/" + "a." * 40 + "a", b"", 400, "malformed", "is not a topic"),
    ("/request/acme/greeters", b"", 403, "not_allowed", "acme/greeters"),
    ("/request/acme/", b"", 403, "not_allowed", "acme/"),
    ("/request/greeters?priority=urgent", b"", 400, "malformed", "urgent"),
    ("/request/a%20b", b"", 400, "malformed", "cluster name"),
    ("/survey/greeters?count=0.5", b"", 400, "malformed", "expected a whole number"),
    ("/survey/nobody", b"", 404, "no_such_cluster", "nobody"),
    ("/broadcast/nobody", b"", 404, "no_such_cluster", "nobody"),
    ("/publish/a..b", b"", 400, "malformed", "a..b"),
    ("/publish/orders?confirm=true", b"", 503, "not_sent", "durable"),
    ("/nowhere", b"", 404, "no_such_address", "POST /nowhere"),
    ("/subscribe", b"", 405, "no_such_method", "Method Not Allowed"),
]


@with_door()
async def test_each_problem_has_its_status_word_and_text(place: Place) -> None:
    for path, body, status, code, text in PROBLEMS:
        told = await place.post(path, body)
        assert (told.status, told.json()["code"]) == (status, code), path
        assert text in told.json()["detail"], path
        assert told.headers["content-type"] == "application/problem+json"
    for method in ("HEAD", "DELETE"):
        told = await place.fetch(method, "/subscribe?topic=a")
        assert (told.status, told.headers["allow"]) == (405, "GET")
    for kind, wrong in [("application/json", b"{"), ("application/msgpack", b"\xc1"), ("text/plain", b"\xff")]:
        told = await place.post("/request/greeters", wrong, {**place.bearer, "content-type": kind})
        assert (told.status, told.json()["code"]) == (400, "malformed")


@with_door()
async def test_who_shows_no_token_or_a_wrong_one_is_refused(place: Place) -> None:
    for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {place.token}"}, {"cookie": "x"}):
        for method, path in [
            ("POST", "/request/greeters"), ("POST", "/survey/greeters"), ("POST", "/publish/a"),
            ("POST", "/broadcast/greeters"), ("GET", "/subscribe?topic=a"),
        ]:  # fmt: skip
            told = await place.fetch(method, path, b"", headers)
            assert (told.status, told.headers["www-authenticate"]) == (401, "Bearer")


@with_door(rights={"call": ("greeters",), "publish": ("orders.>",)})
async def test_a_client_may_do_what_its_token_permits(place: Place) -> None:
    for method, path, permitted in [
        ("POST", "/request/greeters", True), ("POST", "/request/door", False), ("POST", "/survey/others", False),
        ("POST", "/broadcast/others", False), ("POST", "/publish/orders.tea", True),
        ("POST", "/publish/orders", False), ("GET", "/subscribe?topic=orders.*", False),
    ]:  # fmt: skip
        told = await place.fetch(method, path)
        assert told.status in ((200, 204) if permitted else (403,)), path
    nobody = {"authorization": "Bearer " + grant(place.tokens, "nobody")}
    assert (await place.post("/request/greeters", b"", nobody)).status == 401  # until the file is read again


@with_door(door_limits=HttpLimits(body=1000, body_timeout=0.1))
async def test_bodies_are_bounded_in_size_and_time(place: Place) -> None:
    assert (await place.post("/request/greeters", b"x" * 1000)).status == 200
    told = await place.post("/request/greeters", b"x" * 1001)
    assert (told.status, told.json()["code"]) == (413, "too_large")
    async with place.dial() as (reader, writer):
        writer.write(place.head("POST", "/request/greeters", "content-length: 10") + b"x")
        assert (await reader.readline()).split()[1] == b"408"


@with_door()
async def test_a_client_that_hangs_up_stops_its_request(place: Place) -> None:
    """``run`` bounds the wait for the end of the handler, and asserts that no task is left."""
    async with place.dial() as (_, writer):
        writer.write(place.head("POST", "/request/greeters?operation=never&timeout=50", "content-length: 0"))
        await place.counted.working.wait()
    while not place.counted.stopped:
        await asyncio.sleep(0.01)


@with_door(limits=ClientLimits(calls=1))
async def test_a_client_has_so_many_calls_at_a_time(place: Place) -> None:
    first = asyncio.ensure_future(place.post("/request/greeters?operation=never&timeout=1"))
    await place.counted.working.wait()
    told = await place.post("/request/greeters")
    assert (told.status, told.json()["code"], told.headers["retry-after"]) == (429, "too_many_calls", "1")
    assert (await first).status == 504
    assert (await place.post("/request/greeters")).status == 200


@with_door()
async def test_all_members_are_told_and_asked(place: Place) -> None:
    assert (await place.post("/broadcast/greeters", {"n": 1})).status == 204
    while place.counted.told != [{"n": 1}]:
        await asyncio.sleep(0.01)
    lines = [json.loads(line) for line in (await place.post("/survey/greeters", b"\x00")).body.splitlines()]
    member = str(place.member.id)
    assert lines[0] == {"member": member, "payload": base64.b64encode(b"\x00").decode(), "encoding": "base64"}
    assert lines[1:] == [{"ended_by": "all", "expected": 1, "missing": [], "errors": {}}]
    told = await place.post("/survey/greeters?operation=fail", 1)
    assert told.headers["content-type"] == "application/x-ndjson"
    last = json.loads(told.body)
    assert last["missing"] == [member]
    assert last["errors"][member]["code"] == "error"
    assert json.loads((await place.post("/survey/greeters?operation=never&timeout=0.1")).body)["ended_by"] == "deadline"


async def posted(place: Place, *headers: bytes) -> Any:
    """Ask with these lines in the head, as they are; return the status, and the headers that the member got."""
    begun, lines = (
        place.head("POST", "/request/greeters?operation=headers", "content-length: 0", "connection: close"),
        b"",
    )
    for one in headers:
        lines += one + b"\r\n"
    async with place.dial() as (reader, writer):
        writer.write(begun.removesuffix(b"\r\n") + lines + b"\r\n")
        head, _, body = (await rest_of(reader)).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@with_door()
async def test_headers_are_utf_8_and_have_each_name_once(place: Place) -> None:
    status, told = await posted(place, "Iris-Header-A: caf\u00e9 \u2615".encode(), b"iris-header-b: 1", b"other: 2")
    assert (status, told["a"], told["b"]) == (200, "caf\u00e9 \u2615", "1")
    assert "other" not in told
    status, told = await posted(place, b"iris-header-a: caf\xe9")
    assert (status, told["code"], told["detail"]) == (400, "malformed", "the header iris-header-a is no UTF-8")
    status, told = await posted(place, b"iris-header-a: 1", b"IRIS-HEADER-A: 1")
    assert (status, told["code"]) == (400, "malformed")
    assert told["detail"] == "the header iris-header-a twice: members have each name once"


@with_door(limits=ClientLimits(bytes=1 << 20), send_buffer=16_384)
async def test_answers_that_a_client_does_not_read_are_bounded(place: Place) -> None:
    asked = b"700000"
    head = place.head(
        "POST", "/request/greeters?operation=large", "content-type: application/json",
        f"content-length: {len(asked)}", "connection: close",
    )  # fmt: skip
    async with place.dial(SO_RCVBUF=4096, limit=16_384) as (reader, writer):
        writer.write(head + asked)
        await reader.readuntil(b"\r\n\r\n")
        told = await place.post("/request/greeters?operation=large", 700_000)
        assert (told.status, told.json()["code"]) == (429, "too_many_bytes")
        assert told.json()["detail"].startswith("the member has answered, and this client has no room for it")
        assert (await place.post("/request/greeters", b"small")).body == b"small"
        assert len(await rest_of(reader)) == 700_000
    assert len((await place.post("/request/greeters?operation=large", 700_000)).body) == 700_000


def test_pages_of_other_origins_are_let_in_if_the_door_says_so(run: Run) -> None:
    asked = {"origin": "https://shop.example", "access-control-request-method": "POST"}

    async def permitted(place: Place) -> None:
        asks = {**asked, "access-control-request-headers": "authorization,content-type,iris-header-a"}
        told = await place.fetch("OPTIONS", "/request/greeters", b"", asks)
        assert (told.status, told.headers["access-control-allow-origin"]) == (200, "https://shop.example")
        other = await place.fetch("OPTIONS", "/request/greeters", b"", {**asked, "origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
        told = await place.post("/request/nobody", b"", {**place.bearer, "origin": "https://shop.example"})
        assert (told.status, told.headers["access-control-allow-origin"]) == (404, "https://shop.example")

    async def refused(place: Place) -> None:
        told = await place.fetch("OPTIONS", "/request/greeters", b"", asked)
        assert "access-control-allow-origin" not in told.headers
        module = await place.fetch("GET", "/iris.js", b"", {})
        assert module.headers["content-type"].startswith("text/javascript")
        assert b"export class Door" in module.body
        types = await place.fetch("GET", "/iris.d.ts", b"", {})
        assert (types.status, types.headers["access-control-allow-origin"]) == (200, "*")
        assert types.headers["content-type"].startswith("application/typescript")
        assert b"export class Door" in types.body

    run(permitted, origins=["https://shop.example"])
    run(refused)


BOMBS = [
    ("application/msgpack", b"\x91" * 1_000_000), ("application/json", b"[" + b"[]," * 340_000 + b"1]"),
    ("application/msgpack", b"\xdd\x00\x0f\xff\x00" + b"\x80" * 0xFFF00), ("application/json", b"1" * 1_000_000),
]  # fmt: skip


@with_door()
async def test_bombs_that_come_together_are_refused_and_others_are_served(place: Place) -> None:
    throwing: list[asyncio.Future[Answer]] = []
    for kind, body in BOMBS * 8:
        sent = place.post("/request/greeters", body, {**place.bearer, "content-type": kind})
        throwing.append(asyncio.ensure_future(sent))
    took: list[float] = []
    while not took or not all(one.done() for one in throwing):
        began = time.monotonic()
        assert (await place.fetch("POST", "/request/greeters", b"x")).body == b"x"
        took.append(time.monotonic() - began)
    assert {(one.result().status, one.result().json()["code"]) for one in throwing} == {(400, "malformed")}
    assert min(took) < 0.5


@with_door()
async def test_an_empty_text_clears_what_was_retained(place: Place) -> None:
    plain = {**place.bearer, "content-type": "text/plain"}
    for body in ("old", ""):
        assert (await place.post("/publish/a?retain=true", body.encode(), plain)).status == 204
    assert not place.node.forget_retained("a")
    assert not place.clients.named("web").statistics().retained


@with_door(limits=ClientLimits(retained=2, retained_bytes=100))
async def test_what_a_client_has_retained_is_bounded_and_can_be_cleared(place: Place) -> None:
    for topic, body, status in [
        ("a", b"1", 204), ("b", b"22", 204), ("a", b"11", 204), ("c", b"", 204), ("c", b"3", 429),
        ("a", b"", 204), ("c", b"3" * 98, 204), ("b", b"333", 429),
    ]:  # fmt: skip
        told = await place.post(f"/publish/{topic}?retain=true", body)
        assert told.status == status, (topic, told)
        if status == 429:
            assert told.json()["code"] == "too_much_retained"
    assert (await place.post("/publish/a%20b?retain=true", b"x")).status == 429
    async with place.member.subscribe(">") as events:
        seen = {event.topic: event.payload for event in [await anext(events), await anext(events)]}
    assert seen == {"b": b"22", "c": b"3" * 98}


@with_door()
async def test_no_text_ends_a_line_for_anybody(place: Place) -> None:
    text = "a\u2028b\u2029c\x85d"
    survey = await place.post("/survey/greeters", text)
    async with place.follow("topic=a") as reader:
        await place.post("/publish/a", text)
        event = b""
        while b"data: " not in event:
            event = await reader.readline()
    assert [json.loads(line).get("payload") for line in survey.body.decode().splitlines()] == [text, None]
    (line,) = event.decode().removesuffix("\n").splitlines()
    assert json.loads(line.removeprefix("data: "))["payload"] == text
