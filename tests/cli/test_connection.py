"""Behaviour of every verb that opens a node: options, useless credentials, addresses in use, Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import iris
from iris.cli.connection import Interruption, run_until_done, run_until_interrupted
from iris.cli.keys.show import wall_clock
from iris.cli.main import run_command
from iris.cli.terminal import VARIABLE
from iris.security.files.credential_file import CredentialWatch
from tests.support.desk import complaint

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_realm(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """A directory of its own, with a short path because those of sockets end at 107 bytes."""
    place = Path(tempfile.mkdtemp(prefix="iris-"))
    (place / "work").mkdir()
    monkeypatch.chdir(place / "work")
    monkeypatch.setenv("IRIS_HOME", str(place / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.delenv("IRIS_CREDENTIAL", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    shutil.rmtree(place)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, dict[str, Any]]]:
    """The arguments of every ``open_node``, which is refused."""
    calls: list[tuple[str | None, dict[str, Any]]] = []

    @contextlib.asynccontextmanager
    async def open_node(name: str | None = None, **options: Any) -> AsyncGenerator[iris.Node]:
        options.pop("config", None)  # a verb's own
        calls.append((name, options))
        raise iris.ConfigError("refused")
        yield  # what makes it a generator

    monkeypatch.setattr(iris, "open_node", open_node)
    return calls


# -- options ------------------------------------------------------------------------------------------------

VERBS = {
    "request": ["a"],
    "broadcast": ["a"],
    "survey": ["a"],
    "pub": ["a"],
    "sub": ["a"],
    "tunnel": ["a"],
    "nodes": [],
    "run": ["iris.demo.archive:archive"],
    "bridge": ["--topic", "a", "--data", "log"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_opens_its_node_as_it_is_told(verb: str, opened: list[tuple[str | None, dict[str, Any]]]) -> None:
    options = ["--credential", "file", "--seeds", "tcp://192.0.2.1:1", "--seeds", "tcp://192.0.2.2:2"]
    places = ["--listen", "tcp://127.0.0.1:0", "--listen", "ipc:///x", "--site", "berlin"]
    places += ["--dial-networks", "192.0.2.0/24", "--dial-networks", "::1"]
    assert run_command([verb, *VERBS[verb], *options, *places]) == 2
    assert opened == [
        (
            None,
            {
                "credential": Path("file"),
                "seeds": ("tcp://192.0.2.1:1", "tcp://192.0.2.2:2"),
                "listen": ("tcp://127.0.0.1:0", "ipc:///x"),
                "site": "berlin",
                "prefer_site": None,
                "dial_only": False,
                "dial_networks": ("192.0.2.0/24", "::1"),
            },
        )
    ]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["nodes"], None),
        (["request", "a"], None),
        (["run", "iris.demo.archive:archive"], "archive"),
        (["run", "iris.demo.archive:archive", "--cluster", "other"], "other"),
        (["bridge", "--topic", "a", "--data", "log", "--name", "tape"], "tape"),
    ],
)
def test_in_the_local_realm_a_member_speaks_for_its_cluster(
    arguments: list[str], name: str | None, opened: list[tuple[str | None, dict[str, Any]]]
) -> None:
    assert run_command(arguments) == 2
    nothing = {"credential": None, "seeds": (), "listen": (), "site": None, "prefer_site": None, "dial_only": False}
    nothing |= {"dial_networks": ()}
    assert opened == [(name, nothing)]


@pytest.mark.parametrize(
    ("given", "order"),
    [(["eu"], "eu"), (["eu=2"], {"eu": 2}), (["eu=2", "ap=16"], {"eu": 2, "ap": 16}), (["=2"], {"": 2})],
)
def test_sites_are_asked_in_the_order_of_the_command_line(
    given: list[str], order: object, opened: list[tuple[str | None, dict[str, Any]]]
) -> None:
    options = [part for text in given for part in ("--prefer-site", text)]
    assert run_command(["request", "a", "--site", "us", *options]) == 2
    assert [options["prefer_site"] for _, options in opened] == [order]


@pytest.mark.parametrize("given", [["eu", "ap"], ["eu=2", "ap"], ["eu=2", "eu=3"], ["eu="], ["eu=²"], ["eu=-1"]])
def test_what_is_no_order_of_sites_is_named(given: list[str], capsys: Captured) -> None:
    options = [part for text in given for part in ("--prefer-site", text)]
    assert run_command(["request", "a", "--site", "us", *options]) == 2
    assert "NAME=N for each of several sites" in complaint(capsys)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--prefer-site", "eu"], "give --site, too"),
        (["--prefer-site", "no site!", "--site", "us"], "no site!"),
        (["--prefer-site", "eu=99", "--site", "us"], "priority of site 'eu' is 99"),
    ],
)
def test_an_order_that_no_node_takes_is_one_line(options: list[str], reason: str, capsys: Captured) -> None:
    assert run_command(["request", "a", *options]) == 2
    assert reason in complaint(capsys)


def test_a_credential_of_the_environment_is_used_unless_another_is_given(
    opened: list[tuple[str | None, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRIS_CREDENTIAL", "of-the-environment")
    for arguments in (["nodes"], ["nodes", "--credential", "of-the-line"]):
        assert run_command(arguments) == 2
    assert [options["credential"] for _, options in opened] == [Path("of-the-environment"), Path("of-the-line")]


@pytest.mark.usefixtures("realm")
def test_a_file_is_watched_and_a_wrapped_one_is_opened_with_the_passphrase_of_the_environment(
    opened: list[tuple[str | None, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(["nodes", "--credential", "store.iris"]) == 2
    monkeypatch.setenv(VARIABLE, "correct horse")
    assert run_command(["nodes", "--credential", "store.iris"]) == 2
    watched, read = (options["credential"] for _, options in opened)
    assert watched == Path("store.iris")
    assert isinstance(read, CredentialWatch)
    assert read.credential.name == "store"


# -- credentials that are no use ----------------------------------------------------------------------------


@pytest.mark.usefixtures("realm")
@pytest.mark.parametrize("content", [b"", b"not a credential\n", b"\x00" * 2000, b"x" * 200_000])
def test_a_file_that_is_no_credential_is_named(content: bytes, capsys: Captured) -> None:
    Path("other.iris").write_bytes(content)
    Path("other.iris").chmod(0o600)
    assert run_command(["request", "store", "--credential", "other.iris"]) == 2
    assert "other.iris" in complaint(capsys)


@pytest.mark.usefixtures("realm")
def test_a_credential_that_was_cut_off_is_refused_wherever(capsys: Captured) -> None:
    whole = Path("store.iris").read_bytes()
    for length in range(0, len(whole), max(len(whole) // 20, 1)):
        Path("store.iris").write_bytes(whole[:length])
        assert run_command(["nodes", "--credential", "store.iris"]) == 2, length
        assert "store.iris" in complaint(capsys)


@pytest.mark.usefixtures("realm")
def test_a_credential_that_is_missing_or_a_directory_or_open_to_others_is_refused(capsys: Captured) -> None:
    assert run_command(["nodes", "--credential", "absent.iris"]) == 2
    assert "absent.iris: No such file or directory" in complaint(capsys)
    assert run_command(["nodes", "--credential", "."]) == 2
    assert "not a plain file" in complaint(capsys)
    Path("store.iris").chmod(0o640)
    assert run_command(["nodes", "--credential", "store.iris"]) == 2
    assert "chmod 600 store.iris" in complaint(capsys)


@pytest.mark.usefixtures("realm")
def test_the_key_of_a_realm_is_no_credential(capsys: Captured) -> None:
    assert run_command(["nodes", "--credential", "realm.key"]) == 2
    assert "realm.key" in complaint(capsys)


@pytest.mark.usefixtures("realm")
def test_a_credential_that_is_no_longer_valid_is_refused_with_its_date(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as past:
        past.setattr("iris.cli.keys.keys.wall_clock", lambda: wall_clock() - 3 * 86400)
        assert run_command(["keys", "cluster", "realm.key", "brief", "--out", "brief.iris", "--days", "1"]) == 0
    capsys.readouterr()
    assert run_command(["keys", "check", "brief.iris"]) == 1
    capsys.readouterr()
    assert run_command(["nodes", "--credential", "brief.iris"]) == 2
    assert "brief" in complaint(capsys)


@pytest.mark.usefixtures("realm")
def test_a_member_needs_the_right_to_the_cluster_it_serves(capsys: Captured) -> None:
    assert run_command(["run", "iris.demo.archive:archive", "--credential", "store.iris"]) == 2
    said = complaint(capsys)
    assert "speaks for the cluster 'store'" in said
    assert "no right to serve 'archive'" in said


# -- addresses that are no use ------------------------------------------------------------------------------


def test_a_port_in_use_is_one_line_with_the_address(capsys: Captured) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert run_command(["nodes", "--listen", url]) == 2
        assert url in complaint(capsys)
    assert run_command(["nodes", "--listen", url]) == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--listen", ""),
        ("--listen", "nonsense"),
        ("--listen", "tcp://127.0.0.1"),
        ("--listen", "tcp://127.0.0.1:99999"),
        ("--listen", "tcp://127.0.0.1:1x"),
        ("--listen", "udp://127.0.0.1:1"),
        ("--listen", "tcp://192.0.2.1:4000"),
        ("--listen", "ipc:///no/such/directory/socket"),
        ("--listen", "ws://127.0.0.1:1/other"),
        ("--seeds", "nonsense"),
        ("--seeds", "tcp://"),
        ("--dial-networks", "10.0.0.5/8"),
        ("--dial-networks", "everywhere"),
        ("--site", "bad name"),
        ("--site", ""),
    ],
)
def test_an_address_or_site_that_is_none_is_one_line_with_what_was_given(
    option: str, value: str, capsys: Captured
) -> None:
    assert run_command(["nodes", option, value]) == 2
    assert value in complaint(capsys)


def test_a_home_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    Path("file").write_text("no directory")
    monkeypatch.setenv("IRIS_HOME", str(Path("file").resolve() / "home"))
    assert run_command(["nodes"]) == 2
    assert "file/home" in complaint(capsys)


# -- interruptions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endless", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_work_end_in_order(number: signal.Signals, endless: bool) -> None:
    ended: list[str] = []

    async def work() -> None:
        signal.raise_signal(number)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
                ended.append("goodbye")

    assert run_until_done(work, endless=endless) == (0 if endless else 128 + number)
    assert ended == ["goodbye"]


def test_the_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    gone = trio.Event()

    def leave(status: int) -> None:
        statuses.append(status)
        gone.set()

    monkeypatch.setattr(os, "_exit", leave)

    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await trio.sleep_forever()
        finally:
            signal.raise_signal(signal.SIGTERM)
            with trio.CancelScope(shield=True):  # a goodbye that never comes to an end
                await gone.wait()

    run_until_done(work)
    assert statuses == [143]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_serves_others_is_not_cut_off_by_the_first_signal(number: signal.Signals) -> None:
    ended: list[str] = []

    async def serve(interruption: Interruption) -> None:
        async with trio.open_nursery() as nursery:

            async def interrupt() -> None:
                await wait_all_tasks_blocked()
                signal.raise_signal(number)

            nursery.start_soon(interrupt)
            await interruption.wait()
            await trio.lowlevel.checkpoint()
            ended.append("in order")

    assert run_until_interrupted(serve) == 0
    assert ended == ["in order"]


def test_who_is_not_up_yet_is_cut_off_by_it() -> None:
    async def serve(interruption: Interruption) -> None:
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep_forever()

    assert run_until_interrupted(serve) == 0


def test_the_second_signal_ends_who_serves_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    gone = trio.Event()

    def leave(status: int) -> None:
        statuses.append(status)
        gone.set()

    monkeypatch.setattr(os, "_exit", leave)

    async def serve(interruption: Interruption) -> None:
        async with trio.open_nursery() as nursery:

            async def interrupt() -> None:
                await wait_all_tasks_blocked()
                signal.raise_signal(signal.SIGTERM)

            nursery.start_soon(interrupt)
            await interruption.wait()
        signal.raise_signal(signal.SIGINT)
        await gone.wait()  # a handler that never comes to an end

    run_until_interrupted(serve)
    assert statuses == [130]


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1)])
def test_work_that_is_done_says_with_which_status(returned: int | None, status: int) -> None:
    async def work() -> int | None:
        return returned

    assert run_until_done(work) == run_until_done(work, endless=True) == status


def test_signals_are_as_they_were_afterwards() -> None:
    async def work() -> None:
        assert signal.getsignal(signal.SIGTERM) is not before[1]

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert run_until_done(work) == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
