"""A process as a worker, and the ports at its place."""

from __future__ import annotations

import os
import socket

import pytest

from iris.cli.connection import NodeOptions
from iris.cli.main import run_command
from iris.cli.supervision.places import options_at
from iris.cli.supervision.worker import LONGEST, VARIABLE, Place, worker_of_environment
from iris.kernel.errors import ConfigError


def options(*listen: str, metrics: tuple[str, int] | None = None) -> NodeOptions:
    return NodeOptions(credential=None, seeds=(), listen=listen, site=None, metrics=metrics)


def test_a_worker_takes_what_its_supervisor_gave_out_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    number = theirs.detach()
    os.set_inheritable(number, True)
    monkeypatch.setenv(VARIABLE, f"{number}:3:1:1")
    worker = worker_of_environment()
    assert worker is not None
    assert worker.place == Place(3, 1, follows=True)
    assert VARIABLE not in os.environ
    assert not os.get_inheritable(number)
    assert worker_of_environment() is None
    with ours, socket.socket(fileno=number):
        assert worker.failed("no\nbase " + "x" * 10_000)
        assert ours.recv(65_536) == b"failed no base " + b"x" * (LONGEST - 8) + b"\n"
        worker.announce()
        assert ours.recv(100) == b"serving\n"
        assert not worker.failed("later errors are of its own log")
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)


@pytest.mark.parametrize("value", ["", "x", "0", "7:", "9999:0:0:0", "7:0:0:0:0"])
def test_a_variable_that_no_supervisor_has_set_is_named(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert run_command(["run", "app:store"]) == 2
    assert capsys.readouterr().err == f"iris: {VARIABLE} is {value!r}: remove it, 'iris run --workers' alone sets it\n"


def test_ports_are_those_of_the_command_line_and_the_place() -> None:
    urls = ("tcp://10.0.0.3:7000", "ws://[::]:7080/iris", "tcp://0.0.0.0:0", "ipc:///run/x")
    given = options(*urls, metrics=("::1", 9464))
    assert options_at(given, Place(0, 0, follows=False), 15, {}) == given
    moved = options_at(given, Place(2, 1, follows=True), 15, {})
    assert moved.listen == ("tcp://10.0.0.3:7002", "ws://[::]:7082/iris", "tcp://0.0.0.0:0", "ipc:///run/x-2")
    assert moved.metrics == ("::1", 9465)
    assert moved.metrics_patience == 15
    assert options_at(options(metrics=("", 0)), Place(5, 5, follows=False), 15, {}).metrics == ("", 0)


def test_where_the_environment_says_to_listen_is_shared_out_as_well() -> None:
    variables = {"IRIS_LISTEN": "tcp://0.0.0.0:7000 ws://0.0.0.0:7080/iris"}
    second = Place(1, 1, follows=False)
    assert options_at(options(), second, 15, variables).listen == ("tcp://0.0.0.0:7001", "ws://0.0.0.0:7081/iris")
    assert options_at(options("tcp://0.0.0.0:9000"), second, 15, variables).listen == ("tcp://0.0.0.0:9001",)


@pytest.mark.parametrize("at", [options("tcp://127.0.0.1:65535"), options(metrics=("", 65535))])
def test_ports_that_would_be_too_high_are_refused(at: NodeOptions) -> None:
    with pytest.raises(ConfigError, match="needs the ports 65535 to 65537"):
        options_at(at, Place(2, 2, follows=False), 15, {})


def test_workers_and_reload_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "app:store", "--workers", "2", "--reload"]) == 2
    assert "--reload is for development" in capsys.readouterr().err
