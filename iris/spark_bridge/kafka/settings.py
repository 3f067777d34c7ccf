"""Settings of Kafka's client: a file of its properties, and what the bridge's promises stand on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from iris.kernel.errors import ConfigError

_OWN: Final = frozenset(
    {
        *(
            "acks",
            "request.required.acks",
            "allow.auto.create.topics",
            "auto.offset.reset",
            "batch.size",
            "bootstrap.servers",
        ),
        *("delivery.timeout.ms", "enable.auto.commit", "enable.auto.offset.store", "enable.idempotence", "group.id"),
        *(
            "enable.partition.eof",
            "isolation.level",
            "message.max.bytes",
            "message.send.max.retries",
            "message.timeout.ms",
        ),
        *(
            "metadata.broker.list",
            "partitioner",
            "queue.buffering.max.kbytes",
            "queue.buffering.max.messages",
            "retries",
        ),
        *("queued.max.messages.kbytes", "transactional.id", "plugin.library.paths", "group.protocol"),
        *("delivery.report.only.error", "group.instance.id", "partition.assignment.strategy"),
        *("default.topic.config", "error_cb", "logger", "oauth_cb", "stats_cb", "throttle_cb"),
    }
)
"""Properties that the bridge sets: its promises stand on them."""

CLIENT: Final[Mapping[str, object]] = {
    "client.id": "iris-bridge",
    "log_level": 0,
    "reconnect.backoff.max.ms": 1000,
    # Who is asked for the topic is asked no more soon after it has gone: by default that could take five minutes.
    "topic.metadata.refresh.interval.ms": 5000,
    "allow.auto.create.topics": False,
}
"""Properties of every client.  What goes wrong is told by the errors that it reports, and not on standard error."""

PRODUCER: Final[Mapping[str, object]] = {
    "acks": "all",
    "enable.idempotence": True,
    # A record that timed out here might be written all the same, and the ones behind it would be: publishers have
    # timeouts, and who has confirmed nothing is asked again.
    "message.timeout.ms": 0,
    "linger.ms": 2,
    "partitioner": "murmur2_random",
    # The bridge counts what is on its way, and takes no more than it may.
    "queue.buffering.max.messages": 0,
    "queue.buffering.max.kbytes": 2_147_483_647,
}

CONSUMER: Final[Mapping[str, object]] = {
    "auto.offset.reset": "error",
    "check.crcs": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 4096,
    "session.timeout.ms": 10_000,
}


def read_settings(file: Path) -> dict[str, str]:
    """Read the client's properties, a ``name=value`` on each line, ``#`` before comments.

    Raises:
        ConfigError: it cannot be read, or sets what the bridge's promises stand on.
    """
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the client's properties in {file} cannot be read: {error}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"line {number} of {file} is none of a client's properties: use name=value")
        found[name.strip()] = value.strip()
    return found


def check_settings(given: Mapping[str, str]) -> None:
    """Raise ConfigError for a property that the bridge sets itself."""
    if own := sorted(given.keys() & _OWN):
        raise ConfigError(f"the bridge sets {', '.join(own)} itself, as its promises stand on that: leave it out")
