"""The journal of outcomes: who may run a request, and what is known of it, also after the file was opened again."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.outcomes.journal import (
    Accepted,
    ClaimRefused,
    Doubtful,
    Granted,
    Held,
    KeyClaim,
    KeyOutcome,
    KeyRelease,
    Known,
    Operation,
    OutcomeJournal,
    Verdict,
)

KEY, A, B, C = b"k" * 32, b"a" * 16, b"b" * 16, b"c" * 16
DAY = 86_400_000_000


def claim(holder: bytes, *, rerun: bool = False, **others: object) -> KeyClaim:
    made = KeyClaim(KEY, "bank", b"f" * 16, holder, f"node {holder[:1].decode()}", 10.0, 60.0, rerun)
    return made._replace(**others)  # type: ignore[arg-type]


class Opened:
    """A journal, and what time it is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now, self.date = 100.0, DAY
        self.journal = OutcomeJournal(directory, bytes(16), self.now)

    def __call__(self, operation: Operation, *, may_forget: bool = True) -> Verdict:
        return self.journal.apply([operation], date=self.date, now=self.now, may_forget=may_forget)[0]

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.date += int(seconds * 1e6)

    def again(self) -> None:
        self.journal.close()
        self.journal = OutcomeJournal(self.directory, bytes(16), self.now)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "outcomes")


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
    assert opened(KeyOutcome(claim(A), 1, b"done")) == Accepted(0)
    step()
    assert opened(claim(B)) == Known(b"done")
    assert opened(KeyOutcome(claim(A), 1, b"done")) == Accepted(0), "its first answer was lost"
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
    assert opened(KeyOutcome(claim(A), 1, b"late")) == Accepted(0), "it was not lost, and nobody has taken over"
    assert opened(claim(B)) == Known(b"late")


def test_with_rerun_the_next_one_takes_over_and_the_former_changes_nothing_more(opened: Opened) -> None:
    opened(claim(A, rerun=True))
    assert opened(claim(B, rerun=True, gone=A)) == Granted(2)
    assert isinstance(opened(claim(C, rerun=True, gone=A)), Held), "who was known to be gone is not the one who has it"
    assert opened(KeyOutcome(claim(A), 1, b"zombie")) is False
    assert opened(KeyRelease(KEY, A, begun=False)) is False
    assert opened(KeyOutcome(claim(B), 2, b"done")) == Accepted(0)
    assert opened(claim(A, rerun=True)) == Known(b"done")


def test_what_was_not_begun_is_as_if_it_had_not_been_asked_but_for_a_former_attempt(opened: Opened) -> None:
    opened(claim(A))
    assert opened(KeyRelease(KEY, A, begun=False)) is True
    assert opened.journal.count() == 0
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
    assert opened.journal.sweep(opened.date) == 0
    opened.later(2)
    assert opened(claim(B), may_forget=False) == Known(b"done"), "the clock is not believed"
    assert opened(claim(B, fingerprint=b"g" * 16)) == Granted(1)
    opened.later(61)
    assert opened.journal.sweep(opened.date) == 1
    assert opened.journal.count() == 0


def test_a_claim_outlives_no_time_of_its_request(opened: Opened) -> None:
    opened(claim(A, budget=1000.0))
    opened.later(999)
    assert isinstance(opened(claim(B)), Held), "longer than keys are kept"


def test_an_outcome_is_kept_whose_claim_is_gone_with_its_disk(opened: Opened) -> None:
    assert opened(KeyOutcome(claim(A), 1, b"done")) == Accepted(0)
    assert opened(claim(B)) == Known(b"done")


def test_keys_are_counted_by_cluster_and_bounded(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.spark_bridge.outcomes.journal.MAX_KEYS_OF_CLUSTER", 2)
    names = [bytes([number]) * 32 for number in range(4)]
    for name in names[:2]:
        assert opened(claim(A, key=name)) == Granted(1)
    refused = ClaimRefused("too_many_keys", "2 keys are remembered, 2 of 'bank'")
    assert opened(claim(A, key=names[2])) == refused
    assert opened(claim(A, key=names[2], cluster="shop")) == Granted(1)
    assert opened(claim(B, key=names[0])) == Held(A, "node a", 10.0), "those that are known are served"
    opened.later(61)
    assert opened.journal.sweep(opened.date) == 3
    assert opened(claim(A, key=names[3])) == Granted(1)


def test_a_record_that_is_not_what_was_written_is_noticed(opened: Opened) -> None:
    opened(claim(A))
    opened(KeyOutcome(claim(A), 1, b"done"))
    opened.journal.close()
    with lmdb.open(str(opened.directory), max_dbs=5) as environment:
        database = environment.open_db(b"records")
        with environment.begin(write=True, db=database) as transaction:
            found = transaction.get(KEY)
            assert found is not None
            transaction.put(KEY, found.replace(b"done", b"gone"))
    opened.journal = OutcomeJournal(opened.directory, bytes(16), opened.now)
    with pytest.raises(LogDamaged, match="is not what was written"):
        opened(claim(B))
