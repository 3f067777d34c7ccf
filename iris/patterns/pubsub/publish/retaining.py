"""Publishing what is retained: the event becomes the value that its publisher keeps for later subscribers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

import trio

from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.names import check_key
from iris.patterns.payloads import encoded
from iris.patterns.pubsub.interest import check_topic
from iris.patterns.pubsub.publish.acks import Acknowledgements, Unconfirmed
from iris.patterns.pubsub.publish.publisher import Publisher
from iris.patterns.pubsub.publish.retained import RetainedEvent, envelope_size
from iris.patterns.pubsub.subscribe import expires_after


@final
class RetainedPublishing:
    """Publishes events that are retained."""

    def __init__(self, publishing: Publisher, confirming: Acknowledgements, config: Config) -> None:
        self._publishing = publishing
        self._confirming = confirming
        self._config = config

    async def publish(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None,
        headers: Mapping[str, str] | None,
        within: float | None,
    ) -> None:
        """See ``Node.retain``; ``within`` is the timeout of a confirmed event."""
        publishing = self._publishing
        # It is kept when it is published, and not while it waits: others may be published first.
        if within is None:
            while not self.publish_at_once(topic, payload, key, headers):
                await publishing.wait_turn(topic, key)
            await publishing.wait_crowded(topic)
            return
        check_topic(topic)
        body, flat = self._checked(payload, key, headers)
        run = Unconfirmed(topic, (body,), key, flat, wire.payload_size(body))
        kept = self._kept(topic, body, flat, key, expires_after(headers or {}))
        await self._confirming.publish_run(run, within, kept)

    def publish_at_once(self, topic: str, payload: object, key: str | None, headers: Mapping[str, str] | None) -> bool:
        """Publish as ``publish`` does, unconfirmed, if nothing has to be waited for; return whether it is published."""
        body, flat = self._checked(payload, key, headers)
        if self._publishing.resolve(topic).waits_for(key):
            return False
        with self._kept(topic, body, flat, key, expires_after(headers or {})):
            return self._publishing.publish_at_once(topic, payload, key, headers)

    def _checked(
        self, payload: object, key: str | None, headers: Mapping[str, str] | None
    ) -> tuple[wire.Payload, wire.Headers]:
        body = encoded(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        check_key(key)
        return body, flat

    @contextmanager
    def _kept(
        self, topic: str, body: wire.Payload, flat: wire.Headers, key: str | None, expires: float
    ) -> Iterator[None]:
        """Keep a value that is published within the block; if it is not, the former one is restored."""
        publishing = self._publishing
        retained = publishing.retention.events
        size = wire.payload_size(body) + envelope_size(topic, flat, key)
        now = trio.current_time()
        retained.check(topic, size, now)
        former, last = retained.get(topic), publishing.last_number(topic)
        # Kept before it is posted, as nothing runs in between: a subscriber gets it either way and never twice.
        began = publishing.resolve(topic).milestones[:1]
        publishing.retention.keep(RetainedEvent(topic, last + 1, flat, key, body, size, began, now + expires))
        try:
            yield
        finally:
            if publishing.last_number(topic) == last:
                if former is None:
                    retained.forget(topic)
                else:
                    publishing.retention.keep(former)  # which may expire
