"""``iris dash`` as a process, and the pictures of it that the documents show: ``python -m tests.support.dash``."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from tests.support.airport_realm import SITE, open_airport
from tests.support.browser import Page, open_page
from tests.support.command import Terminal, open_terminal

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
        """What it says to open, with the token."""
        self.url, _, self.token = address.partition("/?token=")
        self.port = int(self.url.rpartition(":")[2])

    @property
    def cookie(self) -> str:
        """What a browser shows that has been let in."""
        return f"iris_dash_{self.port}={self.token}"


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
        if folder != PICTURES:
            for number in range(1, 9):
                page.run(f"scrollTo(0, {number * 780})")
                shoot(page, folder / f"more_{number}.png", PHONE, "light", phone=True)
            for name, size in (("wide", (1600, 2300)), ("tablet", (820, 2600))):
                page.run("scrollTo(0, 0)")
                shoot(page, folder / f"{name}.png", size, "light")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
