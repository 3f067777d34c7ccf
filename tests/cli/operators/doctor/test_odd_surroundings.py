"""``iris doctor`` in odd surroundings: one clear report, no traceback, an end, and no advice that does harm."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import time
from collections.abc import Generator
from typing import Any

import pytest

from iris.cli.operators.doctor.directories import examine_runtime
from tests.support.command import Terminal, open_terminal

SEEDS = 200


@pytest.fixture(scope="module")
def terminal() -> Generator[Terminal]:
    with open_terminal() as opened:
        for arguments in (("realm", "realm.key"), ("cluster", "realm.key", "store", "--out", "store.iris")):
            assert opened.run("keys", *arguments).returncode == 0
        yield opened


def found(terminal: Terminal, *options: str, **variables: str) -> dict[str, dict[str, Any]]:
    """Return what is not ok, by its code."""
    before = dict(terminal.environment)
    terminal.environment |= variables
    try:
        done = terminal.run("doctor", "-q", "-o", "json", *options)
    finally:
        terminal.environment = before
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    findings = {finding["code"]: finding for finding in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == int(any(finding["level"] == "problem" for finding in findings.values()))
    return findings


@pytest.mark.parametrize("kind", ["key of a realm", "directory", "device", "fifo", "socket", "large", "nothing"])
def test_what_is_no_credential_is_named_and_nobody_is_told_to_remove_it(terminal: Terminal, kind: str) -> None:
    path = terminal.directory / "odd"
    match kind:
        case "key of a realm":
            path = terminal.directory / "realm.key"
        case "directory":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
        case "large":
            path.write_bytes(bytes(2_000_000))
            path.chmod(0o600)
        case _:
            path.touch(0o600)
    try:
        (finding,) = found(terminal, "--credential", str(path)).values()
    finally:
        if path.name == "odd":
            path.rmdir() if kind == "directory" else path.unlink()
    assert finding["code"] == "credential-damaged"
    assert finding["remedy"] == "iris keys cluster REALM_FILE CLUSTER --out NEW_FILE"


def test_any_number_of_seeds_comes_to_an_end(terminal: Terminal) -> None:
    seeds = " ".join(f"tcp://127.0.0.1:{port}" for port in range(1, SEEDS + 1))
    began = time.monotonic()
    findings = found(terminal, "--credential", "store.iris", IRIS_SEEDS=seeds)
    assert time.monotonic() - began < 60
    assert f"{SEEDS} seeds with 32 addresses: 32 of them are looked at" in findings["seed-many"]["cause"]


def test_options_are_looked_at_without_a_credential_too(terminal: Terminal) -> None:
    assert "is not a site name" in found(terminal, "--site", "bad site")["node-fails"]["cause"]
    assert "dial_only needs a credential" in found(terminal, "--dial-only")["node-fails"]["cause"]
    assert found(terminal, "--seeds", "nonsense").keys() == {"seed-malformed"}


def test_a_program_that_is_no_node_is_named(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        command = (*terminal.command, "doctor", "-q", "-o", "json", "--credential", "store.iris", "--seeds", url)
        with subprocess.Popen(
            command, cwd=terminal.directory, env=terminal.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            listening.settimeout(60)
            while process.poll() is None:
                try:
                    connection, _ = listening.accept()
                    with connection:
                        connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 is no node\r\n")
                        listening.settimeout(0.5)
                        connection.settimeout(5)
                        while connection.recv(4096):
                            pass
                except OSError:
                    continue
            out, _ = process.communicate()
    assert "seed-foreign" in {json.loads(line)["code"] for line in out.splitlines()}


def in_shell(terminal: Terminal, command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", command],
        cwd=terminal.directory,
        env=terminal.environment,
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_trouble(terminal: Terminal, closed: str) -> None:
    done = in_shell(terminal, f"{' '.join(terminal.command)} doctor -q {closed}")
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr.decode()


@pytest.mark.parametrize("files", [9, 12, 63])
def test_few_descriptors_are_the_reason_whatever_would_fail_first(terminal: Terminal, files: int) -> None:
    done = in_shell(terminal, f"ulimit -n {files}; {' '.join(terminal.command)} doctor -q -o json")
    assert [json.loads(line)["code"] for line in done.stdout.splitlines()] == ["files-few"]


def test_a_runtime_directory_that_is_none_is_not_to_be_changed(terminal: Terminal) -> None:
    device = found(terminal, XDG_RUNTIME_DIR="/dev/null")["runtime-unfit"]
    assert "/dev/null is not a directory" in device["cause"]
    assert device["remedy"] == f"export XDG_RUNTIME_DIR=/run/user/{os.geteuid()}"
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116 -- of the device


def test_a_runtime_directory_that_cannot_be_written_to_is_named(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr(os, "access", refuse)
    base = terminal.directory / "run"
    base.mkdir(mode=0o700)
    (finding,) = examine_runtime("f0", {"XDG_RUNTIME_DIR": str(base)}, os.geteuid())
    assert (finding.code, finding.remedy) == ("runtime-private", f"chmod u+rwx {base}")
