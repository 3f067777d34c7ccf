"""``iris bench`` as people run it: alone, and as two ends."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator

import pytest

from tests.support.command import Terminal, interrupt, open_terminal


@pytest.fixture
def terminal() -> Generator[Terminal]:
    with open_terminal() as opened:
        yield opened


def members_running(terminal: Terminal) -> int:
    """Return how many members of a swarm run that were started at this terminal."""
    mark = f"TERMINAL_OF_TEST={terminal.directory.parent} "
    table = subprocess.run(["ps", "axeww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    return sum("iris.bench.service" in line and mark in f"{line} " for line in table.splitlines())


def test_alone_it_starts_both_ends_and_leaves_nothing(terminal: Terminal) -> None:
    done = terminal.run("bench", "--case", "request-1", "--case", "handshake", "--seconds", "0.1", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    said = json.loads(done.stdout)
    assert [result["case"] for result in said["results"]] == ["request-1/p50", "request-1/p99", "handshake/rate"]
    assert said["run"]["members"] == 1
    assert not members_running(terminal)
    assert not (terminal.directory.parent / "home").exists(), "the user's own realm is not touched"


def test_two_ends_find_each_other_by_the_name_of_a_cluster(terminal: Terminal) -> None:
    with terminal.started("bench", "--serve", "--cluster", "speed", announces="iris bench --to speed") as server:
        arguments = ("--case", "publish-100", "--case", "tunnel-64k", "--seconds", "0.1", "--rounds", "1")
        done = terminal.run("bench", "--to", "speed", *arguments)
        assert (done.returncode, done.stderr) == (0, b"")
        lines = done.stdout.decode().splitlines()
        assert [line.split()[-1] for line in lines[1:]] == ["msg/s", "msg/s", "MiB/s", "MiB/s"]
        assert interrupt(server) == 0


def test_interrupted_it_ends_with_status_130_and_its_members(terminal: Terminal) -> None:
    with terminal.started("-v", "bench", "--seconds", "60", "--case", "request-1") as client:
        while not members_running(terminal):
            assert client.poll() is None
        assert interrupt(client) == 130
        assert client.stderr is not None
        assert b"Traceback" not in client.stderr.read()
    assert not members_running(terminal)
