"""Topic matching: validation of topics and patterns, and a hash index that finds the patterns of a topic.

A matcher looks for patterns by their *shapes*: how many tokens they have, where a ``*`` stands, and whether a ``>``
ends them.  At most one pattern of each shape matches a topic, and it is computed from the topic: ``a.b.c`` in the shape
of ``x.*.y`` is ``a.*.c``.  So the cost of a match grows with the number of shapes and with the length of the topic, not
with the number of patterns.  A pattern takes one entry in a table, however many tokens it has.

Rejected: a trie of tokens.  It takes one entry for each token, 36 KiB for a pattern of 125, and patterns over ``*`` and
one other token make a match visit all of it.  Results of matches are cached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar, final

from iris.kernel.errors import ConfigError
from iris.kernel.topic_syntax import MAX_TOKENS, MAX_TOPIC, is_pattern, is_topic

__all__ = [
    "MAX_TOKENS", "MAX_TOPIC", "Matcher", "Shape", "check_pattern", "check_topic", "check_wildcards", "is_pattern",
    "is_topic", "shape_of"
]  # fmt: skip

_REMEMBERED: Final = 16_384
"""Topics whose matches a matcher remembers."""

_LIMITS: Final = f"at most {MAX_TOPIC} bytes and {MAX_TOKENS} tokens"

_MQTT: Final = MappingProxyType({"+": "*", "#": ">"})
"""Wildcards of MQTT, and those of Iris.  Peers may have topics with such tokens; nobody here publishes on one, as
nobody could subscribe to it."""

T = TypeVar("T")


def check_topic(topic: str) -> str:
    """Return ``topic``.

    Raises:
        ConfigError: not tokens joined by dots, or longer than 256 bytes or 32 tokens; or nobody could subscribe to it:
            it has a slash, before which stands the name of a realm, or a token that is a wildcard of MQTT.
    """
    if not is_topic(topic):
        raise ConfigError(
            f"{topic!r} is not a topic: use tokens joined by dots, no spaces, controls, '*' or '>', {_LIMITS}"
        )
    check_wildcards(topic)
    if "/" in topic:
        raise ConfigError(
            f"{topic!r}: before a slash stands the name of a realm, and each publishes on topics of its own: for "
            f"topics of this realm use {topic.replace('/', '.')!r}"
        )
    return topic


def check_pattern(pattern: str) -> str:
    """Return ``pattern``.

    Raises:
        ConfigError: not tokens joined by dots where ``*`` stands for one token and a last ``>`` for the rest; or what
            would match nothing that anybody means: the wildcards of MQTT, or topics of a realm that is not known here.
    """
    if not is_pattern(pattern):
        raise ConfigError(
            f"{pattern!r} is not a topic pattern: use tokens joined by dots, '*' for one, a last '>' for the rest, no "
            f"spaces or controls, {_LIMITS}"
        )
    check_wildcards(pattern)
    alias, slash, _ = pattern.partition("/")
    if slash:
        raise ConfigError(
            f"no realm is trusted here by the name of {alias!r}, so {pattern!r} would match nothing: after 'iris keys "
            f"trust' refresh the credential; for topics of this realm use {pattern.replace('/', '.')!r}"
        )
    return pattern


def check_wildcards(pattern: str) -> None:
    """Raise ConfigError if a token of a pattern is a wildcard of MQTT, which would stand for itself."""
    tokens = pattern.replace("/", ".").split(".")
    if not _MQTT.keys().isdisjoint(tokens):
        meant = ".".join(_MQTT.get(token, token) for token in tokens)
        raise ConfigError(f"{pattern!r} has wildcards of MQTT, which stand for themselves here: use {meant!r}")


@final
class Shape(NamedTuple):
    """Shape of a pattern with wildcards: of one shape, at most one pattern matches a topic."""

    tokens: int
    """Number of tokens, without a last ``>``."""
    rest: bool
    """True if there is a last ``>``."""
    stars: tuple[int, ...]
    """Places of ``*``."""


@lru_cache(maxsize=1024)  # of one message: it is asked for several times for each pattern that a node begins to want
def shape_of(pattern: str) -> Shape | None:
    """Return the shape of a valid pattern; None if it has no wildcards, so that it matches itself only."""
    if "*" not in pattern and pattern[-1] != ">":
        return None
    tokens = pattern.split(".")
    rest = tokens[-1] == ">"
    if rest:
        tokens.pop()
    stars = tuple(place for place, part in enumerate(tokens) if part == "*")
    return Shape(len(tokens), rest, stars)


@final
class Matcher(Generic[T]):
    """Pattern index: values under patterns, by identity.  One that stands under several patterns is found once."""

    __slots__ = ("_found", "_patterns", "_repeated", "_shapes", "_size")

    def __init__(self) -> None:
        self._patterns: dict[str, dict[int, T]] = {}
        """Values by pattern and identity."""
        self._repeated: dict[tuple[str, int], int] = {}
        """Further times that a value was added under a pattern, by pattern and identity."""
        self._shapes: dict[Shape, int] = {}
        """Number of patterns by shape."""
        self._found: dict[str, tuple[T, ...]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def remembered(self) -> Collection[str]:
        """Topics whose matches are cached, now and later."""
        return self._found.keys()

    @property
    def shapes(self) -> Collection[Shape]:
        """Shapes of its patterns, which a match looks at."""
        return self._shapes.keys()

    def add(self, pattern: str, value: T) -> None:
        """Put ``value`` under a valid pattern.  It has to be removed as often as it was put there."""
        values = self._patterns.get(pattern)
        if values is None:
            values = self._patterns[pattern] = {}
            shape = shape_of(pattern)
            if shape is not None:
                self._shapes[shape] = self._shapes.get(shape, 0) + 1
        if id(value) in values:
            place = pattern, id(value)
            self._repeated[place] = self._repeated.get(place, 0) + 1
        values[id(value)] = value
        self._size += 1
        self._forget(pattern)

    def remove(self, pattern: str, value: T) -> None:
        """Remove ``value`` from under ``pattern``; raise KeyError if it is not there."""
        values = self._patterns.get(pattern, {})
        if id(value) not in values:
            raise KeyError(pattern)
        self._size -= 1
        place = pattern, id(value)
        if place in self._repeated:
            self._repeated[place] -= 1
            if not self._repeated[place]:
                del self._repeated[place]
            return
        del values[id(value)]
        if not values:
            del self._patterns[pattern]
            shape = shape_of(pattern)
            if shape is not None:
                self._shapes[shape] -= 1
                if not self._shapes[shape]:
                    del self._shapes[shape]
        self._forget(pattern)

    def _forget(self, pattern: str) -> None:
        if "*" in pattern or ">" in pattern:
            self._found.clear()
        else:
            self._found.pop(pattern, None)

    def match(self, topic: str) -> tuple[T, ...]:
        """Return every value under a pattern that matches ``topic``, each once: first those under the topic itself."""
        found = self._found.get(topic)
        if found is None:
            found = self._match(topic)
        return found

    def matches(self, topic: str) -> bool:
        """Return whether there is a value under a pattern that matches ``topic``.  Nothing is cached."""
        return not self._patterns.keys().isdisjoint(self.candidates(topic))

    def _match(self, topic: str) -> tuple[T, ...]:
        if not self._patterns:
            return ()
        found: dict[int, T] = {}
        for pattern in self.candidates(topic):
            found.update(self._patterns.get(pattern, ()))
        if len(self._found) >= _REMEMBERED:
            self._found.clear()
        self._found[topic] = values = tuple(found.values())
        return values

    def candidates(self, topic: str) -> Iterator[str]:
        """Yield the patterns that would match a topic, of all shapes there are."""
        yield topic
        tokens = topic.split(".")
        count = len(tokens)
        for length, rest, stars in self._shapes:
            if count > length if rest else count == length:
                pattern = tokens[:length]
                for place in stars:
                    pattern[place] = "*"
                if rest:
                    pattern.append(">")
                yield ".".join(pattern)
