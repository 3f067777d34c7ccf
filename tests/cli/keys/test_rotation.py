"""Keys that change while a member runs, with the commands of the manual; and the credentials that stay behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, final

import pytest

from tests.support.command import PATIENCE, Terminal, open_terminal
from tests.support.ports import free_port

APP = """
import iris

store = iris.Service("store")

@store.request
async def give_back(request: iris.Request) -> object:
    return request.payload
"""


LOAD = """
import json
import pathlib
import sys

import iris
import trio


async def ask(node: iris.Node, outcomes: list[str]) -> None:
    while True:
        try:
            await node.request("store", b"x", timeout=20.0)
            outcomes.append("")
        except iris.IrisError as error:
            outcomes.append(f"{type(error).__name__}: {error}")
        await trio.sleep(0.001)


async def main() -> None:
    outcomes: list[str] = []
    async with iris.open_node(credential="shop.iris", seeds=sys.argv[2:]) as node:
        await node.wait_for("store", int(sys.argv[1]), timeout=20.0)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(ask, node, outcomes)
            said = None
            while not pathlib.Path("stop").exists():
                members = [peer.identity for peer in node._mesh.peers.values() if peer.identity.cluster == "store"]
                known = {
                    "members": len(members),
                    "generation": min((member.certificate.generation for member in members), default=0),
                    "expires": min((member.expires for member in members), default=0),
                    "revocations": node._revoking.revocations.number,
                }
                if len(outcomes) >= 20 and known != said:
                    print(json.dumps(known), flush=True)
                    said = known
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
    print(json.dumps({"answered": outcomes.count(""), "failures": [text for text in outcomes if text][:3]}), flush=True)


trio.run(main)
"""
"""Four tasks that ask the cluster ``store`` all the while; it reports what its links to the members rest on."""


@final
class Load:
    """A process that asks without a pause, as long as the block lasts.  In the end no request may have failed."""

    def __init__(self, terminal: Terminal, members: int, urls: list[str]) -> None:
        self._terminal = terminal
        (terminal.directory / "load.py").write_text(LOAD)
        self._process = subprocess.Popen(
            [sys.executable, "load.py", str(members), *urls],
            cwd=terminal.directory,
            env=terminal.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self.answered = 0

    def __enter__(self) -> Self:
        return self

    def wait(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until ``what`` is true of what the process has seen last."""
        assert self._process.stdout is not None
        seen: list[bytes] = []
        timer = threading.Timer(PATIENCE, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                seen.append(line)
                known = json.loads(line)
                if what(known):
                    return dict(known)
        finally:
            timer.cancel()
        raise AssertionError(f"it did not come to that: {seen}")

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            if failed is None:
                (self._terminal.directory / "stop").touch()
                outcome = self.wait(lambda said: "answered" in said)
                assert outcome["failures"] == []
                assert outcome["answered"] > 100
                assert self._process.wait(PATIENCE) == 0
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


def replace(terminal: Terminal, fresh: str, file: str) -> None:
    (terminal.directory / fresh).replace(terminal.directory / file)


@pytest.fixture
def terminal() -> Generator[Terminal]:
    with open_terminal() as opened:
        (opened.directory / "app.py").write_text(APP)
        yield opened


def keys(terminal: Terminal, *arguments: str) -> None:
    done = terminal.run("keys", *arguments)
    assert done.returncode == 0, done.stderr


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


def test_the_key_of_a_cluster_is_rotated_by_the_commands_and_no_request_fails(terminal: Terminal) -> None:
    """Two members are asked all the while, and no request may run twice."""
    keys(terminal, "realm", "acme.realm")
    keys(terminal, "cluster", "acme.realm", "store", "--out", "store.iris")
    keys(terminal, "cluster", "acme.realm", "shop", "--out", "shop.iris")
    shutil.copy(terminal.directory / "store.iris", terminal.directory / "stolen.iris")
    urls = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    with ExitStack() as stack:
        for url in urls:
            run = ("run", "app:store", "--credential", "store.iris", "--listen", url)
            stack.enter_context(terminal.started(*run, announces="serves store"))
        load = stack.enter_context(Load(terminal, 2, urls))
        load.wait(lambda known: known["members"] == 2 and known["generation"] == 1)
        keys(terminal, "cluster", "acme.realm", "store", "--out", "next.iris")
        replace(terminal, "next.iris", "store.iris")
        load.wait(lambda known: known["members"] == 2 and known["generation"] == 2)
        keys(terminal, "revoke", "acme.realm", "--cluster", "store", "--below", "2", "--out", "list")
        realm = json.loads(terminal.run("keys", "show", "shop.iris", "--json").stdout)["realm"]
        replace(terminal, "list", str(Path(terminal.environment["IRIS_HOME"]) / "revocations" / realm))
        load.wait(lambda known: known["revocations"] == 1 and known["members"] == 2)
        assert ask(terminal, "stolen.iris", urls[0]).returncode != 0


def test_a_sealed_credential_is_renewed_by_the_commands_and_no_request_fails(terminal: Terminal) -> None:
    """Its delegation is about to end, and there is no other member that could answer meanwhile."""
    keys(terminal, "realm", "acme.realm")
    keys(terminal, "cluster", "acme.realm", "store", "--out", "store.iris")
    keys(terminal, "cluster", "acme.realm", "shop", "--out", "shop.iris")
    keys(terminal, "seal", "store.iris", "--out", "sealed.iris", "--days", "0.001")
    url = f"tcp://127.0.0.1:{free_port()}"
    run = ("run", "app:store", "--credential", "sealed.iris", "--listen", url)
    with terminal.started(*run, announces="serves store"), Load(terminal, 1, [url]) as load:
        ends = load.wait(lambda known: known["members"] == 1)["expires"]
        keys(terminal, "seal", "store.iris", "--out", "next.iris", "--previous", "sealed.iris", "--days", "1")
        replace(terminal, "next.iris", "sealed.iris")
        assert load.wait(lambda known: known["expires"] > ends)["members"] == 1


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


def test_who_cannot_be_dialled_back_is_told_so_and_not_that_his_credential_is_wrong(terminal: Terminal) -> None:
    """The member connects nowhere on this machine, as if a firewall stood between the two."""
    keys(terminal, "realm", "ours.realm")
    keys(terminal, "cluster", "ours.realm", "store", "--out", "store.iris")
    url = f"tcp://127.0.0.1:{free_port()}"
    run = ("run", "app:store", "--credential", "store.iris", "--listen", url, "--dial-networks", "10.255.0.0/16")
    with terminal.started(*run, announces="serves store"), tempfile.TemporaryDirectory() as elsewhere:
        terminal.environment["XDG_RUNTIME_DIR"] = elsewhere  # not to be found on this machine
        listen = ("--listen", "tcp://127.0.0.1:0")  # else it would dial both directions
        done = terminal.run("request", "store", "hello", "--credential", "store.iris", "--seeds", url, *listen)
        said = done.stderr.decode()
        assert done.returncode == 1, said
        *before, last = said.splitlines()  # one that waits long for the machine says before that it is trying again
        assert "this node is linked to nobody" in last
        assert all("cannot connect back to this node at tcp://127.0.0.1:" in line for line in (*before, last)), said
        assert len(before) <= 1, said


def test_who_is_revoked_is_told_so_in_one_line(terminal: Terminal) -> None:
    keys(terminal, "realm", "acme.realm")
    for name in ("store", "shop"):
        keys(terminal, "cluster", "acme.realm", name, "--out", f"{name}.iris")
    url = f"tcp://127.0.0.1:{free_port()}"
    realm = json.loads(terminal.run("keys", "show", "shop.iris", "--json").stdout)["realm"]
    home = Path(terminal.environment["IRIS_HOME"])
    (home / "revocations").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    keys(terminal, "revoke", "acme.realm", "--cluster", "shop", "--out", str(home / "revocations" / realm))
    run = ("run", "app:store", "--credential", "store.iris", "--listen", url)
    with terminal.started(*run, announces="serves store"), tempfile.TemporaryDirectory() as elsewhere:
        terminal.environment["IRIS_HOME"] = elsewhere  # where the list is not
        done = ask(terminal, "shop.iris", url)
        said = done.stderr.decode()
        assert done.returncode == 1, said
        assert "generation 1 of cluster 'shop' is revoked, so nobody talks to this node: have a new credential" in said
        assert said.count("\n") == 1, said
