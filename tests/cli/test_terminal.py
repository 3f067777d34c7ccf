"""Text from peers does not command the terminal of the caller: each verb that shows it, on one."""

from __future__ import annotations

import sys

import pytest

import iris
from tests.support.desk import Desk

HOSTILE = "\x1b]52;c;Zm9v\x07\x9b2J\u202e"
CONTROLS = ("\x1b", "\x07", "\x9b", "\u202e")


def store() -> iris.Service:
    service = iris.Service("store")

    @service.request
    async def answer(request: iris.Request) -> object:
        if request.payload == "fail":
            raise iris.RemoteError("broken", HOSTILE)
        return HOSTILE

    @service.tunnel
    async def talk(tunnel: iris.Tunnel) -> None:
        await tunnel.send(HOSTILE.encode())
        await tunnel.send(HOSTILE)

    return service


@pytest.mark.parametrize("verb", ["request", "survey", "tunnel"])
def test_what_a_member_says_is_escaped_on_a_terminal_and_raw_in_a_pipe(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    desk.service = store()
    assert HOSTILE in desk.run(verb, "store").out.decode()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = desk.run(verb, "store").out.decode()
    assert r"\x1b]52;c;Zm9v\x07\x9b2J\u202e" in shown
    assert not [control for control in CONTROLS if control in shown]


def test_events_are_escaped_on_a_terminal(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def publish(node: iris.Node) -> None:
        await node.retain("orders.created", HOSTILE + "\norders.created forged")

    desk.service, desk.company = store(), publish
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    (line,) = desk.run("sub", "orders.>", "--count", "1").out.decode().splitlines()
    assert line == r"orders.created \x1b]52;c;Zm9v\x07\x9b2J\u202e\norders.created forged"


def test_the_text_of_an_error_is_escaped(desk: Desk) -> None:
    desk.service = store()
    complaint = desk.run("request", "store", "fail").complaint
    assert "broken" in complaint
    assert not [control for control in CONTROLS if control in complaint]
