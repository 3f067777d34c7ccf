"""Keys that change while a member runs, with the commands of the manual; and the credentials that stay behind."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Generator

import pytest

from tests.support.command import PATIENCE, Terminal, open_terminal

APP = """
import iris

store = iris.Service("store")

@store.request
async def give_back(request: iris.Request) -> object:
    return request.payload
"""


@pytest.fixture
def terminal() -> Generator[Terminal]:
    with open_terminal() as opened:
        (opened.directory / "app.py").write_text(APP)
        yield opened


def keys(terminal: Terminal, *arguments: str) -> None:
    done = terminal.run("keys", *arguments)
    assert done.returncode == 0, done.stderr


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def ask(terminal: Terminal, credential: str, url: str) -> subprocess.CompletedProcess[bytes]:
    return terminal.run("request", "store", "hello", "--credential", credential, "--seeds", url)


def wait_refused(terminal: Terminal, credential: str, url: str) -> str:
    """Ask until one is turned away; return what is said then."""
    end = time.monotonic() + PATIENCE
    while (done := ask(terminal, credential, url)).returncode == 0:
        assert time.monotonic() < end, "it is let in still"
    return done.stderr.decode()


def test_the_gate_secret_is_rotated_by_the_commands_while_a_member_runs(terminal: Terminal) -> None:
    """Its file is wrapped, too."""
    terminal.environment["IRIS_PASSPHRASE"] = "correct horse"
    keys(terminal, "realm", "acme.realm")
    keys(terminal, "cluster", "acme.realm", "store", "--out", "store.iris")
    keys(terminal, "cluster", "acme.realm", "shop", "--out", "shop.iris")
    shutil.copy(terminal.directory / "shop.iris", terminal.directory / "stale.iris")
    url = f"tcp://127.0.0.1:{free_port()}"
    run = ("run", "app:store", "--credential", "store.iris", "--listen", url)
    with terminal.started(*run, announces="serves store"):
        for step in ("add", "use", "drop"):
            keys(terminal, "rotate", "acme.realm", step)
            keys(terminal, "refresh", "acme.realm", "store.iris", "shop.iris")
            done = ask(terminal, "shop.iris", url)
            assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
        said = wait_refused(terminal, "stale.iris", url)
        assert said.startswith("iris: credential stale.iris: "), said
        assert said.count("\n") == 1, said
        assert "refreshed" in said


def test_a_credential_of_another_realm_is_named_in_one_line_that_says_what_to_do(terminal: Terminal) -> None:
    for realm in ("ours", "theirs"):
        keys(terminal, "realm", f"{realm}.realm")
        keys(terminal, "cluster", f"{realm}.realm", "store", "--out", f"{realm}.iris")
    url = f"tcp://127.0.0.1:{free_port()}"
    with terminal.started(
        "run", "app:store", "--credential", "ours.iris", "--listen", url, announces="serves store"
    ) as member:
        done = ask(terminal, "theirs.iris", url)
        assert done.returncode == 2
        said = done.stderr.decode()
        assert said.startswith(f"iris: credential theirs.iris: the nodes at {url} are not of its realm"), said
        assert said.count("\n") == 1, said
        assert member.poll() is None
