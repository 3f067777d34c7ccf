"""The demo as a whole, with real processes and Spark: everything it promises, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from iris.cli.main import run_command
from iris.demo import kafka as kafka_of_the_demo
from iris.demo.data import count_by_carrier, read_flights
from tests.support.kafka import open_kafka
from tests.support.ports import free_port
from tests.support.spark_packages import kafka_source

ROWS = 2000


@pytest.fixture
def scratch(tmp_path: Path) -> Generator[Path]:
    """A place for temporary files whose path is short enough for sockets; it must be empty in the end."""
    place = Path("/tmp") / f"iris-{os.getpid()}"
    place.mkdir()
    (tmp_path / "home").mkdir()
    yield place
    assert list(place.iterdir()) == []
    place.rmdir()


def environment(scratch: Path, home: Path) -> dict[str, str]:
    """A user with a realm of his own and a credential: the demo must use neither."""
    own = {
        "TMPDIR": str(scratch),
        "IRIS_HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "IRIS_CREDENTIAL": "/no/such/credential",
    }
    return {**os.environ, **own}


def processes_with(mark: Path) -> list[str]:
    """Every process that was started with this directory in its environment."""
    found: list[str] = []
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdecimal() and str(mark).encode() in (directory / "environ").read_bytes():
                found.append((directory / "cmdline").read_text())
        except OSError:
            continue
    return found


def fly(environment: dict[str, str], *options: str) -> None:
    """Run the demo, and look at all that it says: Spark's figures are those of pandas, whatever keeps the events."""
    done = subprocess.run(
        [sys.executable, "-m", "iris", "demo", "--rows", str(ROWS), "--json", *options],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    result = json.loads(done.stdout)
    assert result["ok"] is True
    assert result["rows"] == ROWS
    assert result["killed"] == "SIGKILL"
    assert [check["name"] for check in result["checks"] if not check["ok"]] == []
    direct = count_by_carrier(read_flights(ROWS))
    assert {carrier: figures["spark"]["flights"] for carrier, figures in result["carriers"].items()} == {
        carrier: figures.flights for carrier, figures in direct.items()
    }
    assert {carrier: figures["spark"]["mean_delay"] for carrier, figures in result["carriers"].items()} == {
        carrier: figures.mean_delay for carrier, figures in direct.items()
    }
    assert result["counters"]["publish"]["sent"] == ROWS
    assert 2**28 < result["peak_memory_bytes"] < 6 * 2**30
    assert len(done.stderr.splitlines()) == len(result["seconds"]) == 8


def test_the_airport_works_and_says_so(scratch: Path, tmp_path: Path) -> None:
    fly(environment(scratch, tmp_path / "home"))
    assert processes_with(scratch) == []
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.long
@pytest.mark.skipif(not kafka_source(), reason="Spark's Kafka source is not to be had: apt install maven")
def test_the_airport_works_with_its_events_in_kafka(scratch: Path, tmp_path: Path) -> None:
    jars = f"--jars {','.join(map(str, kafka_source()))} pyspark-shell"
    with open_kafka() as kafka:
        fly({**environment(scratch, tmp_path / "home"), "PYSPARK_SUBMIT_ARGS": jars}, "--kafka", kafka.bootstrap)
        topics = kafka.admin().list_topics(timeout=60).topics
        assert not [name for name in topics if name.startswith("iris-demo")]
    assert processes_with(scratch) == []


def test_brokers_that_do_not_answer_are_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka_of_the_demo, "_ANSWER", 0.5)
    bootstrap = f"127.0.0.1:{free_port()}"
    assert run_command(["demo", "--kafka", bootstrap]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"iris: the brokers at {bootstrap} make no topic: ")
    assert said.count("\n") == 1


@pytest.fixture
def hangups_count() -> Iterator[None]:
    """Tests that run under nohup ignore SIGHUP, and so would whatever they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.usefixtures("hangups_count")
@pytest.mark.parametrize(
    ("stage", "number", "status"),
    [
        ("Read the table", signal.SIGINT, 130),
        pytest.param("Start the nodes", signal.SIGHUP, 143, marks=pytest.mark.long),
        pytest.param("Ask for the weather", signal.SIGTERM, 143, marks=pytest.mark.long),
    ],
)
def test_an_interruption_leaves_nothing_behind(
    stage: str, number: signal.Signals, status: int, scratch: Path, tmp_path: Path
) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "iris", "demo", "--rows", str(ROWS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(scratch, tmp_path / "home"),
    )
    with demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if line.startswith(stage):
                break
        assert processes_with(scratch)
        demo.send_signal(number)
        said = demo.stderr.read()
        assert demo.wait(30) == status, said
        assert "Traceback" not in said
    assert processes_with(scratch) == []
    assert list((tmp_path / "home").iterdir()) == []
