"""A browser, by the DevTools protocol."""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.command import PATIENCE

in_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser is there: apt install chromium")

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
        self.problems: list[Any] = []
        """Reports of the browser since ``watch_problems``: errors of scripts, and what a policy forbids."""

    def watch_problems(self) -> None:
        """Keep what the browser reports from now on."""
        self._call("Runtime.enable")
        self._call("Log.enable")

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._connection.recv(PATIENCE))
            if told.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.problems.append(told["params"])
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

    def wait_for(self, condition: str, timeout: float = PATIENCE) -> None:
        """Wait until an expression is true in the page, for at most ``timeout`` seconds.

        It is looked at 20 times a second: at each frame the browser would draw the page 60 times, by the processor.
        """
        self.run(
            f"const until = performance.now() + {timeout * 1000}; while (!({condition})) {{"
            f"  if (performance.now() > until) throw new Error({json.dumps(condition)} + ' is not so');"
            "  await new Promise((resolve) => setTimeout(resolve, 50)); }"
        )

    def choose_file(self, selector: str, path: Path) -> None:
        """Give a file to a field, as a person would."""
        document = self._call("DOM.getDocument")["root"]["nodeId"]
        field = self._call("DOM.querySelector", nodeId=document, selector=selector)["nodeId"]
        self._call("DOM.setFileInputFiles", nodeId=field, files=[str(path)])

    def look_as(self, width: int, height: int, *, scheme: str, phone: bool = False) -> None:
        """Have a screen of this size, in pixels of the page, for somebody who prefers light or dark."""
        factor = 1.5 if phone else 1
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=factor, mobile=phone
        )
        self._call("Emulation.setScrollbarsHidden", hidden=True)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self) -> bytes:
        """Return the screen as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])


_running: list[tuple[subprocess.Popen[bytes], str]] = []
"""The browsers of this process, and where they are spoken to; only the last one may be in use."""


def _started() -> str:
    """Return where the browser of this process is spoken to, which is started when there is none, and ends with it."""
    if _running and _running[-1][0].poll() is None:
        return _running[-1][1]
    directory = tempfile.mkdtemp(prefix="iris-chromium-")
    browser = subprocess.Popen(
        [*CHROMIUM, f"--user-data-dir={directory}"], env={**os.environ, "TMPDIR": directory},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    atexit.register(_end, browser, directory)
    assert browser.stderr is not None
    said: list[str] = []
    for line in browser.stderr:
        said.append(line.decode())
        if "DevTools listening on " in said[-1]:
            break
    else:
        raise AssertionError("".join(said))
    threading.Thread(target=list, args=(browser.stderr,), daemon=True).start()  # so that it never waits to be read
    _running.append((browser, said[-1].split("DevTools listening on ", 1)[1].strip()))
    return _running[-1][1]


def _end(browser: subprocess.Popen[bytes], directory: str) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it is gone
        os.killpg(browser.pid, signal.SIGKILL)
    browser.wait()
    shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def open_page(url: str) -> Generator[Page]:
    """Open an address in a browser that has nothing else: no cookie, no cache, no storage of another page."""
    address = _started()

    def ask(method: str, **parameters: Any) -> Any:
        whole.send(json.dumps({"id": 0, "method": method, "params": parameters}))
        told = json.loads(whole.recv(PATIENCE))
        assert "error" not in told, told
        return told["result"]

    with connect(address, proxy=None, max_size=None) as whole:
        context = ask("Target.createBrowserContext", disposeOnDetach=True)["browserContextId"]
        target = ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        page_address = f"{address.split('/devtools/')[0]}/devtools/page/{target}"
        with connect(page_address, proxy=None, max_size=None) as connection:
            page = Page(connection)
            page.open(url)
            yield page
