"""Permissions of a cluster, as its certificate grants them: clusters it serves, topics it publishes and subscribes to.

Patterns are those of topics: tokens separated by dots, ``*`` stands for one token and a last ``>`` for one or
more.  For topics None means unrestricted; an empty tuple means nothing at all.
"""

from __future__ import annotations

from typing import Final, final

from msgspec import Struct

from iris.kernel.errors import ConfigError
from iris.kernel.topic_syntax import MAX_TOKENS, MAX_TOPIC, is_pattern

MAX_PATTERNS: Final = 256
"""Patterns in one list: with 32 tokens each a check stays far below a millisecond, and it is not per message."""

MAX_PATTERN: Final = MAX_TOPIC
"""Limit on one pattern in bytes."""

Patterns = tuple[str, ...] | None


def covers(allowed: str, wanted: str) -> bool:
    """Return whether everything that ``wanted`` (a topic, a name or a pattern) matches, ``allowed`` matches too."""
    tokens = allowed.split(".")
    others = wanted.split(".")
    for position, part in enumerate(tokens):
        if position >= len(others):
            return False
        if part == ">" and position == len(tokens) - 1:
            return True
        other = others[position]
        # a last ">" matches more than anything but another ">"
        if (other == ">" and position == len(others) - 1) or part not in ("*", other):
            return False
    return len(tokens) == len(others)


def overlap(one: str, other: str) -> bool:
    """Return whether some topic or name matches both of two patterns."""
    mine, theirs = one.split("."), other.split(".")
    for token, match in zip(mine, theirs, strict=False):
        if ">" in (token, match):
            return True
        if token != match and "*" not in (token, match):
            return False
    return len(mine) == len(theirs)


@final
class Rights(Struct, frozen=True, kw_only=True):
    """The rights of the nodes of a cluster.  By default: serve their own name, publish and subscribe to anything.

    Args:
        serves: further clusters that its nodes may join as members, beside the one they speak for.
        publishes: topics that its nodes may publish; None: any.
        subscribes: topics that its nodes may subscribe to; None: any.
        gateway: its nodes may carry the sessions of other sites.
    """

    serves: tuple[str, ...] = ()
    publishes: Patterns = None
    subscribes: Patterns = None
    gateway: bool = False

    def __post_init__(self) -> None:
        for what, patterns in (
            ("serves", self.serves),
            ("publishes", self.publishes),
            ("subscribes", self.subscribes),
        ):
            if patterns is not None:
                check_patterns(patterns, "rights", what)

    def may_serve(self, cluster: str) -> bool:
        """Return whether a node may join ``cluster`` as a member, beside the cluster that it speaks for."""
        return _permit(self.serves, cluster)

    def may_publish(self, topic: str) -> bool:
        """Return whether a node may publish to ``topic``."""
        return _permit(self.publishes, topic)

    def may_subscribe(self, pattern: str) -> bool:
        """Return whether a node may subscribe to all of ``pattern``."""
        return _permit(self.subscribes, pattern)


def _permit(patterns: Patterns, wanted: str) -> bool:
    return patterns is None or any(covers(pattern, wanted) for pattern in patterns)


def check_patterns(patterns: tuple[str, ...], where: str, what: str) -> None:
    """Check a list of patterns; ``where`` and ``what`` name it in the error.

    Raises:
        ConfigError: one of them is no pattern, or they are more than ``MAX_PATTERNS``.
    """
    if len(patterns) > MAX_PATTERNS:
        raise ConfigError(f"{where}: {what} holds {len(patterns)} patterns: the limit is {MAX_PATTERNS}")
    for pattern in patterns:
        if not is_pattern(pattern):
            raise ConfigError(
                f"{where}: {pattern!r} in {what} is not a pattern: use tokens separated by dots, '*' for one token, a "
                f"last '>' for the rest, no spaces or controls, at most {MAX_PATTERN} bytes and {MAX_TOKENS} tokens"
            )
