"""``iris door`` as a process of its own, with a service behind it."""

from __future__ import annotations

import contextlib
import functools
import http.server
import signal
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.support.command import PATIENCE, Terminal, interrupt
from tests.support.ports import free_port

SERVICE = """
import iris, trio

greeters = iris.Service("greeters")


@greeters.request
async def greet(request: iris.Request) -> object:
    return f"hello {request.payload}"


@greeters.request("headers")
async def headers(request: iris.Request) -> object:
    return dict(request.headers)


@greeters.request("large")
async def large(size: int) -> bytes:
    return bytes(size)


@greeters.request("bytes")
async def nested(request: iris.Request) -> object:
    return {"bytes": request.payload}


@greeters.request("never")
async def never(request: iris.Request) -> object:
    await trio.sleep_forever()


@greeters.tunnel
async def mirror(tunnel: iris.Tunnel) -> None:
    async for payload in tunnel:
        await tunnel.send(payload)
"""


class DoorProcess:
    """``iris door`` in a terminal; it can be killed, and started again at the same places."""

    def __init__(self, terminal: Terminal, *options: str) -> None:
        self.terminal = terminal
        self.http, self.mqtt = free_port(), free_port()
        self.options = ("--http", f"127.0.0.1:{self.http}", "--mqtt", f"127.0.0.1:{self.mqtt}", *options)
        self.process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        started = self.terminal.started("door", *self.options, "--tokens", "tokens", announces="mqtt://")
        self.process = self._stack.enter_context(started)

    def kill(self) -> None:
        """End it without a chance to say goodbye."""
        assert self.process is not None
        interrupt(self.process, signal.SIGKILL)
        self._stack.close()

    def stop(self) -> str:
        """End it in order, and return what it has said since it listens."""
        assert self.process is not None
        assert self.process.stderr is not None
        self.process.send_signal(signal.SIGTERM)
        said = self.process.stderr.read().decode()
        assert self.process.wait(PATIENCE) == 0, said
        self._stack.close()
        return said

    def memory(self) -> int:
        """Return the bytes of memory that it occupies."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._stack.close()


def token(terminal: Terminal, name: str, *options: str) -> str:
    """Return a new token of a client of the door of a terminal, by the command."""
    done = terminal.run("keys", "token", "tokens", name, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


ALL_RIGHTS = ("--call", ">", "--publish", ">", "--subscribe", ">")


@contextmanager
def serving(terminal: Terminal) -> Generator[None]:
    """Run the service for the length of the block."""
    (terminal.directory / "door_service.py").write_text(SERVICE)
    with terminal.started("run", "door_service:greeters", announces="greeters"):
        yield


@contextmanager
def files(folder: Path) -> Generator[str]:
    """Serve a folder over HTTP, and return where."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- its name in the base
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
