"""Pipelined acknowledgements: confirmed events are published while earlier ones are still being written to disk.

Events are posted in runs.  The bridge stores and confirms a run as one.  At 1 KB an event costs 1 us this way, where a
``publish_confirmed`` of its own, with a task that waits for it, costs 70 us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, final

import trio

from iris.kernel import wire
from iris.kernel.config import KIB, MIB, Config
from iris.kernel.errors import IrisError, NotSent
from iris.kernel.names import check_key
from iris.kernel.tasks import Wakeup, checkpoint_after_error, checkpointed, open_background, protected_context
from iris.patterns.books import WaitGuard
from iris.patterns.observer import Observer
from iris.patterns.payloads import encoded
from iris.patterns.pubsub.publish.acks import Acknowledgements, Unconfirmed
from iris.patterns.pubsub.subscribe import labels_size, most_sharing, with_expiry

_RUN_BYTES: Final = 240 * KIB
"""Size of a run that is a frame of its own.  The cost of runs and frames at both ends is divided by so many more
events: 9 us of processor time for one of 1 KB, publisher and bridge together, where runs of 60 KiB take 13; larger ones
gain nothing."""

_YIELD_RUNS: Final = 32
"""Runs between two checkpoints.  A run is short if topics or keys change with every event.  With a checkpoint after
each, each was a frame: 169 us of processor time for an event, publisher and subscriber together, and now 63."""

_WINDOW_BYTES: Final = 16 * MIB
_WINDOW_EVENTS: Final = 32_768
"""Limits of what is unconfirmed: two groups of a bridge's commits, one being written and one gathering."""


@final
class _Open:
    """A run that is still growing."""

    __slots__ = ("deadline", "flat", "headers", "key", "most", "payloads", "size", "topic")

    def __init__(
        self, topic: str, key: str | None, headers: Mapping[str, str] | None, flat: wire.Headers, deadline: float
    ) -> None:
        self.topic = topic
        self.key = key
        self.headers = None if headers is None else dict(headers)
        self.flat = flat
        self.most = most_sharing(labels_size(flat, key))
        self.payloads: list[wire.Payload] = []
        self.size = 0
        self.deadline = deadline


@final
class ConfirmedEvents:
    """Publishes events that are all confirmed when the block ends.  Made by ``node.confirming``.

    In the order of the calls, also when events have to be sent again.  May be used by several tasks.
    """

    def __init__(
        self,
        confirming: Acknowledgements,
        config: Config,
        timeout: float,
        *,
        observer: Observer | None = None,
        guard: WaitGuard | None = None,
    ) -> None:
        self._confirming = confirming
        self._observer = observer
        self._config = config
        self._timeout = timeout
        self._subscriber_links = confirming.subscriber_links
        self._guard = guard
        self._run_bytes = min(_RUN_BYTES, config.max_payload)
        self._open: _Open | None = None
        self._opened = Wakeup()
        self._posted = Wakeup()
        self._window: deque[tuple[Unconfirmed, float]] = deque()
        self._events = self._bytes = 0
        self._runs_since_yield = 0
        self._changed = trio.lowlevel.ParkingLot()
        self._error: IrisError | trio.ClosedResourceError | None = None
        self._topic: str | None = None
        """Topic of the last run.  None before the first one."""
        self.published = 0
        """Events given to ``publish``."""
        self.confirmed = 0
        """Events, counted from the first one, that are on the disk of every durable subscriber."""

    def __repr__(self) -> str:
        return f"<ConfirmedEvents: {self.confirmed} of {self.published} confirmed>"

    async def publish(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """Publish one event, as ``node.publish`` does; it returns before it is confirmed.

        It waits while 16 MiB or 32,768 events are unconfirmed.  Events are sent together when the calling task waits
        for anything, or has published 240 KiB.

        Raises:
            RequestTimeout: an event before it was not confirmed in time.  ``confirmed`` says how many were.
            NotSent: no durable subscriber of the topic is known.
            trio.ClosedResourceError: the block has ended.
            ConfigError, NotAllowed, PayloadTooLarge, LocalProtocolError: see ``node.publish``.

        Cancelling it while it waits leaves this event unpublished.
        """
        try:
            if expires is not None:
                headers = with_expiry(headers, expires)
            if self._observer is not None:
                span, headers = self._observer.begin_call("event", topic, None, headers)
                if span is not None:
                    with span:  # once more, with the trace in its headers
                        return await self.publish(topic, payload, key=key, headers=headers)
            headers = headers or None
            body, size = self._encoded(payload)
            run = self._run_for(topic, key, headers, size)
            if run is None:
                flat = self._checked(key, headers)
                left = self._timeout
                if not self._may_begin(topic, key):
                    left = await self._wait_run(topic, key)
                run = self._begin_run(topic, key, headers, flat, left)
            self._append(run, body, size)
        except Exception:
            await checkpoint_after_error()
            raise
        return None

    def _publish_at_once(
        self, topic: str, payload: object, key: str | None, headers: Mapping[str, str] | None, expires: float | None
    ) -> bool:
        """Publish as ``publish`` does if nothing has to be waited for; return whether the event is published.

        For any code of the node's thread, in a task of trio or not.
        """
        if self._observer is not None and self._observer.is_within:
            return False
        if expires is not None:
            headers = with_expiry(headers, expires)
        headers = headers or None
        body, size = self._encoded(payload)
        run = self._run_for(topic, key, headers, size)
        if run is None:
            flat = self._checked(key, headers)
            if not self._may_begin(topic, key):
                return False
            run = self._begin_run(topic, key, headers, flat, self._timeout)
        self._append(run, body, size)
        return True

    def _surely_publishes(self, topic: str, size: int) -> bool:
        """Return whether nothing can refuse an event of so many bytes, without a key and headers.  For any thread."""
        return (
            topic == self._topic
            and self._error is None
            and not (self._observer is not None and self._observer.is_within)
            and size <= self._config.max_payload
            and self._bytes * 2 < _WINDOW_BYTES
            and self._events * 2 < _WINDOW_EVENTS
        )

    def _lose(self, topic: str) -> None:
        """Count an event as lost that its publisher does not wait for; what is waited for then raises ``NotSent``."""
        self._confirming.lose_unsent(topic)
        if self._error is None:
            self._error = NotSent(f"an event on {topic!r} was not published")
            self._changed.unpark_all()

    def _encoded(self, payload: object) -> tuple[wire.Payload, int]:
        """Return a payload as it travels, and its size; raise the error of what was published before."""
        if self._error is not None:
            raise self._error
        body = encoded(payload, self._config.max_payload) if type(payload) is not bytes else payload
        size = len(body) if type(body) is bytes else wire.payload_size(body)
        if size > self._config.max_payload:
            wire.encode_payload(payload, self._config.max_payload)  # says so
        return body, size

    def _run_for(self, topic: str, key: str | None, headers: Mapping[str, str] | None, size: int) -> _Open | None:
        """Return the run that is open, if an event of so many bytes may go along with it."""
        run = self._open
        if (
            run is None
            or run.topic != topic
            or run.key != key
            or run.headers != headers
            or run.size + size > self._run_bytes
        ):
            return None
        return run

    def _append(self, run: _Open, body: wire.Payload, size: int) -> None:
        run.payloads.append(body)
        run.size += size
        self.published += 1
        if len(run.payloads) >= run.most or run.size >= self._run_bytes:
            self._post()

    def _checked(self, key: str | None, headers: Mapping[str, str] | None) -> wire.Headers:
        """Return headers encoded, and raise for a key that is none; the open run ends."""
        flat = wire.encode_headers(headers, self._config.max_headers)
        check_key(key)
        self._post()
        return flat

    def _may_begin(self, topic: str, key: str | None) -> bool:
        """Return whether ``_wait_run`` would wait for nothing; raise what it would."""
        return (
            self._runs_since_yield + 1 < _YIELD_RUNS
            and not self._is_full
            and not self._subscriber_links.pending(topic)
            and self._confirming.has_route(topic, key)
        )

    @property
    def _is_full(self) -> bool:
        """True while too much is unconfirmed."""
        return self._bytes >= _WINDOW_BYTES or self._events >= _WINDOW_EVENTS

    async def _wait_run(self, topic: str, key: str | None) -> float:
        """Wait until a run may begin; return the seconds that are left for its confirmation."""
        if self._runs_since_yield + 1 >= _YIELD_RUNS:
            self._runs_since_yield = -1
            await trio.lowlevel.checkpoint()
        while self._error is None and self._is_full:
            await self._changed.park()
        if self._error is not None:
            raise self._error
        left = self._timeout
        with self._waiting():
            if self._subscriber_links.pending(topic):
                left = await self._subscriber_links.reach(topic, within=self._timeout)
            await self._confirming.wait_route(topic, key, trio.current_time() + left, self._timeout)
        if self._error is not None:
            raise self._error
        self._post()  # of another task, which was faster
        return left

    def _begin_run(
        self, topic: str, key: str | None, headers: Mapping[str, str] | None, flat: wire.Headers, left: float
    ) -> _Open:
        self._runs_since_yield += 1
        self._topic = topic
        run = self._open = _Open(topic, key, headers, flat, trio.current_time() + left)
        self._opened.wake()
        return run

    def _post(self) -> None:
        run, self._open = self._open, None
        if run is None or not run.payloads:
            return
        unconfirmed = Unconfirmed(run.topic, run.payloads, run.key, run.flat, run.size)
        self._window.append((unconfirmed, run.deadline))
        self._events += len(run.payloads)
        self._bytes += unconfirmed.size
        self._confirming.post(unconfirmed)
        self._posted.wake()

    async def post_soon(self) -> None:
        """Post what has gathered whenever the publishing tasks wait."""
        while True:
            await self._opened.wait()
            self._post()

    async def follow(self) -> None:
        """Wait for the confirmations, in order."""
        try:
            with self._waiting():
                while True:
                    while not self._window:
                        await self._posted.wait()
                    run, deadline = self._window[0]
                    await self._confirming.wait(run, deadline, self._timeout)
                    self._confirming.forget(run)
                    self._window.popleft()
                    self.confirmed += len(run.payloads)
                    self._events -= len(run.payloads)
                    self._bytes -= run.size
                    self._changed.unpark_all()
        except (IrisError, trio.ClosedResourceError) as error:
            self._error = error
            self._changed.unpark_all()

    @checkpointed
    async def wait_confirmed(self) -> None:
        """Wait until everything published so far is confirmed.

        Raises:
            RequestTimeout: see ``publish``.
            trio.ClosedResourceError: the block or the node was left meanwhile; events may be on their way.

        Cancelling it changes nothing.
        """
        self._post()
        wanted = self.published
        await trio.lowlevel.checkpoint()
        while self._error is None and self.confirmed < wanted:
            await self._changed.park()
        if self._error is not None and (self.confirmed < wanted or isinstance(self._error, IrisError)):
            raise self._error

    def _waiting(self) -> AbstractContextManager[object]:
        return nullcontext() if self._guard is None else self._guard.waiting()

    def forget(self) -> None:
        """Wait for nothing any more: the block has ended, and so does what other tasks wait for."""
        if self._error is None:
            self._error = trio.ClosedResourceError("these events are closed: the block of node.confirming has ended")
        self._changed.unpark_all()
        for run, _ in self._window:
            self._confirming.forget(run)
        self._window.clear()


@protected_context
async def open_confirmed_events(
    confirming: Acknowledgements,
    config: Config,
    timeout: float,
    *,
    observer: Observer | None = None,
    guard: WaitGuard | None = None,
) -> AsyncIterator[ConfirmedEvents]:
    """See ``Node.confirming``.

    Args:
        guard: guard of what waits.  None for a node that is not closed before.
    """
    events = ConfirmedEvents(confirming, config, timeout, observer=observer, guard=guard)
    try:
        async with open_background() as nursery:
            nursery.start_soon(events.post_soon)
            nursery.start_soon(events.follow)
            yield events
            await events.wait_confirmed()
    finally:
        events.forget()
