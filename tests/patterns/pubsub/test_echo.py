"""The echo: each node is asked once, and answers for those that it has asked."""

from __future__ import annotations

import heapq
import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.patterns.pubsub.echo import Answer, Ask, Echo, Effect, Wave
from tests.support.membership import node


class Graph:
    """Nodes whose links take a random time; some are silent, or end while a question is on its way."""

    def __init__(self, seed: int, count: int, degree: int = 8, interested: int = 3) -> None:
        self.random = Random(seed)
        self.nodes = [node(number) for number in range(1, count + 1)]
        self.links: dict[NodeId, set[NodeId]] = {one: set() for one in self.nodes}
        for index, one in enumerate(self.nodes):
            for other in self.random.sample(self.nodes[:index], min(degree, index)):
                self.links[one].add(other)
                self.links[other].add(one)
        self.echoes = {one: Echo(one) for one in self.nodes}
        self.interested = set(self.random.sample(self.nodes[1:], min(interested, count - 1)))
        self.silent: set[NodeId] = set()
        self.messages = 0
        self.now = 0.0
        self._due: list[tuple[float, int, NodeId, NodeId, Effect]] = []
        self._numbers = itertools.count()
        self._last: dict[tuple[NodeId, NodeId], float] = {}

    def send(self, sender: NodeId, effects: list[Effect]) -> None:
        for effect in effects:
            self.messages += 1
            link = sender, effect.node
            at = self._last[link] = max(self._last.get(link, 0.0), self.now + self.random.uniform(0.0005, 0.005))
            heapq.heappush(self._due, (at, next(self._numbers), sender, effect.node, effect))

    def begin(self, one: NodeId) -> Wave:
        wave, effects = self.echoes[one].begin(sorted(self.links[one]), 1.0, self.now)
        self.send(one, effects)
        return wave

    def run(self) -> None:
        """Deliver until nothing is on its way and nobody waits."""
        while self._due or any(echo.in_progress for echo in self.echoes.values()):
            tick = self.now + 0.05
            while self._due and self._due[0][0] <= tick:
                self.now, _, sender, receiver, effect = heapq.heappop(self._due)
                if receiver in self.links[sender] and receiver not in self.silent:
                    self.deliver(sender, receiver, effect)
            self.now = tick
            for one in self.nodes:
                if one not in self.silent:
                    self.send(one, self.echoes[one].expire(self.now))
            assert self.now < 3.0

    def deliver(self, sender: NodeId, receiver: NodeId, effect: Effect) -> None:
        echo = self.echoes[receiver]
        match effect:
            case Ask(_, key, left):
                others = sorted(self.links[receiver] - {sender})
                interested = receiver in self.interested
                self.send(receiver, echo.receive(key, sender, others, left, self.now, interested=interested))
            case Answer(_, key, reached, interested_ids):
                self.send(receiver, echo.receive_answer_untrusted(key, sender, reached, interested_ids))

    def cut(self, one: NodeId, other: NodeId) -> None:
        self.links[one].discard(other)
        self.links[other].discard(one)
        self.send(one, self.echoes[one].link_ended(other))
        self.send(other, self.echoes[other].link_ended(one))


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_all_are_reached_and_whoever_is_interested_is_named(seed: int, count: int) -> None:
    graph = Graph(seed, count)
    waves = [graph.begin(one) for one in graph.nodes[:5]]
    graph.run()
    for one, wave in zip(graph.nodes, waves, strict=False):
        assert wave.done
        assert wave.reached == set(graph.nodes) - {one}
        assert {interested for interested, _ in wave.interested} == graph.interested - {one}
        assert {by for _, by in wave.interested} <= graph.links[one]
        assert sum(len(reached) for reached, _ in wave.answers.values()) == 16 * (count - 1)
    assert graph.now < 0.2
    for echo in graph.echoes.values():
        echo.expire(graph.now + 10.0)
        assert repr(echo) == "<Echo: 0 in progress, 0 bytes>"
        assert not echo.kept


@given(st.integers(0, 2**32), st.integers(10, 60), st.integers(1, 4))
def test_the_silent_are_not_claimed_to_be_reached_and_all_others_are(seed: int, count: int, silent: int) -> None:
    graph = Graph(seed, count)
    graph.silent = set(graph.random.sample(graph.nodes[1:], silent))
    wave = graph.begin(graph.nodes[0])
    graph.run()
    assert graph.now <= 1.1
    reached = wave.reached
    assert reached.isdisjoint(graph.silent)
    reachable, look = {graph.nodes[0]}, [graph.nodes[0]]
    while look:
        for other in graph.links[look.pop()] - graph.silent - reachable:
            reachable.add(other)
            look.append(other)
    assert reached == reachable - {graph.nodes[0]}


@given(st.integers(0, 2**32), st.integers(10, 60), st.floats(0.0, 0.02))
def test_nobody_is_claimed_to_be_reached_who_was_not_while_links_end(seed: int, count: int, at: float) -> None:
    graph = Graph(seed, count)
    wave = graph.begin(graph.nodes[0])
    received: set[NodeId] = set()
    deliver = graph.deliver

    def noted(sender: NodeId, receiver: NodeId, effect: Effect) -> None:
        if graph.now >= at and graph.random.random() < 0.3 and len(graph.links[receiver]) > 1:
            graph.cut(receiver, graph.random.choice(sorted(graph.links[receiver])))
        if isinstance(effect, Ask):
            received.add(receiver)
        deliver(sender, receiver, effect)

    graph.deliver = noted  # type: ignore[method-assign]
    graph.run()
    assert wave.done
    assert wave.reached <= received
    assert {interested for interested, _ in wave.interested} == wave.reached & graph.interested


def test_a_question_that_comes_late_begins_nothing_anew() -> None:
    echo = Echo(node(1))
    key = node(9), 1
    assert echo.receive(key, node(2), [node(3)], 1.0, 0.0, interested=True) == [Ask(node(3), key, 0.75)]
    own = bytes.fromhex(node(1))
    assert echo.expire(0.75) == [Answer(node(2), key, own, own)]
    assert echo.receive(key, node(3), [node(2)], 1.0, 3.0, interested=True) == [Answer(node(3), key, b"", b"")]
    assert echo.receive_answer_untrusted(key, node(3), own, b"") == []
    assert echo.expire(6.0) == []
    assert len(echo) == 0


def test_who_asks_for_itself_in_the_name_of_this_node_learns_nothing() -> None:
    echo = Echo(node(1))
    assert echo.receive((node(1), 5), node(2), [node(3)], 1.0, 0.0, interested=True) == [
        Answer(node(2), (node(1), 5), b"", b"")
    ]


def test_answers_of_a_wrong_form_or_of_others_count_for_nothing() -> None:
    echo = Echo(node(1))
    wave, _ = echo.begin([node(2)], 1.0, 0.0)
    for reached, interested in (b"12345", b""), (bytes(16), b"1"), (bytes(16), bytes(32)):
        with pytest.raises(RemoteProtocolError):
            echo.receive_answer_untrusted(wave.key, node(2), reached, interested)
    assert echo.receive_answer_untrusted(wave.key, node(3), bytes(16), b"") == []
    assert not wave.reached
    assert not wave.done


MOST = 1024 * 1024
"""Bytes that are kept for one neighbour."""

LONG = bytes(48 * 1024)


def ask(echo: Echo, number: int, sender: int, *others: int, now: float = 0.0) -> list[Effect]:
    asked = [node(other) for other in others]
    return echo.receive((node(9), number), node(sender), asked, 1.0, now, interested=True)


@pytest.mark.parametrize("neighbours", [1, 8, 200])
def test_who_asks_too_much_is_answered_with_nobody_and_others_are_as_ever(neighbours: int) -> None:
    echo = Echo(node(1))
    others = range(10, 10 + neighbours)
    refused = 0
    for number in range(4000):
        effects = ask(echo, number, 2, *others)
        refused += effects == [Answer(node(2), (node(9), number), b"", b"")]
        assert echo.kept[node(2)] <= MOST
    assert 0 < 4000 - refused <= MOST // (512 + 128 * neighbours)
    assert len(ask(echo, 5000, 3, *others)) == neighbours
    echo.expire(1.0)
    assert echo.in_progress == 0
    assert ask(echo, 5001, 2, *others, now=1.0) != [Answer(node(2), (node(9), 5001), b"", b"")]
    echo.expire(20.0)
    echo.expire(40.0)
    assert not echo.kept


def test_who_answers_too_much_loses_its_own_answers_only() -> None:
    """Not those of the neighbour that asked, nor what others answer to the same questions."""
    echo = Echo(node(1))
    liar, honest = node(3), node(4)
    few = bytes.fromhex(node(7))
    for number in range(50):
        ask(echo, number, 2, 3, 4)
        assert echo.receive_answer_untrusted((node(9), number), liar, LONG, LONG) == []
        assert echo.kept[liar] <= MOST
    own, lost = bytes.fromhex(node(1)), 0
    for number in range(50):
        (answer,) = echo.receive_answer_untrusted((node(9), number), honest, few, few)
        assert isinstance(answer, Answer)
        lost += (answer.reached, answer.interested) == (own + few, own + few)
    assert lost == 50 - MOST // (2 * len(LONG))
    assert {liar, honest}.isdisjoint(echo.kept)


def test_answers_to_this_node_are_counted_until_they_are_forgotten() -> None:
    echo = Echo(node(1))
    waves = [echo.begin([node(2)], 1.0, 0.0)[0] for _ in range(50)]
    for wave in waves:
        echo.receive_answer_untrusted(wave.key, node(2), LONG, LONG)
        assert wave.done
    assert 0 < echo.kept[node(2)] <= MOST
    echo.expire(20.0)
    assert not echo.kept
    assert not any(wave.answers for wave in waves)


def test_whoever_is_left_out_of_an_answer_that_is_too_long_is_not_said_to_be_reached() -> None:
    """Or it would be hidden by a neighbour of a neighbour that names thousands."""
    echo = Echo(node(1))
    ask(echo, 1, 2, 3, 4)
    honest = b"".join(bytes.fromhex(node(number)) for number in range(100, 200))
    echo.receive_answer_untrusted((node(9), 1), node(3), LONG[:-800], LONG[:-800])
    (answer,) = echo.receive_answer_untrusted((node(9), 1), node(4), honest, honest)
    assert isinstance(answer, Answer)
    assert len(answer.reached) == len(answer.interested) == len(LONG)
    assert answer.reached[-784:] == answer.interested[-784:] == honest[:784]
