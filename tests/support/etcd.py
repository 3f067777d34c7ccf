"""An etcd of a test's own, the real one."""

from __future__ import annotations

import http.client
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from tests.support.ports import free_port
from tests.support.processes import freeze


def find_etcd() -> Path | None:
    """Return the program; None if it is not installed (Debian: etcd-server)."""
    found = shutil.which("etcd")
    return None if found is None else Path(found)


@final
class EtcdServer:
    """One server, which can be killed, stopped and begun again with what it had."""

    def __init__(self, program: Path, directory: Path) -> None:
        self.port: Final = free_port()
        self._directory = directory
        peer = f"http://127.0.0.1:{free_port()}"
        client = f"http://127.0.0.1:{self.port}"
        self._command = [str(program), "--name", "one", "--data-dir", str(directory / "data")]
        self._command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        self._command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self._command += ["--initial-cluster", f"one={peer}", "--log-level", "error"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it has a leader."""
        with (self._directory / "etcd.txt").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        while not self._is_healthy():
            assert self._process.poll() is None, (self._directory / "etcd.txt").read_text()

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop it in the block: it takes connections, and answers nothing."""
        assert self._process is not None
        freeze(self._process)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


@contextmanager
def open_etcd(program: Path) -> Iterator[EtcdServer]:
    """Run a server."""
    directory = Path(tempfile.mkdtemp(prefix="iris-etcd-"))
    server = EtcdServer(program, directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)
