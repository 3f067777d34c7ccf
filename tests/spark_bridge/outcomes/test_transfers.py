"""docs/howto/calls/saga.md: its transfers make and lose no money, whatever is late, lost, repeated or killed.

The faults come from a seed.  Each operation of a bank may, when it is called for the first time,

- be *late*: book when its time is over;
- be *lost*: book, and not return in its time;
- be *repeated*: book twice at once, and once more some time later, also when the saga has ended;
- be *killed*: have its connection to the database ended before it commits, or see it break after it has.

Members of the banks are cut off for ever while they are at work, and others come; what they were at goes on to its end.
Nodes that run sagas stop at any point, and others, or two at once, run the saga again.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import logging
import runpy
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

import iris
from docs.pages import ROOT, blocks
from iris.patterns.state.saga import Saga
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member
from tests.support.consoles import run_console
from tests.support.postgres import find_server, open_postgres

_log = logging.getLogger(__name__)

PROGRAMS = find_server()
MISSING = [
    *(["PostgreSQL (apt-get install postgresql)"] if PROGRAMS is None else []),
    *(["psycopg (pip install -e .[test])"] if importlib.util.find_spec("psycopg") is None else []),
]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.xdist_group("postgres"),
]

PROGRAM = ROOT / "examples" / "howto" / "transfer.py"
PAGE = ROOT / "docs" / "howto" / "calls" / "saga.md"
ACCOUNTS = 50
MONEY = 1_000_000
LEDGER = """
DROP TABLE IF EXISTS ledger, accounts, booked;
CREATE TABLE ledger (change BIGINT NOT NULL);
CREATE OR REPLACE FUNCTION write_down() RETURNS trigger AS $$
BEGIN INSERT INTO ledger VALUES (NEW.money - OLD.money); RETURN NEW; END $$ LANGUAGE plpgsql;
"""
"""Every change of an account is written down: amounts differ, so each is that of one transfer."""
TRIGGER = "CREATE TRIGGER watch AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION write_down()"


@pytest.fixture(scope="module")
def postgres() -> Iterator[dict[str, str]]:
    assert PROGRAMS is not None
    with open_postgres(PROGRAMS) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment


def test_the_terminals_of_saga_md_show_what_it_says(postgres: dict[str, str]) -> None:
    import psycopg

    with psycopg.connect() as database:
        database.execute("DROP TABLE IF EXISTS ledger, accounts, booked")
    run_console(blocks(PAGE))


class Trouble:
    """Faults in the banks, by a seed.

    Args:
        seed: of it.
        timeout: seconds that a step has.
    """

    def __init__(self, seed: int, timeout: float) -> None:
        self._seed, self._timeout = seed, timeout
        self._seen: set[tuple[int, str]] = set()
        self._local = threading.local()
        self._zombies: list[threading.Thread] = []
        self._free: list[Any] = []
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """Be ``psycopg.connect``, with connections that are used again."""
        import psycopg

        with self._lock:
            database = self._free.pop() if self._free else None
        if database is None:
            database = psycopg.connect()
        try:
            with database.transaction():
                yield database
                if getattr(self._local, "killed", False):
                    self._local.killed = False
                    with psycopg.connect() as other:
                        other.execute("SELECT pg_terminate_backend(%s)", (database.info.backend_pid,))
        finally:
            if not database.closed:
                with self._lock:
                    self._free.append(database)

    def around(self, books: Callable[..., None]) -> Callable[..., None]:
        """Return what does the same, with trouble."""

        def call(request: Any, account: str, amount: int) -> None:
            import psycopg

            first = (request.payload["id"], request.operation)
            with self._lock:
                known = first in self._seen
                self._seen.add(first)
            numbers = Random(f"{self._seed} {first}")
            undoes = request.undoes is not None
            kinds = ["late", "lost", "repeated", "killed before", "killed after"]
            kind = "none" if known or numbers.random() < 0.6 else numbers.choice(kinds)
            with self._lock:
                self.counts[f"{'undo' if undoes else 'step'} {kind}"] += 1
            if kind == "late":
                time.sleep(self._timeout * numbers.uniform(0.9, 2))
            self._local.killed = kind == "killed before"
            books(request, account, amount)
            if kind == "killed after":
                raise psycopg.OperationalError("the connection broke")
            if kind == "repeated":
                books(request, account, amount)
                after = numbers.uniform(0.0, 3 * self._timeout)
                with self._lock:
                    self._zombies.append(threading.Timer(after, books, (request, account, amount)))
                    self._zombies[-1].start()
            if kind == "lost":
                time.sleep(self._timeout * 1.2)

        return call

    def end(self) -> None:
        """Wait until what goes on by itself has ended."""
        for zombie in self._zombies:
            zombie.join()
        for database in self._free:
            database.close()


async def bank_member(network: Network, host: str, bank: Callable[[str], iris.Service], crashed: trio.Event) -> None:
    """Serve both banks, until the member is cut off, and for some time after that."""
    async with (
        network.open_node("banks", host=host, config=iris.Config(drain_timeout=0.1)) as node,
        node.join("north", bank("north")),
        node.join("south", bank("south")),
    ):
        await crashed.wait()
        network.memory.crash(host)
        await trio.sleep(3)


async def crash_members(
    network: Network, bank: Callable[[str], iris.Service], pause: float, counts: Counter[str]
) -> None:
    """Keep three members at work, and cut off the oldest one each time."""
    async with trio.open_nursery() as nursery:
        members: list[trio.Event] = []
        for number in itertools.count():
            members.append(trio.Event())
            nursery.start_soon(bank_member, network, f"bank-{number}", bank, members[-1])
            if len(members) > 3:
                members.pop(0).set()
                counts["members killed"] += 1
                await trio.sleep(pause)


async def run_transfer(
    desks: list[iris.Node], transfer: Callable[..., Any], order: dict[str, Any], numbers: Random, counts: Counter[str]
) -> bool:
    """Have an order done by nodes that stop, until one comes to its end; return whether it was done."""
    ends: set[bool] = set()
    named: set[str] = set()

    async def run(desk: iris.Node, patience: float) -> None:
        with trio.move_on_after(patience) as stopped:
            try:
                await transfer(desk, order)
            except iris.SagaUndone as undone:
                named.update(undone.failed)
                ends.add(False)
            except (iris.LeaseLost, iris.RequestTimeout):
                counts["taken over, or out of time"] += 1
            else:
                ends.add(True)
        counts["desks killed"] += stopped.cancelled_caught

    for turn in itertools.count():
        patience = numbers.choice([60, numbers.uniform(0, 0.2), numbers.uniform(0, 3)]) if turn < 3 else 120
        async with trio.open_nursery() as nursery:
            for desk in numbers.sample(desks, numbers.choice([1, 1, 1, 2])):
                nursery.start_soon(run, desk, patience)
        if ends:
            break
        assert turn < 10
    assert not named, "every undo was done"
    (done,) = ends
    return done


async def run_all(
    directory: Path, count: int, seed: int, timeout: float, at_once: int, crashing: float
) -> Counter[str]:
    """Do that many transfers, and check every account and every change of one."""
    import psycopg

    recipe = runpy.run_path(str(PROGRAM))
    trouble = Trouble(seed, timeout)
    functions = recipe["bank"].__globals__
    for name in ("book", "unbook"):
        functions[name] = trouble.around(functions[name])
    functions["psycopg"] = type(
        "psycopg", (), {"connect": trouble.connect, "OperationalError": psycopg.OperationalError}
    )
    numbers = Random(seed)
    orders: list[dict[str, Any]] = []

    def make_order() -> dict[str, Any]:
        number, source, target = len(orders), numbers.randrange(ACCOUNTS), numbers.randrange(ACCOUNTS)
        to = "eve" if numbers.random() < 0.3 else f"b{target}"
        orders.append({"id": number, "from": f"a{source}", "to": to, "amount": number + 1})
        return orders[-1]

    names = [f"{side}{number}" for side in "ab" for number in range(ACCOUNTS)]
    money = dict.fromkeys(names, MONEY * count)
    with psycopg.connect(autocommit=True) as database:
        database.execute(LEDGER)
        database.execute(recipe["TABLES"])
        database.cursor().executemany("INSERT INTO accounts VALUES (%s, %s)", list(money.items()))
        database.execute(TRIGGER)
    results: dict[int, bool] = {}
    counts = trouble.counts
    async with (
        open_network() as network,
        open_member(network, directory, topics=["t.>"]),
        network.open_node("desk") as one,
        network.open_node("desk") as two,
        network.open_node("desk") as three,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(crash_members, network, recipe["bank"], crashing, counts)
        desks = [one, two, three]
        for desk in desks:
            await desk.wait_for("bridge", timeout=60)
            await desk.wait_for("south", timeout=60)

        async def do_one() -> None:
            order = make_order()
            luck = Random(f"{seed} {order['id']}")
            results[order["id"]] = await run_transfer(desks, recipe["transfer"], order, luck, counts)

        async def work() -> None:
            while len(orders) < count:
                await do_one()

        async with trio.open_nursery() as workers:
            for _ in range(at_once):
                workers.start_soon(work)
        while len(set(results.values())) < 2:  # a busy machine has done none in time: one after the other is quicker
            await do_one()
        await trio.sleep(3 * timeout)  # until the last late one has booked
        nursery.cancel_scope.cancel()
    trouble.end()
    with psycopg.connect() as database:
        accounts: dict[str, int] = dict(database.execute("SELECT name, money FROM accounts").fetchall())
        changes = Counter(change for (change,) in database.execute("SELECT change FROM ledger").fetchall())
    for order in orders:
        amount = order["amount"]
        taken, given = changes[-amount], changes[amount]
        if results[order["id"]]:
            money[order["from"]] -= amount
            money[order["to"]] += amount
            assert (taken, given) == (1, 1), order
        else:
            assert taken == given <= 2, order  # each of both steps, and its undo
            counts["booked and undone"] += taken
        counts["done" if results[order["id"]] else "undone"] += 1
    assert accounts == money
    assert sum(accounts.values()) == MONEY * count * len(names)
    return counts


@pytest.mark.parametrize(
    ("count", "at_once"),
    [(24, 24), pytest.param(10_000, 64, marks=[pytest.mark.long, pytest.mark.timeout(7200)])],
)
async def test_transfers_make_and_lose_no_money(
    postgres: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, at_once: int
) -> None:
    timeout = 1.0 if count < 100 else 2.0
    for function, seconds in ((Saga.request, timeout), (iris.Bridge.saga, 20.0)):  # the page's are longer
        defaults = inspect.unwrap(function).__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "timeout", seconds)
    began = time.monotonic()
    counts = await run_all(tmp_path, count, seed=1, timeout=timeout, at_once=at_once, crashing=6)
    _log.info("%d transfers in %.0f s: %s", count, time.monotonic() - began, dict(sorted(counts.items())))
    assert counts["done"]
    assert counts["undone"]
