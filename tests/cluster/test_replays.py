"""First frames that somebody has recorded, sent again and again: honest nodes get in and out all the same.

Each is genuine, and names an address where nobody is any more, so that each can cost a dial that takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import cycle, islice

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.kernel import wire
from iris.kernel.transport.memory import MemoryOutgoing, MemoryTransport
from iris.kernel.transport.port import ConnectionUser, Permit
from iris.kernel.wire import kinds
from iris.security.channel import admission
from iris.security.channel.handshake import Initiator
from tests.support.meshes import Fleet, MeshNode, open_meshes
from tests.support.realms import WALL
from tests.support.transports import ignore

DIALS = 256
"""Number of dials that a transport over nng makes at one time."""

DEAD = "mem://dead"


def limit_dials(monkeypatch: pytest.MonkeyPatch, transport: MemoryTransport) -> trio.CapacityLimiter:
    """Give a transport the bound on dials that the real one has."""
    limiter, dial = trio.CapacityLimiter(DIALS), transport.dial

    async def limited(url: str, user: ConnectionUser, permit: Permit | None = None) -> MemoryOutgoing:
        async with limiter:
            return await dial(url, user, permit)

    monkeypatch.setattr(transport, "dial", limited)
    return limiter


def record(fleet: Fleet, count: int, url: str) -> list[bytes]:
    """Return first frames of a node that was once at ``url``."""
    identity = fleet.realm.identity("gone")
    hello = wire.pack((identity.node_id, (url,)))
    return [
        Initiator(identity, index=index, hello=hello, entropy=fleet.realm.entropy, wall_now=WALL).frame
        for index in range(1, count + 1)
    ]


async def bury(fleet: Fleet) -> None:
    """Make an address where nobody answers."""
    await fleet.network.transport("dead").listen([DEAD])
    fleet.network.partition(["a"], ["dead"])


async def flood(ways: list[MemoryOutgoing], frames: Iterator[bytes]) -> None:
    """Send 10,000 frames a second, no more than 50 from one address."""
    turns = cycle(ways)
    while True:
        for way, frame in zip(islice(turns, 100), frames, strict=False):
            way.send_nowait(frame)
        await trio.sleep(0.01)


@pytest.mark.parametrize("remembered", [admission.MAX_EPHEMERALS, 50], ids=["remembered", "forgotten"])
async def test_nodes_get_in_and_out_while_ten_thousand_replays_arrive_each_second(
    remembered: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Also if there are more recorded frames than the node remembers, so that each looks new."""
    monkeypatch.setattr(admission, "MAX_EPHEMERALS", remembered)
    async with open_meshes("a", "b", "c", "d", linked=False) as fleet, AsyncExitStack() as stack:
        a, b, c, d = (fleet[name] for name in "abcd")
        dials = limit_dials(monkeypatch, a.transport)
        await bury(fleet)
        frames = cycle(record(fleet, 200, DEAD))
        ways = [await fleet.network.transport(f"10.0.{n}").dial(a.url, ignore) for n in range(250)]
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(flood, ways, frames)
        took: list[float] = []
        for one, other in ((b, a), (a, c), (d, a)):
            await trio.sleep(0.2)
            began = trio.current_time()
            await one.mesh.connect([other.url])
            took.append(trio.current_time() - began)
            assert a.mesh.statistics().dialling <= fleet.config.dial_backs
            assert dials.borrowed_tokens <= fleet.config.dial_backs
        nursery.cancel_scope.cancel()
        assert max(took) < 0.05
        seen = a.mesh.refusals["first frame that was sent too often"]
        dropped = a.mesh.refusals["too many dials for strangers"]
        if remembered > 200:
            assert seen > 4000
            assert dropped <= admission.FIRST_FRAMES * 200
        else:
            assert dropped > 4000


async def test_an_honest_node_that_repeats_its_first_frame_is_answered_each_time(autojump_clock: MockClock) -> None:
    """The answer to the first may have been lost; and what others replay does no harm, for the answer is its own."""
    async with open_meshes("a") as fleet:
        a = fleet["a"]
        listener = fleet.network.transport("gone")
        await listener.listen(["mem://gone"])
        (frame,) = record(fleet, 1, "mem://gone")
        for number in range(admission.FIRST_FRAMES + 2):
            way = await fleet.network.transport(f"10.0.{number}").dial(a.url, ignore)
            way.send_nowait(frame)
            await trio.sleep(0.5)
        answers = list(iter(listener.receive_nowait, None))
        assert len(answers) == admission.FIRST_FRAMES
        assert {wire.parse_header_untrusted(answer).kind for answer in answers} == {wire.HANDSHAKE_RESPONSE}


async def test_copies_of_a_first_frame_that_is_being_answered_cost_no_connection(autojump_clock: MockClock) -> None:
    """Where processors are short they come before there is an answer; to make one for each would make them shorter."""
    async with open_meshes("a") as fleet:
        a = fleet["a"]
        await bury(fleet)
        (frame,) = record(fleet, 1, DEAD)
        way = await fleet.network.transport("stranger").dial(a.url, ignore)
        for _ in range(admission.FIRST_FRAMES + 1):
            way.send_nowait(frame)
            await trio.sleep(0.1)
        assert a.mesh.statistics().dialling == 1
        assert a.mesh.refusals["first frame again, before its answer"] == admission.FIRST_FRAMES - 1
        assert a.mesh.refusals["first frame that was sent too often"] == 1


async def test_copies_of_a_first_frame_that_was_answered_have_the_same_answer_once_more(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a") as fleet:
        a = fleet["a"]
        listener = fleet.network.transport("gone")
        await listener.listen(["mem://gone"])
        (frame,) = record(fleet, 1, "mem://gone")
        way = await fleet.network.transport("stranger").dial(a.url, ignore)
        for _ in range(admission.FIRST_FRAMES):
            way.send_nowait(frame)
            await trio.sleep(0.1)
        answers = list(iter(listener.receive_nowait, None))
        assert len(answers) == admission.FIRST_FRAMES
        assert len(set(answers)) == 1
        assert a.mesh.statistics().half_open == 1


# -- every state of a handshake, and every frame ----------------------------------------------------------------


async def reach_every_state(fleet: Fleet, a: MeshNode, b: MeshNode, nursery: trio.Nursery) -> tuple[list[int], int]:
    """Bring handshakes of ``a`` into every state that they stay in; return their indices and that of a session."""
    await bury(fleet)
    silent = fleet.network.transport("silent")
    await silent.listen(["mem://silent"])
    way = await fleet.network.transport("stranger").dial(a.url, ignore)
    for frame in (*record(fleet, 1, DEAD), *record(fleet, 1, "mem://silent")):
        way.send_nowait(frame)  # one that is being dialled, and one that waits for its last frame

    async def initiate() -> None:
        await a.mesh.connect(["mem://silent"])

    nursery.start_soon(initiate)  # one that waits for its response
    await trio.sleep(0.1)
    assert (a.mesh.statistics().half_open, a.mesh.statistics().dialling) == (3, 1)
    sent = [wire.parse_header_untrusted(frame).counter for frame in iter(silent.receive_nowait, None)]
    indices = sorted({min(sent) - 1, *sent})
    assert len(indices) == 3, "the one that is being dialled has sent nothing yet, and was the first"
    session = a.peer(b).session
    assert session is not None
    return indices, session.local_index


async def test_no_frame_in_any_state_of_a_handshake_raises_another_error_than_those_for_peers(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b") as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        indices, session_index = await reach_every_state(fleet, a, b, nursery)
        session = b.peer(a).session
        assert session is not None
        bodies = [frame[16:] for frame in record(fleet, 2, DEAD)]
        bodies.append(bytes(session.seal(wire.encode_batch([kinds.Pong(1)]))[16:]))
        headers = st.builds(
            wire.HEADER.pack,
            st.integers(0, 5),
            st.sampled_from([0, 1, 2]),
            st.sampled_from([0, 1, 2**16 - 1]),
            st.sampled_from([0, *indices, session_index]),
            st.sampled_from([0, 1, *indices, 2**32 - 1, 2**32, 2**64 - 1]),
        )
        contents = st.one_of(
            st.sampled_from(bodies), st.binary(max_size=1500), st.sampled_from([48, 96, 1400]).map(bytes)
        )

        @settings(max_examples=400)
        @given(headers, contents, st.booleans())
        def receive(header: bytes, content: bytes, carried: bool) -> None:
            a.mesh._inbound.carried = carried
            a.mesh.receive_frame(header + content)
            a.mesh._inbound.carried = False
            assert not [reason for reason in a.mesh.refusals if reason.startswith("unexpected error")]

        receive()
        assert a.mesh.statistics().half_open == len(indices)
        nursery.cancel_scope.cancel()
    assert set(a.mesh.peers) == set()
