"""Circuits: every state with every input, and what a balancer makes of them."""

from __future__ import annotations

import math
from random import Random

import pytest

from iris.cluster.balancing.balancer import Balancer
from iris.cluster.balancing.circuit_breaker import FAILURES, CircuitBreaker, CircuitState
from iris.kernel.names import NodeId

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
ONE, TWO, THREE = (NodeId(digit * 32) for digit in "123")


def circuit_in(state: CircuitState) -> CircuitBreaker:
    circuit = CircuitBreaker()
    if state is not CLOSED:
        for _ in range(FAILURES):
            circuit.failed(0.0)
    if state is HALF_OPEN:
        circuit.begin_trial()
    assert circuit.state is state
    return circuit


@pytest.mark.parametrize(
    ("state", "event", "after", "changed"),
    [
        (CLOSED, "failed", CLOSED, False),
        (CLOSED, "answered", CLOSED, False),
        (CLOSED, "undecided", CLOSED, False),
        (OPEN, "failed", OPEN, False),
        (OPEN, "answered", CLOSED, True),
        (OPEN, "undecided", OPEN, False),
        (HALF_OPEN, "failed", OPEN, True),
        (HALF_OPEN, "answered", CLOSED, True),
        (HALF_OPEN, "undecided", OPEN, True),
    ],
)
def test_every_state_with_every_event(state: CircuitState, event: str, after: CircuitState, changed: bool) -> None:
    circuit = circuit_in(state)
    match event:
        case "failed":
            result = circuit.failed(10.0)
        case "answered":
            result = circuit.answered()
        case _:
            result = circuit.undecided(10.0)
    assert (circuit.state, result) == (after, changed)


# -- in the balancer -----------------------------------------------------------------------------------------


def balancer_of(*nodes: NodeId) -> Balancer:
    balancer = Balancer(Random(1))
    for node in nodes:
        balancer.add(node)
    return balancer


def fall_silent(balancer: Balancer, node: NodeId, now: float, times: int = FAILURES, *, waited: float = 0.5) -> None:
    for _ in range(times):
        balancer.started(node)
        balancer.finished(node, waited, ok=False, answered=False, now=now)


def picked(balancer: Balancer, now: float, count: int = 300) -> set[NodeId | None]:
    return {balancer.pick(now=now) for _ in range(count)}


def test_a_silent_member_is_not_asked_until_one_request_shows_that_it_answers() -> None:
    balancer = balancer_of(ONE, TWO, THREE)
    fall_silent(balancer, ONE, now=0.0)
    assert picked(balancer, 0.9) == {TWO, THREE}
    assert balancer.pick(now=1.0) == ONE, "the trial"
    assert picked(balancer, 1.1) == {TWO, THREE}, "one trial at a time"
    balancer.started(ONE)
    balancer.finished(ONE, 0.5, ok=False, answered=False, now=1.5)
    assert picked(balancer, 3.4) == {TWO, THREE}, "the second pause is twice as long"
    assert balancer.pick(now=3.5) == ONE
    balancer.started(ONE)
    balancer.finished(ONE, 0.001, ok=True, now=3.6)
    for node in (TWO, THREE):
        balancer.finished(node, 0.5, ok=True, now=3.6)
    assert ONE in picked(balancer, 3.7)


def test_a_trial_that_shows_nothing_is_made_again() -> None:
    balancer = balancer_of(ONE, TWO)
    fall_silent(balancer, ONE, now=0.0)
    assert balancer.pick(now=1.0) == ONE
    balancer.started(ONE)
    balancer.finished(ONE, 0.5, ok=False, answered=None, now=1.2)
    assert balancer.pick(now=1.2) == ONE


def test_errors_refusals_and_requests_that_were_given_up_early_open_no_circuit() -> None:
    balancer = balancer_of(ONE, TWO)
    for _ in range(10 * FAILURES):
        balancer.started(ONE)
        balancer.finished(ONE, 0.001, ok=False, now=0.0)
        balancer.started(ONE)
        balancer.finished(ONE, 0.5, ok=False, answered=None, now=0.0)
    fall_silent(balancer, ONE, 0.0, 10 * FAILURES, waited=0.05)
    for _ in range(20):  # its latency speaks against it, so the other one has to be worse
        fall_silent(balancer, TWO, 0.0, 1, waited=30.0)
        balancer.finished(TWO, 30.0, ok=False, now=0.0)
    assert ONE in picked(balancer, 0.0, 3000)


def test_when_all_are_silent_all_are_asked() -> None:
    balancer = balancer_of(ONE, TWO)
    fall_silent(balancer, ONE, now=0.0)
    fall_silent(balancer, TWO, now=0.0)
    assert picked(balancer, 0.5) == {ONE, TWO}


def test_neither_a_suspended_nor_an_excluded_member_is_tried() -> None:
    balancer = balancer_of(ONE, TWO)
    fall_silent(balancer, ONE, now=0.0)
    assert balancer.pick(now=5.0, exclude={ONE}) == TWO
    balancer.suspend(ONE)
    assert picked(balancer, 5.0) == {TWO}
    balancer.resume(ONE)
    assert picked(balancer, 5.0) == {ONE, TWO}


def test_without_the_time_nothing_is_tried_and_a_member_that_leaves_takes_its_circuit_along() -> None:
    balancer = balancer_of(ONE, TWO)
    fall_silent(balancer, ONE, now=0.0)
    assert {balancer.pick() for _ in range(100)} == {TWO}
    balancer.remove(ONE)
    assert balancer.pick(now=math.inf) == TWO
    balancer.add(ONE)
    assert ONE in picked(balancer, 0.0)


def test_repeats_are_a_tenth_of_the_requests_and_a_hundred() -> None:
    balancer = balancer_of(ONE)
    allowed = 0
    for _ in range(10_000):
        balancer.started(ONE)
        balancer.finished(ONE, 0.001, ok=False, now=0.0)
        if balancer.may_repeat(0.0):
            allowed += 1
            balancer.started(ONE)
    assert 1000 <= allowed <= 100 + 0.1 * (10_000 + allowed) + 1
