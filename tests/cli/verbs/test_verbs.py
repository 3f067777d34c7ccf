"""The verbs against real nodes, each in a process of its own."""

from __future__ import annotations

import json
import signal
from collections.abc import Generator
from contextlib import ExitStack

import pytest

from tests.support.command import PATIENCE, Terminal, interrupt, open_terminal

APP = """
import iris
import trio

databases = iris.Service("databases")

@databases.request
async def query(request: iris.Request) -> object:
    if request.payload == "fail":
        raise ValueError("no such row")
    return request.payload

@databases.request("sender")
async def sender(request: iris.Request) -> object:
    return {"cluster": request.sender.cluster, "headers": dict(request.headers)}

@databases.request("hang")
async def hang(request: iris.Request) -> object:
    print("asked", flush=True)
    try:
        await trio.sleep_forever()
    finally:
        print("cancelled", flush=True)

@databases.broadcast
async def flush(message: iris.Message) -> None:
    print("flushed", message.payload, flush=True)

@databases.tunnel
async def upper(tunnel: iris.Tunnel) -> None:
    async for payload in tunnel:
        await tunnel.send(payload.upper())
"""


@pytest.fixture(scope="module")
def terminal() -> Generator[Terminal]:
    with open_terminal() as opened:
        (opened.directory / "app.py").write_text(APP)
        yield opened


@pytest.fixture(scope="module")
def databases(terminal: Terminal) -> Generator[Terminal]:
    """A terminal in which one member of ``databases`` can be asked."""
    with terminal.started("run", "app:databases", announces="serves databases"):
        yield terminal


def test_a_request_prints_the_reply(databases: Terminal) -> None:
    done = databases.run("request", "databases", "hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hello\n", b"")


def test_bytes_from_standard_input_come_back_as_they_were(databases: Terminal) -> None:
    done = databases.run("request", "databases", "-", given=b"\x00\xff\n")
    assert (done.returncode, done.stdout) == (0, b"\x00\xff\n")


def test_operation_headers_and_json(databases: Terminal) -> None:
    done = databases.run("request", "databases", "--operation", "sender", "--header", "a=1", "--json")
    said = json.loads(done.stdout)
    assert said["payload"] == {"cluster": "local", "headers": {"a": "1"}}
    assert said["seconds"] > 0


def test_a_handler_that_fails_is_one_line(databases: Terminal) -> None:
    done = databases.run("request", "databases", "fail")
    assert done.returncode == 1
    assert done.stderr.startswith(b"iris: ")
    assert b"no such row" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_an_unknown_cluster_is_one_line(databases: Terminal) -> None:
    done = databases.run("request", "nobody", "hello")
    assert done.returncode == 1
    assert b"'nobody'" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_survey_prints_the_answer_of_each_member(databases: Terminal) -> None:
    done = databases.run("survey", "databases", "ready?", "--json")
    answer, summary = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 0
    assert answer["payload"] == "ready?"
    assert len(answer["member"]) == 32
    assert summary == {"answers": 1, "expected": 1, "missing": {}}


def test_nodes_lists_the_members_of_every_cluster(databases: Terminal) -> None:
    done = databases.run("nodes", "--json")
    (member,) = (json.loads(line) for line in done.stdout.splitlines())
    assert (member["cluster"], member["status"], member["speaks_for"]) == ("databases", "alive", "databases")


def test_a_tunnel_connects_standard_input_and_output(databases: Terminal) -> None:
    sent = b"abcdefgh" * 40_000
    done = databases.run("tunnel", "databases", given=sent)
    assert done.returncode == 0, done.stderr
    assert done.stdout == sent.upper()


def test_a_broadcast_arrives_and_an_interrupted_member_leaves_with_status_0(terminal: Terminal) -> None:
    with terminal.started("run", "app:databases", "--cluster", "others", announces="serves others") as member:
        assert terminal.run("broadcast", "others", "now").returncode == 0
        assert member.stdout is not None
        assert member.stdout.readline() == b"flushed now\n"
        assert interrupt(member) == 0
        assert terminal.run("request", "others").returncode == 1


def test_who_comes_before_the_first_member_waits_for_it(terminal: Terminal) -> None:
    asked = [
        ("request", "databases", "hello"),
        ("survey", "databases", "hello"),
        ("broadcast", "databases", "now"),
        ("tunnel", "databases"),
    ]
    with ExitStack() as stack:
        waiting = [stack.enter_context(terminal.started(*verb, "--wait", "60")) for verb in asked]
        stack.enter_context(terminal.started("run", "app:databases", announces="serves databases"))
        for process, verb in zip(waiting, asked, strict=True):
            _, said = process.communicate(timeout=PATIENCE)
            assert (process.returncode, said) == (0, b""), verb


def test_an_interrupted_request_has_status_130_and_stops_its_handler(terminal: Terminal) -> None:
    with (
        terminal.started("run", "app:databases", "--cluster", "slow", announces="serves slow") as member,
        terminal.started("request", "slow", "--operation", "hang", "--timeout", "60") as asker,
    ):
        assert member.stdout is not None
        assert asker.stderr is not None
        assert member.stdout.readline() == b"asked\n"
        assert interrupt(asker) == 130
        assert asker.stderr.read() == b""
        assert member.stdout.readline() == b"cancelled\n"


def test_events_reach_a_subscriber_which_ends_after_its_count(terminal: Terminal) -> None:
    with terminal.started("sub", "orders.*", "--count", "3", "--json", announces="subscribed to") as subscriber:
        assert terminal.run("pub", "orders.created", '{"id": 7}', "--json-payload").returncode == 0
        assert terminal.run("pub", "orders.lines", "--lines", given=b"one\ntwo\n").returncode == 0
        out, _ = subscriber.communicate(timeout=PATIENCE)
    events = [json.loads(line) for line in out.splitlines()]
    assert [(event["topic"], event["payload"]) for event in events] == [
        ("orders.created", {"id": 7}),
        ("orders.lines", "one"),
        ("orders.lines", "two"),
    ]
    assert {event["missed"] for event in events} == {0}
    assert subscriber.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_subscriber_that_is_interrupted_has_status_0(terminal: Terminal, number: signal.Signals) -> None:
    with terminal.started("sub", "any", announces="subscribed to") as subscriber:
        assert interrupt(subscriber, number) == 0


def test_a_seed_that_does_not_answer_is_told_in_one_line(terminal: Terminal) -> None:
    done = terminal.run("nodes", "--seeds", "tcp://127.0.0.1:1")
    assert done.returncode == 0
    assert done.stderr.startswith(b"iris: ")
    assert b"tcp://127.0.0.1:1" in done.stderr


def test_an_address_that_cannot_be_used_is_one_line(terminal: Terminal) -> None:
    for url in ("tcp://127.0.0.1:1x", "nonsense", "tcp://192.0.2.1:4000"):
        done = terminal.run("nodes", "--listen", url)
        assert done.returncode == 2
        assert done.stderr.startswith(b"iris: ")
        assert done.stderr.count(b"\n") == 1


def test_a_bridge_stores_events_and_says_how_many_when_it_is_interrupted(terminal: Terminal) -> None:
    unheard = terminal.run("pub", "orders.created", "lost", "--confirm")
    assert unheard.returncode == 1
    assert unheard.stderr.count(b"\n") == 1
    with terminal.started("bridge", "--topic", "orders.>", "--data", "log", announces="serves bridge") as bridge:
        for payload in ("one", "two"):
            done = terminal.run("pub", "orders.created", payload, "--confirm")
            assert done.returncode == 0, done.stderr
        assert terminal.run("pub", "invoices.created", "other").returncode == 0
        assert interrupt(bridge) == 0
        assert bridge.stderr is not None
        assert bridge.stderr.read() == b"iris: 2 events stored, 0 repeats left out, 0 missed\n"
