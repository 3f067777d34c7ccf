"""Topic syntax: the one rule for topics and patterns, be they given by users or sent by peers.

A topic is 1 to 256 bytes of at most 32 tokens joined by dots.  In a pattern the token ``*`` stands for exactly one
token and a last token ``>`` for one or more.  Topics are shown on terminals and in logs: so there are no spaces, no
controls, and none of the characters that change the direction of the text around them.
"""

from __future__ import annotations

import re
from typing import Final, TypeGuard

MAX_TOPIC: Final = 256
"""Limit on the size of a topic or pattern in bytes."""

MAX_TOKENS: Final = 32
"""Limit on the tokens of a topic or pattern: the work of a match grows with them."""

# C0, DEL and C1 are the controls of terminals; the others are the marks, embeddings and isolates of bidirectional text.
_WORD: Final = r"[^\s.*>\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+"
_TOPIC: Final = re.compile(rf"{_WORD}(?:\.{_WORD}){{0,{MAX_TOKENS - 1}}}\Z")
TOPIC_FORM: Final = f"^{_TOPIC.pattern}"
"""The rule for topics as a regular expression, for the types of messages; their size is a rule of its own."""

_PATTERN: Final = re.compile(rf"(?:(?:{_WORD}|\*)\.){{0,{MAX_TOKENS - 1}}}(?:{_WORD}|\*|>)\Z")
PATTERN_FORM: Final = f"^{_PATTERN.pattern}"
"""The same for patterns."""


def is_topic(value: object) -> TypeGuard[str]:
    """Return whether ``value``, which may come from a peer, is a topic."""
    return isinstance(value, str) and _is_short(value) and _TOPIC.match(value) is not None


def is_own_topic(value: object) -> TypeGuard[str]:
    """Return whether ``value``, which may come from a peer, is a topic of one's own realm that somebody can name.

    Before a slash stands the name of another realm, and a token ``+`` or ``#`` is a wildcard of MQTT.
    """
    return is_topic(value) and "/" not in value and not {"+", "#"} & {*value.split(".")}


def is_pattern(value: object) -> TypeGuard[str]:
    """Return whether ``value``, which may come from a peer, is a pattern; every topic is one."""
    return isinstance(value, str) and _is_short(value) and _PATTERN.match(value) is not None


def _is_short(value: str) -> bool:
    """Return whether it has so few bytes; looked at first, as a peer may send a megabyte."""
    return len(value) <= MAX_TOPIC and (value.isascii() or len(value.encode("utf-8", "replace")) <= MAX_TOPIC)
