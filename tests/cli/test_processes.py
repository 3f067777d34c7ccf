"""Behaviour that only a real process shows: no traceback, logs, pipes that close, members that die, rights to call."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from iris.cli.main import run_command
from tests.support.command import COMMAND, PATIENCE, Terminal, interrupt, open_terminal
from tests.support.ports import free_port

APP = """
import os, signal
import iris, trio

store = iris.Service("store")

@store.request
async def give_back(request: iris.Request) -> object:
    return request.payload

@store.request("die")
async def die(request: iris.Request) -> object:
    os.kill(os.getpid(), signal.SIGKILL)

@store.request("slow")
async def slow(request: iris.Request) -> object:
    print("begun", flush=True)
    await trio.sleep(1)
    return request.payload

@store.request("stuck")
async def stuck(request: iris.Request) -> object:
    print("begun", flush=True)
    await trio.sleep_forever()

@store.tunnel
async def half(tunnel: iris.Tunnel) -> None:
    await tunnel.send(b"half of it")
    await tunnel.receive()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def terminal() -> Generator[Terminal]:
    with open_terminal() as opened:
        (opened.directory / "app.py").write_text(APP)
        yield opened


def complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode != 0
    assert done.stderr.startswith(b"iris: "), done.stderr
    assert done.stderr.count(b"\n") == 1, done.stderr
    return done.stderr.decode()


def test_the_member_that_dies_of_a_request_is_told_in_one_line(terminal: Terminal) -> None:
    with terminal.started("run", "app:store", announces="serves store") as member:
        done = terminal.run("request", "store", "--operation", "die", "--timeout", "20")
        assert "store" in complaint(done)
        assert member.wait(PATIENCE) == -9


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_member_that_is_told_to_end_answers_what_it_has_begun(terminal: Terminal, number: signal.Signals) -> None:
    with (
        terminal.started("run", "app:store", announces="serves store") as member,
        terminal.started("request", "store", "hello", "--operation", "slow", "--timeout", "20") as asker,
    ):
        assert member.stdout is not None
        assert member.stdout.readline() == b"begun\n"
        assert interrupt(member, number) == 0
        out, said = asker.communicate(timeout=PATIENCE)
        assert (asker.returncode, out, said) == (0, b"hello\n", b"")
        assert member.stderr is not None
        assert member.stderr.read() == b"iris: 1 at work: leaving within 5 s; interrupt again to leave at once\n"


def test_a_second_signal_ends_a_member_at_once(terminal: Terminal) -> None:
    with (
        terminal.started("run", "app:store", "--drain-timeout", "600", announces="serves store") as member,
        terminal.started("request", "store", "--operation", "stuck", "--timeout", "600"),
    ):
        assert member.stdout is not None
        assert member.stderr is not None
        assert member.stdout.readline() == b"begun\n"
        member.send_signal(signal.SIGTERM)
        assert member.stderr.readline().startswith(b"iris: 1 at work")
        assert interrupt(member, signal.SIGTERM) == 143, "its handler would take ten minutes"


def test_what_does_not_end_within_the_drain_time_is_cut_off(terminal: Terminal) -> None:
    with (
        terminal.started("run", "app:store", "--drain-timeout", "0.5", announces="serves store") as member,
        terminal.started("request", "store", "--operation", "stuck", "--timeout", "20") as asker,
    ):
        assert member.stdout is not None
        assert member.stdout.readline() == b"begun\n"
        assert interrupt(member, signal.SIGTERM) == 0
        _, said = asker.communicate(timeout=PATIENCE)
        assert asker.returncode == 1
        assert b"left the cluster 'store' while the request ran" in said


def test_a_tunnel_whose_member_dies_is_an_error_and_no_silent_truncation(terminal: Terminal) -> None:
    with terminal.started("run", "app:store", announces="serves store") as member:
        done = terminal.run("tunnel", "store", given=b"x" * 1000)
        assert complaint(done)
        assert done.returncode == 1
        assert done.stdout == b"half of it"
        assert member.wait(PATIENCE) == -9


def test_realms_do_not_hear_each_other_and_a_stranger_is_told_so(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(terminal.directory)
    for realm in ("one", "other"):
        assert run_command(["keys", "realm", f"{realm}.key"]) == 0
        assert run_command(["keys", "cluster", f"{realm}.key", "store", "--out", f"{realm}.iris"]) == 0
    url = f"tcp://127.0.0.1:{free_port()}"
    listening = ("--credential", "one.iris", "--listen", url)
    with terminal.started("run", "app:store", *listening, announces="serves store at") as member:
        own = terminal.run("request", "store", "hello", "--credential", "one.iris", "--seeds", url)
        assert (own.returncode, own.stdout) == (0, b"hello\n"), own.stderr
        stranger = terminal.run("request", "store", "hello", "--credential", "other.iris", "--seeds", url)
        assert stranger.returncode == 2
        assert stranger.stdout == b""
        (error,) = stranger.stderr.decode().splitlines()
        assert "other.iris" in error
        assert "gate secret" in error
        assert interrupt(member) == 0


def test_a_reader_who_has_seen_enough_ends_the_command_quietly(terminal: Terminal) -> None:
    with terminal.started("run", "app:store", announces="serves store"):
        subscriber = subprocess.Popen(
            [*COMMAND, "sub", "a"],
            cwd=terminal.directory,
            env=terminal.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with subscriber:
            assert subscriber.stderr is not None
            assert subscriber.stdout is not None
            assert subscriber.stderr.readline() == b"iris: subscribed to a\n"
            subscriber.stdout.close()
            assert terminal.run("pub", "a", "--lines", given=b"1\n2\n3\n").returncode == 0
            assert subscriber.stderr.read() == b""
            assert subscriber.wait(PATIENCE) == 1


def test_a_full_disk_under_the_output_is_one_line(terminal: Terminal) -> None:
    with terminal.started("run", "app:store", announces="serves store"), Path("/dev/full").open("wb") as full:
        assert terminal.run("keys", "realm", "realm.key").returncode == 0
        assert terminal.run("keys", "cluster", "realm.key", "store", "--out", "store.iris").returncode == 0
        show, ask = ["keys", "show", "store.iris"], ["request", "store", "text", "--timeout", "20"]
        for arguments in (show, ask, ["sub", ">", "--count", "1"]):
            with subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=terminal.directory,
                env=terminal.environment,
                stdout=full,
                stderr=subprocess.PIPE,
            ) as process:
                try:
                    while arguments[0] == "sub" and process.poll() is None:
                        terminal.run("pub", "topic", "event")
                    _, said = process.communicate(timeout=PATIENCE)
                finally:
                    process.kill()
            lines = [line for line in said.splitlines() if line != b"iris: subscribed to >"]
            assert (process.returncode, lines) == (1, [b"iris: No space left on device"]), arguments


def test_verbose_tells_what_goes_on_and_standard_output_stays_clean(terminal: Terminal) -> None:
    with terminal.started("run", "app:store", announces="serves store"):
        runs = [terminal.run(*verbose, "request", "store", "hello") for verbose in ((), ("-v",), ("-vv",))]
    assert {run.stdout for run in runs} == {b"hello\n"}
    quiet, one, two = (run.stderr.decode().splitlines() for run in runs)
    assert quiet == []
    node, realm = one
    assert re.fullmatch(r"iris: node [0-9a-f]{32} of cluster local at ipc://.+", node)
    assert re.fullmatch(r"iris: realm [0-9a-f]{32}; nodes linked: 1; clusters: store", realm)
    counters = two[2:]
    assert [line for line in counters if line.startswith("iris: requests: ") and "sent=1, answered=1" in line]
    assert all(line.startswith("iris: ") for line in counters)


@pytest.mark.parametrize("verb", ["request", "bridge", "demo"])
def test_help_needs_neither_spark_nor_the_data_of_the_demo(verb: str) -> None:
    program = f"""
import sys
from iris.cli.main import run_command
assert run_command([{verb!r}, "--help"]) == 0
print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"Usage: iris {verb} ")
    imported = {name.partition(".")[0] for name in done.stderr.split()}
    assert "iris" in imported
    assert not imported & {"pyspark", "pyarrow", "pandas", "lmdb", "rich"}
