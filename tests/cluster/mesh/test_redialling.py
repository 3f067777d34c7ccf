"""Reaching a peer again: how often, with which pauses, and when it is given up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh.peer import Peer, PeerTable
from iris.cluster.mesh.reconnect import PAUSES, Reconnector, RedialPatience, head_start, patience_of, pauses_of
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, ConfigError, NotSent
from iris.kernel.names import NodeId
from iris.kernel.transport.memory import MemoryNetwork
from iris.kernel.transport.port import Refused
from tests.support.realms import TestRealm
from tests.support.transports import ignore


def make_peer(*addresses: str, seed: int = 0) -> Peer:
    return Peer(TestRealm(seed).identity("store").public(), None, addresses or ("mem://store",), Config())


class Line:
    """Results of the attempts to reach one peer, in turn, and their effects."""

    def __init__(
        self,
        nursery: trio.Nursery,
        outcomes: Iterator[Exception | None],
        patience: RedialPatience,
        peer: Peer | None = None,
    ) -> None:
        self.peer = peer or make_peer()
        self.peers = PeerTable()
        self.peers.add(self.peer)
        self.outcomes = outcomes
        self.attempts: list[float] = []
        self.dropped: list[str] = []
        self.began = trio.current_time()
        self.refused: list[NodeId] = []
        self.unexpected: list[Exception] = []
        self.redialling = Reconnector(self, self.peers, nursery, patience)

    def peer_refused(self, peer: Peer) -> None:
        self.refused.append(peer.node)

    def note_unexpected(self, what: str, error: Exception) -> None:
        self.unexpected.append(error)

    async def connect_again(self, peer: Peer) -> None:
        assert peer is self.peer
        self.attempts.append(round(trio.current_time() - self.began, 6))
        await trio.lowlevel.checkpoint()
        outcome = next(self.outcomes)
        if outcome is not None:
            raise outcome

    def drop(self, node: NodeId, reason: str) -> None:
        assert self.peers.remove(node) is self.peer
        self.dropped.append(reason)


@asynccontextmanager
async def open_line(
    *outcomes: Exception | None, patience: float = 0.5, refused_grace: float = 0.4, peer: Peer | None = None
) -> AsyncIterator[Line]:
    async with trio.open_nursery() as nursery:
        yield Line(nursery, iter(outcomes), RedialPatience(patience, refused_grace, 5.0), peer)


def moments(count: int) -> list[float]:
    return [round(sum(PAUSES[: number + 1]), 6) for number in range(count)]


@pytest.mark.parametrize("error", [Refused("nobody"), NotSent("no way"), ConfigError("no such scheme")])
@pytest.mark.parametrize("failures", range(len(PAUSES)))
async def test_it_is_tried_again_with_longer_pauses_until_it_answers(
    autojump_clock: MockClock, error: Exception, failures: int
) -> None:
    async with open_line(*[error] * failures, None) as line:
        assert line.redialling.begin(line.peer)
        await trio.sleep(10)
        assert line.attempts == moments(failures + 1)
        assert line.dropped == []


async def test_a_peer_that_never_answers_is_given_up_after_the_last_attempt(autojump_clock: MockClock) -> None:
    async with open_line(*[Refused("nobody")] * len(PAUSES)) as line:
        line.redialling.begin(line.peer)
        await trio.sleep(sum(PAUSES) + 0.01)
        assert line.attempts == moments(len(PAUSES))
        assert line.dropped == ["it cannot be reached any more"]
        assert not line.redialling.begin(line.peer), "it is nobody's peer any more"


@pytest.mark.parametrize("patience", [1.5, 10.0])
async def test_attempts_go_on_for_as_long_as_membership_waits_for_a_sign_of_life(
    autojump_clock: MockClock, patience: float
) -> None:
    """A network that resets connections while they are made uses up any number of attempts within milliseconds."""
    async with open_line(*[NotSent("reset")] * 100, patience=patience) as line:
        line.redialling.begin(line.peer)
        await trio.sleep(patience - 0.01)
        assert line.dropped == []
        await trio.sleep(PAUSES[-1] + 0.01)
        assert line.dropped == ["it cannot be reached any more"]
        assert line.attempts[-1] - line.attempts[-2] == pytest.approx(PAUSES[-1])


@pytest.mark.parametrize(("refused_grace", "attempts"), [(0.4, 4), (1.0, 5), (10.0, 23)])
async def test_where_nobody_listens_they_go_on_for_as_long_as_membership_waits_for_one_that_refuses(
    autojump_clock: MockClock, refused_grace: float, attempts: int
) -> None:
    async with open_line(*[Refused("nobody")] * 100, patience=20.0, refused_grace=refused_grace) as line:
        line.redialling.begin(line.peer)
        await trio.sleep(15)
        assert line.dropped == ["it cannot be reached any more"]
        assert len(line.attempts) == attempts


def test_a_node_with_more_patience_dials_for_longer() -> None:
    assert patience_of(Config()) == 1.5
    assert patience_of(Config(suspicion_multiplier=20.0)) == 10
    assert patience_of(Config(refused_grace=12.0)) == 12


async def test_somebody_else_at_its_address_ends_it_at_once(autojump_clock: MockClock) -> None:
    async with open_line(Refused("nobody"), AuthenticationError("another node")) as line:
        line.redialling.begin(line.peer)
        await trio.sleep(10)
        assert len(line.attempts) == 2
        assert line.dropped == ["somebody else answers at its address: another node"]


async def test_a_peer_is_reached_by_one_task_at_a_time(autojump_clock: MockClock) -> None:
    async with open_line(Refused("nobody"), None) as line:
        assert line.redialling.begin(line.peer)
        assert not line.redialling.begin(line.peer)
        await trio.sleep(0.01)
        assert not line.redialling.begin(line.peer)
        await trio.sleep(10)
        assert len(line.attempts) == 2


async def test_who_connects_and_breaks_in_turn_has_its_attempts_counted_together(autojump_clock: MockClock) -> None:
    """A host that takes connections and says nothing is not dialled for ever."""
    async with open_line(*[None] * 100) as line:
        rounds = 0
        while not line.dropped:
            assert line.redialling.begin(line.peer)
            await trio.sleep(5)
            rounds += 1
        assert rounds == len(PAUSES) + 1
        assert len(line.attempts) == len(PAUSES)


async def test_a_connection_that_the_peer_opened_meanwhile_ends_the_attempts(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    far, near = network.transport("far"), network.transport("near")
    await far.listen(["mem://far"])
    async with open_line(*[Refused("nobody")] * 10) as line:
        line.redialling.begin(line.peer)
        await trio.sleep(PAUSES[1] / 2)
        line.peer.link.attach(await near.dial("mem://far", ignore))
        await trio.sleep(10)
        assert len(line.attempts) == 1
        assert line.dropped == []


async def test_a_peer_that_is_dropped_meanwhile_is_not_dialled_any_more(autojump_clock: MockClock) -> None:
    async with open_line(*[Refused("nobody")] * 10) as line:
        line.redialling.begin(line.peer)
        await trio.sleep(PAUSES[1] / 2)
        line.peers.remove(line.peer.node)
        await trio.sleep(10)
        assert len(line.attempts) == 1
        assert line.dropped == []


@pytest.mark.parametrize("why", ["it says goodbye", "it was dropped", "another one took its place"])
async def test_nobody_is_called_back_who_has_gone(autojump_clock: MockClock, why: str) -> None:
    async with open_line() as line:
        match why:
            case "it says goodbye":
                line.peer.leaving = True
            case "it was dropped":
                line.peers.remove(line.peer.node)
            case _:
                line.peers.add(make_peer())
        assert not line.redialling.begin(line.peer)
        await trio.sleep(10)
        assert line.attempts == []


async def test_a_peer_at_another_site_is_tried_for_as_long_as_there_may_be_a_route_again(
    autojump_clock: MockClock,
) -> None:
    async with open_line(*[NotSent("no route")] * 30, peer=make_peer(f"site://eu/{7:032x}")) as line:
        line.redialling.begin(line.peer)
        await trio.sleep(10)
        assert line.attempts == [0.25 * number for number in range(21)]
        assert len(line.dropped) == 1


async def test_an_error_that_nobody_expects_is_told_and_ends_one_attempt(autojump_clock: MockClock) -> None:
    async with open_line(KeyError("a bug"), None) as line:
        line.redialling.begin(line.peer)
        await trio.sleep(1)
        assert [str(error) for error in line.unexpected] == ["'a bug'"]
        assert line.attempts == moments(2)
        assert not line.dropped


async def test_attempts_that_were_fruitless_are_not_made_again(autojump_clock: MockClock) -> None:
    peer = make_peer()
    assert list(pauses_of(peer, 0.0)) == list(PAUSES)
    assert list(pauses_of(peer, 0.0)) == []
    peer.fruitless = len(PAUSES) - 1
    assert list(pauses_of(peer, 0.0)) == [PAUSES[-1]]
    pauses = pauses_of(peer, 5.0)
    assert [next(pauses), next(pauses)] == [PAUSES[-1]] * 2, "there is time left"
    await trio.sleep(5)
    assert list(pauses) == []
    peer.fruitless = 0
    assert list(pauses_of(peer, 0.0)) == list(PAUSES)


@pytest.mark.parametrize(
    ("outcome", "evidence"),
    [(Refused("nobody"), 1), (AuthenticationError("another"), 1), (NotSent("no answer"), 0), (None, 0)],
)
async def test_only_an_address_where_nobody_or_another_listens_speaks_against_a_peer(
    autojump_clock: MockClock, outcome: Exception | None, evidence: int
) -> None:
    async with open_line(outcome, None) as line:
        line.redialling.begin(line.peer)
        await trio.sleep(10)
        assert line.refused == [line.peer.node] * evidence


@pytest.mark.parametrize(("peers", "seconds"), [(1, 0.001), (10, 0.01), (99, 0.099), (5000, 0.1)])
def test_the_more_nodes_there_are_on_a_machine_the_longer_they_leave_its_processors_to_route_a_dead_one_out(
    peers: int, seconds: float
) -> None:
    assert head_start(make_peer("ipc:///store", "tcp://127.0.0.1:7"), peers) == pytest.approx(seconds)
    for elsewhere in ("tcp://10.0.0.1:7", "ws://store:7/iris", "via://node", "mem://store"):
        assert head_start(make_peer(elsewhere, "ipc:///store"), peers) == 0
    nowhere = make_peer()
    nowhere.addresses = ()
    assert head_start(nowhere, peers) == 0


@pytest.mark.parametrize("peers", [1, 40])
async def test_a_peer_on_this_machine_is_dialled_when_all_have_had_time_to_route_it_out(
    autojump_clock: MockClock, peers: int
) -> None:
    async with open_line(*[Refused("nobody")] * len(PAUSES)) as line:
        line.peer.addresses = ("ipc:///store",)
        for number in range(1, peers):
            line.peers.add(make_peer(seed=number))
        assert line.redialling.begin(line.peer)
        assert not line.redialling.begin(line.peer)
        await trio.sleep(10)
        assert line.attempts == [pytest.approx(0.001 * peers + moment) for moment in moments(len(PAUSES))]
        assert line.dropped
