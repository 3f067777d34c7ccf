"""This tree beside the wheel of a release: a mesh of both that is rolled under load, the log of each read by the other.

The wheel is built of the history: of the tag, or else of the last commit that has the release's version.  Until a later
version is begun that is the tree itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from threading import Semaphore

import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.support.command import Terminal, interrupt, open_terminal
from tests.support.door_process import DoorProcess, token
from tests.support.machines import APP
from tests.support.ports import free_port
from tests.support.processes import Child, open_realm

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "0.9.0"
"""The oldest release that this tree has to get along with: docs/reference/stability.md says for how long."""

EVENTS = 60
"""Events that Spark copies each time."""

BATCH = 10
"""Those of a batch: few, so that a driver can be killed between the first and the last."""

pytestmark = pytest.mark.xdist_group("release")


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def commit_of_release() -> str:
    """Return the commit of the release.  Skips where there is no history."""
    if not (ROOT / ".git").exists() or git("rev-parse", "--is-shallow-repository").strip() == b"true":
        pytest.skip("the release is built of the history, which is not here")
    if git("tag", "--list", f"v{RELEASE}").strip():
        return f"v{RELEASE}"
    later = ""
    for commit in git("log", "--first-parent", "--format=%H", "--", "pyproject.toml").decode().split():
        if tomllib.loads(git("show", f"{commit}:pyproject.toml").decode())["project"]["version"] == RELEASE:
            return f"{later}^" if later else "HEAD"
        later = commit
    pytest.skip(f"the history has no version {RELEASE}")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which the release is installed, without what it needs: that is the same."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=BytesIO(git("archive", commit_of_release()))) as archive:
        archive.extractall(source, filter="data")
    install = ["install", "--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *install, str(source)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def terminals(release: Path) -> Generator[dict[str, Terminal]]:
    """Two terminals in one local realm: the commands of the tree and of the release."""
    with open_terminal() as tree:
        (tree.directory / "app.py").write_text(APP)
        other = Terminal(tree.directory.parent, ("env", f"PYTHONPATH={release}"))
        assert other.run("--version").stdout.decode().strip() == f"iris {RELEASE}"
        yield {"tree": tree, "release": other}


ORDERS = [("tree", "release"), ("release", "tree")]


@pytest.mark.parametrize(("one", "other"), ORDERS)
def test_each_asks_the_other_and_hears_its_events(terminals: dict[str, Terminal], one: str, other: str) -> None:
    with (
        terminals[one].started("run", "app:databases", announces="serves databases"),
        terminals[one].started("sub", "orders.>", "--count", "2", announces="subscribed to") as subscriber,
    ):
        done = terminals[other].run("request", "databases", "hello", "--wait", "10")
        assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
        for payload in ("one", "two"):
            assert terminals[other].run("pub", "orders.created", payload).returncode == 0
        heard, said = subscriber.communicate(timeout=30)
        assert heard == b"orders.created one\norders.created two\n", said
        assert b"version" not in said


def answer_all(url: str, secret: str, ready: Semaphore) -> None:
    """Serve ``orders`` as a program until the door ends."""
    protocol = Subprotocol("iris.serve.1")
    bearer = {"authorization": f"Bearer {secret}"}
    with connect(f"{url}/serve/orders", additional_headers=bearer, subprotocols=[protocol]) as socket:
        for message in socket:
            told = json.loads(message)
            if told["type"] == "ready":
                ready.release()
            elif told["type"] == "request":
                socket.send(json.dumps({"type": "reply", "id": told["id"], "payload": told["payload"]}))


@pytest.mark.parametrize(
    ("one", "other", "answers"), [("tree", "tree", 2), ("tree", "release", 1), ("release", "tree", 1)]
)
def test_each_surveys_what_programs_serve_by_the_door_of_the_other(
    terminals: dict[str, Terminal], one: str, other: str, answers: int
) -> None:
    secret, ready = token(terminals[one], "programs", "--serve", "orders"), Semaphore(0)
    with ThreadPoolExecutor(2) as threads, DoorProcess(terminals[one]) as door:
        for _ in range(2):
            threads.submit(answer_all, door.url.replace("http", "ws"), secret, ready)
        for _ in range(2):
            assert ready.acquire(timeout=30)
        done = terminals[other].run("survey", "orders", "tea", "--json", "--wait", "10", "--timeout", "10")
        assert done.returncode == 0, done.stderr
        *lines, last = map(json.loads, done.stdout.splitlines())
        assert [line["payload"] for line in lines] == ["tea"] * answers
        assert (last["answers"], last["missing"], last.get("expected", answers)) == (answers, {}, answers)


@pytest.mark.parametrize(("one", "other"), ORDERS)
def test_each_reads_and_goes_on_with_the_log_of_the_other(terminals: dict[str, Terminal], one: str, other: str) -> None:
    bridge = ("bridge", "--topic", "orders.>", "--data", "log")
    for number, (writer, client) in enumerate(((one, other), (other, one))):
        with terminals[writer].started(*bridge, announces="serves bridge") as process:
            done = terminals[client].run("pub", "orders.created", str(number), "--confirm", "--timeout", "20")
            assert done.returncode == 0, done.stderr
            done = terminals[client].run("log", "read", "orders.>")
            assert done.returncode == 0, done.stderr
            events = [json.loads(line) for line in done.stdout.splitlines()]
            assert [(event["offset"], event["value"]) for event in events] == [
                (offset, str(offset)) for offset in range(number + 1)
            ]
            assert interrupt(process) == 0


def environment(iris: Path) -> dict[str, str]:
    """Return the environment of processes that have the package of this directory, and the tests of the tree."""
    paths = os.pathsep.join(filter(None, (str(iris), str(ROOT), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def command(iris: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a module with that package, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**(variables or os.environ), **environment(iris)}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


class Member:
    """A process that is started now with the one package and now with the other."""

    def __init__(self, command: list[str], *, ready: str, log: Path, variables: dict[str, str]) -> None:
        self._command, self._ready, self._log, self._variables = command, ready, log, variables
        self._child: Child | None = None

    def launch(self, iris: Path) -> None:
        """Start it; what runs leaves first."""
        self.leave()
        self._child = Child(
            self._command, ready=self._ready, log=self._log, environment={**environment(iris), **self._variables}
        )
        self._child.launch()

    def wait_ready(self) -> None:
        """Wait until it is ready."""
        assert self._child is not None
        self._child.wait_ready()

    def leave(self) -> None:
        """Ask it to leave, and wait until it has."""
        child, self._child = self._child, None
        if child is not None:
            assert child.end(signal.SIGTERM) == 0, child.said()

    def end(self) -> None:
        """End it at once."""
        if self._child is not None:
            self._child.end()


@pytest.mark.parametrize(
    ("ledgers", "rounds"), [(2, 1), pytest.param(3, 4, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_a_realm_is_rolled_member_by_member_under_load_and_back_and_nothing_fails(
    release: Path, ledgers: int, rounds: int
) -> None:
    """Its credentials are of the release; both versions ask, publish, put jobs and do them all the while."""
    with open_realm() as directory, ExitStack() as stack:
        realm, ports = directory / "realm.key", [free_port() for _ in range(ledgers + 1)]
        command(release, "iris", "keys", "realm", str(realm))
        variables = {"IRIS_SEEDS": " ".join(f"tcp://127.0.0.1:{port}" for port in ports)}
        rights: dict[str, list[str]] = {"ledger": [], "bridge": ["--subscribe", ">"], "load": ["--publish", ">"]}
        for name, options in rights.items():
            command(release, "iris", "keys", "cluster", str(realm), name, "--out", str(directory / name), *options)

        def of(name: str) -> dict[str, str]:
            return {**variables, "IRIS_CREDENTIAL": str(directory / name), "IRIS_LEDGER": str(directory / "served")}

        served = ["run", "tests.support.programs.restarted:ledger", "--drain-timeout", "20"]
        stored = ["bridge", "--topic", "orders.>", "--topic", "jobs", "--data", str(directory / "log")]
        kinds = [("ledger", served, " serves ledger at ")] * ledgers + [("bridge", stored, " serves bridge")]
        members = [
            Member(
                [sys.executable, "-m", "iris", *arguments, "--listen", f"tcp://127.0.0.1:{port}"],
                ready=ready, log=directory / f"{port}.txt", variables=of(name),
            )
            for port, (name, arguments, ready) in zip(ports, kinds, strict=True)
        ]  # fmt: skip
        for member in members:
            stack.callback(member.end)
            member.launch(release)
        for member in members:
            member.wait_ready()
        loads: list[Member] = []
        for name, iris in (("tree", ROOT), ("release", release)):
            program = ["tests.support.programs.rolled", name, str(directory / "done"), str(directory / f"{name}.json")]
            load = Member(
                [sys.executable, "-m", *program],
                ready=f"with {iris / 'iris'}", log=directory / f"{name}.txt", variables=of("load"),
            )  # fmt: skip
            stack.callback(load.end)
            load.launch(iris)
            loads.append(load)
        for load in loads:
            load.wait_ready()
        for iris in (ROOT, release) * rounds:
            for member in members:
                member.launch(iris)
                member.wait_ready()
        for load in loads:
            load.leave()
        outcomes = {name: json.loads((directory / f"{name}.json").read_text()) for name in ("tree", "release")}
        done = (directory / "done").read_text().splitlines()
        # The figures of docs/reference/stability.md.
        print(json.dumps({**outcomes, "jobs done again": len(done) - len(set(done))}))  # noqa: T201
        for name, outcome in outcomes.items():
            assert (outcome["failed"], outcome["left"]) == ({}, 0), name
            assert outcome["done"]["request"] > 100
            assert min(outcome["done"][kind] for kind in ("event", "job")) > 20


class Copies:
    """Copies of a topic by Spark, whose driver has now the one package and now the other."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._program = ["tests.support.programs.copied_by_spark", str(terminal.directory), str(BATCH)]
        self._checkpoints = [terminal.directory / f"{name}.checkpoint" for name in ("files", "out")]

    def finish(self, iris: Path) -> list[dict[str, str]]:
        """Copy what is not copied; return the rows of the files."""
        printed = command(iris, *self._program, variables=self._terminal.environment)
        rows: list[dict[str, str]] = json.loads(printed.splitlines()[-1])
        return rows

    def kill_between(self, iris: Path) -> None:
        """Start to copy, and kill the driver and its Java when each query has done two batches and has more to do."""
        driver = Child(
            [sys.executable, "-m", *self._program], ready="", log=self._terminal.directory / "driver.txt",
            environment={**self._terminal.environment, **environment(iris)},
        )  # fmt: skip
        driver.launch()
        deadline = time.monotonic() + 300
        while any(len(batches(checkpoint)) < 2 for checkpoint in self._checkpoints):
            assert driver.alive, driver.said()
            assert time.monotonic() < deadline, driver.said()
            time.sleep(0.02)
        driver.end()
        for checkpoint in self._checkpoints:
            assert len(batches(checkpoint)) < EVENTS // BATCH

    def forget_last_batch(self) -> None:
        """Leave what a driver leaves that dies between a sink's commit and its own note of it."""
        for checkpoint in self._checkpoints:
            last = batches(checkpoint)[-1]
            last.unlink()
            last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def batches(checkpoint: Path) -> list[Path]:
    """Return Spark's notes of the batches that are done, in their order."""
    return sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))


@pytest.mark.long
@pytest.mark.timeout(1800)  # Spark starts four times, one after the other: two minutes of a quiet machine
def test_spark_goes_on_with_the_checkpoints_of_the_other_and_copies_each_event_once(
    terminals: dict[str, Terminal], release: Path
) -> None:
    """The first driver is killed; the others leave their last batch to be repeated by the other version."""
    copies, events = Copies(terminals["tree"]), list[str]()

    def publish(version: str) -> None:
        more = [str(number) for number in range(len(events), len(events) + EVENTS)]
        lines = "\n".join(more).encode()
        done = terminals[version].run("pub", "in", "--lines", "--confirm", "--timeout", "60", given=lines)
        assert done.returncode == 0, done.stderr
        events.extend(more)

    def finish(version: str, iris: Path) -> None:
        rows = copies.finish(iris)
        assert sorted((row["value"] for row in rows), key=int) == events
        assert str(iris / "iris") in {row["package"] for row in rows}
        done = terminals[version].run("log", "read", "out")
        assert done.returncode == 0, done.stderr
        assert sorted((json.loads(line)["value"] for line in done.stdout.splitlines()), key=int) == events
        copies.forget_last_batch()

    bridge = ("bridge", "--topic", ">", "--data", "log")
    with terminals["release"].started(*bridge, announces="serves bridge") as process:
        publish("release")
        copies.kill_between(release)
        publish("tree")
        finish("tree", ROOT)
        assert interrupt(process) == 0
    with terminals["tree"].started(*bridge, announces="serves bridge"):
        publish("release")
        finish("release", release)
        publish("tree")
        finish("tree", ROOT)
