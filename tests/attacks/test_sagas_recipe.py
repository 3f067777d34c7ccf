"""docs/howto/calls/saga.md: the recipe against a database that fails at each statement, and accounts that are none."""

from __future__ import annotations

import importlib.util
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import iris
from docs.pages import ROOT
from iris.testing import open_network
from tests.support.bridge_members import open_member
from tests.support.postgres import find_server, open_postgres

PROGRAMS = find_server()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROGRAMS is None or importlib.util.find_spec("psycopg") is None, reason="no PostgreSQL"),
    pytest.mark.xdist_group("postgres"),
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[None]:
    assert PROGRAMS is not None
    with open_postgres(PROGRAMS) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


class Failing:
    """``psycopg`` whose statement of a number fails: before it is done, or after."""

    def __init__(self, at: int, *, after: bool) -> None:
        import psycopg

        self.OperationalError = psycopg.OperationalError
        self.at, self.after, self.count = at, after, 0

    def fails(self, *, after: bool) -> None:
        if not after:
            self.count += 1
        if self.count == self.at and after == self.after:
            raise self.OperationalError("gone")

    def connect(self) -> Connection:
        import psycopg

        self.fails(after=False)
        opened = psycopg.connect()
        try:
            self.fails(after=True)
        except BaseException:
            opened.close()
            raise
        return Connection(self, opened)


class Connection:
    def __init__(self, failing: Failing, opened: Any) -> None:
        self.failing, self.opened = failing, opened

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.failing.fails(after=False)
                self.opened.commit()
                self.failing.fails(after=True)
        finally:
            self.opened.close()

    def execute(self, *statement: Any) -> Any:
        self.failing.fails(after=False)
        came = self.opened.execute(*statement)
        self.failing.fails(after=True)
        return came


@pytest.mark.parametrize("after", [False, True])
async def test_a_database_that_fails_at_any_statement_makes_and_loses_no_money(
    postgres: None, tmp_path: Path, after: bool
) -> None:
    import psycopg

    recipe = runpy.run_path(str(ROOT / "examples" / "howto" / "transfer.py"))
    functions = recipe["bank"].__globals__
    with psycopg.connect(autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS accounts, booked")
        database.execute(recipe["TABLES"])
        database.execute("INSERT INTO accounts VALUES ('ann', 1000), ('ben', 1000)")
    async with (
        open_network() as network,
        open_member(network, tmp_path, topics=["t.>"]),
        network.open_node("banks") as banks,
        banks.join("north", recipe["bank"]("north")),
        banks.join("south", recipe["bank"]("south")),
        network.open_node("desk") as desk,
    ):
        await desk.wait_for("bridge")
        await desk.wait_for("south")
        number = 0
        for source, target in (("ann", "ben"), ("ann", "eve"), ("eve", "ann")):
            for at in range(11):
                number += 1
                functions["psycopg"] = Failing(at, after=after)
                order = {"id": number, "from": source, "to": target, "amount": 1}
                failed: tuple[str, ...] | None = None
                try:
                    await recipe["transfer"](desk, order)
                except iris.SagaUndone as undone:
                    failed = undone.failed
                assert not failed
                done = failed is None
                with psycopg.connect() as database:
                    (ann,), (ben,) = database.execute("SELECT money FROM accounts ORDER BY name").fetchall()
                assert ann + ben == 2000, (order, at)
                assert done <= ({source, target} == {"ann", "ben"})
                if (source, target) == ("ann", "ben") and at in (0, 10):
                    assert done
