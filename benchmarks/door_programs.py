"""Programs that serve a cluster through a door, beside members in Python: ``python -m benchmarks.door_programs``.

1. ``idle``: a thousand programs that are registered and get nothing: the memory of the door, whose limit is 100 MiB.
2. ``balance``: a service in Go, a page in a browser and two members of one capacity get 10,000 requests, of which they
   could take four times as many at a time, and 4/3 times: the largest share by the smallest, whose limit is 1.2.
3. ``killed``: the same, idempotent, while each of the four in turn is killed and started again: failures, limit 0.

It takes Go and ``chromium``.  Everything runs in processes of its own, in a local realm that is forgotten afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final

from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

import iris
import iris.aio
from iris.doors import grant

CAPACITY: Final = 8
TAKES: Final = 0.05
"""Seconds that a request takes.  On a busy machine take more: who waits for the processor gets fewer requests."""

IDLE: Final = 1000
MEMORY: Final = 100 << 20
SHARE: Final = 1.2
SERVERS: Final = ("go", "page", "member1", "member2")

_PROTOCOL: Final = Subprotocol("iris.serve.1")
_CLIENT: Final = Path(__file__).resolve().parents[1] / "clients" / "go"

_PAGE: Final = """<!doctype html><script type="module">
import { Door } from "%(url)s/iris.js";
const request = async () => { await new Promise((go) => setTimeout(go, %(takes)d)); return "page"; };
const options = { capacity: %(capacity)d, onReady: () => fetch("/ready") };
await new Door("%(url)s", "%(token)s").serve("orders", { request }, options);
</script>"""


def _socket(url: str, token: str) -> connect:
    bearer = {"authorization": f"Bearer {token}"}
    return connect(
        f"{url.replace('http', 'ws')}/serve/orders?capacity={CAPACITY}", additional_headers=bearer,
        subprotocols=[_PROTOCOL], max_queue=None, compression=None,
    )  # fmt: skip


def page(url: str, token: str, profile: str, takes: str) -> None:
    """Have a browser show a page that serves, until both are killed."""
    shown = _PAGE % {"url": url, "token": token, "capacity": CAPACITY, "takes": float(takes) * 1000}

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/ready":
                print("ready", flush=True)
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(shown.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- its name in the base
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        options = (
            "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--no-proxy-server",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
        )  # fmt: skip
        browser = ("chromium", *options, f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_port}")
        subprocess.Popen(browser, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server.serve_forever()


async def member(name: str, takes: str) -> None:
    """Be a member that serves until it is killed."""
    service = iris.Service("orders")

    @service.request
    async def answer(_: iris.Request) -> str:
        await asyncio.sleep(float(takes))
        return name

    async with (
        iris.aio.open_node("orders") as node,
        node.join("orders", service, limits=iris.Limits(concurrency=CAPACITY)),
    ):
        print("ready", flush=True)
        await asyncio.Event().wait()


class Place:
    """A realm with a door in it."""

    def __init__(self, home: Path, takes: float) -> None:
        self.takes = str(takes)
        self.home = home
        self.tokens = home / "tokens"
        self.environment = {**os.environ, "IRIS_HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        self.secrets = [grant(self.tokens, f"client{number}", serve=("orders",)) for number in range(4)]
        self.url = ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        at = ("--http", "127.0.0.1:0", "--allow-origin", "*")
        options = (*at, "--tokens", str(self.tokens), "--max-connections", "1100")
        self._begin("door", sys.executable, "-m", "iris", "door", *options)
        self.url = self._line("door", "http://")

    def build(self) -> None:
        """Make the service in Go."""
        subprocess.run(["go", "build", "-o", str(self.home / "slow"), "./internal/slow"], cwd=_CLIENT, check=True)

    def start(self, name: str) -> None:
        """Start a program or member, and wait until it serves."""
        own = (sys.executable, "-m", "benchmarks.door_programs")
        command: tuple[str, ...]
        match name:
            case "go":
                command = (str(self.home / "slow"), self.url, self.secrets[0], name, str(CAPACITY), f"{self.takes}s")
            case "page":
                profile = tempfile.mkdtemp(dir=self.home)
                command = (*own, "page", self.url, self.secrets[1], profile, self.takes)
            case _:
                command = (*own, "member", name, self.takes)
        self._begin(name, *command)
        self._line(name, "ready")

    def kill(self, name: str) -> None:
        """Kill it, and what it has started: a browser is many processes."""
        process = self.processes[name]
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def memory(self) -> int:
        """Return the bytes of memory that the door occupies."""
        status = Path(f"/proc/{self.processes['door'].pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024

    def _begin(self, name: str, *arguments: str) -> None:
        self.processes[name] = subprocess.Popen(
            arguments, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )

    def _line(self, name: str, begin: str) -> str:
        output = self.processes[name].stdout
        assert output is not None
        told: list[str] = []
        for line in output:
            told.append(line.decode())
            found = told[-1].find(begin)
            if found >= 0:
                return told[-1][found:].strip()
        raise AssertionError(f"{name} has ended: {''.join(told)}")


@contextmanager
def opened(takes: float) -> Generator[Place]:
    """Open a door in a realm of its own, for this process as well."""
    with tempfile.TemporaryDirectory(prefix="ip", dir="/tmp", ignore_cleanup_errors=True) as home:
        os.environ.update(IRIS_HOME=home, XDG_RUNTIME_DIR=home)
        place = Place(Path(home), takes)
        try:
            yield place
        finally:
            for name in place.processes:
                place.kill(name)


@asynccontextmanager
async def caller(members: int) -> AsyncGenerator[iris.aio.Node]:
    """Open a node that asks, once it sees so many members."""
    async with iris.aio.open_node("shop") as node:
        await node.wait_for("orders", members, timeout=60)
        yield node


async def idle(place: Place, programs: int) -> bool:
    """Register programs that do nothing."""
    before = place.memory()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(programs):
            socket = await stack.enter_async_context(_socket(place.url, place.secrets[number % 4]))
            await socket.recv()
        await asyncio.sleep(12)  # pings come and go
        after = place.memory()
    each = (after - before) / programs / 1024
    print(f"{programs} idle programs: {after / 2**20:.1f} MiB, {before / 2**20:.1f} without, {each:.1f} KiB each")
    return after <= MEMORY


async def ask(place: Place, requests: int, at_a_time: int, *, kill: bool = False) -> tuple[Counter[str], int]:
    """Ask so often, so many at a time; return who has answered how often, and how many requests failed."""
    served, failed, left, killed = Counter[str](), 0, requests, set[str]()
    options = iris.RequestOptions(idempotent=True)

    async def asking(node: iris.aio.Node) -> None:
        nonlocal left, failed
        while left > 0 or (kills is not None and not kills.done() and killed != set(SERVERS)):
            left -= 1
            try:
                served[await node.request("orders", None, timeout=30, options=options)] += 1
            except iris.IrisError as error:
                failed += 1
                print(f"failed: {error!r}")

    async def killing() -> None:
        while True:
            for name in SERVERS:
                await asyncio.sleep(1)
                place.kill(name)
                await asyncio.to_thread(place.start, name)
                killed.add(name)

    async with caller(3) as node:
        kills = asyncio.create_task(killing()) if kill else None
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_a_time):
                tasks.create_task(asking(node))
        if kills is not None:
            kills.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await kills  # else one could not be started again
    return served, failed


async def balance(place: Place, requests: int, at_once: list[int]) -> bool:
    """Compare what each has got."""
    fair = True
    for at_a_time in at_once:
        served, failed = await ask(place, requests, at_a_time)
        ratio = max(served.values()) / min(served.values())
        many = f"{at_a_time} at a time, of {4 * CAPACITY}"
        print(f"{many}: {dict(served)}, largest by smallest {ratio:.2f}, {failed} failed")
        fair = fair and len(served) == 4 and ratio <= SHARE and not failed
    return fair


async def killed(place: Place, requests: int) -> bool:
    """Ask while they are killed."""
    served, failed = await ask(place, requests, 2 * CAPACITY, kill=True)
    print(f"killed in turn: {dict(served)}, {failed} of {served.total() + failed} failed")
    return not failed


def main() -> int:
    """Run what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="idle, balance, killed; all if nothing is said")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--programs", type=int, default=IDLE, help="of idle")
    parser.add_argument("--takes", type=float, default=TAKES, help="seconds that a request takes")
    at_a_time = [CAPACITY, 3 * CAPACITY]
    parser.add_argument("--at-a-time", type=int, nargs="+", default=at_a_time, help="requests of balance")
    given = parser.parse_args()
    match given.what:
        case ["page", url, token, profile, takes]:
            page(url, token, profile, takes)
        case ["member", name, takes]:
            asyncio.run(member(name, takes))
        case _:
            pass  # not one of the processes that it starts
    what = given.what or ["idle", "balance", "killed"]
    passed = True
    with opened(given.takes) as place:
        if "idle" in what:
            passed = asyncio.run(idle(place, given.programs)) and passed
        if what != ["idle"]:
            place.build()
            for name in SERVERS:
                place.start(name)
        if "balance" in what:
            passed = asyncio.run(balance(place, given.requests, given.at_a_time)) and passed
        if "killed" in what:
            passed = asyncio.run(killed(place, given.requests)) and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
