"""``iris doctor`` as people run it, on loopback: what it prints, its status, and that it leaves nothing behind."""

from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.command import Terminal, open_terminal
from tests.support.machines import APP
from tests.support.ports import free_port

LISTEN = ("--listen", "tcp://127.0.0.1:0")


@pytest.fixture(scope="module")
def terminal() -> Generator[Terminal]:
    """A realm with two clusters, and a realm of somebody else."""
    with open_terminal() as opened:
        (opened.directory / "app.py").write_text(APP)
        for arguments in (
            ("realm", "realm"),
            ("cluster", "realm", "databases", "--out", "databases"),
            ("cluster", "realm", "askers", "--out", "askers"),
            ("realm", "elsewhere"),
            ("cluster", "elsewhere", "askers", "--out", "stranger"),
        ):
            assert opened.run("keys", *arguments).returncode == 0
        yield opened


@pytest.fixture(scope="module")
def seed(terminal: Terminal) -> Generator[str]:
    """A member that runs."""
    url = f"tcp://127.0.0.1:{free_port()}"
    serve = ("run", "app:databases", "--credential", "databases", "--listen", url)
    with terminal.started(*serve, announces="serves databases"):
        yield url


@contextmanager
def hanging_up(listener: socket.socket, path: Path) -> Generator[None]:
    """Do as a node does with frames of another version: greet, read one, and hang up."""
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                connection.sendall(b"\0SP\0\0\x51\0\0")
                connection.recv(4096)
                connection.recv(4096)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def files(terminal: Terminal) -> set[Path]:
    return set(terminal.directory.parent.rglob("*"))


def test_all_is_well_in_lines_for_people_and_no_file_is_left(terminal: Terminal, seed: str) -> None:
    before = files(terminal)
    done = terminal.run("doctor", "--credential", "askers", "--seeds", seed, *LISTEN)
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (0, b"iris: problems: 0, warnings: 1\n"), lines
    assert [line.split()[:2] for line in lines if not line.startswith("ok  ")] == [["warning", "lan-alone:"]]
    assert any(line.startswith(f"ok       seed-ok: {seed}: linked both ways") for line in lines)
    assert files(terminal) == before


def test_quiet_leaves_out_what_is_ok_and_a_problem_is_the_status(terminal: Terminal, seed: str) -> None:
    given = ("--credential", "stranger", "--seeds", seed, *LISTEN)
    done = terminal.run("doctor", "-q", "-o", "json", *given)
    found = {finding["code"]: finding for finding in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1
    assert found.keys() == {"seed-realm", "lan-alone"}
    assert found["seed-realm"].keys() == {"code", "level", "cause", "remedy"}


def test_beside_the_node_that_it_examines_the_port_is_that_ones(terminal: Terminal, seed: str) -> None:
    done = terminal.run("doctor", "-o", "json", "--credential", "databases", "--seeds", seed, "--listen", seed)
    assert done.returncode == 0
    assert "listen-running" in {json.loads(line)["code"] for line in done.stdout.splitlines()}


def test_each_seed_has_its_line(terminal: Terminal, seed: str) -> None:
    nobody = f"tcp://127.0.0.1:{free_port()}"
    given = ("--credential", "askers", "--seeds", nobody, "--seeds", seed, "--seeds", "nonsense", *LISTEN)
    done = terminal.run("doctor", "-o", "json", *given)
    found = [finding for finding in map(json.loads, done.stdout.splitlines()) if finding["code"].startswith("seed")]
    assert {(one["code"], one["cause"].split(": ")[0].strip("'")) for one in found} == {
        ("seed-malformed", "nonsense' is not an address"),
        ("seed-refused", nobody),
        ("seed-ok", seed),
    }
    assert done.returncode == 1


def test_each_source_of_seeds_says_what_it_answered_or_why_it_did_not(terminal: Terminal, seed: str) -> None:
    (terminal.directory / "seeds").write_text(f"{seed}\n{seed.replace('127.0.0.1', 'localhost')}\n")
    file = f"file://{terminal.directory}/seeds"
    given = ("--seeds", file, "--seeds", f"{file}2", "--seeds", "kubernetes://shop/prices", "--seeds", "dns+srv://a..b")
    done = terminal.run("doctor", "-o", "json", "--credential", "askers", *given, *LISTEN)
    found = list(map(json.loads, done.stdout.splitlines()))
    (answered,) = [one["cause"] for one in found if one["code"] == "source-ok"]
    assert re.fullmatch(rf"{re.escape(file)} answered after \d+ ms with 2 addresses: {re.escape(seed)}, .*", answered)
    assert {(one["cause"], one["remedy"]) for one in found if one["code"] == "source-failed"} == {
        (
            f"{file}2: the file cannot be read: No such file or directory",
            f"cat {terminal.directory}/seeds2",
        ),
        (
            "kubernetes://shop/prices: this is no pod of Kubernetes: KUBERNETES_SERVICE_HOST and _PORT are not set",
            "kubectl -n shop get endpointslices -l kubernetes.io/service-name=prices",
        ),
    }
    assert {one["code"] for one in found} >= {"seed-malformed", "dns-ok", "seed-ok"}
    assert done.returncode == 1


def test_a_verb_takes_a_source_of_seeds(terminal: Terminal, seed: str) -> None:
    (terminal.directory / "seeds").write_text(seed.removeprefix("tcp://"))
    file = f"file://{terminal.directory}/seeds"
    elsewhere = Path(tempfile.mkdtemp(prefix="iris-"))  # of nodes of this machine nobody is found there
    before = dict(terminal.environment)
    terminal.environment |= {"XDG_RUNTIME_DIR": str(elsewhere), "IRIS_HOME": str(elsewhere / "home")}
    try:
        done = terminal.run("nodes", "-o", "json", "--credential", "askers", "--seeds", file)
        kept = terminal.run("context", "add", "there", "--credential", "askers", "--seeds", file)
        certified = terminal.run("keys", "cluster", "realm", "more", "--out", "more", "--seeds", "kubernetes:///a")
        wrong = terminal.run("keys", "cluster", "realm", "more", "--out", "more2", "--seeds", "kubernetes://a")
    finally:
        terminal.environment.clear()
        terminal.environment |= before
        shutil.rmtree(elsewhere)
    assert (done.returncode, kept.returncode, certified.returncode) == (0, 0, 0), done.stderr + kept.stderr
    assert "databases" in {json.loads(line)["cluster"] for line in done.stdout.splitlines()}
    assert (wrong.returncode, b"use kubernetes://NAMESPACE/SERVICE" in wrong.stderr) == (2, True)


def test_a_node_that_only_dials_out_is_examined_too(terminal: Terminal) -> None:
    web = f"ws://127.0.0.1:{free_port()}/iris"
    serve = ("run", "app:databases", "--credential", "databases", "--listen", web)
    with terminal.started(*serve, announces="serves databases"):
        done = terminal.run("doctor", "-q", "--credential", "askers", "--seeds", web, "--dial-only")
    assert (done.returncode, done.stdout) == (0, b""), done.stdout


def test_the_seeds_of_the_environment_are_looked_at(terminal: Terminal, seed: str) -> None:
    terminal.environment |= {"IRIS_SEEDS": f"{seed} tcp://127.0.0.1:1", "IRIS_CREDENTIAL": "askers"}
    try:
        done = terminal.run("doctor", "-o", "json", *LISTEN)
    finally:
        del terminal.environment["IRIS_SEEDS"], terminal.environment["IRIS_CREDENTIAL"]
    codes = {finding["code"] for finding in map(json.loads, done.stdout.splitlines())}
    assert {"seed-ok", "seed-refused"} <= codes


def test_the_local_realm_needs_nothing(terminal: Terminal) -> None:
    done = terminal.run("doctor", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"iris: nothing is wrong\n")


def test_a_site_without_nodes_names_those_that_have_some(terminal: Terminal) -> None:
    with terminal.started("run", "app:databases", "--site", "oslo", announces="serves databases"):
        lines = terminal.run("doctor", "-o", "json", "--site", "olso").stdout.splitlines()
        assert [(one["cause"], one["remedy"]) for one in map(json.loads, lines) if one["code"] == "site-empty"] == [
            ("no other node of this machine is at the site olso; nodes are at: oslo", "iris doctor --site oslo")
        ]
        assert b"site-empty" not in terminal.run("doctor", "-o", "json", "--site", "oslo").stdout


def test_a_neighbour_that_speaks_another_version_of_the_protocol_is_named(terminal: Terminal) -> None:
    with terminal.started("run", "app:databases", announces="serves databases"):
        member = max(terminal.directory.parent.glob("iris/*/*.node"), key=lambda entry: entry.stat().st_mtime)
        other = member.with_name("0" * 32 + ".node")
        socket_file = other.with_suffix("")
        other.write_text(member.read_text().replace(member.stem, other.stem))
        with socket.socket(socket.AF_UNIX) as listener, hanging_up(listener, socket_file):
            done = terminal.run("doctor", "-q", "-o", "json")
        other.unlink()
        socket_file.unlink()
    (found,) = (one for one in map(json.loads, done.stdout.splitlines()) if one["level"] == "problem")
    assert (done.returncode, found["code"], found["remedy"]) == (1, "neighbour-unlinked", "ss -lxp | grep 00000000")
    assert "node 00000000 of this machine is not linked: it hangs up on this one, and speaks another" in found["cause"]


def test_the_command_of_a_node_has_its_options(terminal: Terminal, seed: str) -> None:
    listen = f"tcp://127.0.0.1:{free_port()}"
    command = ("run", "app:databases", "--credential", "databases", "--seeds", seed, "--listen", listen)
    done = terminal.run("doctor", "-o", "json", *command, "--drain-timeout", "3")
    found = {finding["code"]: finding["cause"] for finding in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0
    assert "databases: cluster databases of realm" in found["credential-ok"]
    assert found["listen-ok"] == f"{listen}: can listen there"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("run", "app:databases", "--drain-timeout", "long"), b"Invalid value for '--drain-timeout'"),
        (("nodes",), b"'iris nodes' is no command of a node"),
        (("serve",), b"'iris serve' is no command of a node"),
        (("--unit", "iris@prices", "run", "app:databases"), b"a unit has a command of its own"),
    ],
)
def test_a_command_that_is_none_of_a_node_or_is_wrong_is_refused(
    terminal: Terminal, command: tuple[str, ...], error: bytes
) -> None:
    done = terminal.run("doctor", *command)
    assert done.returncode == 2
    assert error in done.stderr


def test_who_has_the_port_of_the_metrics_is_named_and_a_free_one(terminal: Terminal) -> None:
    port = str(free_port())
    serve = ("run", "app:databases", "--credential", "databases", "--metrics", port, *LISTEN)
    with terminal.started(*serve, announces="serves databases"):
        own, other = (
            terminal.run("doctor", "-o", "json", "--credential", name, "--metrics", port, *LISTEN)
            for name in ("databases", "askers")
        )
    codes = {finding["code"]: finding for finding in map(json.loads, own.stdout.splitlines())}
    assert codes["metrics-running"]["cause"] == f"a node of cluster databases serves its metrics at 127.0.0.1:{port}"
    codes = {finding["code"]: finding for finding in map(json.loads, other.stdout.splitlines())}
    assert (codes["metrics-taken"]["level"], other.returncode) == ("problem", 1)
    assert codes["metrics-taken"]["cause"].startswith("a node of cluster databases serves its metrics at")
    assert codes["metrics-taken"]["remedy"].startswith("export IRIS_METRICS=127.0.0.1:94")
