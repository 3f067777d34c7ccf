"""Two machines: over a good link, over bad ones, and against peers that do not keep to the rules."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from iris.kernel.config import Config
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import Message
from iris.patterns.tunnel.machine import TunnelMachine
from iris.patterns.tunnel.messages import END, CloseCode
from iris.patterns.tunnel.states import TunnelState
from tests.support.messages import arrived, fields_of
from tests.support.tunnel_wire import SMALL, TwoMachines


def opened(config: Config = SMALL) -> TwoMachines:
    pair = TwoMachines(config)
    pair.settle()
    assert pair.ends[0].state is TunnelState.OPEN
    return pair


def message(number: int, size: int) -> bytes:
    return number.to_bytes(4) + random.Random(number).randbytes(size)


# -- over a good link --------------------------------------------------------------------------------------


def test_messages_arrive_in_order_and_both_directions_end() -> None:
    pair = opened()
    sent = [message(number, size) for number, size in enumerate([0, 10, 1500, 9000, 3])]
    for data in sent:
        pair.ends[0].send(data, packed=False)
    pair.ends[1].send(b"answer", packed=False)
    pair.settle()
    for machine in pair.ends:
        machine.send_eof()
    pair.settle()
    assert pair.read == ([b"answer"], sent)
    for machine in pair.ends:
        assert machine.state is TunnelState.ENDED
        assert machine.sending.is_flushed
        assert machine.receiving.has_eof


def test_a_close_after_everything_arrived_is_clean_at_both_ends() -> None:
    pair = opened()
    pair.ends[0].send(b"last", packed=False)
    pair.ends[0].send_eof()
    pair.ends[1].send(b"reply", packed=False)
    pair.settle()
    pair.ends[0].close(CloseCode.FINISHED, "")
    pair.settle()
    ending = pair.ends[1].ending
    assert ending is not None
    assert (ending.code, ending.lost, ending.by_peer) == (CloseCode.FINISHED, 0, True)
    assert pair.ends[1].sending.messages_delivered == 1, "the close says what had arrived, as an acknowledgement does"


def test_a_close_tells_how_many_messages_were_lost() -> None:
    pair = opened()
    for number in range(3):
        pair.ends[0].send(message(number, 2000), packed=False)
    pair.put(0)
    pair.deliver(0, frames=3)
    pair.ends[1].close(CloseCode.ABORTED, "enough")
    pair.links[0].clear()
    pair.settle()
    ending = pair.ends[0].ending
    assert ending is not None
    assert (ending.code, ending.reason, ending.lost) == (CloseCode.ABORTED, "enough", 2)
    statistics = pair.ends[0].statistics()
    assert (statistics.messages_delivered, statistics.messages_lost, statistics.messages_waiting) == (1, 2, 0)


def test_whole_messages_that_arrived_before_the_end_can_be_read_after_it() -> None:
    pair = opened()
    pair.ends[0].send(b"whole", packed=False)
    pair.ends[0].send(bytes(3000), packed=False)
    pair.put(0)
    pair.deliver(0, frames=2)
    pair.ends[1].lost("the node is gone")
    pair.take_in(1)
    assert pair.read[1] == [b"whole"]
    assert not pair.ends[1].receiving.messages


def test_a_reader_that_stops_bounds_what_its_sender_may_send() -> None:
    pair = opened()
    pair.ends[0].send(bytes(12_000), packed=False)
    for number in range(10):
        if not pair.ends[0].sending.has_room(4000):
            break
        pair.ends[0].send(message(number, 4000), packed=False)
    pair.settle(read=False)
    assert pair.ends[1].receiving.held <= 12_000 * 1.25 + SMALL.tunnel_window
    assert pair.ends[0].sending.held <= 2 * SMALL.tunnel_window
    before = pair.ends[0].sending.sent
    pair.pass_time(5)
    pair.settle(read=False)
    assert pair.ends[0].sending.sent == before, "asking gives no credit"
    pair.settle()
    pair.take_in(1)
    pair.settle()
    assert pair.ends[0].sending.is_flushed


def test_who_waits_for_room_gets_an_acknowledgement_without_waiting_for_the_time() -> None:
    pair = opened()
    pair.ends[0].send(b"small", packed=False)
    pair.settle()
    assert not pair.ends[0].sending.is_flushed, "a small message is not acknowledged by itself"
    pair.ends[0].hurry()
    pair.settle()
    assert pair.ends[0].sending.is_flushed


def test_two_ends_that_leave_without_reading_do_not_wait_for_each_other() -> None:
    pair = opened()
    for machine in pair.ends:
        for number in range(2):
            machine.send(message(number, 7000), packed=False)
        machine.send_eof()
        machine.stop_reading()
    pair.settle(read=False)
    assert all(machine.sending.is_flushed and machine.receiving.has_eof for machine in pair.ends)


# -- times -------------------------------------------------------------------------------------------------


def test_an_idle_tunnel_asks_now_and_then_and_stays() -> None:
    pair = opened()
    for _ in range(100):
        pair.pass_time(10)
        pair.settle()
    assert all(machine.state is TunnelState.OPEN for machine in pair.ends)


def test_a_tunnel_in_which_nothing_moves_is_closed_at_both_ends() -> None:
    pair = opened()
    while pair.now < SMALL.tunnel_idle + 20:
        pair.pass_time(10)
        pair.settle()
    codes = {machine.ending.code for machine in pair.ends if machine.ending is not None}
    assert codes == {CloseCode.IDLE}
    assert all(machine.state is TunnelState.CLOSED for machine in pair.ends)


def test_a_silent_peer_breaks_the_tunnel_but_not_before_it_was_asked_several_times() -> None:
    pair = opened()
    machine = pair.ends[0]
    pair.now += 1000  # the process was stopped
    for _ in range(3):
        machine.expire(pair.now)
        assert machine.state is TunnelState.OPEN
        assert machine.pop(0) is not None, "it asks"
        pair.now = machine.deadline
    machine.expire(pair.now)
    assert machine.ending is not None
    assert machine.ending.code is CloseCode.SILENT


def test_what_is_unacknowledged_is_asked_for_after_the_retry_time() -> None:
    pair = opened()
    pair.ends[0].send(b"data", packed=False)
    pair.put(0)
    pair.links[0].clear()  # lost, and no link noticed
    pair.pass_time(SMALL.tunnel_retry)
    pair.settle()
    assert pair.read[1] == [b"data"]


def test_an_opening_that_is_lost_is_repeated() -> None:
    pair = TwoMachines()
    pair.ends[1]._accept_due = False
    pair.settle()
    assert pair.states == [TunnelState.OPENING, TunnelState.OPEN]
    pair.pass_time(SMALL.tunnel_retry)
    pair.settle()
    assert pair.states == [TunnelState.OPEN, TunnelState.OPEN]


def test_data_that_overtakes_a_lost_acceptance_is_not_lost() -> None:
    pair = TwoMachines()
    pair.ends[1].send(b"first", packed=False)
    pair.put(1)
    assert type(pair.links[1][0]) is kinds.TunnelAccept
    pair.links[1].popleft()
    pair.settle()
    assert pair.ends[0].state is TunnelState.OPENING
    pair.pass_time(SMALL.tunnel_retry)
    pair.settle()
    assert pair.read[0] == [b"first"]


# -- peers that break the rules ----------------------------------------------------------------------------

HOSTILE: dict[str, list[kinds.OfTunnel]] = {
    "ignores credit": [kinds.TunnelChunk(-1, number, END, bytes(1000), 0) for number in range(100)],
    "out of order": [kinds.TunnelChunk(-1, number, END, bytes(1000), 0) for number in range(1, 200)],
    "only 0 were sent": [kinds.TunnelAck(-1, 1, 0, 0, 0)],
    "limit": [kinds.TunnelChunk(-1, 0, 0, bytes(7000), 0), kinds.TunnelChunk(-1, 1, END, bytes(7000), 0)],
    "possible": [kinds.TunnelEof(-1, 0), kinds.TunnelChunk(-1, 1, END, b"more", 0)],
    "within a tunnel": [kinds.TunnelOpen(-1, "c", None, None, 4096, 1)],
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_a_peer_that_breaks_the_rules_ends_the_tunnel_with_the_reason(reason: str) -> None:
    pair = TwoMachines(Config(tunnel_window=8192, tunnel_chunk=1024, max_payload=8000))
    pair.settle()
    machine = pair.ends[0]
    for sent in HOSTILE[reason]:
        machine.receive(sent, 0)
        if machine.receiving.owes_news and machine.state is not TunnelState.CLOSED:
            machine.pop(0)
        assert machine.receiving.held <= 8192 + 1.25 * 8000
    assert machine.ending is not None
    assert machine.ending.code is CloseCode.VIOLATION
    assert reason in machine.ending.reason
    assert machine.final_message is not None
    assert reason in fields_of(machine.final_message)[3], "the peer is told"


def test_a_gap_that_is_never_filled_ends_the_tunnel() -> None:
    pair = opened()
    machine = pair.ends[0]
    machine.receive(kinds.TunnelChunk(-1, 5, END, b"later", 0), pair.now)
    for _ in range(200):
        pair.now += 0.5
        machine.receive(kinds.TunnelAck(-1, 0, 8192, 6, 0), pair.now)  # it answers, but does not send again
        machine.expire(pair.now)
        if machine.ending is not None:
            break
    assert machine.ending is not None
    assert machine.ending.code is CloseCode.VIOLATION
    assert pair.now == pytest.approx(SMALL.tunnel_silence, abs=1)


FIELD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(-(2**70), 2**70),
    st.sampled_from([b"", b"data", bytes(600), bytes(1000), "text", (), (1, 2), 1.5]),
)


def build(kind: type[Message], fields: list[object]) -> kinds.OfTunnel | None:
    """Return a message of an end, None if it is none."""
    try:
        return cast("kinds.OfTunnel", arrived(kind, -1, *fields))
    except (RemoteProtocolError, OverflowError):
        return None


ANYTHING = st.builds(build, st.sampled_from(get_args(kinds.OfTunnel)), st.lists(FIELD, max_size=5))


@given(messages=st.lists(ANYTHING, max_size=50), state=st.sampled_from(["opening", "open", "sent"]))
def test_no_message_whatever_makes_a_machine_raise(messages: list[kinds.OfTunnel | None], state: str) -> None:
    pair = TwoMachines()
    if state != "opening":
        pair.settle()
        pair.ends[0].send(bytes(5000), packed=False)
    if state == "sent":
        pair.ends[0].send_eof()
    pair.put(0)
    for sent in messages:
        if sent is not None:
            pair.ends[0].receive(sent, 0)
        pair.ends[0].pop(1000)
        assert pair.ends[0].receiving.held <= 8192 + 1.25 * 12_000
    statistics = pair.ends[0].statistics()
    assert statistics.messages_sent == (
        statistics.messages_delivered + statistics.messages_lost + statistics.messages_waiting
    )


# -- over bad links ----------------------------------------------------------------------------------------

SIZES = [0, 1, 700, 1024, 3000, 12_000]
ACTIONS = {
    "send": SIZES,
    "eof": [0],
    "put": range(1, 20),
    "deliver": range(1, 20),
    "read": range(1, 4),
    "lose the last": range(1, 20),
    "lose the first": range(1, 20),
    "repeat": range(1, 20),
    "reset": [0],
    "wait": [0, 1, 16],
}
Step = tuple[str, int, int]
"""Step of a run: what to do, at or behind which end, and how much."""
STEP = st.sampled_from(sorted(ACTIONS)).flatmap(
    lambda what: st.tuples(st.just(what), st.sampled_from([0, 1]), st.sampled_from(ACTIONS[what]))
)


def check_run(steps: Iterable[Step]) -> int:
    """Whatever a link loses and repeats: what was read is a prefix of what was sent; in the end it is all of it.

    Returns how many messages arrived.
    """
    pair = TwoMachines(structs.replace(SMALL, tunnel_silence=1e6))
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    number = 0
    for what, end, count in steps:
        machine, link = pair.ends[end], pair.links[end]
        match what:
            case "send" if machine.state in {TunnelState.OPEN, TunnelState.GOT_EOF} and machine.sending.has_room(count):
                data = message(number, count)[: max(count, 4)]
                number += 1
                machine.send(data, packed=False)
                sent[end].append(data)
            case "eof" if machine.state is not TunnelState.OPENING:
                machine.send_eof()
            case "put":
                pair.put(end, count)
            case "deliver":
                pair.deliver(end, count)
            case "read":
                pair.take_in(end, count)
            case "lose the last":
                for _ in range(min(count, len(link))):
                    link.pop()
            case "lose the first":
                for _ in range(min(count, len(link))):
                    link.popleft()
            case "repeat":
                link.extend(list(link)[-count:])
            case "reset":
                pair.reset()
            case "wait":
                pair.pass_time(count)
            case _:
                pass
        for near, far in ((0, 1), (1, 0)):
            assert pair.read[far] == sent[near][: len(pair.read[far])]
            assert pair.ends[near].sending.held <= 2 * 1.25 * SMALL.tunnel_window
            assert pair.ends[far].receiving.held <= SMALL.tunnel_window + 1.25 * SMALL.max_payload
    for _ in range(20):
        pair.reset()
        pair.settle()
        pair.pass_time(SMALL.tunnel_retry)
    assert [machine.ending for machine in pair.ends] == [None, None]
    for machine in pair.ends:
        machine.send_eof()
    pair.settle()
    assert pair.read == (sent[1], sent[0])
    for machine in pair.ends:
        statistics = machine.statistics()
        assert statistics.messages_sent == statistics.messages_delivered
        assert machine.state is TunnelState.ENDED
    return number


@settings(max_examples=100)
@given(steps=st.lists(STEP, max_size=120))
def test_nothing_is_lost_doubled_or_reordered_by_any_link(steps: list[Step]) -> None:
    check_run(steps)


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 40))])
def test_nothing_is_lost_doubled_or_reordered_in_long_runs(seed: int) -> None:
    chance = random.Random(seed)
    often = ["send", "put", "put", "deliver", "deliver", "deliver", "read", "read"]
    seldom = ["lose the last", "lose the first", "repeat", "reset", "wait"]

    def steps() -> Iterator[Step]:
        for _ in range(3000):
            what = chance.choice(seldom if chance.random() < 0.05 else often)
            yield what, chance.randrange(2), chance.choice(ACTIONS[what])

    assert check_run(steps()) > 200


@pytest.mark.parametrize("cuts", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_every_cut_is_an_error_at_the_end_that_was_cut_off(cuts: int) -> None:
    """A transfer is cut at a random moment: the reader gets an error, or it has everything."""
    whole = broken = 0
    while broken < cuts:
        chance = random.Random(whole + broken)
        pair = TwoMachines()
        sent = [bytes([number]) * chance.randrange(3000) for number in range(chance.randrange(1, 20))]
        waiting = list(sent)
        steps = chance.randrange(40)
        for _ in range(steps):
            machine = pair.ends[0]
            if machine.state is TunnelState.OPEN:
                if not waiting:
                    machine.send_eof()
                elif machine.sending.has_room(len(waiting[0])):
                    machine.send(waiting.pop(0), packed=False)
            end = chance.randrange(2)
            pair.put(end, chance.randrange(1, 4))
            pair.deliver(end, chance.randrange(1, 4))
            pair.take_in(1)
        for machine in pair.ends:
            machine.lost("cut")
        pair.take_in(1)
        reader: TunnelMachine = pair.ends[1]
        assert pair.read[1] == sent[: len(pair.read[1])]
        assert reader.ending is not None, "the end is not mistaken for a pause"
        if reader.receiving.has_eof:
            assert pair.read[1] == sent, "the end of file comes after everything or not at all"
            whole += 1
        else:
            assert reader.ending.code is CloseCode.LOST
            broken += 1
        ending = pair.ends[0].ending
        assert ending is not None
        statistics = pair.ends[0].statistics()
        assert statistics.messages_sent == statistics.messages_delivered + ending.lost
    assert whole > 100, "some came too late to cut anything"
