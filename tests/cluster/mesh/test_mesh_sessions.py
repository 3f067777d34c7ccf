"""Sessions of the mesh: how they are renewed, how many there may be, and what unauthenticated peers can do to them."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.cluster.mesh.handshakes import next_index, parse_hello_untrusted
from iris.cluster.mesh.peer import Peer, SessionEntry
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.link.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.security.channel.handshake import Initiator
from iris.security.identity.identity import NodeIdentity
from tests.support.mesh_cases import MARK, receive_marks
from tests.support.meshes import Fleet, MeshNode, open_meshes
from tests.support.messages import raw
from tests.support.realms import WALL, TestRealm
from tests.support.scheduling import seed_scheduler
from tests.support.transports import ignore as unwatched


def ignore(_: Peer, __: wire.Message) -> None:
    """Take a message that does not matter."""


# -- renewal -----------------------------------------------------------------------------------------------


async def send_marks(node: MeshNode, other: MeshNode, pause: float, count: int) -> None:
    for number in range(count):
        node.mesh.post(other.id, MARK(number), 0)
        await trio.sleep(pause)


async def test_a_session_is_replaced_in_time_and_nothing_is_lost(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        received: list[int] = []
        receive_marks(b.mesh, lambda _, message: received.append(message.mark))
        receive_marks(a.mesh, ignore)
        seen: list[object] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_marks, a, b, 0.25, 4 * 400)
            nursery.start_soon(send_marks, b, a, 0.25, 4 * 400)
            for _ in range(400):
                session = a.peer(b).session
                assert session is not None
                assert trio.current_time() - session.established < 125
                if session not in seen:
                    seen.append(session)
                assert a.mesh.statistics().sessions <= 2
                await trio.sleep(1)
        assert len(seen) == 4
        assert received == list(range(4 * 400))
        assert a.log.of(b.id) == b.log.of(a.id) == ["up"]
        assert a.mesh.refusals == b.mesh.refusals == {}
        for peer in (a.peer(b), b.peer(a)):
            assert peer.session is not None
        assert a.peer(b).session.local_index == b.peer(a).session.remote_index  # type: ignore[union-attr]


async def test_only_one_end_begins_a_renewal(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        for node in fleet.nodes.values():
            assert node.mesh.statistics().sessions == 1
        await trio.sleep(150)
        for node in fleet.nodes.values():
            assert node.mesh.statistics().sessions == 2
        await trio.sleep(60)
        for node in fleet.nodes.values():
            assert node.mesh.statistics().sessions == 1


async def test_a_link_that_is_always_busy_is_renewed_all_the_same(autojump_clock: MockClock) -> None:
    """The route is full whenever one looks: the flusher and the handshake share what room there is."""
    config = Config(session_lifetime=2.0, session_rejected=6.0, handshake_timeout=2.0)
    async with open_meshes("a", "b", capacity=2, latency=(0.001, 0.002), config=config) as fleet:
        a, b = fleet["a"], fleet["b"]
        received = 0

        def count(*_: object) -> None:
            nonlocal received
            received += 1

        b.mesh.register(kinds.Revocations, count)
        sent = 0
        first = a.peer(b).session
        while trio.current_time() < 4:
            while a.peer(b).link.has_room():
                a.mesh.post(b.id, kinds.Revocations(bytes(60_000)), 60_000)
                sent += 1
            await trio.sleep(0.01)
        assert a.peer(b).session is not first
        assert a.log.of(b.id) == ["up"]
        b.peer(a).link.post(kinds.Ping(1), 0)
        await trio.sleep(10)
        assert received == sent


async def test_a_session_that_cannot_be_renewed_ends_with_its_peer(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        fleet.network.partition(["a"], ["b"])
        await trio.sleep(179)
        assert b.id in a.mesh.peers
        await trio.sleep(3)
        assert a.mesh.peers == b.mesh.peers == {}
        assert "could not be renewed" in a.log.reasons[0]
        fleet.network.heal()
        await a.mesh.connect([b.url])


@pytest.mark.parametrize("version", [wire.VERSION - 1, wire.VERSION + 1])
async def test_nodes_with_different_versions_of_the_protocol_refuse_each_other_and_say_why(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        receive = a.transport.receive_nowait

        def receive_other() -> bytes | None:
            """Receive a frame as if the other node had another version."""
            frame = receive()
            return None if frame is None else bytes((frame[0], version)) + frame[2:]

        monkeypatch.setattr(a.transport, "receive_nowait", receive_other)
        with pytest.raises(NotSent, match="speaks another version of the protocol"):
            await b.mesh.connect([a.url])
        text = f"a frame of protocol version {version} was refused: this node speaks version {wire.VERSION}; upgrade"
        assert caplog.text.count(text) == 1
        assert a.mesh.refusals["RemoteProtocolError"] == 1
        assert not a.mesh.peers
        monkeypatch.undo()
        await b.mesh.connect([a.url])


async def test_old_sessions_are_forgotten(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        for _ in range(20):
            await a.mesh.connect([b.url])
        assert a.mesh.statistics().sessions == b.mesh.statistics().sessions == 8
        assert a.peer(b).session is not None
        receive_marks(b.mesh, ignore)
        await send_marks(a, b, 0.001, 10)
        assert b.mesh.refusals == {}
        await trio.sleep(185)
        assert a.mesh.statistics().sessions <= 2


# -- unauthenticated peers ---------------------------------------------------------------------------------


async def begin_handshakes(fleet: Fleet, identity: NodeIdentity, url: str, target: str, count: int) -> None:
    """Send first frames to ``target`` that ask it to answer to ``url``."""
    transport = fleet.network.transport("stranger")
    way = await transport.dial(target, unwatched)
    for index in range(1, count + 1):
        initiator = Initiator(
            identity,
            index=index,
            hello=wire.pack((identity.node_id, (url,))),
            entropy=fleet.realm.entropy,
            wall_now=WALL,
        )
        while not way.send_nowait(initiator.frame):
            await way.wait_writable()
    await trio.sleep(0.1)
    way.close()


async def test_half_open_handshakes_are_limited_from_their_first_frame(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "silent", linked=False, config=Config(half_open_handshakes=3)) as fleet:
        a = fleet["a"]
        fleet.network.partition(["a"], ["silent"])
        await begin_handshakes(fleet, fleet.realm.identity("x"), "mem://silent", a.url, 10)
        assert a.mesh.statistics().half_open == 3
        assert a.mesh.refusals == {"too many half-open handshakes": 7}
        fleet.network.heal()
        await trio.sleep(6)
        assert a.mesh.statistics().half_open == 0
        await a.mesh.connect(["mem://silent"])


async def test_a_handshake_that_says_nowhere_to_answer_is_counted(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        await begin_handshakes(fleet, fleet.realm.identity("x"), "tcp://nonsense", fleet["a"].url, 2)
        await begin_handshakes(fleet, fleet.realm.identity("x"), "mem://nobody", fleet["a"].url, 2)
        assert fleet["a"].mesh.refusals == {"handshake without a way back": 4, "address that no node has": 2}


async def test_the_gate_keeps_strangers_out_without_an_answer(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        await begin_handshakes(fleet, TestRealm(77).identity("x"), "mem://nobody", fleet["a"].url, 5)
        assert fleet["a"].mesh.refusals == {"AuthenticationError": 5, "junk from a stranger": 1}
        assert fleet["a"].mesh.statistics().half_open == 0


async def test_who_claims_to_be_another_node_is_not_answered_as_it(autojump_clock: MockClock) -> None:
    """The answer goes to the node that was claimed, which has asked for nothing."""
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        identity = fleet.realm.identity("x")
        transport = fleet.network.transport("stranger")
        way = await transport.dial(a.url, unwatched)
        initiator = Initiator(
            identity,
            index=1,
            hello=wire.pack((b.id, ("mem://nobody",))),
            entropy=fleet.realm.entropy,
            wall_now=WALL,
        )
        way.send_nowait(initiator.frame)
        await trio.sleep(0.1)
        assert b.mesh.refusals == {"unknown handshake": 1}
        assert set(a.mesh.peers) == {b.id}
        way.close()


@given(st.binary(max_size=300))
def test_any_bytes_are_a_hello_or_one_error(junk: bytes) -> None:
    try:
        node, addresses, _ = parse_hello_untrusted(junk)
    except RemoteProtocolError:
        return
    assert wire.pack((node, addresses))


@pytest.mark.parametrize(
    "value",
    [
        None,
        (),
        ("ab" * 16,),
        ("ab" * 16, (), 1),
        (1, ()),
        ("x" * 32, ()),
        ("ab" * 16, None),
        ("ab" * 16, ("a",) * 17),
        ("ab" * 16, ("x" * 513,)),
        ("ab" * 16, (b"tcp://h:1",)),
        ("ab" * 16, (None,)),
    ],
)
def test_a_hello_is_an_id_and_some_addresses(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_hello_untrusted(wire.pack(value))


async def test_a_node_with_many_addresses_tells_as_many_as_there_is_room_for(autojump_clock: MockClock) -> None:
    async with open_meshes("a", linked=False) as fleet, fleet.open_node("b", url="mem://" + "b" * 400) as b:
        a = fleet["a"]
        many = tuple(f"mem://{number}-{'x' * 300}" for number in range(40))
        b.mesh.advertised = (b.url, *many)
        b.mesh.listening = (b.url, *many)
        peer = await a.mesh.connect([b.url])
        assert b.url in peer.addresses
        assert 5 < len(peer.addresses) <= 17
        a.mesh.drop(b.id, "again")
        b.mesh.drop(a.id, "again")
        assert (await b.mesh.connect([a.url])).node == a.id
        b.mesh.drop(a.id, "over")
        a.mesh.drop(b.id, "over")


# -- hostile peers -----------------------------------------------------------------------------------------


def test_no_frame_from_a_stranger_ends_a_node() -> None:
    """Random frames, and genuine ones with some bytes changed, thrown at a mesh."""

    async def main(seed: int) -> None:
        chance = random.Random(seed)
        async with open_meshes("a", "b", seed=seed) as fleet:
            a, b = fleet["a"], fleet["b"]
            genuine: list[bytes] = []
            receive = a.transport.receive_nowait

            def listen() -> bytes | None:
                frame = receive()
                if frame is not None and len(frame) > 16:
                    genuine.append(frame)
                return frame

            a.transport.receive_nowait = listen  # type: ignore[method-assign]
            receive_marks(a.mesh, ignore)
            transport = fleet.network.transport("stranger")
            stranger = await transport.dial(a.url, unwatched)
            connections = 1
            for number in range(300):
                if stranger.closed:  # it was hung up on, for what it had sent before
                    stranger = await transport.dial(a.url, unwatched)
                    connections += 1
                b.mesh.post(a.id, MARK(number), 0)
                frame = chance.choice(genuine) if genuine and chance.random() < 0.7 else chance.randbytes(60)
                mutated = bytearray(frame)
                for _ in range(chance.randrange(4)):
                    mutated[chance.randrange(len(mutated))] = chance.randrange(256)
                if chance.random() < 0.3:
                    header = (
                        chance.randrange(1, 5),
                        wire.VERSION,
                        chance.randrange(3),
                        chance.randrange(2**32),
                        number,
                    )
                    mutated[:16] = wire.HEADER.pack(*header)
                stranger.send_nowait(bytes(mutated[: chance.randrange(len(mutated) + 1)]))
                await trio.sleep(0.001)
            stranger.close()
            await a.mesh.barrier(b.id)
            assert a.log.of(b.id) == ["up"]
            assert connections > 50

    for seed in range(3):
        seed_scheduler(seed)
        trio.run(main, seed, clock=MockClock(autojump_threshold=0))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(["databases", "a.b", "a.>", "*", "overloaded", "ab" * 16])
    | st.binary(max_size=4).map(lambda data: wire.join_payload(data, packed=True)),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)
small = st.integers(0, 4)
names = st.sampled_from([None, "databases", "nobody", "", "\0", "x" * 300])
topics = st.sampled_from(["a.b", "a", "*", ">", "", "..", "a.>", "still.here", "x" * 300])
payloads = st.binary(max_size=4).map(lambda data: wire.join_payload(data, packed=len(data) % 2 == 1))
headers = st.sampled_from([None, (), ("a",), ("a", "b"), ("a", "b", "a", "c"), (1, 2)])
shares = st.lists(small, max_size=3).map(tuple)
terms = st.lists(st.tuples(topics, names, st.booleans(), st.booleans(), shares), max_size=3).map(tuple)

PLAUSIBLE: dict[type[wire.Message], tuple[st.SearchStrategy[Any], ...]] = {
    kinds.Ping: (small,),
    kinds.Pong: (small,),
    kinds.Reset: (),
    kinds.Request: (small, names, names, st.integers(0, 2**64 - 1) | small, small, headers, payloads),
    kinds.Reply: (small, payloads),
    kinds.Failure: (small, st.sampled_from(["overloaded", "x", ""]), st.text(max_size=3), st.integers(-5, 2**63)),
    kinds.Cancel: (small,),
    kinds.Broadcast: (names, headers, payloads, st.integers(0, 2**64 - 1) | small),
    kinds.BroadcastCredit: (names, *(st.integers(0, 2**64 - 1) | small for _ in range(4))),
    kinds.BroadcastCreditWanted: (names, st.integers(0, 2**64 - 1) | small),
    kinds.Received: (small, small, st.booleans(), st.tuples(*(small,) * 7), st.just(())),
    kinds.ReceivedWanted: (small,),
    kinds.Interest: (small, st.booleans(), terms, terms),
    kinds.InterestKnown: (st.integers(-(2**63), 2**64 - 1), small),
    kinds.Events: (topics, small, small, names, headers, names, st.lists(payloads, max_size=3).map(tuple), shares),
    kinds.Confirmed: (st.lists(st.tuples(small, st.integers(0, 2**62)), max_size=4).map(tuple),),
    kinds.Hold: (topics, st.booleans()),
}
"""Fields that pass the first glance."""


@st.composite
def hostile_messages(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(list(PLAUSIBLE)))
    fields = [draw(values if draw(st.integers(0, 9)) == 0 else field) for field in PLAUSIBLE[kind]]
    if draw(st.integers(0, 19)) == 0:
        fields.append(draw(values))
    return raw(kind, *fields)


@settings(max_examples=40, deadline=None)
@given(batches=st.lists(st.lists(hostile_messages(), max_size=8), max_size=8))
def test_no_message_of_a_peer_ends_a_node(batches: list[list[Any]]) -> None:
    """A genuine peer says anything at all; the others are served as before."""
    from iris.patterns.service.service import Service

    service = Service("databases")

    @service.request
    async def echo(request: Any) -> object:
        return request.payload

    @service.broadcast
    async def hear(message: Any) -> None:
        pass

    async def main() -> None:
        async with open_meshes("a", "b", "evil") as fleet:
            a, b, evil = (fleet[name] for name in ("a", "b", "evil"))
            async with a.serve(service), a.pubsub.subscribe(">") as events:
                for batch in batches:
                    for message in batch:
                        evil.peer(a).link.post(message, 100)
                    await trio.sleep(0.01)
                assert await b.request("databases", b"still here", timeout=1) == b"still here"
                await b.pubsub.publishing.publish("still.here", b"")
                with trio.fail_after(1):
                    while (await events.__anext__()).topic != "still.here":
                        pass
                evil.mesh.close()
                await trio.sleep(0.01)

    seed_scheduler(0)
    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_ping_that_finds_the_link_full_is_counted(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=Config(link_bytes=2_000_000)) as fleet:
        a, b = fleet["a"], fleet["b"]
        b.transport.pause()
        link = a.peer(b).link
        while link.waiting_bytes < 2_000_000 + CONTROL_RESERVE - 200:
            link.post(MARK(0), 100, CONTROL_RESERVE)
        for _ in range(20):
            b.peer(a).link.post(kinds.Ping(1), 0)
        await trio.sleep(0.1)
        assert a.mesh.refusals["answer without room on the link"] > 10
        b.transport.resume()


@pytest.mark.parametrize(
    ("last", "taken", "following"),
    [(6, {7}, 8), (6, {7, 8, 10}, 9), (6, set[int](), 7), (2**32 - 1, set[int](), 1), (2**32 - 2, {2**32 - 1, 1}, 2)],
)
def test_indices_are_never_those_in_use_and_go_round_and_are_never_0(
    last: int, taken: set[int], following: int
) -> None:
    assert next_index(last, taken.__contains__) == following


async def test_the_index_of_a_session_is_in_use(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[int], bool]] = []

    def note(last: int, is_taken: Callable[[int], bool]) -> int:
        asked.append(is_taken)
        return next_index(last, is_taken)

    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        session = a.peer(b).session
        assert session is not None
        monkeypatch.setattr("iris.cluster.mesh.handshakes.next_index", note)
        await a.mesh.connect([b.url])
        assert asked[0](session.local_index)
        assert not asked[0](2**31)


def _entries(own: int, other: int, *indices: tuple[int, int]) -> list[SessionEntry]:
    """Return an entry for each pair of indices, the own one first.  ``own`` and ``other`` are numbers of nodes."""
    peer: Any = SimpleNamespace(node=NodeId(f"{other:032x}"), link=SimpleNamespace(is_up=False))
    sessions: list[Any] = [SimpleNamespace(local_index=ours, remote_index=theirs) for ours, theirs in indices]
    return [SessionEntry(session, peer, NodeId(f"{own:032x}"), awaited=False) for session in sessions]


@pytest.mark.parametrize("indices", [[(7, 9), (8, 7)], [(2**32 - 1, 3), (1, 2)]])
def test_both_ends_know_the_later_one_of_two_sessions_that_crossed(indices: list[tuple[int, int]]) -> None:
    earlier, later = _entries(1, 2, *indices)
    assert later.follows(earlier)
    assert not earlier.follows(later)
    assert not later.follows(later)
    earlier, later = _entries(2, 1, *[(theirs, ours) for ours, theirs in indices])
    assert later.follows(earlier)
    assert not earlier.follows(later)


def test_the_first_frame_of_a_session_is_late_after_one_of_a_later_session() -> None:
    first, second, third = entries = _entries(1, 2, (7, 1), (8, 2), (9, 3))
    assert second.begin(entries)
    assert not first.begin(entries)
    assert (first.left, second.left, second.begun) == (True, False, True)
    assert third.begin(entries)
    assert second.left


def test_node_ids_are_texts() -> None:
    node, _, _ = parse_hello_untrusted(wire.pack(("ab" * 16, ())))
    assert node == NodeId("ab" * 16)
