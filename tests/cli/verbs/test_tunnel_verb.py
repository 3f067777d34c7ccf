"""``iris tunnel``: standard input goes in, what comes back goes out, and it ends when both sides have ended."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable

import pytest

import iris
from tests.support.desk import Desk

Talk = Callable[[iris.Tunnel], Awaitable[None]]


def serve(desk: Desk, talk: Talk, name: str | None = None) -> None:
    """Let a member of ``store`` talk like this."""
    desk.service = desk.service or iris.Service("store")
    if name is None:
        desk.service.tunnel(talk)
    else:
        desk.service.tunnel(name)(talk)


async def echo(tunnel: iris.Tunnel) -> None:
    async for payload in tunnel:
        await tunnel.send(payload)


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 1_000_000])
def test_bytes_come_back_as_they_went_in(desk: Desk, size: int) -> None:
    data = random.Random(size).randbytes(size)
    serve(desk, echo)
    done = desk.run("tunnel", "store", given=data)
    assert (done.status, done.err) == (0, "")
    assert done.out == data


def test_an_answer_that_comes_after_the_end_of_the_input_is_written(desk: Desk) -> None:
    async def digest(tunnel: iris.Tunnel) -> None:
        found = hashlib.sha256()
        async for piece in tunnel:
            found.update(piece)
        await tunnel.send(found.hexdigest())

    serve(desk, digest)
    data = b"x" * 300_000
    assert desk.run("tunnel", "store", given=data).out == hashlib.sha256(data).hexdigest().encode() + b"\n"


def test_values_are_lines_and_bytes_are_as_they_are(desk: Desk) -> None:
    async def tell(tunnel: iris.Tunnel) -> None:
        for payload in ("text", {"a": [1, b"\xff"]}, b"\xff", None):
            await tunnel.send(payload)

    serve(desk, tell)
    assert desk.run("tunnel", "store").out == b'text\n{"a": [1, "base64:/w=="]}\n\xffnull\n'


def test_the_operation_chooses_the_handler(desk: Desk) -> None:
    async def other(tunnel: iris.Tunnel) -> None:
        await tunnel.send(b"the other one")

    serve(desk, echo)
    serve(desk, other, "other")
    assert desk.run("tunnel", "store", "--operation", "other").out == b"the other one"


def test_a_handler_that_has_heard_enough_does_not_cut_off_what_it_said(desk: Desk) -> None:
    async def take_one(tunnel: iris.Tunnel) -> None:
        await tunnel.send(await tunnel.receive())

    serve(desk, take_one)
    assert desk.run("tunnel", "store", given=b"hello").out == b"hello"


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["nobody"], 1, "no reachable member serves the cluster 'nobody'"),
        (["bad name"], 2, "'bad name' is not a cluster name"),
        (["store", "--operation", "absent"], 1, "no_such_operation: cluster 'store' does not serve"),
        (["store", "--timeout", "0"], 2, "'--timeout': 0.0 is not in the range x>0 (see iris tunnel --help)"),
        (["store", "extra"], 2, "Got unexpected extra argument (extra) (see iris tunnel --help)"),
    ],
)
def test_a_tunnel_that_cannot_be_opened_is_one_line(
    desk: Desk, arguments: list[str], status: int, complaint: str
) -> None:
    serve(desk, echo)
    done = desk.run("tunnel", *arguments, given=b"data")
    assert complaint in done.complaint
    assert done.status == status


def test_a_handler_that_fails_ends_it_with_one_line(desk: Desk) -> None:
    async def fail(tunnel: iris.Tunnel) -> None:
        await tunnel.receive()
        raise ValueError("disk full")

    serve(desk, fail)
    done = desk.run("tunnel", "store", given=b"data")
    assert done.status == 1
    assert "store" in done.complaint
