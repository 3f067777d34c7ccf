"""``iris dash`` as a process, and the pictures of it that the documents show: ``python -m tests.support.dash``."""

from __future__ import annotations

import http.client
import io
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self, final

from tests.support.airport_realm import SITE, open_airport
from tests.support.browser import Page, open_page
from tests.support.command import PATIENCE, Terminal, open_terminal

ROOT: Final = Path(__file__).resolve().parents[2]

PICTURES: Final = ROOT / "docs" / "howto" / "operate"

WIDE: Final = (1200, 1330)
PHONE: Final = (390, 844)


@final
class Dash:
    """``iris dash`` that listens."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process = process
        self.address = address
        """Address that the command says to open, with the token."""
        self.url, _, self.token = address.partition("/#token=")
        self.port = int(self.url.rpartition(":")[2])

    @property
    def shown(self) -> str:
        """Authorization that the page sends."""
        return f"Bearer {self.token}"

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
        """Ask as the page would, or otherwise as headers say; return the status and what was answered."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        given = {"Authorization": self.shown, **({} if body is None else {"Origin": self.url}), **headers}
        try:
            connection.request("GET" if body is None else "POST", path, body, given)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def follow(self, **options: int) -> Stream:
        """Open a stream of views."""
        return Stream(self, **options)


@final
class Stream:
    """The views that one page gets."""

    def __init__(self, dash: Dash, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", dash.port))
        self.socket.sendall(f"GET /views HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {dash.shown}\r\n\r\n".encode())
        self._lines = self.socket.makefile("rb")
        self.status = int(self._lines.readline().split()[1])

    def read(self, kind: str = "view") -> dict[str, Any]:
        """Return the next message of a kind."""
        found = False
        for line in self._lines:
            found = found or line.strip() == f"event: {kind}".encode()
            if found and line.startswith(b"data: "):
                told: dict[str, Any] = json.loads(line[6:])
                return told
        raise AssertionError("the stream has ended")

    def wait_for(self, is_so: Callable[[dict[str, Any]], bool], timeout: float = PATIENCE) -> dict[str, Any]:
        """Return the first view that is so, which has to come within ``timeout`` seconds."""
        until = time.monotonic() + timeout
        while not is_so((told := self.read())["view"]):
            assert time.monotonic() < until, told
        view: dict[str, Any] = told["view"]
        return view

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self.socket.close()


@contextmanager
def open_dash(terminal: Terminal, *options: str) -> Generator[Dash]:
    """Run it for the length of the block, at a free port unless the options say where."""
    where = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    with terminal.started("dash", *where, *options) as process:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line.decode().strip())
            if " open http" in said[-1]:
                break
        else:
            raise AssertionError(f"iris dash has not begun: {said}")
        yield Dash(process, said[-1].partition(" open ")[2])


def shoot(page: Page, path: Path, size: tuple[int, int], scheme: str, *, phone: bool = False) -> None:
    """Write a picture of the page."""
    from PIL import Image  # of matplotlib, in the extra ``bench``: no test needs it

    page.look_as(*size, scheme=scheme, phone=phone)
    page.run("dispatchEvent(new Event('resize')); await new Promise((go) => setTimeout(go, 1500));")
    with Image.open(io.BytesIO(page.picture())) as seen:  # with 256 colours it is half the size, and looks the same
        seen.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main(folder: Path) -> None:
    """Make the pictures: a minute of an airport, light; one member killed, dark; the same on a phone."""
    with (
        open_terminal() as terminal,
        open_airport(terminal) as airport,
        open_dash(terminal, "--site", SITE, "--allow", "drain") as dash,
        open_page("about:blank") as page,
    ):
        page.look_as(*WIDE, scheme="light")
        page.open(dash.address)
        time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 75)
        shoot(page, folder / "dash_light.png", WIDE, "light")
        airport.processes["flights"][1].kill()
        time.sleep(4)
        shoot(page, folder / "dash_dark.png", WIDE, "dark")
        shoot(page, folder / "dash_phone.png", PHONE, "dark", phone=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
