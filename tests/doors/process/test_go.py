"""The Go client: its own tests, against a real door."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from docs.pages import blocks
from tests.support.command import PATIENCE, open_terminal
from tests.support.door_for_clients import open_door_for_clients
from tests.support.door_process import DoorProcess, serving, token

ROOT = Path(__file__).resolve().parents[3]
CLIENT = ROOT / "clients" / "go"
BRINGING = 120.0
"""Seconds for the one module that is brought in."""

BUILDING = 600.0
"""Seconds to compile Go's own library, which a machine does once, and to run the tests."""

LONGEST = pytest.mark.timeout(3 * BUILDING)

in_go = pytest.mark.skipif(
    shutil.which("go") is None, reason="Go is not installed: apt install golang-go (1.24 or later)"
)


def go(
    *arguments: str, within: float, cwd: Path = CLIENT, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run the ``go`` command, with the version that is installed."""
    variables = {**os.environ, "GOTOOLCHAIN": "local", **environment}
    return subprocess.run(
        ["go", *arguments], cwd=cwd, env=variables, capture_output=True, text=True, timeout=within, check=False
    )


@pytest.fixture(scope="module")
def module() -> None:
    """Bring in what the client needs; where that cannot be, the tests are skipped and say so."""
    try:
        done = go("mod", "download", within=BRINGING)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the module that the client needs was not here after {BRINGING:g} s: run go mod download")
    if done.returncode != 0:
        pytest.skip(f"the module that the client needs cannot be brought in, or Go is too old: {done.stderr[-500:]}")


@in_go
@LONGEST
@pytest.mark.usefixtures("module")
def test_the_go_client_passes_its_tests_and_vet() -> None:
    assert go("vet", "./...", within=BUILDING).stderr == ""
    with open_door_for_clients() as place:
        done = go("test", "-count=1", "-v", "./...", within=BUILDING, environment=place)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "--- SKIP" not in done.stdout
    assert done.stdout.count("--- PASS") > 20


@in_go
@LONGEST
@pytest.mark.long
@pytest.mark.usefixtures("module")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="Go's race detector needs a C compiler: apt install gcc")
def test_the_go_client_has_no_data_race() -> None:
    for _ in range(3):
        with open_door_for_clients() as place:
            done = go("test", "-count=1", "-race", "./...", within=BUILDING, environment={**place, "CGO_ENABLED": "1"})
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@in_go
@LONGEST
@pytest.mark.usefixtures("module")
def test_the_program_of_go_md_prints_what_stands_below_it(tmp_path: Path) -> None:
    """It is built as the page says, asks, and serves until it is interrupted."""
    shown = list(blocks(ROOT / "docs" / "howto" / "doors" / "go.md"))
    program = (CLIENT / "example" / "main.go").read_text()
    run, ask = (block.code for block in shown if block.language == "console")
    (tmp_path / "main.go").write_text(program)
    for command in (
        ("mod", "init", "shop"),
        ("mod", "edit", "-replace", f"iris-mesh/clients/go={CLIENT}"),
        ("get", "iris-mesh/clients/go"),
    ):
        done = go(*command, within=BRINGING, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    with open_terminal() as terminal, serving(terminal):
        rights = ("--call", "greeters", "--publish", "orders.>", "--subscribe", "orders.>", "--serve", "orders")
        secret = token(terminal, "web", *rights)
        with DoorProcess(terminal) as door:
            (tmp_path / "main.go").write_text(program.replace("http://127.0.0.1:8080", door.url))
            built = go("build", "-o", "shop", ".", within=BUILDING, cwd=tmp_path)
            assert built.returncode == 0, built.stderr
            variables = {**os.environ, "TOKEN": secret}
            started = subprocess.Popen([tmp_path / "shop"], env=variables, stdout=subprocess.PIPE, text=True)
            with started as process:
                assert process.stdout is not None
                printed = process.stdout.readline()
                told = terminal.run(*ask.splitlines()[0].split()[2:], "--wait", "60")
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE) == 0
            assert f"$ TOKEN=$(cat token) go run .\n{printed}" == run
            assert (told.stdout.decode(), told.stderr.decode()) == (ask.split("\n", 1)[1], "")


def test_the_go_client_knows_every_code_of_the_door() -> None:
    page = (ROOT / "docs" / "reference" / "doors" / "http.md").read_text()
    rows = re.findall(r"^\| [45]\d\d \| (.*?) \|", page, re.MULTILINE)
    codes = {code for row in rows for code in re.findall(r"`([a-z_]+)`", row)}
    assert len(codes) > 25
    assert codes - set(re.findall(r'Code = "([a-z_]+)"', (CLIENT / "errors.go").read_text())) == set()


def test_formatted_as_go_does() -> None:
    if shutil.which("gofmt") is None:
        pytest.skip("Go is not installed: apt install golang-go")
    assert subprocess.run(["gofmt", "-l", str(CLIENT)], capture_output=True, text=True, check=True).stdout == ""
