"""The files of ``deploy/``: read as those who use them do, and their commands run as real processes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final
from urllib.request import urlopen

import yaml

from tests.support.command import Terminal, open_terminal

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
IRIS = f"{Path(sys.executable).parent}/iris"

STARTED = re.compile(r" (serves|is a gateway of) |Uvicorn running on")
"""Text on standard error or standard output of a node that is up."""


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """Return all objects of the manifests that ``kustomization.yaml`` lists, by kind and name."""
    folder = DEPLOY / "kubernetes"
    (listed,) = documents(folder / "kustomization.yaml")
    return by_name([document for name in listed["resources"] for document in documents(folder / name)])


def by_name(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return objects of Kubernetes by kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def unit(path: Path) -> dict[str, list[str]]:
    """Return the settings of a unit file of systemd, whatever their section."""
    settings: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", "[")):
            settings.setdefault(name, []).append(value)
    return settings


@final
class Place:
    """A realm, and processes of it on loopback that are ended with the block."""

    def __init__(self, terminal: Terminal, stack: ExitStack) -> None:
        self.terminal = terminal
        self.realm = terminal.directory / "realm.key"
        self._stack = stack
        self._keys("realm", str(self.realm))

    def credential(self, name: str, *options: str) -> Path:
        """Issue a credential for a cluster."""
        path = self.terminal.directory / name
        self._keys("cluster", str(self.realm), name, "--out", str(path), *options)
        return path

    def _keys(self, *arguments: str) -> None:
        done = self.terminal.run("keys", *arguments)
        assert done.returncode == 0, done.stderr.decode()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path = DEPLOY / "shop"
    ) -> subprocess.Popen[str]:
        """Start a command, and wait until the node says that it is up."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("IRIS_")}
        kept |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1", **environment}
        process = subprocess.Popen(
            command, cwd=directory, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if STARTED.search(line):
                return process
        raise AssertionError(f"{command} ended, and had said: {''.join(said)}")


@contextmanager
def open_place() -> Generator[Place]:
    """Make a realm."""
    with open_terminal() as terminal, ExitStack() as stack:
        yield Place(terminal, stack)


def is_healthy(port: int, path: str = "/healthz") -> bool:
    """Ask the address of a probe."""
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return bool(answer.status == 200)


def end(process: subprocess.Popen[str], patience: float) -> int:
    """Send SIGTERM, as systemd, Kubernetes and Compose do, and return the exit status."""
    process.send_signal(signal.SIGTERM)
    status = process.wait(patience)
    with contextlib.suppress(ValueError):
        assert process.stdout is not None
        process.stdout.close()
    return status


def missing(*programs: str) -> str:
    """Return which of these programs are not here, for the reason of a skip; empty if all are."""
    absent = [program for program in programs if shutil.which(program) is None]
    return f"needs {', '.join(absent)} (Debian: apt install {' '.join(absent)})" if absent else ""
