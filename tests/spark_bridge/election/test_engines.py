"""The engines of an election, real ones: a lease that one process has at a time, and that ends by itself."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from iris.kernel.errors import ConfigError
from iris.spark_bridge.election.engine import LEASE, Engine, EngineAway
from iris.spark_bridge.election.etcd import Etcd
from iris.spark_bridge.election.postgres import Postgres
from tests.support.etcd import EtcdServer, find_etcd, open_etcd
from tests.support.postgres import find_server, open_postgres

Candidates = Callable[[str], Engine]

needs_etcd = pytest.mark.skipif(find_etcd() is None, reason="etcd is not installed (Debian: apt install etcd-server)")
needs_postgres = pytest.mark.skipif(
    find_server() is None, reason="PostgreSQL is not installed (Debian: apt install postgresql)"
)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    program = find_etcd()
    assert program is not None
    with open_etcd(program) as server:
        yield server


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    programs = find_server()
    assert programs is not None
    with open_postgres(programs) as server:
        yield f"postgresql://{server['PGUSER']}@{server['PGHOST']}:{server['PGPORT']}/{server['PGDATABASE']}"


@pytest.fixture(params=[pytest.param("etcd", marks=needs_etcd), pytest.param("postgres", marks=needs_postgres)])
def candidates(request: pytest.FixtureRequest) -> Iterator[Candidates]:
    """Makes a candidate of a name for a lease that only this test knows."""
    made: list[Engine] = []
    lease = f"{request.function.__name__} {request.param}"

    def candidate(holder: str) -> Engine:
        if request.param == "etcd":
            server: EtcdServer = request.getfixturevalue("etcd")
            made.append(Etcd(f"etcd://127.0.0.1:{server.port}/tests", lease, holder))
        else:
            made.append(Postgres(request.getfixturevalue("database"), lease, holder))
        return made[-1]

    yield candidate
    for each in made:
        each.release()
        each.close()


def test_one_has_it_and_the_other_when_it_is_given_up(candidates: Candidates) -> None:
    one, two = candidates("one"), candidates("two")
    assert one.is_free()
    assert two.is_free()
    assert one.acquire()
    assert one.acquire(), "the holder renews it"
    assert not two.acquire()
    assert not one.is_free()
    assert not two.is_free()
    two.release()
    assert not two.acquire(), "who has it not cannot give it up"
    one.release()
    assert two.is_free()
    assert two.acquire()
    assert not one.acquire()


def test_it_ends_when_it_is_not_renewed_and_not_before(candidates: Candidates) -> None:
    one, two = candidates("one"), candidates("two")
    assert one.acquire()
    began = time.monotonic()
    while time.monotonic() < began + LEASE + 1:
        assert one.acquire(), "renewed, it goes on"
    last = time.monotonic()
    while not two.acquire():
        assert time.monotonic() < last + 20
    assert time.monotonic() - last > LEASE - 1
    assert not one.acquire()


@needs_etcd
def test_an_etcd_that_is_away_says_so_and_the_next_host_is_asked(etcd: EtcdServer) -> None:
    nobody = Etcd("etcd://127.0.0.1:9", "away", "one")
    with pytest.raises(EngineAway, match=r"etcd: 127\.0\.0\.1:9 does not answer: "):
        nobody.acquire()
    two_hosts = Etcd(f"etcd://127.0.0.1:9,127.0.0.1:{etcd.port}", "two hosts", "one")
    assert two_hosts.acquire()
    with etcd.stopped(), pytest.raises(EngineAway, match="timed out"):
        two_hosts.acquire()
    assert two_hosts.acquire()
    two_hosts.release()


@needs_etcd
def test_a_renewal_writes_nothing_to_etcds_disk(etcd: EtcdServer) -> None:
    def writes() -> str:
        connection = http.client.HTTPConnection("127.0.0.1", etcd.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        return next(line for line in lines if line.startswith("etcd_server_proposals_committed_total"))

    one = Etcd(f"etcd://127.0.0.1:{etcd.port}", "renewed", "one")
    assert one.acquire()
    before = writes()
    for _ in range(3):
        assert one.acquire()
    assert writes() == before
    one.release()
    assert writes() != before


@needs_etcd
def test_a_wrong_password_is_said_as_etcd_says_it(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCDCTL_USER", "root:secret")
    with pytest.raises(EngineAway, match="authentication is not enabled"):
        Etcd(f"etcd://127.0.0.1:{etcd.port}", "password", "one").acquire()


@needs_postgres
def test_a_postgresql_that_is_away_says_so(database: str) -> None:
    with pytest.raises(EngineAway, match="PostgreSQL: connection failed"):
        Postgres("postgresql://iris@127.0.0.1:9/postgres", "away", "one").acquire()
    with pytest.raises(EngineAway, match='database "none" does not exist'):
        Postgres(database.replace("/postgres", "/none"), "away", "one").acquire()


@needs_postgres
def test_a_postgresql_that_stands_still_behind_an_open_connection_is_away(database: str) -> None:
    engine = Postgres(database, "still", "one")
    assert engine.acquire()
    with psycopg.connect(database) as other:
        found = other.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'iris bridge'")
        backends = [pid for (pid,) in found]
    for pid in backends:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(EngineAway, match="PostgreSQL: no answer within 1 s"):
            engine.acquire()
        assert engine.acquire(), "another connection is answered"
    finally:
        for pid in backends:
            os.kill(pid, signal.SIGCONT)
        engine.release()
        engine.close()


class Something(http.server.BaseHTTPRequestHandler):
    """Answers in JSON, and is not etcd."""

    answer = b""

    def do_POST(self) -> None:
        """Say it."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- as its base calls it
        """Say nothing."""


@pytest.mark.parametrize(
    "answer", [b"{}", b'{"ID":"1"}', b'{"ID":"1","responses":[]}', b'{"ID":"1","responses":[{"response_range":[]}]}']
)
def test_what_is_not_etcd_is_an_engine_that_is_away(answer: bytes) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), type("It", (Something,), {"answer": answer})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(EngineAway, match="is not etcd"):
                Etcd(f"etcd://127.0.0.1:{server.server_port}", "any", "one").acquire()
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd://", "names the host ''"),
        ("etcd://here:port", "names the host 'here:port'"),
        ("etcd://here?ca=x", "write etcds://"),
        ("etcds://here?ca=/nowhere", "a file of TLS for the election cannot be read"),
        ("etcds://here?cafile=/nowhere", "has cafile behind the"),
    ],
)
def test_a_url_that_cannot_be_read_is_said(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        Etcd(url, "any", "one")


def test_a_url_of_postgresql_that_cannot_be_read_is_said() -> None:
    with pytest.raises(ConfigError, match="not one of PostgreSQL"):
        Postgres("postgresql://here/base?no=such", "any", "one")
