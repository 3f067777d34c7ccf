"""``iris bridge status``, ``tail``, ``replay``, ``verify``, ``trim``, ``drop`` and ``forget``, as people type them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.cli.main import run_command
from tests.support.bridges import BridgeProcess, publish
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def log() -> Iterator[Path]:
    """A running bridge with twenty events, in a realm of its own; the directory of its log."""
    directory = Path(tempfile.mkdtemp(prefix="iris-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IRIS_HOME", str(directory / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        with BridgeProcess(directory / "log"):
            publish([b"%d" % number for number in range(10)], topic="a.b")
            publish([b"%d" % number for number in range(10, 20)], topic="a.c", key="k")
            yield directory / "log"
    shutil.rmtree(directory, ignore_errors=True)


@dataclasses.dataclass
class Done:
    status: int
    stdout: str
    stderr: str


Verb = Callable[..., Done]


@pytest.fixture
def iris_verb(log: Path, capfd: pytest.CaptureFixture[str]) -> Verb:
    def run(*arguments: str) -> Done:
        capfd.readouterr()
        status = run_command(arguments)
        said = capfd.readouterr()
        return Done(status, said.out, said.err)

    return run


@pytest.fixture
def iris_bridge(iris_verb: Verb) -> Verb:
    return partial(iris_verb, "bridge")


@pytest.fixture
def iris_pub(iris_verb: Verb) -> Verb:
    return partial(iris_verb, "pub")


def events(done: Done) -> list[dict[str, Any]]:
    assert done.status == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_status_tells_what_is_stored(iris_bridge: Verb) -> None:
    (told,) = events(iris_bridge("status", "--json"))
    (shard,) = told["shards"]
    assert (shard["earliest"], shard["next"], shard["member"]) == (0, 20, "bridge")
    assert told["members"]["bridge"]["stored"] == 20
    assert told["groups"] == []
    words = iris_bridge("status").stdout
    assert f"shard {shard['shard']} at bridge: events 0 to 20" in words
    assert "0 events/s" in words


def test_tail_prints_the_newest_events(iris_bridge: Verb) -> None:
    assert [event["value"] for event in events(iris_bridge("tail", "--last", "3"))] == ["17", "18", "19"]
    assert [event["value"] for event in events(iris_bridge("tail", "--topic", "a.b", "--last", "11"))] == ["9"]


def test_replay_begins_where_it_is_told(iris_bridge: Verb) -> None:
    found = events(iris_bridge("replay", "--start", '{"0": 5}', "--end", '{"0": 8}'))
    assert [(event["offset"], event["value"], event["topic"]) for event in found] == [
        (5, "5", "a.b"),
        (6, "6", "a.b"),
        (7, "7", "a.b"),
    ]
    assert [event["key"] for event in events(iris_bridge("replay", "--since", "2020-01-01", "--topic", "a.c"))] == [
        "k"
    ] * 10
    assert events(iris_bridge("replay", "--since", "2120-01-01")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("replay", "--start", "somewhere"), "neither earliest nor offsets"),
        (("replay", "--start", '{"0": "x"}'), "neither earliest nor offsets"),
        (("replay", "--start", '{"0": 5}', "--since", "2020-01-01"), "contradict each other"),
        (("replay", "--start", '{"7": 5}'), "names the shard 7"),
        (("status", "--name", "archive", "--timeout", "0.5"), "iris bridge --name archive"),
        (("trim", "--shard", "7", "--before", "1"), "no shard 7"),
        (("trim", "--shard", "0", "--before", "999"), "shard 0 ends at offset 20, and 999 is beyond: give at most 20"),
        (("drop", "--group", "nightly"), "the bridge has no group 'nightly'"),
        (("drop", "--query", "nightly"), "the bridge has no query 'nightly'"),
        (("drop",), "say which: --group NAME, --query NAME, --shard N or --copy NAME/SHARD"),
        (
            ("drop", "--group", "nightly", "--shard", "1"),
            "say which: --group NAME, --query NAME, --shard N or --copy NAME/SHARD",
        ),
        (("drop", "--shard", "1"), "the bridge knows of no shard 1"),
        (("drop", "--shard", "0"), "shard 0 is at 'bridge', and is not forgotten as long as it is there"),
        (("drop", "--copy", "a/0"), "cannot be reached after 5 s: no node serves it"),
        (("drop", "--copy", "a"), "'a' names no shard of a bridge: give NAME/SHARD"),
        (("promote", "bridge"), "'bridge' names no shard of a bridge: give NAME/SHARD"),
        (
            ("promote", "bridge/0"),
            "shard 0 of bridge 'bridge' has no copy that is there, and no primary that has copies",
        ),
        (("--follow", "bridge/0", "--data", "x", "--topic", "y"), "a copy does as its primary does: leave out --topic"),
        (("--topic", "x", "--data", "y", "--copy", "b"), "give --follow NAME/SHARD, too"),
        (("transfer", "--group", "a", "--query", "b", "--to", "c"), "say which: --group NAME or --query NAME"),
        (("transfer", "--group", "nightly", "--to", "spark"), "the bridge has no group 'nightly'"),
        (("forget", "west"), "no durable subscriber 'west' is known here; known: bridge"),
        (("forget", "bridge"), "durable subscriber 'bridge' is there"),
        (("forget", "bridge", "--name", "thief"), "belongs to cluster 'bridge', and this node speaks for 'thief'"),
        (("--topic", "x", "--data", "not-there", "--shard", "3", "--of", "3"), "below the number of all shards"),
        (("verify", "--data", "/nowhere"), "no log in /nowhere"),
        (("--data", "not-there"), "give --topic"),
        (("--topic", "x"), "give --data"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(iris_bridge: Verb, arguments: tuple[str, ...], message: str) -> None:
    done = iris_bridge(*arguments)
    assert done.status in (1, 2)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_log_in_use_is_not_verified_and_a_copy_is(iris_bridge: Verb, log: Path, tmp_path: Path) -> None:
    assert "open in another process" in iris_bridge("verify", "--data", str(log)).stderr
    shutil.copytree(log, tmp_path / "copy")
    done = iris_bridge("verify", "--data", str(tmp_path / "copy"))
    assert (done.status, done.stdout) == (0, "")
    assert "0 of them damaged" in done.stderr
    (segment,) = (tmp_path / "copy").rglob("*.segment")
    with segment.open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    done = iris_bridge("verify", "--data", str(tmp_path / "copy"))
    assert done.status == 1
    assert "shard 0, offset 0: " in done.stdout


def test_trim_removes_what_is_older(iris_bridge: Verb) -> None:
    done = iris_bridge("trim", "--shard", "0", "--before", "4")
    assert (done.status, done.stderr) == (0, "iris: 4 events are gone from shard 0\n")
    assert [event["value"] for event in events(iris_bridge("replay", "--end", '{"0": 6}'))] == ["4", "5"]


def test_status_tells_what_is_missing_also_after_restarts(iris_bridge: Verb, tmp_path: Path) -> None:
    async def publish_while_it_is_away(bridge: BridgeProcess) -> None:
        async with iris.open_node("shop") as node:
            await node.wait_for("lossy", timeout=20)
            await node.publish_confirmed("a.x", b"1", timeout=20)
            bridge.kill()
            await wait_until(lambda: not all(one.present for one in node.durable_subscribers()))
            for _ in range(3):
                await node.publish("a.x", b"lost")
            await trio.to_thread.run_sync(bridge.start)
            await node.publish_confirmed("a.x", b"2", timeout=20)

    with BridgeProcess(tmp_path / "lossy", name="lossy") as bridge:
        trio.run(publish_while_it_is_away, bridge)
        bridge.stop()
        bridge.start()
        (gap,) = events(iris_bridge("status", "--name", "lossy", "--json"))[0]["gaps"]
        assert (gap["offset"], gap["upto"], gap["topic"], gap["events"], gap["cluster"]) == (1, 1, "a.x", 3, "shop")
        assert "gap: 3 of 'a.x' from node" in iris_bridge("status", "--name", "lossy").stdout
    assert iris_bridge("forget", "lossy").status == 0


def test_a_bridge_that_is_away_is_told_of_and_forgotten(iris_bridge: Verb, iris_pub: Verb, tmp_path: Path) -> None:
    with BridgeProcess(tmp_path / "west", name="west") as west:
        west.stop()
    publish_one = ("a.b", "x", "--confirm", "--timeout", "0.5")
    done = iris_pub(*publish_one)
    assert done.status == 1
    assert "durable subscriber 'west' of cluster 'west' of 'a.b' is away" in done.stderr
    assert events(iris_bridge("status", "--json"))[0]["away"] == [{"name": "west", "cluster": "west", "topics": [">"]}]
    assert (
        "durable subscriber west of cluster west is away: confirmed events on > wait for it"
        in iris_bridge("status").stdout
    )
    done = iris_bridge("forget", "west")
    assert (done.status, done.stderr) == (0, "iris: publishers wait for west no more\n")
    assert iris_pub(*publish_one).status == 0
    assert events(iris_bridge("status", "--json"))[0]["away"] == []
