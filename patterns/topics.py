"""Topics and patterns: how they are written, and which patterns match a topic.

A topic is 1 to 256 bytes of tokens joined by dots.  In a pattern the token ``*`` stands for exactly one token and a
last token ``>`` for one or more.  A matcher is a trie over tokens: the cost of a match grows with the length of the
topic and not with the number of patterns, and what was matched once is remembered.
"""

from __future__ import annotations

import re
from typing import Final, Generic, TypeVar, final

from iris.kernel.errors import ConfigError

MAX_TOPIC: Final = 256

_WORD = r"[^\s.*>\x00-\x1f\x7f\ud800-\udfff]+"
_TOPIC = re.compile(rf"{_WORD}(?:\.{_WORD})*\Z")
_PATTERN = re.compile(rf"(?:{_WORD}|\*)(?:\.(?:{_WORD}|\*))*(?:\.>)?\Z|>\Z")
_REMEMBERED: Final = 65536

T = TypeVar("T")


def is_topic(value: object) -> bool:
    """Tell whether ``value``, which may come from a peer, is a topic."""
    return isinstance(value, str) and len(value.encode("utf-8", "replace")) <= MAX_TOPIC and bool(_TOPIC.match(value))


def is_pattern(value: object) -> bool:
    """Tell whether ``value``, which may come from a peer, is a pattern; every topic is one."""
    return isinstance(value, str) and len(value.encode("utf-8", "replace")) <= MAX_TOPIC and bool(_PATTERN.match(value))


def check_topic(topic: str) -> str:
    """Return ``topic``.

    Raises:
        ConfigError: not tokens joined by dots, or longer than 256 bytes.
    """
    if not is_topic(topic):
        raise ConfigError(
            f"{topic!r} is not a topic: use tokens joined by dots, no spaces, '*' or '>', at most {MAX_TOPIC} bytes"
        )
    return topic


def check_pattern(pattern: str) -> str:
    """Return ``pattern``.

    Raises:
        ConfigError: not tokens joined by dots where ``*`` stands for one token and a last ``>`` for the rest.
    """
    if not is_pattern(pattern):
        raise ConfigError(
            f"{pattern!r} is not a topic pattern: use tokens joined by dots, '*' for one, a last '>' for the rest, "
            f"at most {MAX_TOPIC} bytes"
        )
    return pattern


@final
class _Branch(Generic[T]):
    __slots__ = ("children", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Branch[T]] = {}
        self.here: list[T] = []
        self.rest: list[T] = []

    @property
    def is_bare(self) -> bool:
        return not (self.children or self.here or self.rest)


@final
class Matcher(Generic[T]):
    """Values under patterns.  A value may stand under several patterns and is then found once."""

    __slots__ = ("_found", "_root", "_size")

    def __init__(self) -> None:
        self._root: _Branch[T] = _Branch()
        self._found: dict[str, tuple[T, ...]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, pattern: str, value: T) -> None:
        """Put ``value`` under a valid pattern."""
        branch = self._root
        tokens = pattern.split(".")
        for token in tokens if tokens[-1] != ">" else tokens[:-1]:
            following = branch.children.get(token)
            if following is None:
                following = branch.children[token] = _Branch()
            branch = following
        (branch.rest if tokens[-1] == ">" else branch.here).append(value)
        self._size += 1
        self._forget(pattern)

    def remove(self, pattern: str, value: T) -> None:
        """Take ``value`` from under ``pattern``.

        Raises:
            KeyError: it is not there.
        """
        tokens = pattern.split(".")
        way = [self._root]
        for token in tokens if tokens[-1] != ">" else tokens[:-1]:
            following = way[-1].children.get(token)
            if following is None:
                raise KeyError(pattern)
            way.append(following)
        values = way[-1].rest if tokens[-1] == ">" else way[-1].here
        try:
            values.remove(value)
        except ValueError:
            raise KeyError(pattern) from None
        self._size -= 1
        for index in range(len(way) - 1, 0, -1):
            if way[index].is_bare:
                del way[index - 1].children[tokens[index - 1]]
        self._forget(pattern)

    def _forget(self, pattern: str) -> None:
        if "*" in pattern or ">" in pattern:
            self._found.clear()
        else:
            self._found.pop(pattern, None)

    def match(self, topic: str) -> tuple[T, ...]:
        """Return every value under a pattern that matches ``topic``, each once, in the order of the patterns' depth."""
        found = self._found.get(topic)
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            found = self._found[topic] = self._match(topic.split("."))
        return found

    def _match(self, tokens: list[str]) -> tuple[T, ...]:
        found: dict[int, T] = {}
        branches = [self._root]
        for token in tokens:
            following: list[_Branch[T]] = []
            for branch in branches:
                for value in branch.rest:
                    found.setdefault(id(value), value)
                for name in (token, "*"):
                    child = branch.children.get(name)
                    if child is not None:
                        following.append(child)
            branches = following
        for branch in branches:
            for value in branch.here:
                found.setdefault(id(value), value)
        return tuple(found.values())
