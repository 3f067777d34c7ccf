"""The price service: FastAPI in front of services of asyncio that ``iris run`` serves.

The page docs/howto/programs/run.md runs it as well, with one member.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.command import PATIENCE, interrupt, open_terminal
from tests.support.ports import free_port

PRICES = Path(__file__).resolve().parents[2] / "examples" / "price_service"


def asked(url: str, method: str = "GET") -> object:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as reply:
        return json.load(reply)


def wait_served(url: str) -> None:
    """Wait until a server answers at all."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            asked(url)
        except urllib.error.HTTPError:
            return
        except urllib.error.URLError:
            assert time.monotonic() < ends
            time.sleep(0.05)
        else:
            return


def test_a_handler_that_fastapi_asks_takes_fifteen_lines_in_all() -> None:
    programs = [(PRICES / name).read_text().split('"""')[2].splitlines() for name in ("first.py", "first_web.py")]
    assert sum(bool(line) for program in programs for line in program) <= 15


@pytest.mark.long
def test_no_request_fails_when_a_member_is_killed_and_another_one_is_told_to_leave() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with open_terminal() as terminal, ExitStack() as stack:
        terminal.directory = PRICES
        serve = ("run", "prices:prices", "prices:quotes")
        killed, leaving, _ = (
            stack.enter_context(terminal.started(*serve, announces="serves prices, quotes")) for _ in range(3)
        )
        web = [sys.executable, "-m", "uvicorn", "web:app", "--port", str(port), "--log-level", "error"]
        server = stack.enter_context(subprocess.Popen(web, cwd=PRICES, env=terminal.environment))
        stack.callback(server.kill)
        wait_served(f"{url}/nothing")
        assert asked(f"{url}/quote/tea/10") == 31.5
        assert asked(f"{url}/price/tea?price=3", "PUT") is None
        ends = time.monotonic() + PATIENCE
        while {asked(f"{url}/price/tea") for _ in range(12)} != {3.0}:  # the event reaches each member by itself
            assert time.monotonic() < ends
        killed.send_signal(signal.SIGKILL)
        assert {asked(f"{url}/quote/tea/10") for _ in range(50)} == {27.0}
        leaving.send_signal(signal.SIGTERM)
        assert {asked(f"{url}/quote/tea/10") for _ in range(50)} == {27.0}
        assert leaving.wait(PATIENCE) == 0
        assert interrupt(server) in (0, -signal.SIGINT, 130)
