"""The door for nng: what REQ and SURVEYOR are answered."""

from __future__ import annotations

import asyncio
import json

import msgpack
import pynng

from iris.doors import grant, withdraw
from iris.doors.clients import ClientLimits
from tests.doors.nng.place import Place
from tests.support.doors import with_door

ANSWERS = [
    (b"greeters", b"200 bytes\n"),
    (b"greeters\n\x00\xff\n", b"200 bytes\n\x00\xff\n"),
    (b"greeters bytes\r\nx", b"200 bytes\nx"),
    ("greeters text\nWörld".encode(), "200 text\nWörld".encode()),
    (b'greeters json\n{"a": [1, null]}', b'200 json\n{"a":[1,null]}'),
    (b"greeters msgpack operation=square\n\x0c", b"200 json\n144"),
    (b"greeters json operation=square timeout=2.5\n12", b"200 json\n144"),
    (b"greeters operation=headers", b'200 json\n{"iris-client":"tools"}'),
    (b"greeters operation=nested", b"200 msgpack\n" + msgpack.packb({"bytes": b"\x00"})),
]

REFUSALS = [
    (b"", b"400 malformed", b"first line is empty"),
    (b"\nx", b"400 malformed", b"first line is empty"),
    (b"\xff\xfe", b"400 malformed", b"no UTF-8"),
    (b"x" * 3000, b"400 malformed", b"3000 bytes, and may have 2048"),
    (b"greeters xml\n<a/>", b"400 malformed", b"'xml' is no form of payload: there are bytes, text"),
    (b"greeters text\n\xff", b"400 malformed", b"the text is no UTF-8"),
    (b"greeters json\n{", b"400 malformed", b"this is no JSON"),
    (b"greeters msgpack\n\xc1", b"400 malformed", b"no MessagePack"),
    (b"greeters colour=red", b"400 malformed", b"'colour' is no option here"),
    (b"greeters timeout=1 timeout=2", b"400 malformed", b"stands twice"),
    (b"greeters timeout=soon", b"400 malformed", b"option timeout: expected a number, got 'soon'"),
    (b"greeters timeout=nan", b"400 malformed", b"expected a number"),
    (b"greeters timeout=51", b"400 malformed", b"50 s together at most"),
    (b"greeters timeout=30 wait=30", b"400 malformed", b"50 s together at most"),
    (b"greeters timeout=-1", b"400 malformed", b"50 s together at most"),
    (b"greeters idempotent=yes", b"400 malformed", b"expected true or false"),
    (b"greeters priority=highest", b"400 malformed", b"priority"),
    (b"not/a/cluster/at/all", b"403 not_allowed", b"may not call"),
    (b"nobody", b"404 no_such_cluster", b"'nobody'"),
    (b"greeters operation=nothing", b"404 no_such_operation", b"nothing"),
    (b"greeters json operation=square\ntrue", b"400 bad_request", b"expected int"),
    (b"greeters operation=fail", b"502 error", b"KeyError"),
    (b"greeters operation=never timeout=0.05", b"504 timeout", b""),
]


@with_door()
async def test_a_request_is_answered_in_the_form_that_its_reply_has(place: Place) -> None:
    for message, answer in ANSWERS:
        assert await place.ask(message) == answer


@with_door()
async def test_what_goes_wrong_is_told_by_a_number_a_word_and_a_text(place: Place) -> None:
    for message, line, text in REFUSALS:
        told, _, detail = (await place.ask(message)).partition(b"\n")
        assert told == line, message
        assert text in detail, message
    assert place.door.statistics().refused.total() == len(REFUSALS) == place.door.statistics().answered


@with_door(rights={"call": ("greeters",)})
async def test_a_client_may_ask_what_its_token_permits(place: Place) -> None:
    assert (await place.ask(b"greeters")).startswith(b"200")
    answer = await place.ask(b"door")
    assert answer == b"403 not_allowed\nclient tools may not call 'door'"


@with_door(patched={"iris.doors.clients._REREAD": 0.01})
async def test_nobody_asks_with_a_token_that_has_ended(place: Place) -> None:
    following = asyncio.ensure_future(place.clients.follow())
    withdraw(place.tokens, "tools")
    while (answer := await place.ask(b"greeters")).startswith((b"200", b"401 ended")):
        pass  # "ended" tells whom the withdrawal meets while it asks
    assert answer == b"401 no_such_client\nthere is no client tools, or its time is over"
    grant(place.tokens, "tools", call=("greeters",))
    while not (await place.ask(b"greeters")).startswith(b"200"):
        pass
    following.cancel()


@with_door()
async def test_a_survey_is_answered_once_with_what_all_say(place: Place) -> None:
    member = str(place.member.id)
    with await place.socket(pynng.Surveyor0, "surveyor", survey_time=30_000) as socket:

        async def survey(message: bytes) -> tuple[bytes, bytes]:
            await socket.asend(message)
            line, _, body = (await socket.arecv()).partition(b"\n")
            return line, body

        line, body = await survey(b"greeters text timeout=20\nhello")
        assert line == b"200 json"
        assert json.loads(body) == {
            "answers": [{"member": member, "payload": "hello"}], "ended_by": "all", "expected": 1,
            "missing": [], "errors": {},
        }  # fmt: skip
        line, body = await survey(b"greeters timeout=20\n\x00")
        assert json.loads(body)["answers"] == [{"member": member, "payload": "AA==", "encoding": "base64"}]
        line, body = await survey(b"greeters operation=fail timeout=20")
        told = json.loads(body)
        assert (line, told["missing"], told["errors"][member]["code"]) == (b"200 json", [member], "error")
        line, body = await survey(b"greeters operation=never timeout=0.1")
        assert (line, json.loads(body)["ended_by"]) == (b"200 json", "deadline")
        assert (await survey(b"nobody"))[0] == b"404 no_such_cluster"
        assert (await survey(b"greeters count=x"))[0] == b"400 malformed"
        await socket.asend(b"greeters operation=never")
        assert json.loads((await socket.arecv()).partition(b"\n")[2])["missing"] == [member]


@with_door()
async def test_what_is_larger_than_clients_take_is_told_instead(place: Place) -> None:
    with await place.socket(pynng.Req0, "req") as socket:
        await socket.asend(b"greeters\n" + bytes((1 << 20) - 20))
        assert len(await socket.arecv()) == (1 << 20) - 10
        await socket.asend(b"greeters\n" + bytes((1 << 20) - 9))
        assert (await socket.arecv()).startswith(b"413 too_large\nthe answer has 1048577 bytes")
    with await place.socket(pynng.Surveyor0, "surveyor", survey_time=20_000) as socket:
        await socket.asend(b"greeters timeout=10\n" + bytes(900_000))
        assert (await socket.arecv()).startswith(b"413 too_large\nthe answers of 1 members")


@with_door()
async def test_many_ask_at_a_time_and_one_that_goes_stops_its_request(place: Place) -> None:
    answers = await asyncio.gather(*(place.ask(b"greeters json\n%d" % number) for number in range(30)))
    assert answers == [b"200 json\n%d" % number for number in range(30)]
    async with place.dial("req") as raw:
        raw.ask(b"greeters operation=never timeout=50")
        await place.counted.working.wait()
    await place.until(lambda: place.counted.stopped)
    await place.until(lambda: place.door.statistics().given_up == 1)


@with_door(limits=ClientLimits(calls=1))
async def test_a_client_has_so_many_calls_at_a_time(place: Place) -> None:
    waiting = asyncio.ensure_future(place.ask(b"greeters operation=never timeout=1"))
    await place.counted.working.wait()
    assert (await place.ask(b"greeters")).startswith(b"429 too_many_calls retry_after=1\n")
    assert (await waiting).startswith(b"504 timeout")
    assert (await place.ask(b"greeters")).startswith(b"200")
