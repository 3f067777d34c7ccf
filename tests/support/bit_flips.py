"""Flipped bits: a log with one bit changed either reads as before or says that it is damaged.

``python -m tests.support.bit_flips 10000 SEED`` runs many cases and prints what they showed.  Each runs in a process of
its own (by fork, before any thread exists), because a library may stop the process when its file is damaged: that, too,
is no silent loss.
"""

from __future__ import annotations

import collections
import os
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

from iris.spark_bridge.errors import BridgeError
from tests.support.arrivals import make_store, numbered, stored

SAME, REPORTED, SILENT, STOPPED = "as before", "reported", "silently different", "stopped"
_CODES = (SAME, REPORTED, SILENT)
GOOD = {SAME, REPORTED, STOPPED}
SEGMENT = 32_768
_NAMES = ("data.mdb", "witness")


def make_log(directory: Path) -> None:
    """Make the log that bits are flipped in."""
    store = make_store(directory, shards=(0, 1), segment_bytes=SEGMENT)
    for turn in range(60):
        store.appender.append({turn % 2: numbered(turn * 10 + 1, turn * 10 + 10)}, now=turn)
    store.cursors.pin("group", {"0@x": 7}, now=1)
    store.appender.append_batch("query", 3, [], sender="s", split=lambda rows: {0: rows}, now=1)
    store.owners.claim("query", "query", "s", most=9, most_of_owner=9, now=1)
    store.note_members({0: "bridge.a", 7: "bridge.b"})
    store.close()


def _look(directory: Path) -> list[object]:
    """Return everything that a log says."""
    store = make_store(directory, shards=(0, 1), segment_bytes=SEGMENT)
    try:
        return [
            store.shards(),
            [stored(store, shard) for shard in (0, 1)],
            store.reader.offset_at(0, 30),
            store.cursors.pin("group", {}, now=9),
            store.appender.append_batch("query", 3, [], sender="s", split=lambda rows: {0: rows}, now=9),
            store.owners.claim("query", "query", "other", most=9, most_of_owner=9, now=9),
            store.owners.of_kind("query"),
            store.members(),
            store.appender.append({0: numbered(1, 600)}, now=99).repeats,
        ]
    finally:
        store.close()


def _outcome(directory: Path, expected: list[object]) -> str:
    child = os.fork()
    if not child:
        try:
            code = 0 if _look(directory) == expected else 2
        except BridgeError:
            code = 1
        except BaseException:  # noqa: BLE001 -- an error that is not ours is a finding
            code = 3
        os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return STOPPED
    code = os.WEXITSTATUS(status)
    return _CODES[code] if code < len(_CODES) else "another error"


def flip_bits(cases: int, seed: int = 0) -> collections.Counter[str]:
    """Flip one bit after the other, in any file and every second time where the index begins; count what follows."""
    random = Random(seed)
    outcomes: collections.Counter[str] = collections.Counter()
    home = Path(tempfile.mkdtemp(prefix="iris-flips-"))
    try:
        make_log(home / "log")
        shutil.copytree(home / "log", home / "again")
        expected = _look(home / "again")
        files = [path for path in (home / "log").rglob("*") if path.name in _NAMES or path.suffix == ".segment"]
        for case in range(cases):
            index = home / "log" / "index" / "data.mdb"
            path = index if case % 2 else random.choice(files)
            data = bytearray(path.read_bytes())
            position = random.randrange(2) * 4096 + random.randrange(160) if case % 2 else random.randrange(len(data))
            shutil.rmtree(home / "again")
            shutil.copytree(home / "log", home / "again")
            bit = random.randrange(8)
            data[position] ^= 1 << bit
            name = path.relative_to(home / "log")
            (home / "again" / name).write_bytes(data)
            outcome = _outcome(home / "again", expected)
            outcomes[outcome] += 1
            if outcome not in GOOD:
                sys.stderr.write(f"case {case} of seed {seed}: bit {bit} of byte {position} of {name}: {outcome}\n")
    finally:
        shutil.rmtree(home)
    return outcomes


if __name__ == "__main__":
    found = flip_bits(*map(int, sys.argv[1:3]))
    sys.stdout.write(f"{sum(found.values())} flipped bits: {dict(found)}\n")
    sys.exit(bool(set(found) - GOOD))
