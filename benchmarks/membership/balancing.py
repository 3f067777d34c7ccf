"""Requests to members of different speed, chosen by the product's balancer or in turn."""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Final, final

from iris.cluster.balancing.balancer import Balancer
from iris.kernel.names import NodeId
from iris.patterns.service.load_shedding import QueueDelay

_MEMBERS: Final = 10
_SERVICE: Final = 0.010
"""Mean seconds of work for one request, exponentially distributed."""

_SLOWER: Final = 10.0
_PROBED: Final = 0.5
"""Seconds between reports of queue delay to each caller, from one member after another."""

_WARM: Final = 5.0
"""Seconds at the start that are not measured."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Latencies of callers in seconds, and shares of members; 1.0 is just a member's part of the capacity."""

    p50: float
    p99: float
    slow_share: float
    least_share: float
    greatest_share: float
    """The extremes among the members of ordinary speed."""
    rate: float


@final
class _Run:
    def __init__(self, seed: int, *, in_turn: bool, one_slow: bool, callers: int, handlers: int) -> None:
        self.random = Random(seed)
        self.nodes = [NodeId(f"{number:032x}") for number in range(_MEMBERS)]
        self.speed = dict.fromkeys(self.nodes, 1.0)
        if one_slow:
            self.speed[self.nodes[0]] = 1 / _SLOWER
        self.handlers = handlers
        self.in_turn = in_turn
        self.turns = [self.random.randrange(_MEMBERS) for _ in range(callers)]
        self.balancers = [Balancer(Random(self.random.getrandbits(64))) for _ in range(callers)]
        for balancer in self.balancers:
            for node in self.nodes:
                balancer.add(node)
        self.running: Counter[NodeId] = Counter()
        self.waiting: dict[NodeId, deque[tuple[float, int]]] = {node: deque() for node in self.nodes}
        self.waits = {node: QueueDelay() for node in self.nodes}
        self.heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.count = 0
        self.now = 0.0
        self.again: Callable[[int], None] | None = None
        self.latencies: list[float] = []
        self.served: Counter[NodeId] = Counter()
        for caller in range(callers):
            self.after(_PROBED * self.random.random(), self.probe, caller, [])

    @property
    def capacity(self) -> float:
        return sum(self.speed.values()) * self.handlers / _SERVICE

    def after(self, seconds: float, action: Callable[..., None], *arguments: object) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.now + seconds, self.count, action, arguments))

    def issue(self, caller: int) -> None:
        balancer = self.balancers[caller]
        if self.in_turn:
            self.turns[caller] = (self.turns[caller] + 1) % _MEMBERS
            node: NodeId | None = self.nodes[self.turns[caller]]
        else:
            node = balancer.pick()
        assert node is not None
        balancer.started(node)
        if self.running[node] < self.handlers:
            self.serve(node, self.now, caller)
        else:
            self.waiting[node].append((self.now, caller))

    def probe(self, caller: int, turns: list[NodeId]) -> None:
        if not turns:
            turns = self.random.sample(self.nodes, len(self.nodes))
        *rest, node = turns
        oldest = self.waiting[node][0][0] if self.waiting[node] else None
        self.balancers[caller].gray(node, self.waits[node].delay(oldest, self.now))
        self.after(_PROBED, self.probe, caller, rest)

    def serve(self, node: NodeId, since: float, caller: int) -> None:
        self.running[node] += 1
        self.waits[node].begun(since, self.now)
        self.after(self.random.expovariate(self.speed[node] / _SERVICE), self.done, node, since, caller)

    def done(self, node: NodeId, since: float, caller: int) -> None:
        self.running[node] -= 1
        self.balancers[caller].finished(node, self.now - since, ok=True)
        if self.now > _WARM:
            self.latencies.append(self.now - since)
            self.served[node] += 1
        if self.waiting[node]:
            self.serve(node, *self.waiting[node].popleft())
        if self.again is not None:
            self.again(caller)

    def run(self, seconds: float) -> Shares:
        while self.heap and self.heap[0][0] < seconds:
            self.now, _, action, arguments = heapq.heappop(self.heap)
            action(*arguments)
        total = sum(self.served.values())
        whole = sum(self.speed.values())
        share = {node: self.served[node] / total / (self.speed[node] / whole) for node in self.nodes}
        ordinary = [share[node] for node in self.nodes[1:]]
        self.latencies.sort()
        return Shares(
            p50=self.latencies[total // 2],
            p99=self.latencies[int(total * 0.99)],
            slow_share=share[self.nodes[0]],
            least_share=min(ordinary),
            greatest_share=max(ordinary),
            rate=total / (seconds - _WARM),
        )


def offered(
    seed: int, *, load: float, in_turn: bool = False, one_slow: bool = True, callers: int = 1, seconds: float = 60.0
) -> Shares:
    """Requests arrive at random, at ``load`` of all that the ten members together can do."""
    run = _Run(seed, in_turn=in_turn, one_slow=one_slow, callers=callers, handlers=4)
    rate = load * run.capacity

    def arrive() -> None:
        run.after(run.random.expovariate(rate), arrive)
        run.issue(run.random.randrange(callers))

    arrive()
    return run.run(seconds)


def saturated(
    seed: int,
    *,
    outstanding: int,
    in_turn: bool = False,
    one_slow: bool = True,
    callers: int = 1,
    seconds: float = 60.0,
) -> Shares:
    """So many requests are outstanding at all times: each one answered is followed by the next."""
    run = _Run(seed, in_turn=in_turn, one_slow=one_slow, callers=callers, handlers=4)
    run.again = run.issue
    for number in range(outstanding):
        run.after(_SERVICE * run.random.random(), run.issue, number % callers)
    return run.run(seconds)
