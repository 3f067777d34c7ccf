"""The benchmark of publish/subscribe and tunnels: a slice of each case, between real processes, with its checks."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from trio.testing import MockClock

import iris.testing
from benchmarks.streams import cuts, tree
from benchmarks.streams.cable import why_not
from benchmarks.streams.fanout import Checked

_ROOT = Path(__file__).resolve().parents[2]


class Arrived:
    """Fields of an event that ``Checked`` looks at."""

    def __init__(self, number: int, missed: int) -> None:
        self.payload = number.to_bytes(8, "little")
        self.missed = missed


@pytest.mark.parametrize(
    ("numbers", "unexplained", "missed"),
    [
        ([(0, 0), (1, 0), (2, 0)], 0, 0),
        ([(0, 0), (5, 4), (6, 0)], 0, 4),
        ([(0, 0), (5, 0), (6, 0)], 1, 0),
        ([(0, 0), (5, 3), (6, 0)], 1, 3),
        ([(0, 0), (2, 1), (1, 0), (3, 0)], 2, 1),
        ([(0, 0), (0, 0), (1, 0)], 1, 0),
    ],
    ids=["in order", "announced gap", "silent gap", "wrong gap", "out of order", "repeated"],
)
def test_the_check_of_the_benchmark_finds_what_is_not_explained(
    numbers: list[tuple[int, int]], unexplained: int, missed: int
) -> None:
    checked = Checked()
    assert not checked.take([Arrived(*pair) for pair in numbers])  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    assert (checked.unexplained, checked.missed, checked.received) == (unexplained, missed, len(numbers))
    rest, end = Arrived(numbers[-1][0] + 1, 0), Arrived(0, 5)
    end.payload = b"end"
    assert checked.take([rest, end])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    assert (checked.unexplained, checked.missed, checked.received) == (unexplained, missed + 5, len(numbers) + 1)


def run(case: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.streams", "--quick", case],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        cwd=_ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_event_for_a_hundred_nodes_is_no_more_messages_to_its_publisher_than_one_for_ten() -> None:
    """In messages, which are the same in each run; the benchmark itself takes the time."""
    ten, hundred = tree.run((10, 100), 5)
    assert ten.complete
    assert hundred.complete
    assert (ten.messages, hundred.messages) == (10, 10)


@pytest.mark.long
def test_no_slow_joiner_misses_the_first_event() -> None:
    assert "| 200 | 0 |" in run("joiner")


@pytest.mark.long
def test_four_processes_get_every_event_in_order() -> None:
    said = run("fifo")
    rows = re.findall(r"^\| (wait|drop_oldest) \| ([^|]*) \| ([^|]*) \| (\d+) \|", said, re.MULTILINE)
    assert [overflow for overflow, *_ in rows] == ["wait", "drop_oldest"]
    assert all(unexplained == "0" for *_, unexplained in rows)
    assert rows[0][1:3] == ("5,000, 5,000, 5,000, 5,000", "0, 0, 0, 0")


def test_when_a_process_that_hands_events_on_is_killed_the_others_know_what_they_missed() -> None:
    said = run("relays")
    found = re.search(
        r"^\| 10 \| ([\d,]+) \| [\d,]+ - ([\d,]+) \| (\d+) - (\d+) \| 0 \| ([\d,]+); ([\d,]+) and ([\d,]+) \|",
        said,
        re.MULTILINE,
    )
    assert found, said
    published, most, least_missed, most_missed, killed, before, after = (
        int(number.replace(",", "")) for number in found.groups()
    )
    assert most + least_missed == published
    assert most_missed > 0, "it was killed with events in hand"
    assert killed > 0
    assert after > before + 90, "others have taken over"


@pytest.mark.long
def test_a_stopped_subscriber_leaves_the_publisher_small() -> None:
    said = run("stopped")
    before, after = zip(*re.findall(r"\| (\d+), (\d+) MiB", said), strict=True)
    # What may wait on one link is 16 MiB; encoded frames and the allocator's leftovers come to a little more.
    assert len(after) == 1
    assert all(int(late) - int(early) < 48 for early, late in zip(before, after, strict=True)), said
    told = re.search(r"was told of ([\d,]+) missed; unexplained gaps in all: 0", said)
    assert told, said
    assert int(told.group(1).replace(",", "")) > 0, "it was stopped for so long that events were dropped"


@pytest.mark.long
def test_tunnels_stay_small_whatever_passes_through() -> None:
    said = run("memory")
    rows = re.findall(r"^\| ([^|]*) \| ([\d.-]+) MiB \| ([\d.-]+) MiB \| ([\d.]*)", said, re.MULTILINE)
    assert len(rows) == 4, said
    assert rows[0][0].startswith("1,000 open tunnels")
    for what, opener, member, _ in rows:
        limit = 100 if "open tunnels" in what else 64
        assert float(opener) < limit, said
        assert float(member) < limit, said
    assert float(rows[-1][-1]) <= 2.0, "two windows are held for a receiver that stops reading"


@pytest.mark.long
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_transfer_through_a_bad_network_arrives_as_it_was_sent() -> None:
    said = run("transfer")
    found = re.search(r"^\| 32 MiB \| equal \| ([\d,]+) of [\d,]+ \| (\d+) \| (\d+) \|", said, re.MULTILINE)
    assert found, said
    lost, flaps, resets = (int(number.replace(",", "")) for number in found.groups())
    # The faults come by what has passed: 3,700 packets one way at least, 32 MiB; no machine is too fast or too slow.
    assert lost > 10
    assert flaps >= 10
    assert resets >= 10


async def test_an_end_that_comes_to_be_after_the_cut_is_waited_for(autojump_clock: MockClock) -> None:
    """Nothing is there faster than 0.1 ms, so the member sees none of the tunnels before it is cut off."""
    seen = cuts.Seen()
    async with (
        iris.testing.open_network(seed=1) as network,
        network.open_node("opener", host="opener") as opener,
    ):
        await cuts.cut_once(network, opener, "member", random.Random(1), seen, kind="cut", after=0.00005)
    assert seen.outcomes == {"cut: RequestTimeout": 10, "cut at the other end: TunnelBroken": 10}
    assert 5 < seen.longest < 10, "the openers gave up before the member held their node dead"


def test_every_cut_of_a_tunnel_is_an_error_at_every_end_that_lives() -> None:
    said = run("cuts")
    counts = {what: int(count) for what, count in re.findall(r"([a-z][a-z ]*: \w+): (\d+)", said)}
    assert sum(count for what, count in counts.items() if "other end" not in what) == 40, said
    # One that was being opened just then may not have come to be at all, which is an error of its own.
    assert {what.split(": ")[1] for what in counts} <= {"TunnelBroken", "RequestTimeout", "NoSuchCluster", "NotSent"}
    assert sum(count for what, count in counts.items() if what.endswith("TunnelBroken")) > 40, said
