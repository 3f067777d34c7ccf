"""Processes of handlers, asked by what a member is made of."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.patterns.bridge_protocol import OutboxEvent
from iris.patterns.messages import Outbox, Request, Sender
from iris.patterns.service.handlers import InProcess
from iris.patterns.service.outcomes import add_to_outbox
from iris.patterns.service.process_pool import ProcessPool
from tests.support.process_handlers import look, publish

HANDLERS = [InProcess(look, operation=False), InProcess(publish, operation=False)]


def make_request(outbox: Outbox | None = None) -> Request:
    return Request(
        payload=None,
        sender=Sender("shop", NodeId("0" * 32)),
        headers={},
        deadline=trio.current_time() + 30,
        cluster="work",
        operation=None,
        idempotency_key=None if outbox is None else "once",
        attempt=2,
        outbox=outbox,
    )


async def test_what_crosses_beside_a_payload() -> None:
    looks, publishes = HANDLERS
    payload = wire.encode_payload(7, 100)
    async with trio.open_nursery() as nursery:
        pool = ProcessPool("work", HANDLERS, 1, 10_000, nursery)
        await pool.open()

        events: list[OutboxEvent] = []
        request = make_request(Outbox(partial(add_to_outbox, events)))
        reply = wire.decode_payload_untrusted(await pool.call(publishes, request, payload))
        (event,) = events
        assert (event.topic, event.key, event.headers) == ("orders.made", "k", {"a": "b"})
        assert wire.decode_payload_untrusted(wire.join_payload(event.data, packed=event.packed)) == {"id": 7}
        assert reply[:2] == ["once", 2]
        assert "tokens joined by dots" in reply[2]

        with pytest.raises(RemoteProtocolError, match="malformed payload"):
            await pool.call(looks, make_request(), wire.join_payload(b"\xc1", packed=True))

        async def ask() -> int:
            seen = wire.decode_payload_untrusted(await pool.call(looks, make_request(), payload))
            assert seen["payload"] == 7
            return int(seen["pid"])

        pids: list[int] = []

        async def ask_and_note() -> None:
            pids.append(await ask())

        first = await ask()
        os.kill(first, signal.SIGSTOP)
        async with trio.open_nursery() as asking:
            asking.start_soon(ask_and_note)
            await wait_all_tasks_blocked()
            os.kill(first, signal.SIGKILL)  # it has not read the call, so another one can be asked
        assert first not in pids
        assert pool.statistics().died == 1
        nursery.cancel_scope.cancel()
    assert pool.statistics().processes == 0
