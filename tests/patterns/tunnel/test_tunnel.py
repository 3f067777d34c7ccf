"""Tunnels between tasks, over a link in memory and a virtual clock."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing
from msgspec import structs
from trio.testing import MockClock

from iris.kernel.config import Config
from iris.kernel.errors import LocalProtocolError, PayloadTooLarge, TunnelBroken
from iris.patterns.tunnel.tunnel import Tunnel
from tests.support.tunnels import open_nodes, open_pair

SMALL = Config(tunnel_window=8192, tunnel_chunk=1024, max_payload=6000)


async def received(tunnel: Tunnel) -> list[object]:
    return [payload async for payload in tunnel]


async def send_on(tunnel: Tunnel) -> None:
    """Send until something ends it."""
    while True:
        await tunnel.send(bytes(1000))


# -- what arrives ------------------------------------------------------------------------------------------


async def test_every_kind_of_payload_arrives_as_itself(autojump_clock: MockClock) -> None:
    payloads: list[object] = [b"", b"bytes", None, True, 7, 1.5, "text", [1, [2]], {"a": {"b": b"c"}}, bytes(1_000_000)]
    async with open_pair() as (near, far):
        for payload in payloads:
            await near.send(payload)
        await near.send(bytearray(b"bytes"))
        await near.send_eof()
        assert await received(far) == [*payloads, b"bytes"]


async def test_both_directions_work_at_the_same_time(autojump_clock: MockClock) -> None:
    messages = [[number, bytes(number * 10)] for number in range(100)]
    async with open_pair(SMALL) as (near, far), trio.open_nursery() as nursery:

        async def send(tunnel: Tunnel) -> None:
            for message in messages:
                await tunnel.send(message)
            await tunnel.send_eof()

        async def check(tunnel: Tunnel) -> None:
            assert await received(tunnel) == messages

        for tunnel in (near, far):
            nursery.start_soon(send, tunnel)
            nursery.start_soon(check, tunnel)


async def test_one_direction_goes_on_after_the_other_has_ended(autojump_clock: MockClock) -> None:
    async with open_pair() as (near, far):
        await near.send_eof()
        await near.send_eof()
        assert await received(far) == []
        await far.send(b"still here")
        assert await near.receive() == b"still here"
        with pytest.raises(trio.ClosedResourceError, match="send_eof"):
            await near.send(b"no more")
        with pytest.raises(trio.EndOfChannel):
            await far.receive()


async def test_a_receiver_that_stops_reading_stops_the_sender_at_two_windows(autojump_clock: MockClock) -> None:
    async with open_pair(SMALL) as (near, far):
        with trio.move_on_after(1000):
            await send_on(near)
        count = near.statistics().messages_sent
        assert near.statistics().bytes_held <= 2 * SMALL.tunnel_window
        assert far.statistics().bytes_held <= SMALL.tunnel_window
        assert count * 1000 <= 3 * SMALL.tunnel_window
        await near.send_eof()
        assert len(await received(far)) == count


async def test_messages_of_several_senders_stay_whole_and_each_in_its_order(autojump_clock: MockClock) -> None:
    async with open_pair(SMALL) as (near, far), trio.open_nursery() as nursery:

        async def send(name: str) -> None:
            for number in range(30):
                await near.send([name, number, "x" * 2000])

        async def send_all() -> None:
            async with trio.open_nursery() as senders:
                for name in "abc":
                    senders.start_soon(send, name)
            await near.send_eof()

        nursery.start_soon(send_all)
        got = [payload async for payload in far]
        for name in "abc":
            assert [payload[1] for payload in got if payload[0] == name] == list(range(30))


async def test_a_payload_over_the_limit_of_either_end_is_refused_where_it_is_sent(autojump_clock: MockClock) -> None:
    large = structs.replace(SMALL, max_payload=20_000)
    async with open_pair(large, SMALL) as (near, far):
        for tunnel in (near, far):
            assert tunnel.max_message == 6000
            with pytest.raises(PayloadTooLarge, match=r"6000 bytes to cluster 'c'.*as_stream"):
                await tunnel.send(bytes(6001))
            await tunnel.send(bytes(6000))
        assert await near.receive() == await far.receive() == bytes(6000)


async def test_a_payload_that_cannot_be_encoded_changes_nothing(autojump_clock: MockClock) -> None:
    async with open_pair() as (near, far):
        with pytest.raises(LocalProtocolError, match="object"):
            await near.send(object())
        await near.send(1)
        assert await far.receive() == 1
        assert near.statistics().messages_sent == 1


async def test_a_tunnel_lives_through_an_outage(autojump_clock: MockClock) -> None:
    async with open_nodes(SMALL) as (near, far), trio.open_nursery() as nursery:
        sender, receiver = await near.open(far)
        near.mesh.hold()
        far.mesh.hold()

        async def send() -> None:
            async with sender:
                for number in range(100):
                    await sender.send(number)

        nursery.start_soon(send)
        await trio.sleep(40)
        near.mesh.posted.clear()
        near.mesh.sources.clear()  # the link was made anew and knows of nothing
        near.mesh.release()
        far.mesh.release()
        near.table.link_reset(far.node)
        far.table.link_reset(near.node)
        assert await received(receiver) == list(range(100))
        await receiver.aclose()


# -- cancelling --------------------------------------------------------------------------------------------


async def test_cancelling_send_leaves_nothing_of_the_message(autojump_clock: MockClock) -> None:
    async with open_pair(SMALL) as (near, far), trio.open_nursery() as nursery:
        chance = random.Random(0)
        sent: list[int] = []
        got: list[int] = []

        async def send() -> None:
            for number in range(300):
                with trio.move_on_after(chance.random() / 10):
                    await near.send([number, bytes(1000)])
                    sent.append(number)
            with trio.CancelScope() as scope:
                scope.cancel()
                await near.send([1000, b""])
            assert scope.cancelled_caught
            await near.send_eof()

        nursery.start_soon(send)
        async for number, _ in far:
            got.append(number)
            await trio.sleep(chance.random() / 5)
        assert got == sent
        assert 20 < len(sent) < 280


async def test_cancelling_receive_loses_no_message(autojump_clock: MockClock) -> None:
    async with open_pair() as (near, far), trio.open_nursery() as nursery:

        async def send() -> None:
            for number in range(300):
                await near.send(number)
                await trio.sleep(0.01 * (number % 5))
            await near.send_eof()

        nursery.start_soon(send)
        got: list[object] = []
        ended = False
        while not ended:
            with trio.move_on_after(0.007):
                try:
                    got.append(await far.receive())
                except trio.EndOfChannel:
                    ended = True
        assert got == list(range(300))


async def test_a_cancelled_sender_makes_way_for_the_next(autojump_clock: MockClock) -> None:
    async with open_pair(SMALL) as (near, far), trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await send_on(near)
        scope = trio.CancelScope()

        async def first() -> None:
            with scope:
                await near.send(["first", bytes(5000)])

        async def second() -> None:
            await near.send("second")

        nursery.start_soon(first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(second)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        payloads = [await far.receive()]
        while payloads[-1] != "second":
            payloads.append(await far.receive())
        assert "first" not in [payload[0] for payload in payloads if isinstance(payload, list)]


async def test_a_cancelled_close_aborts(autojump_clock: MockClock) -> None:
    async with open_pair(SMALL) as (near, far):
        for number in range(3):
            await near.send([number, bytes(4000)])
        with trio.move_on_after(5) as scope:
            await near.aclose()
        assert scope.cancelled_caught, "the other end does not read, so it cannot have everything"
        got = [await far.receive()]
        with pytest.raises(TunnelBroken, match="before everything had arrived"):
            got.extend(await received(far))
        assert [number for number, _ in got] == [0]


# -- misuse ------------------------------------------------------------------------------------------------


async def test_two_tasks_cannot_receive_at_once(autojump_clock: MockClock) -> None:
    async with open_pair() as (near, far), trio.open_nursery() as nursery:
        nursery.start_soon(far.receive)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await far.receive()
        await near.send(b"for the first")


async def test_eof_cannot_be_said_while_another_task_sends(autojump_clock: MockClock) -> None:
    async with open_pair(SMALL) as (near, _), trio.open_nursery() as nursery:
        nursery.start_soon(send_on, near)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await near.send_eof()
        nursery.cancel_scope.cancel()


async def test_nothing_is_possible_after_close(autojump_clock: MockClock) -> None:
    async with open_pair() as (near, far):
        await near.aclose()
        await near.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await near.send(b"")
        with pytest.raises(trio.ClosedResourceError):
            await near.receive()
        with pytest.raises(trio.ClosedResourceError):
            await near.send_eof()
        assert await received(far) == []
        await far.send_eof()
        await far.aclose()


async def test_closing_wakes_a_task_that_receives_and_one_that_sends(autojump_clock: MockClock) -> None:
    async with open_pair(SMALL) as (near, far), trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await near.receive()

        async def send() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await send_on(near)

        nursery.start_soon(receive)
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TunnelBroken):
            await near.aclose()
        with pytest.raises(TunnelBroken, match="while a message was being sent"):
            await received(far)


# -- endings -----------------------------------------------------------------------------------------------


async def test_leaving_the_block_delivers_everything_first(autojump_clock: MockClock) -> None:
    async with open_nodes(SMALL) as (near, far), trio.open_nursery() as nursery:
        sender, receiver = await near.open(far)
        got: list[object] = []

        async def receive() -> None:
            got.extend(await received(receiver))

        nursery.start_soon(receive)
        async with sender:
            for number in range(50):
                await sender.send([number, bytes(2000)])
        await trio.testing.wait_all_tasks_blocked()
        assert len(got) == 50
        assert len(near.table) == 0


async def test_an_error_in_the_block_is_told_to_the_other_end(autojump_clock: MockClock) -> None:
    async def fail(tunnel: Tunnel) -> None:
        async with tunnel:
            await tunnel.send(b"whole")
            await trio.testing.wait_all_tasks_blocked()
            raise ValueError("oops")

    async with open_pair(SMALL) as (sender, receiver):
        with pytest.raises(ValueError, match="oops"):
            await fail(sender)
        assert await receiver.receive() == b"whole"
        with pytest.raises(TunnelBroken, match="failed: ValueError") as caught:
            await receiver.receive()
        assert "oops" not in str(caught.value), "what went wrong in a program is nobody else's business"
        with pytest.raises(TunnelBroken):
            await receiver.send(b"anybody?")


async def test_the_one_who_stays_learns_that_not_everything_was_taken(autojump_clock: MockClock) -> None:
    async with open_nodes(SMALL) as (near, far):
        near_end, far_end = await near.open(far)
        far.mesh.hold()
        await far_end.send(b"too late")
        near_end.abort()
        far.mesh.release()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TunnelBroken, match="1 messages sent had not arrived"):
            await far_end.aclose()
        statistics = far.table.statistics()
        assert statistics.messages.sent == 1
        assert dict(statistics.messages.lost) == {"aborted": 1}
        assert statistics.messages.waiting == 0


async def test_a_forgotten_tunnel_is_an_error_when_its_farewell_was_lost(autojump_clock: MockClock) -> None:
    async with open_nodes(SMALL) as (near, far):
        near_end, far_end = await near.open(far)
        await trio.testing.wait_all_tasks_blocked()
        near.mesh.lose = lambda _: True
        near_end.abort("it failed")
        await trio.testing.wait_all_tasks_blocked()
        near.mesh.lose = lambda _: False
        with pytest.raises(TunnelBroken, match="it failed"):
            await far_end.receive()


async def test_no_tunnel_is_left_behind(autojump_clock: MockClock) -> None:
    async with open_nodes(SMALL) as (near, far):
        for number in range(20):
            one, other = await near.open(far)
            async with trio.open_nursery() as nursery:

                async def answer(tunnel: Tunnel = other) -> None:
                    async with tunnel:
                        async for payload in tunnel:
                            await tunnel.send(payload)

                nursery.start_soon(answer)
                async with one:
                    await one.send(number)
                    assert await one.receive() == number
        assert len(near.table) == len(far.table) == 0
        for node in (near, far):
            messages = node.table.statistics().messages
            assert (messages.sent, messages.answered, dict(messages.lost)) == (20, 20, {})


async def test_its_repr_tells_where_it_leads_and_how_it_is(autojump_clock: MockClock) -> None:
    async with open_pair(SMALL) as (near, _):
        assert repr(near) == "<Tunnel to cluster 'c', node 66617200: open>"
        assert repr(near.as_stream()) == f"<TunnelStream over {near!r}>"
        near.abort()
        assert repr(near).endswith("closed>")
