"""Time that a suspect has, by witnesses, by size, and by what the witnesses saw."""

from __future__ import annotations

import pytest

from iris.cluster.swim.gossip import Claim, Evidence
from iris.cluster.swim.suspicion import Suspicion, suspicion_timeout, witnesses_needed
from iris.kernel.config import Config
from tests.support.membership import near, node

CONFIG = Config(probe_interval=0.5, suspicion_multiplier=3.0, suspicion_max_multiplier=4.0, suspicion_witnesses=3)


@pytest.mark.parametrize(
    ("witnesses", "needed", "members", "seconds"),
    [
        (1, 1, 2, 1.5),
        (1, 3, 10, 6.0),
        (3, 3, 10, 1.5),
        (9, 3, 10, 1.5),
        (1, 3, 100, 12.0),
        (2, 3, 100, 6.321),
        (3, 3, 100, 3.0),
        (3, 3, 1000, 4.5),
        (3, 3, 10_000, 6.0),
        (1, 2, 3, 6.0),
        (2, 2, 3, 1.5),
    ],
)
def test_a_suspicion_shrinks_with_witnesses_and_grows_with_the_realm(
    witnesses: int, needed: int, members: int, seconds: float
) -> None:
    assert near(suspicion_timeout(witnesses, needed, members, CONFIG), seconds, within=0.001)


@pytest.mark.parametrize(("others", "needed"), [(0, 1), (1, 1), (2, 2), (3, 3), (99, 3)])
def test_as_many_witnesses_are_needed_as_there_can_be(others: int, needed: int) -> None:
    assert witnesses_needed(others, CONFIG) == needed


def claim(witness: int, evidence: Evidence = Evidence.SILENT) -> Claim:
    return Claim(node=node(1), incarnation=1, witness=node(witness), evidence=evidence)


def test_a_witness_counts_once() -> None:
    suspicion = Suspicion(1, 0.0)
    suspicion.add(claim(2), 0.0)
    assert not suspicion.would_help(node(2), Evidence.SILENT, 3)
    assert suspicion.would_help(node(2), Evidence.REFUSED, 3)
    assert suspicion.would_help(node(3), Evidence.SILENT, 3)


def test_more_witnesses_than_needed_are_not_heard() -> None:
    suspicion = Suspicion(1, 0.0)
    for witness in (2, 3, 4):
        suspicion.add(claim(witness), 0.0)
    assert not suspicion.would_help(node(5), Evidence.SILENT, 3)
    assert suspicion.would_help(node(5), Evidence.REFUSED, 3)


def test_enough_refused_witnesses_leave_only_the_grace() -> None:
    suspicion = Suspicion(1, 10.0)
    for at, witness in ((10.0, 2), (10.1, 3)):
        suspicion.add(claim(witness, Evidence.REFUSED), at)
        assert suspicion.deadline(3, 100, CONFIG) > 13.0
    suspicion.add(claim(4, Evidence.REFUSED), 10.2)
    assert near(suspicion.deadline(3, 100, CONFIG), 10.0 + CONFIG.refused_grace)
    assert suspicion.evidence() is Evidence.REFUSED


def test_one_refused_witness_among_silent_ones_does_not_hasten_death() -> None:
    suspicion = Suspicion(1, 0.0)
    for witness, evidence in ((2, Evidence.REFUSED), (3, Evidence.SILENT), (4, Evidence.SILENT)):
        suspicion.add(claim(witness, evidence), 0.0)
    assert near(suspicion.deadline(3, 100, CONFIG), 3.0)
