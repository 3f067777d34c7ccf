"""``iris log read``, as people type it."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.cli.main import run_command
from tests.support.bridges import BridgeProcess

PAYLOADS: list[Any] = [{"n": 1}, 'a "text",\nof two lines', b"\xff\x00", None, "5"]


@pytest.fixture(scope="module")
def realm() -> Iterator[None]:
    """A running bridge with some events, in a realm of its own."""
    directory = Path(tempfile.mkdtemp(prefix="iris-"))

    async def publish() -> None:
        async with iris.open_node("publisher") as node:
            await node.wait_for("bridge", timeout=60)
            for payload in PAYLOADS:
                await node.publish_confirmed("orders.new", payload, key="k", headers={"h": "v"}, timeout=60)
            await node.publish_confirmed("else.where", b"x", timeout=60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IRIS_HOME", str(directory / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        with BridgeProcess(directory / "log"):
            trio.run(publish)
            yield
    shutil.rmtree(directory, ignore_errors=True)


def read(capfd: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    capfd.readouterr()
    assert run_command(("log", "read", *arguments)) == status
    said = capfd.readouterr()
    return said.err if status else said.out


def test_events_are_objects(realm: None, capfd: pytest.CaptureFixture[str]) -> None:
    found = [json.loads(line) for line in read(capfd, "orders.>").splitlines()]
    assert [event.get("value", event.get("value_base64")) for event in found] == [
        {"n": 1},
        PAYLOADS[1],
        "/wA=",
        None,
        "5",
    ]
    assert (found[0]["topic"], found[0]["key"], found[0]["offset"]) == ("orders.new", "k", 0)
    assert found[0]["headers"]["h"] == "v"


def test_events_are_rows(realm: None, capfd: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(read(capfd, "orders.>", "-o", "csv"))))
    assert [row["value"] for row in rows] == ['{"n":1}', PAYLOADS[1], "", "", "5"]
    assert [row["value_base64"] for row in rows] == ["", "", "/wA=", "", ""]
    assert json.loads(rows[0]["headers"])["iris-sender"] == "publisher"
    assert rows[4]["offset"] == "4"


def test_a_log_without_such_events_has_a_heading_alone(realm: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert read(capfd, "nothing", "-o", "csv").count("\n") == 1
    assert read(capfd, "nothing") == ""


@pytest.mark.parametrize(("since", "count"), [("1h", 6), ("0.001s", 0), ("2020-01-01", 6), ("2999-01-01T00:00:00Z", 0)])
def test_reading_begins_at_a_time(realm: None, capfd: pytest.CaptureFixture[str], since: str, count: int) -> None:
    end = time.monotonic() + 0.01
    while time.monotonic() < end:
        """Let a millisecond pass from the last event."""
    assert len(read(capfd, "orders.>", "else.*", "--since", since).splitlines()) == count


@pytest.mark.parametrize("since", ["soon", "1w", "-1h", "1e9d", "99999999999d"])
def test_a_time_that_is_none_is_refused(capfd: pytest.CaptureFixture[str], since: str) -> None:
    assert "is neither an age" in read(capfd, ">", "--since", since, status=2)


def test_a_bridge_that_is_not_there_is_an_error(realm: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert "cannot be reached" in read(capfd, ">", "--name", "nobody", "--timeout", "0.1", status=1)
