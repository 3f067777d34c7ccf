"""``iris survey`` and ``iris broadcast``: every member is reached, and who is missing is named."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import trio

import iris
from tests.support.desk import Desk

HEXADECIMAL = set("0123456789abcdef")


@pytest.fixture
def boards(desk: Desk) -> Desk:
    """A desk beside three members of ``boards``; of ``one-fails`` the first fails, of ``one-hangs`` it hangs."""
    desk.service, desk.members = service, _ = iris.Service("boards"), 3
    turns = itertools.count()

    @service.request
    async def answer(request: iris.Request) -> object:
        return request.payload

    @service.request("one-fails")
    async def fail_first(request: iris.Request) -> object:
        if next(turns) == 0:
            raise iris.RemoteError("dark", "no\npower")
        return request.payload

    @service.request("one-hangs")
    async def hang_first(request: iris.Request) -> object:
        if next(turns) == 0:
            await trio.sleep_forever()
        return request.payload

    return desk


def test_each_answer_is_a_line_with_its_member(boards: Desk) -> None:
    done = boards.run("survey", "boards", "ready?")
    lines = done.out.decode().splitlines()
    assert (done.status, done.err) == (0, "")
    assert [line[32:] for line in lines] == [" ready?"] * 3
    members = {line[:32] for line in lines}
    assert len(members) == 3
    assert all(set(member) <= HEXADECIMAL for member in members)


def test_scripts_get_an_object_for_each_answer_and_one_for_the_end(boards: Desk) -> None:
    done = boards.run("survey", "boards", "[1]", "--json-payload", "--json")
    *answers, summary = map(json.loads, done.out.splitlines())
    assert [answer.keys() for answer in answers] == [{"member", "payload"}] * 3
    assert [answer["payload"] for answer in answers] == [[1]] * 3
    assert summary == {"answers": 3, "expected": 3, "missing": {}}


def test_bytes_are_marked_in_json_and_readable_without(boards: Desk) -> None:
    done = boards.run("survey", "boards", "-", "--json", given=b"\xff")
    answer, *_ = map(json.loads, done.out.splitlines())
    assert (answer["payload"], answer["encoding"]) == ("/w==", "base64")
    assert boards.run("survey", "boards", "-", given=b"\xff").out.count(b" base64:/w==\n") == 3


def test_a_member_whose_handler_fails_is_missing_with_the_reason_and_the_status_is_1(boards: Desk) -> None:
    done = boards.run("survey", "boards", "--operation", "one-fails", "--timeout", "5")
    assert done.status == 1
    assert len(done.out.splitlines()) == 2
    member = done.err.removeprefix("iris: ")[:32]
    assert done.err == f"iris: {member} is missing: dark: no power\n"
    assert member.encode() not in done.out


def test_a_member_that_does_not_answer_in_time_is_missing_and_the_status_is_1(boards: Desk) -> None:
    done = boards.run("survey", "boards", "--operation", "one-hangs", "--timeout", "0.2", "--json")
    *answers, summary = map(json.loads, done.out.splitlines())
    assert done.status == 1
    assert len(answers) == summary["answers"] == 2
    ((member, reason),) = summary["missing"].items()
    assert member not in {answer["member"] for answer in answers}
    assert done.err == f"iris: {member} is missing: {reason}\n"


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["survey", "nobody", "x"], 1, "no reachable member serves the cluster 'nobody'"),
        (["survey", "bad name", "x"], 2, "'bad name' is not a cluster name"),
        (["survey", "boards", "@big"], 1, "payload of 1048577 bytes: the limit is 1048576"),
        (
            ["survey", "boards", "--timeout", "nan"],
            2,
            "Invalid value for '--timeout': 'nan' is not a finite number (see",
        ),
        (["survey", "boards", "--timeout", "-1"], 2, "'--timeout': -1.0 is not in the range x>0"),
        (["survey", "boards", "--header", "x"], 2, "'x' is not a header: write NAME=VALUE"),
        (["broadcast", "nobody", "x"], 1, "no reachable member serves the cluster 'nobody'"),
        (["broadcast", "bad name", "x"], 2, "'bad name' is not a cluster name"),
        (["broadcast", "boards", "@big"], 1, "payload of 1048577 bytes: the limit is 1048576"),
        (["broadcast", "boards", "{", "--json-payload"], 2, "the payload is not JSON: Expecting property name"),
        (["broadcast", "boards", "--header", f"a={'x' * 9000}"], 1, "1 headers of 9001 bytes"),
        (["broadcast"], 2, "Missing argument 'CLUSTER' (see iris broadcast --help)"),
        (["broadcast", "boards", "x", "y"], 2, "Got unexpected extra argument (y) (see iris broadcast --help)"),
    ],
)
def test_what_cannot_be_asked_or_told_is_one_line(
    boards: Desk, arguments: list[str], status: int, complaint: str
) -> None:
    Path("big").write_bytes(bytes(1024 * 1024 + 1))
    done = boards.run(*arguments)
    assert complaint in done.complaint
    assert done.status == status


def test_a_broadcast_reaches_every_member_with_its_headers_and_prints_nothing(desk: Desk) -> None:
    desk.service, desk.members = service, members = iris.Service("boards"), 3
    told: list[tuple[object, dict[str, str], str]] = []
    all_told = trio.Event()

    @service.broadcast
    async def show(message: iris.Message) -> None:
        told.append((message.payload, dict(message.headers), message.sender.cluster))
        if len(told) == members:
            all_told.set()

    # The verb ends when the message is on its way, and the members with it: one of them keeps the network open.
    async def wait_told(node: iris.Node) -> None:
        with trio.CancelScope(shield=True), trio.fail_after(60):
            await all_told.wait()

    desk.company = wait_told
    done = desk.run("broadcast", "boards", '{"gate": "B2"}', "--json-payload", "--header", "h=1")
    assert (done.status, done.out, done.err) == (0, b"", "")
    assert told == [({"gate": "B2"}, {"h": "1"}, "local")] * 3
