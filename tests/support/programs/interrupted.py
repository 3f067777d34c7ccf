"""Ctrl-C at random moments, in a program that uses everything.

A program of two nodes, real connections between them, does everything at a time that nodes can do; or two sites with a
gateway each, on a network in memory.  It is interrupted by one SIGINT while it comes up, works or ends.  What has to
come of it is ``KeyboardInterrupt`` and nothing else: no other exception, nothing that was ignored somewhere, nothing
logged as an error, no warning, and no program that goes on.

Programs run one after the other in child processes, each of which is interrupted many times, so that what one leaves
behind harms the next.  One interruption in 25 is that of an ``iris`` command in an interpreter of its own, at any time
from its first import on: it ends with its status and without a traceback.  A program that ends before its moment has
come is not counted, and runs again with another moment.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, cast, final

import trio

import iris
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy
from iris.testing import open_network
from tests.support.processes import open_realm

ROOT: Final = Path(__file__).resolve().parents[3]
BATCH: Final = 25
"""Interruptions of one child process."""

_COMMANDS: Final = (
    (["request", "nobody", "hello", "--wait", "9"], {130}),
    (["sub", ">"], {0, 130}),
    (["run", "interrupted:service"], {0, 130}),
)
"""Commands that go on until they are interrupted, and the statuses that they may end with; those that serve have 0."""

_COMMAND_TIME: Final = 3.0
"""Seconds within which a command is interrupted: it loads for one, and is up by then, on a machine that is busy."""

_FEDERATED: Final = 5
"""One program in so many is that of two sites."""

_WORK: Final = 0.3
"""Seconds for which a program that is not interrupted works before it ends by itself."""

_PATIENCE: Final = 60.0
"""Seconds after which a program that was interrupted is held to hang."""

_EVERYTHING: Final = Policy(exports=(">",), export_topics=(">",))


Program = Callable[[], Awaitable[None]]

# -- the programs -------------------------------------------------------------------------------------------


def _service() -> iris.Service:
    service = iris.Service("store")

    @service.request
    async def give_back(request: iris.Request) -> object:
        return request.payload

    @service.request("slow")
    async def wait(request: iris.Request) -> object:
        await trio.sleep(0.01)
        return request.payload

    @service.request("thread", thread=True)
    def compute(_: iris.Request) -> object:
        return sum(range(1000))

    @service.broadcast
    async def hear(_: iris.Message) -> None:
        await trio.lowlevel.checkpoint()

    @service.tunnel
    async def mirror(tunnel: iris.Tunnel) -> None:
        async for payload in tunnel:
            await tunnel.send(payload)

    assert None not in (give_back, wait, compute, hear, mirror)
    return service


async def _ask(shop: iris.Node) -> None:
    number = 0
    while True:
        number += 1
        with suppress(iris.IrisError):
            await shop.request("store", number)
            await shop.request(
                "store",
                number,
                operation="slow",
                timeout=2,
                wait=1,
                options=iris.RequestOptions(idempotent=True, hedge=0.005),
            )
            await shop.request("store", b"x" * 1000, operation="thread", timeout=2)


async def _tell(shop: iris.Node) -> None:
    while True:
        with suppress(iris.IrisError):
            await shop.broadcast("store", b"x" * 100)
            async with shop.survey("store", b"how much?", timeout=0.5) as answers:
                async for _ in answers:
                    pass
        await trio.sleep(0.001)


async def _publish(node: iris.Node) -> None:
    number = 0
    while True:
        number += 1
        with suppress(iris.IrisError):
            await (node.retain if number % 50 == 0 else node.publish)(f"orders.{number % 7}", b"x" * 100)
            if number % 20 == 0:
                await node.publish_confirmed("kept.one", {"number": number}, timeout=1)
            if number % 100 == 0:
                async with node.confirming(timeout=1) as events:
                    for _ in range(10):
                        await events.publish("kept.two", b"x")
        await trio.lowlevel.checkpoint()


async def _follow(node: iris.Node, pattern: str, overflow: str) -> None:
    async with node.subscribe(pattern, overflow=overflow) as events:  # type: ignore[arg-type]
        async for _ in events:
            pass


async def _keep(node: iris.Node) -> None:
    async with node.subscribe_durable("kept.>") as events:
        while True:
            await events.confirm(await events.receive_batch())


async def _talk(shop: iris.Node) -> None:
    while True:
        with suppress(iris.IrisError):
            async with shop.open_tunnel("store", timeout=2) as tunnel:
                for _ in range(20):
                    await tunnel.send(b"x" * 10_000)
                    await tunnel.receive()


async def _watch(shop: iris.Node) -> None:
    async with shop.watch("store") as changes:
        async for _ in changes:
            shop.statistics()


async def _come_and_go(node: iris.Node) -> None:
    other = iris.Service("other")
    while True:
        async with node.join("store", other) if node.name == "other" else node.subscribe("gone.*"):
            await trio.sleep(0.02)


async def _work(store: iris.Node, shop: iris.Node) -> None:
    """Do everything that nodes can do, at a time."""
    async with store.join("store", _service()), trio.open_nursery() as nursery:
        await shop.wait_for("store")
        for _ in range(3):
            nursery.start_soon(_ask, shop)
        nursery.start_soon(_tell, shop)
        nursery.start_soon(_follow, store, "orders.*", "drop_oldest")
        nursery.start_soon(_follow, store, "orders.1", "wait")
        nursery.start_soon(_keep, store)
        nursery.start_soon(_publish, shop)
        nursery.start_soon(_talk, shop)
        nursery.start_soon(_watch, shop)
        nursery.start_soon(_come_and_go, shop)
        await trio.sleep(_WORK)
        nursery.cancel_scope.cancel()


async def work_nearby() -> None:
    """Be two nodes of this machine."""
    async with iris.open_node("store") as store, iris.open_node("shop") as shop:
        await _work(store, shop)


async def work_abroad() -> None:
    """Be two sites with a gateway each."""
    async with (
        open_network() as network,
        network.open_node("gateway", host="eu-gateway", site="eu") as eu,
        open_gateway(eu, listen=["mem://eu-gateway:between"], policy=_EVERYTHING),
        network.open_node("gateway", host="us-gateway", site="us") as us,
        open_gateway(us, peers=["mem://eu-gateway:between"], listen=["mem://us-gateway:between"], policy=_EVERYTHING),
        network.open_node("store", host="eu-store", site="eu") as store,
        network.open_node("shop", host="us-shop", site="us") as shop,
    ):
        await _work(store, shop)


# -- a child process ----------------------------------------------------------------------------------------


@final
class _Faults(logging.Handler):
    """Faults that an interruption must not cause, as texts."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        logging.getLogger().addHandler(self)
        sys.unraisablehook = self._ignored
        self._warnings = warnings.catch_warnings(record=True)
        self._warned = self._warnings.__enter__() or []  # for as long as this process lives
        warnings.simplefilter("always")

    def emit(self, record: logging.LogRecord) -> None:
        """Take what is logged as an error."""
        self.texts.append(f"logged: {self.format(record)}")

    def _ignored(self, what: object) -> None:
        error = cast("BaseException | None", getattr(what, "exc_value", None))
        if not isinstance(error, KeyboardInterrupt):
            shown = "" if error is None else "".join(traceback.format_exception(error))
            self.texts.append(f"ignored in {getattr(what, 'object', None)!r}: {shown}")

    def take(self) -> list[str]:
        """Return what there was since the last time."""
        texts = [*self.texts, *(f"warning at {one.filename}:{one.lineno}: {one.message}" for one in self._warned)]
        self.texts.clear()
        self._warned.clear()
        return texts


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, however deep it is; of an error, itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(inner)
    else:
        yield error


@final
class Interrupter:
    """Sends one SIGINT for each run, at a moment that is drawn."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._at: float | None = None
        self.sent = False
        """True once the last SIGINT was sent."""
        self._news = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def arm(self, seconds: float) -> None:
        """Interrupt the main thread so much later."""
        with self._news:
            self._at, self.sent = time.monotonic() + seconds, False
            self._news.notify()

    def disarm(self) -> None:
        """Do not, if it has not happened yet."""
        with self._news:
            self._at = None
            self._news.notify()

    def _run(self) -> None:
        while True:
            with self._news:
                if self._at is None:
                    self._news.wait()
                    continue
                left = self._at - time.monotonic()
                if left > 0:
                    self._news.wait(left)
                    continue
                self._at, self.sent = None, True
                assert self._main is not None
                signal.pthread_kill(self._main, signal.SIGINT)


def run_one(program: Program, after: float | None, interrupter: Interrupter) -> tuple[str, str | None]:
    """Run a program, and interrupt it; return what came of it, and what should not have."""
    outcome, fault = "ended", None
    try:
        if after is not None:
            interrupter.arm(after)
        try:
            trio.run(program)
        finally:
            interrupter.disarm()
    except BaseException as error:  # noqa: BLE001 -- that is what is looked at
        outcome = "interrupted"
        if any(type(leaf) is not KeyboardInterrupt for leaf in leaves(error)):
            outcome, fault = type(error).__name__, "".join(traceback.format_exception(error))
    return outcome, fault


def run_batch(count: int, seed: int) -> None:
    """Interrupt programs, one after the other in this process; write a JSON object for each to standard output."""
    random = Random(seed)
    faults, interrupter = _Faults(), Interrupter()
    lengths: dict[Program, float] = {}
    with open_realm():
        number = 0
        while number < count:
            program = work_abroad if number % _FEDERATED == _FEDERATED - 1 else work_nearby
            if program not in lengths:  # how long it takes here and now, when nobody interrupts it
                began = time.monotonic()
                run_one(program, None, interrupter)
                lengths[program] = time.monotonic() - began
            after = random.uniform(0, lengths[program])
            faulthandler.dump_traceback_later(_PATIENCE, exit=True)
            outcome, fault = "", None
            with suppress(KeyboardInterrupt):  # it may come when the program has just ended
                outcome, fault = run_one(program, after, interrupter)
                time.sleep(0)  # for one that was sent and has not come yet
            faulthandler.cancel_dump_traceback_later()
            gc.collect()  # what it has not closed says so now
            texts = [*([fault] if fault else []), *faults.take()]
            if not interrupter.sent and not texts:
                continue
            number += 1
            print(json.dumps({"outcome": outcome or "interrupted", "after": after, "faults": texts}), flush=True)


# -- commands -----------------------------------------------------------------------------------------------

_BEGIN: Final = """
import os, runpy, sys
os.write(1, b"begun\\n")
sys.argv = ["iris", *sys.argv[1:]]
runpy.run_module("iris", run_name="__main__")
"""


def run_command(random: Random) -> tuple[str, list[str]]:
    """Interrupt an ``iris`` command in an interpreter of its own; return what came of it, and what should not have."""
    arguments, statuses = random.choice(_COMMANDS)
    after = random.uniform(0, _COMMAND_TIME)
    with open_realm(), tempfile.TemporaryDirectory() as directory:
        Path(directory, "interrupted.py").write_text("import iris\nservice = iris.Service('interrupted')\n")
        child = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, *arguments],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        time.sleep(after)
        child.send_signal(signal.SIGINT)
        try:
            _, errors = child.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            errors = child.communicate()[1] + "\nit did not end"
    shown = [line for line in errors.splitlines() if line and not line.startswith("iris: ")]
    wrong = bool(shown) or child.returncode not in statuses
    text = f"iris {arguments[0]} after {after:.4f} s: status {child.returncode}: {errors}"
    return "command interrupted", [text] * wrong


# -- the whole ----------------------------------------------------------------------------------------------


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """Result of a run."""

    outcomes: Counter[str]
    faults: list[str]
    """Each is one thing that must not come of an interruption."""


def run(count: int, seed: int = 1) -> Interruptions:
    """Interrupt so many programs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    for first in range(0, count, BATCH):
        size = min(BATCH, count - first)
        if size > 1:
            size -= 1
            outcome, texts = run_command(Random(seed + first))
            outcomes[outcome] += 1
            faults += texts
        command = [sys.executable, "-m", "tests.support.programs.interrupted", str(size), str(seed + first)]
        child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ))
        lines = child.stdout.splitlines()
        for line in lines:
            shown = json.loads(line)
            outcomes[shown["outcome"]] += 1
            faults += [f"{shown['outcome']} after {shown['after']:.4f} s: {fault}" for fault in shown["faults"]]
        if child.returncode != 0 or len(lines) != size:
            outcomes["child failed"] += 1
            faults.append(f"the process ended with {child.returncode} after {len(lines)} of {size}: {child.stderr}")
    return Interruptions(outcomes=outcomes, faults=faults)


if __name__ == "__main__":
    run_batch(int(sys.argv[1]), int(sys.argv[2]))
