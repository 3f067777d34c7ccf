"""Addresses to dial, beside a plain model: nobody waits for ever, nobody is dialled twice at a time or too often."""

from __future__ import annotations

import math
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from iris.cluster.discovery.candidates import AT_ONCE, PAUSES, AddressSource, Candidates
from iris.kernel.names import NodeId

NODES: Final = [NodeId(digit * 32) for digit in "123"]
URLS: Final = [f"tcp://10.0.0.{number}:1" for number in range(12)]
NOBODY: Final[frozenset[NodeId]] = frozenset()
NOTHING: Final[frozenset[str]] = frozenset()
SOURCES: Final = st.sampled_from(AddressSource)


class Known:
    """The model's record of one address."""

    def __init__(self, source: AddressSource, now: float) -> None:
        self.source = source
        self.due = now
        self.failures = 0
        self.dialling = False
        self.node: NodeId | None = None
        self.until = 0.0

    def wanted_from(self, url: str, linked: set[NodeId], told: set[str]) -> float:
        """Return the time from which it may be dialled, ``inf`` if the links have to change first."""
        if self.dialling:
            return math.inf
        if self.node is None:
            return math.inf if url in told else self.due
        return max(self.due, self.until) if self.node in linked else self.due


class CandidatesBesideAModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.candidates = Candidates()
        self.model: dict[str, Known] = {}
        self.now = 0.0
        self.linked: set[NodeId] = set()
        self.told: set[str] = set()

    @rule(seconds=st.floats(0, 400))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def time_passes_until_something_is_due(self) -> None:
        soonest = self.candidates.next_due(self.linked, self.told)
        if soonest < math.inf:
            self.now = max(self.now, soonest)
            if any(
                sum(known.dialling for known in self.model.values() if known.source is source) < AT_ONCE[source]
                and any(
                    known.source is source and known.wanted_from(url, self.linked, self.told) <= self.now
                    for url, known in self.model.items()
                )
                for source in AddressSource
            ):
                assert self.dial_all(), "it was due and was not dialled"

    @rule(node=st.sampled_from(NODES))
    def a_node_is_linked_or_lost(self, node: NodeId) -> None:
        self.linked ^= {node}

    @rule(urls=st.sets(st.sampled_from(URLS)))
    def linked_nodes_tell_their_addresses(self, urls: set[str]) -> None:
        self.told = urls

    @rule(source=SOURCES, urls=st.lists(st.sampled_from(URLS), max_size=12))
    def a_source_speaks(self, source: AddressSource, urls: list[str]) -> None:
        self.candidates.offer(source, urls, self.now)
        for url in [url for url, known in self.model.items() if known.source is source and url not in urls]:
            del self.model[url]
        for url in urls:
            known = self.model.get(url)
            if known is None:
                self.model[url] = Known(source, self.now)
            elif source < known.source:
                known.source, known.failures, known.due = source, 0, min(known.due, self.now)

    @rule(sources=st.sets(SOURCES))
    def some_are_dialled(self, sources: set[AddressSource]) -> None:
        self._dial(sources)

    @rule()
    def all_are_dialled(self) -> None:
        self.dial_all()

    def dial_all(self) -> list[str]:
        return self._dial(set(AddressSource))

    def _dial(self, sources: set[AddressSource]) -> list[str]:
        ready = {
            url
            for url, known in self.model.items()
            if known.source in sources and known.wanted_from(url, self.linked, self.told) <= self.now
        }
        busy = {source: sum(k.dialling for k in self.model.values() if k.source is source) for source in AddressSource}
        chosen = self.candidates.due(self.now, self.linked, self.told, sorted(sources))
        assert len(chosen) == len(set(chosen))
        assert set(chosen) <= ready
        for source in sources:
            mine = [url for url in chosen if self.model[url].source is source]
            waiting = [url for url in ready if self.model[url].source is source]
            assert len(mine) == min(len(waiting), max(0, AT_ONCE[source] - busy[source])), "as many as have room"
            left = [self.model[url].due for url in waiting if url not in mine]
            if mine and left:
                assert max(self.model[url].due for url in mine) <= min(left), "who has waited longest comes first"
        for url in chosen:
            self.model[url].dialling = True
        return chosen

    @rule(url=st.sampled_from(URLS), node=st.sampled_from(NODES), lasting=st.booleans())
    def one_answers(self, url: str, node: NodeId, lasting: bool) -> None:
        until = math.inf if lasting else self.now + 30
        self.candidates.reached(url, node, self.now, until=until)
        known = self.model.get(url)
        if known is not None:
            known.dialling, known.failures, known.node, known.until = False, 0, node, until
            known.due = self.now + PAUSES[known.source][0]

    @rule(url=st.sampled_from(URLS))
    def one_does_not_answer(self, url: str) -> None:
        self.candidates.failed(url, self.now)
        known = self.model.get(url)
        if known is not None:
            pauses = PAUSES[known.source]
            known.due = self.now + pauses[min(known.failures, len(pauses) - 1)]
            known.dialling, known.node = False, None
            known.failures += 1

    @invariant()
    def both_know_the_same_addresses(self) -> None:
        assert repr(self.candidates) == f"<Candidates: {len(self.model)}>"

    @precondition(lambda self: self.model)
    @invariant()
    def both_say_when_the_next_one_is_due(self) -> None:
        soonest = min(known.wanted_from(url, self.linked, self.told) for url, known in self.model.items())
        assert self.candidates.next_due(self.linked, self.told) == soonest


TestCandidates = CandidatesBesideAModel.TestCase
TestCandidates.settings = settings(max_examples=60, stateful_step_count=40)


def test_an_empty_table_is_never_due() -> None:
    candidates = Candidates()
    assert candidates.next_due(NOBODY, NOTHING) == math.inf
    assert candidates.due(1e9, NOBODY, NOTHING) == []
    candidates.failed("mem://nobody", 0.0)
    candidates.reached("mem://nobody", NODES[0], 0.0)
    assert repr(candidates) == "<Candidates: 0>"
