"""Crashes of the log: killed processes, power cuts, flipped bits.

The simulations are in tests/support; docs/reference/spark.md says what ten thousand cases of each showed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.segments import SegmentFiles
from tests.support.arrivals import make_store, numbered, stored
from tests.support.bit_flips import make_log
from tests.support.power_cut import cut_power

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import os, sys
from pathlib import Path
from tests.support.arrivals import make_store, numbered
for line in sys.stdin:
    writer = os.fork()
    if not writer:
        store = make_store(Path(sys.argv[1]), segment_bytes=32768)
        at = int(line)
        while True:
            store.appender.append({0: numbered(at, at + 19)}, now=at)
            at += 20
            sys.stdout.write(f"{at - 1}\\n")  # in one piece, whatever the interpreter buffers: two processes write here
            sys.stdout.flush()
    sys.stdout.write(f"writer {writer}\\n")
    sys.stdout.flush()
    os.waitpid(writer, 0)
    sys.stdout.write("killed\\n")
    sys.stdout.flush()
"""
"""Forks a writer at each line: twenty that import everything anew took a minute and more beside other work."""


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.long)])
def test_a_writer_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path, kills: int) -> None:
    chance = random.Random(5)
    sent = 0
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for _ in range(kills):
            # Each writer begins with events that the one before may or may not have stored, as publishers do.
            parent.stdin.write(f"{max(1, sent - 30)}\n")
            parent.stdin.flush()
            wanted = chance.randrange(1, 20)
            told: list[int] = []
            writer = 0
            while not writer or len(told) < wanted:
                word, _, number = parent.stdout.readline().partition(" ")
                if word == "writer":
                    writer = int(number)
                else:
                    told.append(int(word))
            os.kill(writer, signal.SIGKILL)
            told += [int(line) for line in iter(parent.stdout.readline, "killed\n")]
            store = make_store(tmp_path, segment_bytes=32768)
            found = [int(value) for value in stored(store)]
            store.close()
            assert found == list(range(1, len(found) + 1)), "a hole, a repeat or a wrong order"
            assert len(found) >= told[-1]
            sent = len(found)
        parent.stdin.close()


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20, 60))])
def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    cut_power(tmp_path, seed)


def test_the_simulated_power_cut_notices_a_log_that_does_not_synchronize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_sync(files: SegmentFiles, shard: int) -> None:
        """Forget it."""

    monkeypatch.setattr(SegmentFiles, "sync", no_sync)
    with pytest.raises(AssertionError):
        [cut_power(tmp_path / str(seed), seed) for seed in range(20)]


@pytest.mark.parametrize("flips", [20, pytest.param(1000, marks=pytest.mark.long)])
def test_a_flipped_bit_is_never_silent(flips: int) -> None:
    command = [sys.executable, "-m", "tests.support.bit_flips", str(flips)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reported" in done.stdout


@pytest.mark.parametrize(
    "table",
    [
        *("shards", "chunks", "segments", "blocks", "publishers", "cursors", "sinks", "owners", "numberings", "gaps"),
        *("subscribers", "members", "topics", "contents", "removals"),
    ],
)
def test_a_flipped_bit_in_the_name_of_a_table_is_no_empty_table(tmp_path: Path, table: str) -> None:
    make_log(tmp_path)
    index = tmp_path / "index" / "data.mdb"
    data = index.read_bytes()
    assert table.encode() in data
    index.write_bytes(data.replace(table.encode(), table.capitalize().encode()))
    with pytest.raises(LogDamaged, match=r"one of its tables is not there|is not the index of a log"):
        make_store(tmp_path)


def test_cuts_of_every_kind_are_simulated(tmp_path: Path) -> None:
    kinds: set[str] = set()
    for seed in range(30):
        kinds.add(cut_power(tmp_path / str(seed), seed))
        if len(kinds) == 3:
            return
    raise AssertionError(f"of 30 cuts all were {kinds}")


def test_a_log_that_is_put_back_from_a_copy_is_noticed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.appender.append({0: numbered(1, 5)}, now=0)
    copy = (tmp_path / "index" / "data.mdb").read_bytes()
    store.appender.append({0: numbered(6, 9)}, now=0)
    store.close()
    (tmp_path / "index" / "data.mdb").write_bytes(copy)
    with pytest.raises(LogDamaged, match="older than it was"):
        make_store(tmp_path)
