"""The examples of programs that do not run under trio: real servers, a real notebook, one process each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.support.ports import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = EXAMPLES / "programs"

PRINTED = {
    "asyncio_service": "[{'item': 'tea', 'price': 3}, {'item': 'milk', 'price': 3}]\n",
    "script": "orders.created 0\norders.created 1\norders.created 2\nhello world\n",
    "traced": (
        "one lamp\n"
        "INTERNAL checkout, below nothing\n"
        "CLIENT shop/buy, below INTERNAL checkout\n"
        "SERVER shop/buy, below CLIENT shop/buy\n"
        "CLIENT stock/take, below SERVER shop/buy\n"
        "SERVER stock/take, below CLIENT stock/take\n"
    ),
}

SERVERS = {
    "django_site": [sys.executable, "django_site.py", "runserver", "--noreload", "127.0.0.1:{port}"],
    "web": [sys.executable, "-m", "uvicorn", "web:app", "--port", "{port}"],
    "web_errors": [sys.executable, "-m", "uvicorn", "web_errors:app", "--port", "{port}"],
}


@pytest.fixture
def realm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for this block; it must end by itself after Ctrl-C."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            process.wait(30)
        finally:
            process.kill()


def fetched(url: str, process: subprocess.Popen[bytes]) -> object:
    """Return what a server answers, as soon as it does."""
    ends = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read()) from None
        except urllib.error.URLError:
            assert process.poll() is None
            assert time.monotonic() < ends
            time.sleep(0.05)


def test_every_example_is_tested() -> None:
    programs = {file.stem for file in PROGRAMS.glob("*.py")}
    tests = {name for name in programs if name.startswith("test_")}  # pages run them: tests/project/test_snippets.py
    assert programs - tests == PRINTED.keys() | SERVERS.keys()


@pytest.mark.usefixtures("realm")
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAMS / f"{name}.py")],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, PRINTED[name], "")


@pytest.mark.usefixtures("realm")
@pytest.mark.parametrize("name", SERVERS)
def test_a_web_application_asks_a_cluster(name: str) -> None:
    port = free_port()
    command = [part.format(port=port) for part in SERVERS[name]]
    with (
        running([sys.executable, "-m", "iris", "run", "request:greeters"], EXAMPLES),
        running(command, PROGRAMS) as server,
    ):
        reply = fetched(f"http://127.0.0.1:{port}/hello/world", server)
    assert reply in ("hello world", {"reply": "hello world"})
    assert server.returncode in (0, -signal.SIGINT, 130), "it ended by itself"


def test_from_installing_to_a_reply_takes_twelve_lines_in_a_web_application() -> None:
    lines = (PROGRAMS / "web.py").read_text().split('"""')[2].splitlines()
    assert len([line for line in lines if line]) + len(["pip install", "uvicorn", "iris run", "curl"]) <= 12


@pytest.mark.usefixtures("realm")
def test_the_notebook_gets_its_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    formats: Any = nbformat  # its functions have no types
    notebook = formats.reads((PROGRAMS / "notebook.ipynb").read_text(), as_version=4)
    with running([sys.executable, "-m", "iris", "run", "request:greeters"], EXAMPLES):
        nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    said = [output["text"] for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output]
    assert said == ["hello notebook\n"]
