"""``iris nodes``: who is here, in three forms, and what changes."""

from __future__ import annotations

import io
import json
import signal
import sys
from typing import cast

import pytest
import trio
from msgspec import structs

import iris
from iris.cluster.membership.roster import Change, Member, Watch
from iris.kernel.names import NodeId
from tests.support.desk import Desk

ONE = Member(
    node=NodeId("1" * 32),
    speaks_for="store",
    site="berlin",
    addresses=("tcp://127.0.0.1:7000", "ipc:///run/one"),
    status="alive",
    queue_delay=0.25,
)
TWO = Member(node=NodeId("2" * 32), speaks_for="store", site="", addresses=(), status="suspected")


@pytest.fixture
def crowd(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk whose nodes see two members of ``store`` and one of ``archive``."""
    seen: dict[str, tuple[Member, ...]] = {"archive": (TWO,), "store": (ONE, TWO)}

    def clusters(node: iris.Node) -> tuple[str, ...]:
        return tuple(seen)

    def members(node: iris.Node, cluster: str) -> tuple[Member, ...]:
        return seen.get(cluster, ())

    def nodes(node: iris.Node) -> tuple[()]:
        return ()

    monkeypatch.setattr(iris.Node, "clusters", clusters)
    monkeypatch.setattr(iris.Node, "members", members)
    monkeypatch.setattr(iris.Node, "nodes", nodes)
    return desk


def test_a_line_for_each_member_is_made_for_cut_and_awk(crowd: Desk) -> None:
    done = crowd.run("nodes")
    assert (done.status, done.err) == (0, "")
    assert [line.split("\t") for line in done.out.decode().splitlines()] == [
        ["cluster", "node", "site", "status", "addresses"],
        ["archive", "2" * 32, "-", "suspected", ""],
        ["store", "1" * 32, "berlin", "alive", "tcp://127.0.0.1:7000 ipc:///run/one"],
        ["store", "2" * 32, "-", "suspected", ""],
    ]


IDLE = iris.NodeInfo(
    node=NodeId("3" * 32), speaks_for="app", site="", addresses=("ipc:///run/three",), status="alive", clusters=()
)


def test_nodes_that_serve_nothing_come_last_unless_clusters_are_named(
    crowd: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nodes(node: iris.Node) -> tuple[iris.NodeInfo, ...]:
        return IDLE, structs.replace(IDLE, node=NodeId("1" * 32), clusters=("store",))

    monkeypatch.setattr(iris.Node, "nodes", nodes)
    _, *lines = crowd.run("nodes").out.decode().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["archive", "store", "store", "-"]
    assert lines[-1].split("\t") == ["-", "3" * 32, "-", "alive", "ipc:///run/three"]
    last = json.loads(crowd.run("nodes", "--json").out.splitlines()[-1])
    assert (last["cluster"], last["node"], last["speaks_for"]) == (None, "3" * 32, "app")
    assert "3" * 32 not in crowd.run("nodes", "store").out.decode()


def test_only_the_clusters_that_are_named_are_shown_in_that_order(crowd: Desk) -> None:
    done = crowd.run("nodes", "store", "archive")
    assert (done.status, done.err) == (0, "")
    assert [line.split("\t")[0] for line in done.out.decode().splitlines()] == ["cluster", "store", "store", "archive"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_cluster_that_nobody_serves_is_named_and_the_others_are_shown(crowd: Desk, options: list[str]) -> None:
    done = crowd.run("nodes", "nobody", "archive", "none", *options)
    assert (done.status, done.err) == (1, "iris: nobody serves nobody, none\n")
    assert done.out.count(b"\n") == 1 + (options == [])
    assert crowd.run("nodes", "nobody", *options).complaint == "nobody serves nobody"


def test_where_nobody_serves_a_cluster_the_nodes_are_shown(desk: Desk) -> None:
    done = desk.run("nodes")
    assert (done.status, done.err) == (0, "")
    assert [line.split("\t")[0] for line in done.out.decode().splitlines()] == ["cluster", "-"]


def test_json_has_every_field_of_a_member(crowd: Desk) -> None:
    first, *_ = map(json.loads, crowd.run("nodes", "store", "--json").out.splitlines())
    assert first == {
        "cluster": "store",
        "node": "1" * 32,
        "speaks_for": "store",
        "site": "berlin",
        "addresses": ["tcp://127.0.0.1:7000", "ipc:///run/one"],
        "status": "alive",
        "queue_delay": 0.25,
    }


def test_a_person_gets_a_table_with_an_address_in_each_line(crowd: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("TERM", "dumb"), ("COLUMNS", "160"), ("LINES", "50")):
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    heading, *rows = crowd.run("nodes", "store").out.decode().splitlines()
    assert heading.split() == ["cluster", "node", "site", "status", "addresses"]
    assert [row.split() for row in rows] == [
        ["store", "1" * 32, "berlin", "alive", "tcp://127.0.0.1:7000"],
        ["ipc:///run/one"],
        ["store", "2" * 32, "-", "suspected"],
    ]


def test_addresses_are_shown_as_they_are_and_command_no_terminal(crowd: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in brackets is no style, and a word between colons no picture."""
    odd = ("tcp://[fd00::1]:7000", "ws://here:smile:/iris", "ipc:///a\x1b]0;b\x07\x9b2J\u202e")

    def members(node: iris.Node, cluster: str) -> tuple[Member, ...]:
        return (structs.replace(ONE, addresses=odd),)

    monkeypatch.setattr(iris.Node, "members", members)
    for name, text in (("TERM", "dumb"), ("COLUMNS", "160"), ("LINES", "50")):
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, *rows = crowd.run("nodes", "store").out.decode().splitlines()
    assert [row.split()[-1] for row in rows] == [*odd[:2], r"ipc:///a\x1b]0;b\x07\x9b2J\u202e"]


def test_wide_has_more_columns(crowd: Desk) -> None:
    head, _, one, _ = (line.split("\t") for line in crowd.run("nodes", "-o", "wide").out.decode().splitlines())
    assert head == ["cluster", "node", "site", "status", "speaks for", "queue delay", "addresses"]
    assert one[3:6] == ["alive", "store", "250.0ms"]


def test_with_a_real_cluster_every_member_is_listed(desk: Desk) -> None:
    desk.service, desk.members = iris.Service("store"), 3
    members = [json.loads(line) for line in desk.run("nodes", "--json").out.splitlines()]
    assert len({member["node"] for member in members}) == 3
    assert {(member["cluster"], member["status"], member["speaks_for"]) for member in members} == {
        ("store", "alive", "company")
    }
    assert sorted(member["addresses"] for member in members) == [["mem://host-1"], ["mem://host-2"], ["mem://host-3"]]


@pytest.mark.parametrize("arguments", [["bad name"], ["--watch", "bad name"], ["store", "--json", "bad name"]])
def test_a_name_that_no_cluster_can_have_is_one_line(desk: Desk, arguments: list[str]) -> None:
    done = desk.run("nodes", *arguments)
    assert done.complaint.startswith("'bad name' is not a cluster name")
    assert done.status == 2


@pytest.fixture
def changing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk whose nodes see one member of ``store`` come and another die; interrupted once both are reported."""
    changes = [Change(kind="joined", cluster="store", member=ONE), Change(kind="lost", cluster="store", member=TWO)]

    async def follow(watch: Watch) -> Change:
        if changes:
            return changes.pop(0)
        captured = cast("io.BytesIO", sys.stdout.buffer)
        while b"suspected" not in captured.getvalue():  # noqa: ASYNC110 - a thread writes it
            await trio.sleep(0.001)
        signal.raise_signal(signal.SIGINT)
        return await trio.sleep_forever()

    monkeypatch.setattr(Watch, "__anext__", follow)
    return desk


def test_a_watch_tells_each_change_in_a_line(changing: Desk) -> None:
    done = changing.run("nodes", "store", "--watch")
    assert (done.status, done.err) == (0, "")
    assert [line.split("\t")[:3] for line in done.out.decode().splitlines()] == [
        ["change", "cluster", "node"],
        ["joined", "store", "1" * 32],
        ["lost", "store", "2" * 32],
    ]


def test_a_watch_in_json_names_the_change(changing: Desk) -> None:
    changes = [json.loads(line) for line in changing.run("nodes", "store", "--watch", "--json").out.splitlines()]
    assert [(change["change"], change["cluster"], change["status"]) for change in changes] == [
        ("joined", "store", "alive"),
        ("lost", "store", "suspected"),
    ]
