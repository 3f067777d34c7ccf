"""The door for HTTP: odd options and headers, pages elsewhere, rights that change, and what a machine is short of."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- doors run on asyncio
import json
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest

from iris.doors.clients import ClientLimits
from iris.doors.http import HttpLimits
from iris.doors.tokens import grant, withdraw
from tests.support.doors import Place, Run, next_event, rest_of, with_door

pytestmark = pytest.mark.long

HUGE = "9" * 5000


NUMBERS = [
    "1e400", "-1e400", "nan", "-0", "-1", "0", HUGE, "-" + HUGE, "1_0", "%205", "%D9%A3", "0x10", "", "1e-400",
    "true", "1.0000000000000000000001", "%00", "%ff", "1,5", "+1", "1e308", "49.999999999999999",
]  # fmt: skip


@with_door()
async def test_no_number_of_an_option_is_an_error_of_the_door(place: Place, silent_log: None) -> None:
    names = {
        "/request/greeters": ("timeout", "wait", "hedge"),
        "/survey/greeters": ("timeout", "wait", "count", "quiet"),
        "/broadcast/greeters": ("wait",),
        "/publish/a": ("timeout",),
    }
    wrong: list[object] = []
    async with asyncio.timeout(50):
        for path, options in names.items():
            for name in options:
                for value in NUMBERS:
                    more = "&idempotent=true" if name == "hedge" else ""
                    told = await place.post(f"{path}?{name}={value}{more}", b"x")
                    if told.status >= 500 and told.status != 504:
                        wrong.append((path, name, value[:30], told.status, told.body[:100]))
    assert wrong == []


ODD = [
    ["Authorization: Bearer {token}", "Authorization: Bearer no"],
    ["Authorization: Bearer no", "Authorization: Bearer {token}"],
    ["Authorization: bearer\t{token}"],
    ["Authorization: Bearer  {token} "],
    ["Authorization: Bearer {token},Bearer {token}"],
    ["Authorization: Basic {token}"],
    ["Authorization: \xff\xfe"],
    ["Authorization: Bearer {token}", "Expect: 100-continue"],
    ["Authorization: Bearer {token}", "Expect: nothing"],
    [
        "Authorization: Bearer {token}",
        "Upgrade: h2c",
        "Connection: Upgrade, HTTP2-Settings",
        "HTTP2-Settings: AAMAAABk",
    ],
    ["Authorization: Bearer {token}", "Upgrade: websocket", "Connection: upgrade"],
    ["Authorization: Bearer {token}", "Upgrade: websocket", "Connection: upgrade", "Sec-WebSocket-Key: x"],
    ["Authorization: Bearer {token}", "Iris-Header-Iris-Client: root"],
    ["Authorization: Bearer {token}", "Iris-Header-: x"],
    ["Authorization: Bearer {token}", "Iris-Header-A: x", "iris-header-a: y"],
    ["Authorization: Bearer {token}", 'Idempotency-Key: "a', 'Idempotency-Key: b"'],
    ["Authorization: Bearer {token}", "Accept: " + "application/msgpack," * 1000],
    ["Authorization: Bearer {token}", "Content-Type: application/json; charset=utf-16"],
    ["Authorization: Bearer {token}", "Content-Type: \x80"],
    ["Authorization: Bearer {token}", "Content-Encoding: gzip"],
    ["Authorization: Bearer {token}", "Cookie: token={token}", "Range: bytes=0-0,0-0"],
]
TARGETS = [
    "/request/greeters",
    "http://evil.example/request/greeters",
    "//request/greeters",
    "*",
    "/request/greeters?timeout=1#x",
    "/request/%2e%2e/greeters",
    "/request/" + "a" * 3000,
    "/subscribe?topic=" + "a." * 900 + "a",
    "/request/greeters%0d%0aX:y",
    "/request/\xe9",
    "/tunnel/greeters",
    "/request/",
    "/request//",
    "/request/greeters/",
    "/iris.js?" + "a" * 2000,
]
METHODS = ["POST", "GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PRI", "post", "A" * 200]


@with_door()
async def test_no_head_is_an_error_of_the_door(place: Place, silent_log: None) -> None:
    async def ask(method: str, target: str, lines: list[str], version: str = "HTTP/1.1") -> bytes:
        head = [f"{method} {target} {version}", "Host: door", "Content-Length: 1", *lines, "", ""]
        text = "\r\n".join(head).replace("{token}", place.token)
        async with place.dial() as (reader, writer), asyncio.timeout(15):
            writer.write(text.encode("latin-1") + b"1")
            return await reader.readline()

    wrong: list[object] = []
    authorized = [f"Authorization: Bearer {place.token}"]
    cases = [("POST", "/request/greeters", lines, "HTTP/1.1") for lines in ODD]
    cases += [(method, target, authorized, "HTTP/1.1") for method in METHODS for target in TARGETS]
    cases += [("POST", "/request/greeters", authorized, version) for version in ("HTTP/1.0", "HTTP/2.0", "HTTP/9", "")]
    for case in cases:
        line = await ask(*case)
        if line[9:10] not in (b"1", b"2", b"4"):
            wrong.append((case[0], case[1][:40], case[2][-1][:40], case[3], line))
    assert wrong == []
    assert (await place.post("/request/greeters", b"x")).body == b"x"


LENGTHS = ["+1", "-1", "1, 1", "1,2", "0x1", "1 1", "1_0", "٣", HUGE, "", "1.0", "1e0", "\t1"]


@with_door()
async def test_a_length_that_two_programs_may_read_in_two_ways_is_refused(place: Place, silent_log: None) -> None:
    for value in LENGTHS:
        head = place.head("POST", "/request/greeters").removesuffix(b"\r\n")
        async with place.dial() as (reader, writer), asyncio.timeout(15):
            writer.write(head + f"content-length: {value}\r\n\r\n".encode() + b"1")
            line = await reader.readline()
            assert line[9:12] in (b"400", b"413") or value in ("\t1", "1, 1"), (value[:20], line)


@pytest.mark.parametrize("origins", [[], ["https://shop.example"]])
def test_a_page_elsewhere_does_nothing_without_a_token_and_reads_nothing_unless_it_is_named(
    run: Run, origins: list[str], silent_log: None
) -> None:
    others = [
        "https://evil.example", "null", "https://shop.example.evil.example", "https://shop.example:8443",
        "http://shop.example", "https://SHOP.example", "https://shop.example/", "https://a,https://shop.example", "",
    ]  # fmt: skip

    async def work(place: Place) -> None:
        for origin in others:
            asking = {
                "origin": origin,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization",
            }
            told = await place.fetch("OPTIONS", "/request/greeters", b"", asking)
            assert "access-control-allow-origin" not in told.headers, (origin, told)
            for path in ("/request/greeters", "/publish/a?retain=true", "/broadcast/greeters", "/survey/greeters"):
                cookie = {
                    "origin": origin,
                    "content-type": "text/plain",
                    "cookie": f"token={place.token}; iris={place.token}",
                }
                told = await place.post(f"{path}{'&' if '?' in path else '?'}token={place.token}", b"x", cookie)
                assert told.status in (400, 401), (origin, path, told)
                told = await place.post(path, b"x", {**place.bearer, "origin": origin})
                assert "access-control-allow-credentials" not in told.headers
                assert "access-control-allow-origin" not in told.headers, (origin, told)
        assert place.counted.told == [b"x"] * len(others)
        told = await place.post("/request/greeters", b"x", {**place.bearer, "origin": "https://shop.example"})
        assert told.headers.get("access-control-allow-origin") == (origins[0] if origins else None)
        assert ("origin" in told.headers.get("vary", "").lower()) is bool(origins)

    run(work, origins=origins)


@with_door()
async def test_what_is_open_for_a_token_ends_when_it_is_replaced_by_one_of_the_same_rights(place: Place) -> None:
    """A token that was shown to somebody by mistake is worth nothing any more, whatever the new one may do."""
    async with place.follow("topic=a") as followed, place.dial() as (reader, writer):
        request = place.head("POST", "/request/greeters", "content-length: 1") + b"x"
        writer.write(request)
        await reader.readuntil(b"\r\n\r\nx")
        token = grant(place.tokens, "web", call=(">",), publish=(">",), subscribe=(">",))
        place.clients.reload()
        await followed.readuntil(b"event: end")
        writer.write(request)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
    told = await place.post("/request/greeters", b"x", {"authorization": f"Bearer {token}"})
    assert told.status == 200


@with_door()
async def test_what_is_under_way_for_a_token_that_is_withdrawn_begins_nothing_new(place: Place) -> None:
    """A body that is still on its way, and a request that waits for its turn, come to nothing."""
    async with place.dial() as (reader, writer), place.dial() as (late, asking):
        writer.write(place.head("POST", "/broadcast/greeters", "content-length: 2") + b"x")
        await asyncio.sleep(0.1)
        place.clients.named("web").processor.spend(0.3)
        asking.write(place.head("POST", "/broadcast/greeters", "content-length: 1") + b"y")
        await asyncio.sleep(0.05)
        withdraw(place.tokens, "web")
        place.clients.reload()
        writer.write(b"x")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        assert (await late.readline()).startswith(b"HTTP/1.1 401")
    assert place.counted.told == []


def _lowest() -> int:
    """Return the lowest descriptor that is free."""
    number = os.dup(0)
    os.close(number)
    return number


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Have no more descriptors than are open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest(), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@with_door()
async def test_a_door_without_descriptors_serves_those_who_are_there_and_later_those_who_wait(place: Place) -> None:
    request = place.head("POST", "/request/greeters", "content-length: 1") + b"x"
    async with place.dial() as (reader, writer), place.follow("topic=a") as followed, AsyncExitStack() as stack:
        writer.write(request)
        await reader.readuntil(b"\r\n\r\nx")
        waiting = [await stack.enter_async_context(place.dial()) for _ in range(3)]
        fresh = await stack.enter_async_context(place.dial())
        with no_descriptors():
            for _ in range(3):
                writer.write(request)
                assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")
                await place.member.publish("a", 1)
                assert (await next_event(followed))[1]["payload"] == 1
        for one in (*waiting, fresh):
            one[1].write(request)
            assert (await one[0].readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")


@with_door()
async def test_a_door_needs_no_thread_for_anything_that_clients_ask(
    place: Place, monkeypatch: pytest.MonkeyPatch, silent_log: None
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask(path: str, body: bytes = b"1", *lines: str) -> bytes:
        async with place.dial() as (reader, writer), asyncio.timeout(10):
            writer.write(place.head("POST", path, f"content-length: {len(body)}", "connection: close", *lines) + body)
            return (await rest_of(reader))[9:12]

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        assert await ask("/request/greeters") == b"200"
        assert await ask("/request/greeters", b"[1]", "content-type: application/json") == b"200"
        assert await ask("/request/greeters", b"[1", "content-type: application/json") == b"400"
        assert await ask("/request/nobody") == b"404"
        assert await ask("/request/greeters?operation=nothing") in (b"404", b"501", b"502", b"400")
        assert await ask("/survey/greeters?timeout=0.1") == b"200"
        assert await ask("/broadcast/greeters") == b"204"
        assert await ask("/publish/a?retain=true") == b"204"
        async with place.dial() as (reader, writer):
            writer.write(place.head("GET", "/iris.js", "connection: close"))
            assert (await rest_of(reader))[9:12] == b"200"
        async with place.follow("topic=a") as followed:
            assert (await next_event(followed))[1]["retained"] is True


@pytest.mark.parametrize("size", [999, 1000, 1001])
@pytest.mark.parametrize("chunked", [False, True])
@with_door(door_limits=HttpLimits(body=1000))
async def test_a_body_of_the_limit_is_taken_and_one_byte_more_is_not(place: Place, size: int, chunked: bool) -> None:
    body = b"x" * size
    framing = "transfer-encoding: chunked" if chunked else f"content-length: {size}"
    sent = b"%x\r\n%s\r\n1\r\n" % (size - 1, body[1:]) + b"x\r\n0\r\n\r\n" if chunked else body
    async with place.dial() as (reader, writer), asyncio.timeout(15):
        writer.write(place.head("POST", "/request/greeters", framing, "connection: close") + sent)
        answer = await rest_of(reader)
    assert answer[9:12] == (b"413" if size > 1000 else b"200"), answer[:300]
    assert size > 1000 or answer.endswith(b"\r\n\r\n" + body)
    assert place.clients.named("web").statistics().bytes == 0


@with_door(door_limits=HttpLimits(stall_timeout=2.0), limits=ClientLimits())
async def test_followers_that_do_not_read_hold_up_no_other_client_and_end(place: Place) -> None:
    other = grant(place.tokens, "other", call=(">",))
    place.clients.reload()
    async with AsyncExitStack() as stack:
        for _ in range(20):
            await stack.enter_async_context(place.follow("topic=a", limit=1024, SO_RCVBUF=4096))
        for _ in range(30):
            await place.member.publish("a", b"x" * 100_000)
            async with asyncio.timeout(5):
                told = await place.post("/request/greeters", b"x", {"authorization": f"Bearer {other}"})
            assert told.body == b"x"
        while place.door.statistics().connections > 1:  # noqa: ASYNC110 -- nobody says when they have ended
            await asyncio.sleep(0.05)


@with_door()
async def test_a_stranger_costs_the_same_however_much_it_says(place: Place) -> None:
    """Of the time of those who come: a head of 32 KiB as much as a short one, within a small factor."""
    heads = {
        "short": b"POST /request/greeters HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
        "token": b"POST /request/greeters HTTP/1.1\r\nhost: a\r\nauthorization: Bearer " + b"x" * 30_000 + b"\r\n\r\n",
        "lines": b"POST /request/greeters HTTP/1.1\r\nhost: a\r\n" + b"a: b\r\n" * 250 + b"\r\n",
        "path": b"POST /request/" + b"%61" * 9000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        "query": b"POST /request/greeters?" + b"a=b&" * 7000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        "protocols": b"GET /tunnel/a HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: "
        + b"a," * 15_000
        + b"a\r\n\r\n",
        "cookies": b"POST /request/greeters HTTP/1.1\r\nhost: a\r\ncookie: " + b"a=b; " * 6000 + b"\r\n\r\n",
    }
    from time import thread_time

    async def cost(head: bytes) -> float:
        best = 1.0
        for _ in range(8):
            async with place.dial() as (reader, writer):
                await asyncio.sleep(0.01)
                began = thread_time()
                writer.write(head)
                await rest_of(reader)
                best = min(best, thread_time() - began)
        return best

    costs = {name: await cost(head) for name, head in heads.items()}
    short = costs["short"]
    assert all(one < short * 4 + 0.002 for one in costs.values()), costs


@with_door()
async def test_json_in_every_place_stays_json(place: Place, silent_log: None) -> None:
    """What a page gets to read is never taken for HTML: types are said, and texts do not leave their place."""
    text = "</script><script>alert(1)</script>\u2028\x00"
    told = await place.post(
        "/request/greeters", json.dumps(text).encode(), {**place.bearer, "content-type": "application/json"}
    )
    assert (told.headers["content-type"], told.json()) == ("application/json", text)
    for path in ("/request/%3Cscript%3E", "/%3Cscript%3E", "/request/greeters?%3Cscript%3E=1", "/publish/%3Cb%3E"):
        told = await place.post(path, b"x")
        assert told.headers["content-type"] == "application/problem+json"
        json.loads(told.body)
