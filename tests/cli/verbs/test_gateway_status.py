"""``iris gateway``: what is refused before it opens, and a status file that cannot be written while it runs."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, cast

import pytest
import trio

from iris.cli import gateway
from iris.cli.gateway import _keep_status, _write_status
from iris.federation.gateway import Gateway, GatewayStatistics
from tests.support.desk import Desk

HERE = ("gateway", "--site", "east", "--listen", "ws://127.0.0.1:1/gateway")
COUNTERS = GatewayStatistics(
    received=3,
    carried=2,
    carried_bytes=200,
    refused=MappingProxyType({"export": 1}),
    waiting_bytes=0,
    rejected=MappingProxyType({"OutOfDate": 1}),
    unreached=MappingProxyType({}),
    sites=("west",),
    neighbours=MappingProxyType({}),
    sent=0,
    sent_bytes=0,
    not_advertised=0,
)


class Counting:
    """A gateway as far as its counters go."""

    def statistics(self) -> GatewayStatistics:
        return COUNTERS


@pytest.mark.parametrize("file", ["absent/status.json", "file/status.json"])
def test_a_status_file_that_cannot_be_written_is_a_wrong_command_line(desk: Desk, file: str) -> None:
    Path("file").touch()
    done = desk.run(*HERE, "--status", file)
    assert (done.status, done.complaint.startswith(f"cannot write {file}: ")) == (2, True)


def test_a_directory_is_no_status_file(desk: Desk) -> None:
    Path("status").mkdir()
    assert "is a directory" in desk.run(*HERE, "--status", "status").complaint
    assert list(Path("status").iterdir()) == []


def test_before_a_gateway_is_up_its_status_says_that_nothing_happened(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def look(*_: object, **__: object) -> NoReturn:
        seen.append(json.loads(Path("status.json").read_text()))
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(gateway, "open_gateway", look)
    assert desk.run(*HERE, "--status", "status.json").complaint == "Address already in use"
    assert (seen[0]["carried"], seen[0]["sites"], seen[0]["refused"]) == (0, [], {})


@pytest.mark.parametrize("option", ["--listen", "--peer", "--near", "--seeds"])
def test_what_is_no_address_is_called_that(desk: Desk, option: str) -> None:
    done = desk.run(*HERE, option, "junk")
    assert done.status == 2
    assert done.complaint.startswith("'junk' is not an address: use tcp://HOST:PORT")


def test_a_gateway_that_neither_listens_nor_dials_is_a_wrong_command_line(desk: Desk) -> None:
    done = desk.run("gateway", "--site", "east")
    assert done.status == 2
    assert done.complaint.startswith("a gateway reaches others by --listen, --peer or both: give one of them")


def test_a_file_that_cannot_be_replaced_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "status.json"
    _write_status(file, COUNTERS)
    before = file.read_text()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        _write_status(file, COUNTERS)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"status.json": before}


async def test_a_full_disk_is_told_once_each_time_and_the_gateway_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], autojump_clock: object
) -> None:
    works = [True, False, False, False, True, False, True]
    threads: list[threading.Thread] = []
    over = trio.Event()

    def write(file: Path, counters: GatewayStatistics) -> None:
        threads.append(threading.current_thread())
        if len(threads) == len(works):
            trio.from_thread.run_sync(over.set)
        if not works[len(threads) - 1]:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gateway, "_write_status", write)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_status, cast("Gateway", Counting()), Path("status.json"))
        await over.wait()
        nursery.cancel_scope.cancel()
    line = "iris: cannot write status.json: No space left on device; the gateway goes on\n"
    assert capsys.readouterr().err == 2 * line
    assert threading.main_thread() not in threads
