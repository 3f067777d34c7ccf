"""Records of outcomes: who may run a request, and what is known of it, also after the log was opened again."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from iris.kernel.config import MIB
from iris.patterns.bridge_protocol import MAX_OUTCOME
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log import Quota, Transaction
from iris.spark_bridge.outcomes.records import (
    Accepted,
    ClaimRefused,
    Doubtful,
    Granted,
    Held,
    KeyClaim,
    KeyNotes,
    KeyOutcome,
    KeyRelease,
    Known,
    Operation,
    OutcomeRecords,
    Verdict,
    count_keys,
)
from tests.support.arrivals import fake_event, make_store, numbered, stored

KEY, A, B, C = b"k" * 32, b"a" * 16, b"b" * 16, b"c" * 16
DAY = 86_400_000_000


def claim(holder: bytes, *, rerun: bool = False, **others: object) -> KeyClaim:
    made = KeyClaim(KEY, "bank", "bank", b"f" * 16, holder, f"node {holder[:1].decode()}", 10.0, 60.0, rerun)
    return made._replace(**others)  # type: ignore[arg-type]


class Opened:
    """A log, and what time it is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now, self.date, self.opened = 100.0, DAY, 0
        self.open()

    def open(self) -> None:
        self.store = make_store(self.directory)
        self.opened += 1
        self.records = OutcomeRecords(self.now, bytes([self.opened]) * 8)

    def __call__(self, operation: Operation, *, may_forget: bool = True) -> Verdict:
        return self.all([operation], may_forget=may_forget)[0]

    def all(self, operations: Iterable[Operation], *, may_forget: bool = True) -> list[Verdict]:
        """Do operations in one transaction."""
        verdicts: list[Verdict] = []

        def change(view: Transaction) -> dict[int, list[EventRun]]:
            runs: list[EventRun] = []
            verdicts.extend(
                self.records.apply(view, runs, operation, date=self.date, now=self.now, may_forget=may_forget)
                for operation in operations
            )
            return {0: runs}

        self.store.appender.append({}, now=1, change=change)
        return verdicts

    def sweep(self) -> int:
        swept: list[int] = []

        def change(view: Transaction) -> dict[int, list[EventRun]]:
            swept.append(self.records.sweep(view, self.date))
            return {}

        self.store.appender.append({}, now=1, change=change)
        return swept[0]

    def count(self) -> int:
        with self.store.read_transaction() as view:
            return count_keys(view)

    def kept(self, owner: str) -> int:
        with self.store.read_transaction() as view:
            return Quota(view, "keys").used(owner)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.date += int(seconds * 1e6)

    def again(self) -> None:
        self.store.close()
        self.open()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    log = Opened(tmp_path)
    yield log
    log.store.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_one_member_runs_it_and_the_others_get_what_it_came_to(opened: Opened, restarted: bool) -> None:
    def step() -> None:
        if restarted:
            opened.again()

    assert opened(claim(A)) == Granted(1)
    step()
    assert opened(claim(A)) == Granted(1), "its first answer was lost"
    opened.later(4)
    step()
    held = opened(claim(B))
    assert held == Held(A, "node a", 10.0 if restarted else 6.0), "a claim that was found counts as made just now"
    assert opened(KeyOutcome(claim(A), 1, b"done")) == Accepted(new=True)
    step()
    assert opened(claim(B)) == Known(b"done")
    assert opened(KeyOutcome(claim(A), 1, b"done")) == Accepted(new=False), "its first answer was lost"
    assert opened(KeyOutcome(claim(B), 2, b"other")) is False
    assert opened(KeyRelease(KEY, A, begun=True)) is False
    assert opened(claim(C)) == Known(b"done")


@pytest.mark.parametrize("end", ["time", "gone", "released"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_member_that_is_lost_in_the_middle_leaves_a_doubt(opened: Opened, end: str, restarted: bool) -> None:
    opened(claim(A))
    if restarted:
        opened.again()
    if end == "released":
        assert opened(KeyRelease(KEY, A, begun=True)) is True
    elif end == "time":
        opened.later(10)
    gone = A if end == "gone" else b""
    assert opened(claim(B, gone=gone)) == Doubtful("node a", 1)
    assert opened(claim(B, gone=gone)) == Doubtful("node a", 1), "asking changes nothing"
    assert opened(KeyOutcome(claim(A), 1, b"late")) == Accepted(new=True), "it was not lost, and nobody has taken over"
    assert opened(claim(B)) == Known(b"late")


def test_with_rerun_the_next_one_takes_over_and_the_former_changes_nothing_more(opened: Opened) -> None:
    opened(claim(A, rerun=True))
    assert opened(claim(B, rerun=True, gone=A)) == Granted(2)
    assert isinstance(opened(claim(C, rerun=True, gone=A)), Held), "who was known to be gone is not the one who has it"
    assert opened(KeyOutcome(claim(A), 1, b"zombie")) is False
    assert opened(KeyRelease(KEY, A, begun=False)) is False
    assert opened(KeyOutcome(claim(B), 2, b"done")) == Accepted(new=True)
    assert opened(claim(A, rerun=True)) == Known(b"done")


def test_what_was_not_begun_is_as_if_it_had_not_been_asked_but_for_a_former_attempt(opened: Opened) -> None:
    opened(claim(A))
    assert opened(KeyRelease(KEY, A, begun=False)) is True
    assert opened.count() == 0
    opened(claim(A))
    opened(KeyRelease(KEY, A, begun=True))
    assert opened(claim(B, rerun=True)) == Granted(2)
    assert opened(KeyRelease(KEY, B, begun=False)) is True
    assert opened(claim(C)) == Doubtful("node b", 2)


def test_a_key_stands_for_one_request(opened: Opened) -> None:
    other = claim(B, fingerprint=b"g" * 16)
    opened(claim(A))
    assert opened(other) == ClaimRefused("key_reused", "")
    opened(KeyOutcome(claim(A), 1, b"done"))
    assert opened(other) == ClaimRefused("key_reused", "")
    assert opened(claim(B, key=b"l" * 32, fingerprint=b"g" * 16)) == Granted(1)


def test_a_key_is_forgotten_after_its_time_which_begins_with_the_outcome(opened: Opened) -> None:
    opened(claim(A))
    opened.later(9)
    opened(KeyOutcome(claim(A), 1, b"done"))
    opened.later(59)
    assert opened(claim(B)) == Known(b"done")
    assert opened.sweep() == 0
    opened.later(2)
    assert opened(claim(B), may_forget=False) == Known(b"done"), "the clock is not believed"
    assert opened(claim(B, fingerprint=b"g" * 16)) == Granted(1)
    opened.later(61)
    assert opened.sweep() == 1
    assert opened.count() == 0


def test_a_claim_outlives_no_time_of_its_request(opened: Opened) -> None:
    opened(claim(A, budget=1000.0))
    opened.later(999)
    assert isinstance(opened(claim(B)), Held), "longer than keys are kept"


def test_an_outcome_is_kept_whose_claim_is_gone_with_its_disk(opened: Opened) -> None:
    assert opened(KeyOutcome(claim(A), 1, b"done")) == Accepted(new=True)
    assert opened(claim(B)) == Known(b"done")


def names(first: int = 0) -> Iterator[bytes]:
    return (number.to_bytes(32) for number in itertools.count(first))


def fill(opened: Opened, owner: str, size: int, *, first: int = 0) -> tuple[int, Verdict]:
    """Claim keys for a cluster and record an outcome of each, until that is refused; return how many, and why."""
    for count, name in enumerate(names(first)):
        wanted = claim(A, key=name, owner=owner, keep=DAY / 1e6 * 366)
        verdict = opened(wanted)
        if verdict == Granted(1):
            verdict = opened(KeyOutcome(wanted, 1, bytes(size)))
        if not isinstance(verdict, Accepted):
            return count, verdict
    raise AssertionError


@pytest.mark.parametrize("size", [MAX_OUTCOME, 50_000])
def test_what_is_kept_for_a_cluster_is_counted_in_bytes_and_leaves_room_to_the_others(
    opened: Opened, size: int
) -> None:
    kept, refused = fill(opened, "evil", size)
    assert isinstance(refused, ClaimRefused)
    assert refused.code == "too_many_keys"
    assert refused.text.startswith("cluster 'evil' has 3.")
    assert 3 * MIB < kept * size < opened.kept("evil") <= 4 * MIB, "a sixteenth of the 64 MiB of this log's index"
    assert opened(claim(A, key=b"e" * 32, owner="evil", cluster="evil.other")) == refused, (
        "of any cluster that it serves"
    )
    # The index has room for others: their keys, and numbered events.
    assert opened(claim(B, key=b"h" * 32, owner="honest")) == Granted(1)
    assert opened(KeyOutcome(claim(B, key=b"h" * 32, owner="honest"), 1, bytes(size))) == Accepted(new=True)
    assert opened.store.appender.append({0: numbered(1, 1000)}, now=1).count == 1000


def test_clusters_together_leave_room_for_events(opened: Opened) -> None:
    refused = [fill(opened, f"evil{turn}", MAX_OUTCOME, first=turn << 20)[1] for turn in range(6)][-1]
    assert isinstance(refused, ClaimRefused)
    assert refused.text.startswith("all clusters together have 15.")
    assert opened.store.appender.append({0: numbered(1, 1000)}, now=1).count == 1000


def test_an_outcome_above_the_quota_is_refused_and_the_key_is_in_doubt(opened: Opened) -> None:
    claims = [claim(A, key=name) for name in itertools.islice(names(), 20)]
    assert {opened(one) for one in claims} == {Granted(1)}
    verdicts = [opened(KeyOutcome(one, 1, bytes(MAX_OUTCOME))) for one in claims]
    assert verdicts[:14] == [Accepted(new=True)] * 14
    assert isinstance(verdicts[-1], ClaimRefused)
    assert opened(KeyRelease(claims[-1].key, A, begun=True)) is True
    assert opened(claims[-1]._replace(holder=B)) == Doubtful("node a", 1)


def test_what_is_forgotten_is_counted_no_more(opened: Opened) -> None:
    for end in ("swept", "released", "claimed anew"):
        for name in itertools.islice(names(), 3):
            opened(claim(A, key=name, owner="shop"))
        assert opened.kept("shop") > 1000
        for name in itertools.islice(names(), 3):
            if end == "released":
                assert opened(KeyRelease(name, A, begun=False)) is True
            else:
                opened(KeyOutcome(claim(A, key=name, owner="shop"), 1, b"done"))
        if end != "released":
            opened.later(61)
        if end == "claimed anew":
            for name in itertools.islice(names(), 3):
                assert opened(claim(B, key=name, owner="other")) == Granted(1)
            assert opened.kept("shop") == 0 < opened.kept("other")
        else:
            opened.sweep()
            assert (opened.kept("shop"), opened.count()) == (0, 0)


def test_keys_take_no_memory(opened: Opened) -> None:
    """What is kept for a day is on the disk alone, also of what was released before it began."""
    held = 600

    def operations(first: int) -> Iterator[Operation]:
        for turn, name in enumerate(itertools.islice(names(first), held)):
            one = claim(A, key=name, keep=86_400.0)
            yield one
            if turn % 3 == 1:
                yield KeyOutcome(one, 1, b"done")
            elif turn % 3 == 2:
                yield KeyRelease(name, A, begun=False)

    opened.all(operations(1 << 20))
    tracemalloc.start()
    opened.all(operations(0))
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert opened.count() == 2 * (held - held // 3)
    assert grown < 20 * held, "bytes of memory for each key"


def test_events_of_an_outcome_are_stored_with_it_once(opened: Opened) -> None:
    events = [fake_event(b"one"), fake_event(b"two")]
    opened(claim(A))
    assert opened(KeyOutcome(claim(A), 1, b"done", events)) == Accepted(new=True)
    opened.again()
    assert opened(KeyOutcome(claim(A), 1, b"done", events)) == Accepted(new=False)
    assert opened(KeyOutcome(claim(B), 1, b"done", events)) is False
    assert stored(opened.store) == [b"one", b"two"]


STEP = b"s" * 32


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("step", ["never", "refused", "doubt", "over", "gone", "done"])
def test_a_claim_that_undoes_a_step_closes_its_key(opened: Opened, step: str, restarted: bool) -> None:
    first, late = claim(A, key=STEP, rerun=True), claim(C, key=STEP, rerun=True, gone=A)
    if step != "never":
        assert opened(first) == Granted(1)
    match step:
        case "refused" | "doubt":
            opened(KeyRelease(STEP, A, begun=step == "doubt"))
        case "over":
            opened.later(11)
        case "done":
            opened(KeyOutcome(first, 1, b"a reply"))
        case _:
            pass
    undo = claim(B, undoes=STEP, gone=A if step == "gone" else b"")
    expected = {"never": None, "refused": None, "done": b"a reply"}.get(step, b"")
    for _ in range(3):  # its answer may be lost
        assert opened(undo) == Granted(1, undone=expected)
        if restarted:
            opened.again()
    if step == "done":
        assert opened(late) == Known(b"a reply")
    else:
        assert opened(late) == ClaimRefused(
            "key_closed", "what the key stands for was undone, and does not begin any more"
        )
        assert opened(KeyOutcome(first, 1, b"a reply")) is False, "of an attempt that nobody waited for"
        assert opened(KeyRelease(STEP, A, begun=False)) is False
    assert opened(KeyOutcome(undo, 1, b"undone")) == Accepted(new=True)
    assert opened(claim(C, undoes=STEP)) == Known(b"undone")
    opened.later(120)
    opened.sweep()
    assert (opened.kept("bank"), opened.count()) == (0, 0)


def test_a_step_that_may_be_running_is_waited_for_before_it_is_undone(opened: Opened) -> None:
    opened(claim(A, key=STEP, rerun=True))
    undo = claim(B, undoes=STEP)
    assert opened(undo) == Held(A, "node a", 10.0)
    assert opened.count() == 1, "nothing was claimed"
    assert opened(KeyOutcome(claim(A, key=STEP), 1, b"a reply")) == Accepted(new=True)
    assert opened(undo) == Granted(1, undone=b"a reply")


def test_closed_keys_and_notes_are_counted_and_bounded(opened: Opened) -> None:
    opened(claim(A))
    before = opened.kept("bank")
    assert opened(KeyNotes(KEY, A, bytes(50_000))) is True
    assert opened.kept("bank") > before + 50_000
    fill(opened, "bank", 50_000)
    assert isinstance(opened(KeyNotes(KEY, A, bytes(MAX_OUTCOME))), ClaimRefused)
    closings = (opened(claim(A, undoes=closed)) for closed in names(1 << 20))
    verdict = next(found for found in closings if found != Granted(1, bytes(50_000), None))
    assert isinstance(verdict, ClaimRefused)
    assert verdict.code == "too_many_keys"
    assert opened.kept("bank") <= 4 * MIB


def test_notes_are_for_the_next_holder_and_of_the_last_one_alone(opened: Opened) -> None:
    assert opened(KeyNotes(KEY, A, b"one")) is False
    opened(claim(A, rerun=True))
    assert opened(KeyNotes(KEY, A, b"one")) is True
    assert opened(KeyNotes(KEY, B, b"zombie")) is False
    assert opened(claim(B, rerun=True, gone=A)) == Granted(2, b"one")
    assert opened(KeyNotes(KEY, A, b"zombie")) is False
    assert opened(KeyRelease(KEY, B, begun=True)) is True
    assert opened(KeyNotes(KEY, B, b"zombie")) is False, "it has given the key back"
    opened.again()
    assert opened(claim(C, rerun=True)) == Granted(3, b"one")


def test_a_record_that_is_not_what_was_written_is_noticed(opened: Opened) -> None:
    opened(claim(A))
    opened(KeyOutcome(claim(A), 1, b"an outcome"))
    opened.store.close()
    path = opened.directory / "index" / "data.mdb"
    path.write_bytes(path.read_bytes().replace(b"an outcome", b"an Outcome"))
    opened.open()
    with pytest.raises(LogDamaged, match="a record of its table 'keys' is not what was written"):
        opened(claim(B))
