"""Publishing what is retained: the event becomes the value that its publisher keeps for later subscribers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import trio

from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import RequestTimeout
from iris.kernel.names import check_key
from iris.patterns.payloads import encoded
from iris.patterns.pubsub.publish.acks import Acknowledgements
from iris.patterns.pubsub.publish.publisher import Publisher
from iris.patterns.pubsub.publish.retained import RetainedEvent, envelope_size


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
        body = encoded(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        check_key(key)
        publishing = self._publishing
        retained = publishing.retention.events
        deadline = math.inf if within is None else trio.current_time() + within
        confirm = within is not None
        if publishing.resolve(topic).waits_for(key, confirm=confirm):
            with trio.move_on_at(deadline) as scope:
                await publishing.wait_released(topic, key, confirm=confirm)
            if scope.cancelled_caught:
                raise RequestTimeout(f"a subscriber of {topic!r} takes no more: it did not go on within {within:g} s")
        size = wire.payload_size(body) + envelope_size(topic, flat, key)
        retained.check(topic, size)
        former, last = retained.get(topic), publishing.last_number(topic)
        # Kept before it is posted, as nothing runs in between: a subscriber gets it either way and never twice.
        began = publishing.resolve(topic).milestones[:1]
        retained.keep(RetainedEvent(topic, last + 1, flat, key, body, size, began))
        try:
            if within is None:
                await publishing.publish(topic, payload, key=key, headers=headers)
            else:
                left = deadline - trio.current_time()
                await self._confirming.publish(topic, payload, key=key, timeout=left, headers=headers)
        except BaseException:
            if publishing.last_number(topic) == last:
                self._put_back(topic, former)
            raise

    def _put_back(self, topic: str, former: RetainedEvent | None) -> None:
        """Restore the former value: the event was not published."""
        retained = self._publishing.retention.events
        if former is None:
            retained.forget(topic)
        else:
            retained.keep(former)
