"""Dead letters: what is stored of a job that has failed for good."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from iris.kernel.config import MIB
from iris.kernel.names import NodeId
from iris.kernel.wire import encode_payload, join_payload
from iris.patterns.messages import Sender
from iris.patterns.pubsub.queues import DEAD_ATTEMPTS, DEAD_ERROR, DEAD_PLACE, DEAD_QUEUE, DELAY
from iris.patterns.pubsub.subscribe import EXPIRES, EventRun, single_run
from iris.spark_bridge.events.schema import PACKED, TEXT
from iris.spark_bridge.queues.machine import QueuedJob
from iris.spark_bridge.queues.rows import JobRow

_LARGEST: Final = 16 * MIB


def dead_letter(
    queue: str, epoch: str, job: QueuedJob, row: JobRow, owns: Callable[[str | None, str, str], bool]
) -> EventRun:
    """Return the event that keeps a dead job: its payload, key and headers, and what has become of it.

    Args:
        queue: name of the queue.
        epoch: epoch of the job's shard.
        job: has failed.
        row: event of the job, from the log.
        owns: returns whether the shard of an event with this key, publisher and topic is at this member.
    """
    place = f"{job.place.shard}:{job.place.offset}"
    headers = {name: text for name, text in row.headers.items() if name not in (DELAY, EXPIRES)}
    headers |= {
        DEAD_QUEUE: queue,
        DEAD_ATTEMPTS: str(job.attempts),
        DEAD_ERROR: job.error,
        DEAD_PLACE: place,
    }
    salt = 0
    while True:
        publisher = hashlib.blake2b(f"{queue}\0{epoch}\0{place}\0{salt}".encode(), digest_size=16).hexdigest()
        if row.key is not None or owns(None, publisher, job.dead):
            break
        salt += 1
    if row.encoding == TEXT:
        payload = encode_payload(row.value.decode("utf-8", "replace"), _LARGEST)
    else:
        payload = join_payload(row.value, packed=row.encoding == PACKED)
    return single_run(Sender(row.sender, NodeId(publisher)), job.dead, headers, row.key, payload)
