from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import ConfigError
from iris.security.identity.permissions import MAX_PATTERN, MAX_PATTERNS, Rights, covers

TOKENS = ["a", "b", "*"]
PATTERNS = [".".join(tokens) for size in (1, 2, 3) for tokens in itertools.product(TOKENS, repeat=size)] + [
    ".".join([*tokens, ">"]) for size in (0, 1, 2) for tokens in itertools.product(TOKENS, repeat=size)
]
TOPICS = [".".join(tokens) for size in (1, 2, 3, 4) for tokens in itertools.product("abc", repeat=size)]


def matches(pattern: str, topic: str) -> bool:
    """The meaning of a pattern, spelled out for topics only."""
    tokens, words = pattern.split("."), topic.split(".")
    if tokens[-1] == ">":
        if len(words) < len(tokens):
            return False
        tokens, words = tokens[:-1], words[: len(tokens) - 1]
    return len(tokens) == len(words) and all(t in ("*", w) for t, w in zip(tokens, words, strict=True))


def test_a_pattern_covers_another_exactly_if_it_matches_all_that_the_other_matches() -> None:
    """Over every pattern of up to three tokens, against its meaning on every topic of up to four."""
    topics = {pattern: {topic for topic in TOPICS if matches(pattern, topic)} for pattern in PATTERNS}
    for allowed, wanted in itertools.product(PATTERNS, repeat=2):
        assert covers(allowed, wanted) is (topics[wanted] <= topics[allowed]), (allowed, wanted)
    for allowed, topic in itertools.product(PATTERNS, TOPICS):
        assert covers(allowed, topic) is matches(allowed, topic), (allowed, topic)


@given(st.text(alphabet="ab.*>", max_size=12), st.text(alphabet="ab.*>", max_size=12))
def test_malformed_patterns_never_raise(allowed: str, wanted: str) -> None:
    covers(allowed, wanted)


def test_by_default_a_cluster_serves_itself_and_speaks_freely() -> None:
    rights = Rights()
    assert not rights.may_serve("orders")
    assert rights.may_publish("orders.created")
    assert rights.may_subscribe(">")
    assert not rights.gateway


def test_rights_restrict_what_they_name() -> None:
    rights = Rights(serves=("billing.*",), publishes=("orders.>", "audit"), subscribes=())
    assert rights.may_serve("billing.eu")
    assert not rights.may_serve("billing")
    assert rights.may_publish("orders.created")
    assert rights.may_publish("audit")
    assert not rights.may_publish("billing.paid")
    assert not rights.may_subscribe("orders.created")
    assert not rights.may_subscribe("*")


def test_subscribing_to_more_than_allowed_is_not_allowed() -> None:
    rights = Rights(subscribes=("orders.*",))
    assert rights.may_subscribe("orders.created")
    assert rights.may_subscribe("orders.*")
    for wider in ("orders.>", ">", "*.created", "*.*"):
        assert not rights.may_subscribe(wider)


@pytest.mark.parametrize(
    "pattern", ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b", "a" * (MAX_PATTERN + 1), "a\x9b", "a b"]
)
def test_malformed_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="not a pattern"):
        Rights(publishes=(pattern,))


def test_the_number_of_patterns_is_limited() -> None:
    Rights(publishes=("a",) * MAX_PATTERNS)
    with pytest.raises(ConfigError, match="the limit is 256"):
        Rights(publishes=("a",) * (MAX_PATTERNS + 1))
