"""``iris state``: each verb in this process, beside a member that has the document."""

from __future__ import annotations

import json

import trio

import iris
from iris.cli.main import run_command
from tests.support.desk import Desk


def having(desk: Desk, **values: object) -> list[dict[str, object]]:
    """Have the first member open a document, and keep what is in it at the end."""
    seen: list[dict[str, object]] = []

    async def hold(node: iris.Node) -> None:
        async with node.state("prices") as state:
            for key, value in values.items():
                state[key.replace("_", ".")] = value
            try:
                await trio.sleep_forever()
            finally:
                seen.append(dict(state))

    desk.company = hold
    return seen


def test_a_value_and_all_values_are_printed(desk: Desk) -> None:
    having(desk, fx_eur=1.07, name="text", raw=b"\xff")
    assert desk.run("state", "get", "--wait", "5", "prices", "fx.eur").out == b"1.07\n"
    assert desk.run("state", "get", "--wait", "5", "prices", "raw").out == b"\xff"
    assert desk.run("state", "get", "--wait", "5", "prices").out == b"fx.eur 1.07\nname text\nraw base64:/w==\n"
    lines = desk.run("state", "get", "--wait", "5", "prices", "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"key": "fx.eur", "payload": 1.07},
        {"key": "name", "payload": "text"},
        {"key": "raw", "payload": "/w==", "encoding": "base64"},
    ]
    assert json.loads(desk.run("state", "get", "--wait", "5", "prices", "name", "--json").out) == {
        "key": "name",
        "payload": "text",
    }
    done = desk.run("state", "get", "--wait", "5", "prices", "absent")
    assert (done.status, done.complaint) == (1, "the document 'prices' has no key 'absent'")


def test_a_value_is_set_when_another_member_has_it(desk: Desk) -> None:
    seen = having(desk)
    assert desk.run("state", "set", "--wait", "5", "prices", "eur", "1.5", "--json-payload").status == 0
    assert desk.run("state", "set", "--wait", "5", "prices", "note", "-", given=b"bytes").status == 0
    assert seen == [{"eur": 1.5}, {"note": b"bytes"}]


def test_changes_are_followed(desk: Desk) -> None:
    having(desk, fx_eur=1, other=2, until="fx.eur")
    assert desk.run("state", "watch", "--wait", "5", "prices", "fx.*", "--count", "1").out in (
        b"fx.eur 1\n",
        b"fx.eur (removed)\n",
    )
    line = desk.run("state", "watch", "--wait", "5", "prices", "other", "--count", "1", "--json").out
    assert json.loads(line) == {"key": "other", "kind": "value", "payload": 2, "removed": False}


def test_where_nobody_has_the_document_there_is_none(desk: Desk) -> None:
    done = desk.run("state", "get", "prices")
    assert done.status == 1
    assert "no reachable member has the document 'prices'" in done.complaint


def test_the_group_says_what_its_verbs_do(desk: Desk) -> None:
    out = desk.run("state", "--help").out.decode()
    assert "Print the value of KEY" in out
    assert "needs the right to serve it" in " ".join(out.split())
    assert run_command(("state", "get")) == 2
