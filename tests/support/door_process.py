"""``iris door`` as a process of its own, with a service behind it; and a browser in front."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from tests.support.command import PATIENCE, Terminal, interrupt

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


def free_port() -> int:
    """Return a port that nobody listens at; the system gives others out first for a while."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        port: int = made.getsockname()[1]
    return port


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


CHROMIUM = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
    "--remote-debugging-port=0",
)  # fmt: skip


class Page:
    """A page of a browser, by the DevTools protocol."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._connection.recv(PATIENCE))
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]

    def open(self, url: str) -> None:
        """Go to an address, and wait until it is loaded."""
        self._call("Page.navigate", url=url)
        self.run("await new Promise((go) => document.readyState === 'complete' ? go() : addEventListener('load', go))")

    def run(self, body: str) -> Any:
        """Run the body of an async function in the page, and return what it returns."""
        told = self._call(
            "Runtime.evaluate", expression=f"(async () => {{ {body} }})()", awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")


@contextmanager
def open_page(url: str) -> Generator[Page]:
    """Open an address in a browser that has nothing else."""
    directory = tempfile.mkdtemp(prefix="iris-chromium-")
    with subprocess.Popen(
        [*CHROMIUM, f"--user-data-dir={directory}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    ) as browser:  # fmt: skip
        try:
            assert browser.stderr is not None
            said: list[str] = []
            for line in browser.stderr:
                said.append(line.decode())
                if "DevTools listening on " in said[-1]:
                    break
            else:
                raise AssertionError("".join(said))
            address = said[-1].split("DevTools listening on ", 1)[1].strip()
            threading.Thread(target=browser.stderr.read, daemon=True).start()  # so that it never waits to be read
            with connect(address, proxy=None, max_size=None) as whole:
                whole.send(json.dumps({"id": 0, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
                told = json.loads(whole.recv(PATIENCE))
                page_address = f"{address.split('/devtools/')[0]}/devtools/page/{told['result']['targetId']}"
                with connect(page_address, proxy=None, max_size=None) as connection:
                    page = Page(connection)
                    page.open(url)
                    yield page
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
            shutil.rmtree(directory, ignore_errors=True)
