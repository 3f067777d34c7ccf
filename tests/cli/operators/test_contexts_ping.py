"""``iris context``, ``iris ping``, ``-v`` anywhere and mistyped verbs, as people type them."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from iris.cli.main import MISUSED
from tests.support.command import PATIENCE, Terminal, open_terminal
from tests.support.desk import Desk
from tests.support.store_realm import open_store_realm


def _lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def _error(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode != 0
    return done.stderr.decode()


def _credential(terminal: Terminal) -> Path:
    _lines(terminal.run("keys", "realm", "realm.key"))
    _lines(terminal.run("keys", "cluster", "realm.key", "ops", "--out", "ops.iris", "--serve", "iris.nodes"))
    return terminal.directory / "ops.iris"


@pytest.mark.parametrize("wait", [(), ("--wait", "60")])
def test_a_cluster_of_another_realm_is_not_pinged_and_nothing_is_waited_for(desk: Desk, wait: tuple[str, ...]) -> None:
    done = desk.run("ping", "acme/prices", *wait)
    assert done.status == MISUSED
    assert done.complaint.startswith("'iris ping' asks nodes of this site, and realm 'acme' is another one")


def test_ping_reaches_every_member_of_a_cluster_and_one_node_by_how_its_id_begins() -> None:
    with open_terminal() as terminal, open_store_realm(terminal, 2, 0):
        done = _lines(terminal.run("ping", "store", "--count", "2", "--interval", "0.1", "-o", "json"))
        rounds = [line for line in map(json.loads, done) if "round" in line]
        summaries = [line for line in map(json.loads, done) if "sent" in line]
        assert [line["round"] for line in rounds] == [1, 1, 2, 2]
        assert all(0 < line["round_trip"] < 60 for line in rounds)
        assert {(line["sent"], line["answered"]) for line in summaries} == {(2, 2)}
        node = summaries[0]["node"]
        head, *_, last = _lines(terminal.run("ping", node[:12], "--count", "1"))
        assert head == "node\tround\tround trip"
        assert last.startswith(f"{node}\t1/1 answered\tmin ")
        assert "nobody serves nothing" in _error(terminal.run("ping", "nothing"))


def test_a_context_stands_for_options_that_are_not_given() -> None:
    with open_terminal() as terminal:
        assert _lines(terminal.run("context", "list")) == []
        assert not (terminal.directory.parent / "home" / "contexts").exists()
        assert "no context" in _error(terminal.run("context", "use", "prod"))
        _lines(terminal.run("context", "add", "prod", "--seeds", "tcp://127.0.0.1:9", "--site", "berlin"))
        _lines(terminal.run("context", "add", "test"))
        assert "exists already" in _error(terminal.run("context", "add", "test"))
        assert _lines(terminal.run("context", "list")) == ["  prod", "  test"]
        _lines(terminal.run("context", "use", "prod"))
        assert _lines(terminal.run("context", "list")) == ["* prod", "  test"]
        shown = json.loads(_lines(terminal.run("context", "show", "-o", "json"))[0])
        assert shown == {"name": "prod", "credential": None, "seeds": ["tcp://127.0.0.1:9"], "site": "berlin"}
        terminal.environment["IRIS_CONTEXT"] = "test"
        assert _lines(terminal.run("context", "list")) == ["  prod", "* test"]
        terminal.environment["IRIS_CONTEXT"] = "missing"
        assert "there is no context 'missing'" in _error(terminal.run("nodes"))
        del terminal.environment["IRIS_CONTEXT"]
        _lines(terminal.run("context", "remove", "prod"))
        assert _lines(terminal.run("context", "list")) == ["  test"]
        assert "no context is in use" in _error(terminal.run("context", "show"))


def test_a_malformed_context_is_one_error_that_says_what_to_do() -> None:
    with open_terminal() as terminal:
        _lines(terminal.run("context", "add", "prod"))
        file = terminal.directory.parent / "home" / "contexts" / "prod.json"
        for content in ('{"seeds": 1}', "[", "[[]]", '{"credential": 1, "seeds": [], "site": null}'):
            file.write_text(content)
            terminal.environment["IRIS_CONTEXT"] = "prod"
            assert "malformed; remove it and add it again" in _error(terminal.run("nodes"))
        assert "is not a context name" in _error(terminal.run("context", "show", "../prod"))


def test_what_no_node_could_use_is_not_kept_and_what_is_malformed_can_be_removed() -> None:
    with open_terminal() as terminal:
        assert "nonsense' is not an address" in _error(terminal.run("context", "add", "p", "--seeds", "nonsense"))
        assert "is not a site name" in _error(terminal.run("context", "add", "p", "--site", "bad site"))
        assert _lines(terminal.run("context", "list")) == []
        _lines(terminal.run("context", "add", "p"))
        assert "give --replace" in _error(terminal.run("context", "add", "p"))
        home = terminal.directory.parent / "home" / "contexts"
        for text in ('{"credential": null, "seeds": "tcp://a:1", "site": null}', r'{"seeds": ["\ud800"]}', "\0"):
            (home / "p.json").write_text(text)
            assert "malformed" in _error(terminal.run("context", "show", "p"))
        (home / "bad name.json").touch()
        (home / "two\nlines.json").touch()
        assert _lines(terminal.run("context", "list")) == ["  p"]
        _lines(terminal.run("context", "remove", "p"))
        assert _lines(terminal.run("context", "list")) == []
        assert "there is no context 'p'" in _error(terminal.run("context", "remove", "p"))


def test_verbs_take_credential_and_seeds_from_the_context_in_use() -> None:
    with open_terminal() as terminal:
        credential = _credential(terminal)
        _lines(terminal.run("context", "add", "prod", "--credential", str(credential)))
        _lines(terminal.run("context", "use", "prod"))
        done = terminal.run("nodes", "-v")
        assert "of cluster ops at" in done.stderr.decode()
        credential.unlink()
        assert str(credential) in _error(terminal.run("nodes"))


def test_a_mistyped_verb_is_told_the_nearest_one() -> None:
    with open_terminal() as terminal:
        assert "did you mean 'nodes'?" in _error(terminal.run("ndoes"))
        assert "did you mean" not in _error(terminal.run("xyzzy"))


def test_verbose_stands_anywhere_on_the_command_line() -> None:
    with open_terminal() as terminal:
        for arguments in (("-v", "nodes"), ("nodes", "-v"), ("nodes", "--verbose"), ("nodes", "store", "-vv")):
            assert "iris: node " in terminal.run(*arguments).stderr.decode(), arguments
        assert terminal.run("request", "store", "--", "-v").stderr.count(b"iris: node ") == 0


def test_clusters_and_nodes_have_one_option_for_output() -> None:
    with open_terminal() as terminal, open_store_realm(terminal, 2, 1):
        assert _lines(terminal.run("clusters")) == ["cluster\tmembers\tsuspected\tdraining\tsites", "store\t2\t0\t0\t-"]
        (line,) = _lines(terminal.run("clusters", "-o", "json"))
        assert json.loads(line) == {"cluster": "store", "members": 2, "suspected": 0, "draining": 0, "sites": [""]}
        with_o = [json.loads(line) for line in _lines(terminal.run("nodes", "store", "-o", "json"))]
        assert [member["speaks_for"] for member in with_o] == ["store", "store"]


def test_an_event_is_printed_with_the_time_when_it_came() -> None:
    with open_terminal() as terminal:
        with terminal.started("sub", "a.>", "--count", "1", "--timestamps", announces="subscribed to a.>") as sub:
            _lines(terminal.run("pub", "a.b", "x"))
            out, _ = sub.communicate(timeout=PATIENCE)
        came, topic, payload = out.decode().split()
        assert datetime.fromisoformat(came).tzinfo == UTC
        assert (topic, payload) == ("a.b", "x")
