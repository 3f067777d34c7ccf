"""``iris trace`` as people type it; tests/federation/test_processes.py has it beside real gateways."""

from __future__ import annotations

import json

import iris
from tests.support.desk import Desk
from tests.support.federations import echo


def test_nobody_to_trace_is_one_line(desk: Desk) -> None:
    assert "store" in desk.run("trace", "store").complaint
    assert "a..b" in desk.run("trace", "a..b").complaint


def test_a_member_next_door_is_the_only_hop(desk: Desk) -> None:
    desk.service = echo("store")
    done = desk.run("trace", "store", "x", "-o", "json")
    found = json.loads(done.out)
    assert (done.status, found["error"], found["operation"]) == (0, None, None)
    assert [(hop["kind"], hop["node"]) for hop in found["hops"]] == [("member", found["member"])]
    assert json.loads(desk.run("trace", "store", "-o", "json").out)["operation"] == "iris.describe"


def test_no_reply_is_the_exit_status_and_the_way_is_shown_all_the_same(desk: Desk) -> None:
    service = iris.Service("store")

    @service.request
    def fail(_: iris.Request) -> None:
        raise iris.RemoteError("broken", "it is broken")

    desk.service = service
    done = desk.run("trace", "store", "x")
    assert done.status == 1
    assert "it is broken" in done.err
    assert done.out.splitlines()[0] == b"hop\tnode\tsite\tkind\tround trip"
