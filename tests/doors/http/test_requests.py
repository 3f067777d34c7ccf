"""The HTTP door: requests, surveys, broadcasts and events by plain HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from iris.doors import ClientLimits, grant
from iris.doors.http import HttpLimits
from tests.support.doors import Place, Run

PAYLOADS: list[tuple[str, bytes, str, bytes]] = [
    ("", b"\x00\xff", "application/octet-stream", b"\x00\xff"),
    ("application/x-www-form-urlencoded", b"a=1", "application/octet-stream", b"a=1"),
    ("application/json", b'{"a": [1, null, "\\u00e4"]}', "application/json", '{"a":[1,null,"ä"]}'.encode()),
    ("application/json; charset=utf-8", b"7", "application/json", b"7"),
    ("text/plain", "ä".encode(), "application/json", '"ä"'.encode()),
    ("application/msgpack", b"\x81\xa1a\xc4\x01x", "application/msgpack", b"\x81\xa1a\xc4\x01x"),
]


def test_payloads_go_in_and_come_out_in_the_form_that_their_types_say(run: Run) -> None:
    async def work(place: Place) -> None:
        for kind, body, wanted, reply in PAYLOADS:
            told = await place.post("/request/greeters", body, {**place.bearer, "content-type": kind})
            assert (told.status, told.headers["content-type"], told.body) == (200, wanted, reply)
        packed = {**place.bearer, "content-type": "application/json", "accept": "application/msgpack"}
        assert (await place.post("/request/greeters", b"[1]", packed)).body == b"\x91\x01"
        nested = await place.post("/request/greeters?operation=nested")
        assert nested.headers["content-type"] == "application/msgpack"

    run(work)


OPTIONS = "timeout=20&idempotent=true&key=k&priority=high&wait=1&hedge=5"


def test_options_and_headers_go_along(run: Run) -> None:
    async def work(place: Place) -> None:
        sent = {**place.bearer, "Iris-Header-Trace": "7", "iris-header-iris-client": "somebody else"}
        told = await place.post(
            "/request/greeters?operation=headers&timeout=20&idempotent=true&key=k&priority=high", b"", sent
        )
        assert told.json() == {"trace": "7", "iris-client": "web"}
        assert (await place.post("/request/greeters?operation=square", 7)).json() == 49

    run(work)


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
    ("/request/greeters?timeout=-1", b"", 400, "malformed", "timeout"),
    ("/request/greeters?priority=urgent", b"", 400, "malformed", "urgent"),
    ("/request/a%20b", b"", 400, "malformed", "cluster name"),
    ("/survey/greeters?count=0.5", b"", 400, "malformed", "expected a whole number"),
    ("/survey/nobody", b"", 404, "no_such_cluster", "nobody"),
    ("/broadcast/nobody", b"", 404, "no_such_cluster", "nobody"),
    ("/publish/a..b", b"", 400, "malformed", "a..b"),
    ("/publish/orders?confirm=true", b"", 503, "not_sent", "durable"),
    ("/nowhere", b"", 404, "no_such_address", "POST /nowhere"),
    ("/subscribe", b"", 405, "refused", "Method Not Allowed"),
]


def test_each_problem_has_its_status_word_and_text(run: Run) -> None:
    async def work(place: Place) -> None:
        for path, body, status, code, text in PROBLEMS:
            told = await place.post(path, body)
            assert (told.status, told.json()["code"]) == (status, code), path
            assert text in told.json()["detail"], path
            assert told.headers["content-type"] == "application/problem+json"
        for kind, wrong in [("application/json", b"{"), ("application/msgpack", b"\xc1"), ("text/plain", b"\xff")]:
            told = await place.post("/request/greeters", wrong, {**place.bearer, "content-type": kind})
            assert (told.status, told.json()["code"]) == (400, "malformed")

    run(work)


def test_who_shows_no_token_or_a_wrong_one_is_refused(run: Run) -> None:
    async def work(place: Place) -> None:
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {place.token}"}, {"cookie": "x"}):
            for method, path in [
                ("POST", "/request/greeters"), ("POST", "/survey/greeters"), ("POST", "/publish/a"),
                ("POST", "/broadcast/greeters"), ("GET", "/subscribe?topic=a"),
            ]:  # fmt: skip
                told = await place.fetch(method, path, b"", headers)
                assert (told.status, told.headers["www-authenticate"]) == (401, "Bearer")

    run(work)


def test_a_client_may_do_what_its_token_permits(run: Run) -> None:
    async def work(place: Place) -> None:
        for method, path, permitted in [
            ("POST", "/request/greeters", True), ("POST", "/request/door", False), ("POST", "/survey/others", False),
            ("POST", "/broadcast/others", False), ("POST", "/publish/orders.tea", True),
            ("POST", "/publish/orders", False), ("GET", "/subscribe?topic=orders.*", False),
        ]:  # fmt: skip
            told = await place.fetch(method, path)
            assert told.status in ((200, 204) if permitted else (403,)), path
        nobody = {"authorization": "Bearer " + grant(place.tokens, "nobody")}
        assert (await place.post("/request/greeters", b"", nobody)).status == 401  # until the file is read again

    run(work, rights={"call": ("greeters",), "publish": ("orders.>",)})


def test_bodies_are_bounded_in_size_and_time(run: Run) -> None:
    async def work(place: Place) -> None:
        assert (await place.post("/request/greeters", b"x" * 1000)).status == 200
        told = await place.post("/request/greeters", b"x" * 1001)
        assert (told.status, told.json()["code"]) == (413, "too_large")
        async with place.dial() as (reader, writer):
            writer.write(place.head("POST", "/request/greeters", "content-length: 10") + b"x")
            assert (await reader.readline()).split()[1] == b"408"

    run(work, door_limits=HttpLimits(body=1000, body_timeout=0.1))


def test_a_client_that_hangs_up_stops_its_request(run: Run) -> None:
    async def work(place: Place) -> None:
        async with place.dial() as (_, writer):
            writer.write(place.head("POST", "/request/greeters?operation=never&timeout=50", "content-length: 0"))
            await place.counted.working.wait()
        while not place.counted.stopped:
            await asyncio.sleep(0.01)

    run(work)


def test_a_client_has_so_many_calls_at_a_time(run: Run) -> None:
    async def work(place: Place) -> None:
        first = asyncio.ensure_future(place.post("/request/greeters?operation=never&timeout=1"))
        await place.counted.working.wait()
        told = await place.post("/request/greeters")
        assert (told.status, told.json()["code"], told.headers["retry-after"]) == (429, "too_many_calls", "1")
        assert (await first).status == 504
        assert (await place.post("/request/greeters")).status == 200

    run(work, limits=ClientLimits(calls=1))


def test_all_members_are_told_and_asked(run: Run) -> None:
    async def work(place: Place) -> None:
        assert (await place.post("/broadcast/greeters", {"n": 1})).status == 204
        while place.counted.told != [{"n": 1}]:
            await asyncio.sleep(0.01)
        lines = [json.loads(line) for line in (await place.post("/survey/greeters", b"\x00")).body.splitlines()]
        member = str(place.member.id)
        assert lines[0] == {"member": member, "payload": base64.b64encode(b"\x00").decode(), "encoding": "base64"}
        assert lines[1:] == [{"ended_by": "all", "missing": [], "errors": {}}]
        told = await place.post("/survey/greeters?operation=fail", 1)
        assert told.headers["content-type"] == "application/x-ndjson"
        last = json.loads(told.body)
        assert last["missing"] == [member]
        assert last["errors"][member]["code"] == "error"
        assert (
            json.loads((await place.post("/survey/greeters?operation=never&timeout=0.1")).body)["ended_by"]
            == "deadline"
        )

    run(work)


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

    run(permitted, origins=["https://shop.example"])
    run(refused)
