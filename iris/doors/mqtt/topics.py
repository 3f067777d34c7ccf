"""Topics of MQTT as those of Iris, and back: ``/`` is ``.``, ``+`` is ``*``, and ``#`` at the end is ``>``.

In Iris a space of a level is ``%20``, a dot ``%2E``, and an empty level ``%00``.  MQTT knows levels that Iris cannot
hold: those with controls, and more than 32.  Those are refused, as are topics that begin with ``$``, which MQTT keeps
for servers.  Only what a bridge of Mosquitto says of itself is taken, as it would not connect otherwise; it goes
nowhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, final

from iris.doors.problems import Problem
from iris.kernel.topic_syntax import is_pattern, is_topic

_SHARED: Final = "$share/"

_UNSUPPORTED: Final = re.compile(r"[*>+#]|%20|%2E|%00")
"""Parts that a level cannot have, as they mean something else in the other language."""

_EMPTY: Final = "%00"

_UNTELLABLE: Final = re.compile(r"[/+#]|^\$")
"""Characters that a topic of Iris cannot have if MQTT is to know it."""


@final
@dataclass(frozen=True, slots=True)
class RequestedTopic:
    """Request of one filter: the events of all patterns, together with others of a group."""

    patterns: tuple[str, ...]
    group: str | None = None


def is_state_of_bridge(name: str) -> bool:
    """Return whether a message or will on a topic says that a bridge of Mosquitto is connected, or not."""
    return name.startswith("$SYS/broker/connection/")


def topic_of(name: str) -> str:
    """Return the topic that a topic name of MQTT stands for; raise Problem if there is none."""
    topic = ".".join(map(_escaped, name.split("/")))
    if not name or _UNSUPPORTED.search(name) or name.startswith("$") or not is_topic(topic):
        raise Problem(400, "bad_topic", f"{name!r:.300} is no topic here: no controls, wildcards or $")
    return topic


def name_of(topic: str) -> str | None:
    """Return the topic name by which MQTT knows a topic; None if it cannot."""
    return None if _UNTELLABLE.search(topic) else "/".join(map(_plain, topic.split(".")))


def _escaped(level: str) -> str:
    return level.replace(".", "%2E").replace(" ", "%20") or _EMPTY


def _plain(token: str) -> str:
    return "" if token == _EMPTY else token.replace("%20", " ").replace("%2E", ".")


def wanted_of(text: str, *, sharing: bool) -> RequestedTopic:
    """Return what a filter of MQTT asks for.

    Args:
        text: the filter.
        sharing: True if ``$share/GROUP/FILTER`` is one.

    Raises:
        Problem: it is malformed, or asks for topics that Iris cannot have.
    """
    group, rest = None, text
    if sharing and text.startswith(_SHARED):
        group, _, rest = text.removeprefix(_SHARED).partition("/")
    levels = rest.split("/")
    has_rest = levels[-1] == "#"
    tokens = ["*" if level == "+" else _escaped(level) for level in (levels[:-1] if has_rest else levels)]
    is_unsupported = not rest or any(
        level != "+" and _UNSUPPORTED.search(level) for level in (levels[:-1] if has_rest else levels)
    )
    parent, deeper = ".".join(tokens), ".".join([*tokens, ">"])
    patterns = (deeper,) if has_rest and not tokens else (parent, deeper) if has_rest else (parent,)
    if is_unsupported or rest.startswith("$") or not all(map(is_pattern, patterns)):
        raise Problem(400, "bad_topic", f"{text!r:.300} is no filter here: no controls or $")
    return RequestedTopic(patterns, group)
