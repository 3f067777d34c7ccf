"""The price service: FastAPI in front of services of asyncio that ``iris run`` serves.

The page docs/howto/programs/run.md runs it as well, with one member.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import ExitStack
from typing import Self

import pytest

from tests.support.command import COMMAND, PATIENCE, interrupt, open_terminal
from tests.support.ports import free_port
from tests.support.processes import ROOT, Child, children, open_realm

PRICES = ROOT / "examples" / "price_service"


def asked(url: str, method: str = "GET") -> object:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as reply:
        return json.load(reply)


def wait_served(url: str) -> None:
    """Wait until a server answers at all."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            asked(url)
        except urllib.error.HTTPError as error:
            error.close()
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


class Shoppers:
    """Threads that ask the web application, until they are stopped; what it answered but what was wanted.

    Every fourth request changes a price, which is no idempotent request to the members.
    """

    def __init__(self, url: str) -> None:
        self.quoted = self.changed = 0
        self.failed: Counter[str] = Counter()
        self._url = url
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._shop, args=(number,)) for number in range(4)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _shop(self, number: int) -> None:
        while not self._over.is_set():
            number += 1
            changes = number % 4 == 0
            try:
                if changes:
                    asked(f"{self._url}/price/milk?price=1.2", "PUT")
                    self.changed += 1
                else:
                    assert asked(f"{self._url}/quote/tea/10") == 31.5
                    self.quoted += 1
            except urllib.error.HTTPError as error:
                kind = "plain" if changes else "idempotent"
                with error:
                    self.failed[f"{kind}: {error.code} {error.read().decode()}"] += 1
            except AssertionError as error:
                self.failed[f"wrong: {error}"] += 1


@pytest.mark.long
def test_nothing_fails_when_workers_are_rolled_and_only_what_is_plain_when_one_is_killed() -> None:
    port, rolls, kills = free_port(), 2, 4
    url = f"http://127.0.0.1:{port}"
    with open_realm() as directory, ExitStack() as stack:
        log = directory / "prices.txt"

        def wait_said(text: str, times: int) -> None:
            ends = time.monotonic() + PATIENCE
            while log.read_text().count(text) < times:
                assert time.monotonic() < ends, log.read_text()
                time.sleep(0.02)

        environment = {"PYTHONPATH": os.pathsep.join((str(PRICES), str(ROOT))), "PYTHONUNBUFFERED": "1"}
        command = (*COMMAND, "run", "prices:prices", "prices:quotes", "--workers", "2")
        supervisor = Child(command, ready="2 workers serve", log=log, environment=environment)
        stack.callback(supervisor.end)
        supervisor.start()
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "web:app", "--port", str(port), "--log-level", "error"], cwd=PRICES
        )
        stack.enter_context(server)
        stack.callback(server.kill)
        wait_served(f"{url}/nothing")
        with Shoppers(url) as rolled:
            for number in range(1, rolls + 1):
                supervisor.send(signal.SIGHUP)
                wait_said(" replaced", number)
        with Shoppers(url) as killed:
            for number in range(1, kills + 1):
                os.kill(children(supervisor.pid)[number % 2], signal.SIGKILL)
                wait_said(" serves prices, quotes at ", 2 * (1 + rolls) + number)
        assert supervisor.end(signal.SIGTERM) == 0
        assert interrupt(server) in (0, -signal.SIGINT, 130)
    assert rolled.failed == {}
    documented = {what for what in killed.failed if what.startswith("plain: 503 ") and "it ran never or once" in what}
    assert killed.failed.keys() == documented
    assert min(rolled.quoted, rolled.changed, killed.quoted, killed.changed) > 20
