"""Election by PostgreSQL: a row with holder, expiry and counter, by the server's clock."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Final, TypeVar, final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.waiting import Ready

from iris.kernel.errors import ConfigError
from iris.spark_bridge.election.engine import ANSWER, LEASE, EngineAway

_MAKE: Final = """
CREATE TABLE IF NOT EXISTS iris_elections (
    name text PRIMARY KEY, holder text NOT NULL, expires timestamptz NOT NULL, turn bigint NOT NULL
)"""

_FREE: Final = "SELECT count(*) FROM iris_elections WHERE name = %(name)s AND expires > clock_timestamp()"

_TAKE: Final = """
INSERT INTO iris_elections AS row VALUES (%(name)s, %(holder)s, clock_timestamp() + %(lease)s * interval '1 s', 1)
ON CONFLICT (name) DO UPDATE SET
    holder = excluded.holder,
    expires = clock_timestamp() + %(lease)s * interval '1 s',
    turn = row.turn + (row.holder <> excluded.holder)::int
WHERE row.holder = excluded.holder OR row.expires <= clock_timestamp()
RETURNING turn"""

_PASSWORDS: Final = frozenset({"password", "sslpassword"})

T = TypeVar("T")

_STEP: Final = 0.1
"""Seconds after which a wait for an answer looks at the clock."""

_RELEASE: Final = """
UPDATE iris_elections SET expires = clock_timestamp() WHERE name = %(name)s AND holder = %(holder)s"""


@final
class Postgres:
    """The lease as a row of the table ``iris_elections``, which is made if it is not there.

    Args:
        url: ``postgresql://...``, as libpq reads it; what it leaves out comes from libpq's environment.
        name: distinguishes the leases of one table.
        holder: distinguishes the processes that want it.

    Raises:
        ConfigError: the URL cannot be read, or holds a password.
    """

    def __init__(self, url: str, name: str, holder: str) -> None:
        try:
            named = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            # Behind the colon stands what is wrong, which may be a password.
            reason = str(error).partition(":")[0].strip()
            raise ConfigError(
                f"the election's URL is not one of PostgreSQL, write postgresql://USER@HOST/DATABASE: {reason}"
            ) from None
        if named.keys() & _PASSWORDS:
            raise ConfigError(
                "the URL of the election holds a password, which others on this machine can see: put it in ~/.pgpass, "
                "or in PGPASSWORD in the environment"
            )
        self._url = url
        self._values: Final = {"name": name, "holder": holder, "lease": LEASE}
        self._connection: _Connection | None = None

    def is_free(self) -> bool:
        """See ``Engine``."""
        return self._ask(_FREE) == 0

    def acquire(self) -> bool:
        """See ``Engine``."""
        return self._ask(_TAKE) is not None

    def release(self) -> None:
        """See ``Engine``."""
        self._ask(_RELEASE)

    def close(self) -> None:
        """See ``Engine``."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self, statement: str) -> object:
        """Return the first column of the first row; None if there is no row."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            with self._connection.cursor() as cursor:
                cursor.execute(statement.encode(), self._values)
                row = cursor.fetchone() if cursor.description else None
        except psycopg.Error as error:
            self.close()
            raise EngineAway(f"PostgreSQL: {str(error).strip()}") from None
        return None if row is None else row[0]

    def _connect(self) -> _Connection:
        connection = _Connection.connect(
            self._url,
            autocommit=True,
            connect_timeout=2,  # the shortest of libpq
            options=f"-c statement_timeout={int(ANSWER * 1000)}",
            application_name="iris bridge",
        )
        connection.execute(_MAKE)
        return connection


@final
class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose every answer comes within ``ANSWER``, or never.

    A server that stands still, or a host behind a firewall that has forgotten the connection, leaves it open: no
    timeout of TCP or of the server ends such a wait.
    """

    def wait(self, gen: Generator[Any, Any, T], interval: float = _STEP, timeout: float | None = None) -> T:
        """Wait for an answer; raise ``psycopg.OperationalError`` if there is none."""
        seconds = ANSWER if timeout is None else min(timeout, ANSWER)
        return super().wait(_until(time.monotonic() + seconds, gen), interval)


def _until(deadline: float, waiting: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Pass on what psycopg waits for, until a deadline."""
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if ready == Ready.NONE and time.monotonic() > deadline:
                raise psycopg.OperationalError(f"no answer within {ANSWER:g} s")
            wanted = waiting.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
