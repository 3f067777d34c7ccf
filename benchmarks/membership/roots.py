"""Announced roots: links and messages of publishing and subscribing in a large realm.

The machines are those of a node: ``Partners`` draws the links, ``Echo`` finds who is interested, ``Roots`` are what
nodes know of a publisher.  Messages take a random time.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from random import Random
from typing import Final, final

from iris.cluster.membership import PARTNERS
from iris.cluster.membership.partners import Partners
from iris.kernel.names import NodeId
from iris.patterns.pubsub.echo import Answer, Ask, Echo, Effect
from iris.patterns.pubsub.roots import Roots

_HOP: Final = 0.001
"""Seconds that a message takes at most, with what its receiver does."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Announcing:
    """What became of all announcements of a realm.

    Attributes:
        links: links of each node in the end, by size.
        messages: messages of each announcement, questions and answers.
        seconds: time from each question to its whole answer.
        missed: pairs of publisher and subscriber that do not know of each other.
    """

    links: list[int]
    messages: list[int]
    seconds: list[float]
    missed: int


def announcing(size: int, publishers: int, roots: int, subscribers: int, seed: int) -> Announcing:
    """Have some nodes of a realm publish, each on one of some roots, and some subscribe to one, in random order."""
    random = Random(seed)
    nodes = [NodeId(f"{number:032x}") for number in range(1, size + 1)]
    links: dict[NodeId, set[NodeId]] = {one: set() for one in nodes}
    for one in nodes:
        drawn = Partners(Random(f"{seed} {one}"), PARTNERS)
        for other in nodes:
            if other != one:
                drawn.meet(other, "nodes", settled=False)
        drawn.fill(links[one])
        for other in drawn:
            links[one].add(other)
            links[other].add(one)
    graph = {one: sorted(others) for one, others in links.items()}
    echoes = {one: Echo(one) for one in nodes}
    tables: dict[NodeId, dict[NodeId, Roots]] = {one: {} for one in nodes}
    wants: dict[NodeId, str] = {}
    roles = [(one, True) for one in random.sample(nodes, publishers)]
    roles += [(one, False) for one in random.sample(nodes, subscribers)]
    random.shuffle(roles)
    messages: list[int] = []
    seconds: list[float] = []
    publishes: dict[NodeId, str] = {}
    for turn, (one, is_publisher) in enumerate(roles):
        root = f"root{random.randrange(roots)}"
        if not is_publisher:
            wants[one] = root
            found = [other for other, roots_of in tables[one].items() if root in roots_of.names]
        else:
            publishes[one] = root
            sent, took, interested = _ask(one, root, graph, echoes, tables, wants, 10.0 * turn, random)
            messages.append(sent)
            seconds.append(took)
            found = [other for other in nodes if other in interested]
        for other in found:
            if other != one:
                links[one].add(other)
                links[other].add(one)
    missed = sum(
        root == wanted and other != one and other not in links[one]
        for one, root in publishes.items()
        for other, wanted in wants.items()
    )
    return Announcing(
        links=sorted(len(others) for others in links.values()), messages=messages, seconds=seconds, missed=missed
    )


def _ask(
    one: NodeId,
    root: str,
    graph: dict[NodeId, list[NodeId]],
    echoes: dict[NodeId, Echo],
    tables: dict[NodeId, dict[NodeId, Roots]],
    wants: dict[NodeId, str],
    began: float,
    random: Random,
) -> tuple[int, float, set[NodeId]]:
    due: list[tuple[float, int, NodeId, Effect]] = []
    numbers = itertools.count(1)

    def send(sender: NodeId, effects: list[Effect], now: float) -> None:
        for effect in effects:
            heapq.heappush(due, (now + random.uniform(0.1, 1.0) * _HOP, next(numbers), sender, effect))

    wave, asks = echoes[one].begin(graph[one], 1.0, began)
    send(one, asks, began)
    now = ended = began
    while due:
        now, _, sender, effect = heapq.heappop(due)
        receiver = effect.node
        echo = echoes[receiver]
        match effect:
            case Ask(_, key, left):
                tables[receiver].setdefault(key[0], Roots(key[0])).add((root,))
                others = [other for other in graph[receiver] if other != sender]
                wanted = wants.get(receiver) == root
                send(receiver, echo.receive(key, sender, others, left, now, interested=wanted), now)
            case Answer(_, key, reached, ids):
                send(receiver, echo.receive_answer_untrusted(key, sender, reached, ids), now)
        ended = now if wave.done and ended == began else ended
    assert len(wave.reached) == len(graph) - 1
    interested = {node for node, _ in wave.interested}
    for echo in echoes.values():
        echo.expire(now + 10.0)
    return next(numbers) - 1, ended - began, interested
