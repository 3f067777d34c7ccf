"""Topics and patterns: what they may be, and which patterns match a topic."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import ConfigError
from iris.kernel.topic_syntax import is_own_topic
from iris.patterns.pubsub.interest import topics
from iris.patterns.pubsub.interest.topics import (
    MAX_TOKENS,
    Matcher,
    check_pattern,
    check_topic,
    is_pattern,
    is_topic,
    shape_of,
)

DEEP = ".".join("x" * MAX_TOKENS)
"""Topic with as many tokens as there may be."""

TOPICS = [
    "a",
    "orders.created",
    "a.b.c.d",
    "ä.ö",
    "a-b_c:d@e",
    "1.2",
    "x" * 256,
    "$SYS",
    "日本.東京",
    "🛫.\u200d",
    DEEP,
]
PATTERNS = [
    "*",
    ">",
    "a.*",
    "*.a",
    "*.*",
    "a.>",
    "*.>",
    "a.*.b.>",
    "orders.*.created",
    DEEP[:-1] + ">",
    DEEP[:-1] + "*",
]
NEITHER = [
    "",
    ".",
    "a.",
    ".a",
    "a..b",
    "a b",
    "a.\t",
    "a\n",
    "\x00",
    "a.\x7f",
    "x" * 257,
    "ä" * 129,
    "\ud800",
    "a.\udfff",
    f"{DEEP}.x",
    "x." * 500_000,
    *(f"a.b{control}c" for control in "\x1b\x80\x85\x9b\x9f"),
    *(f"a.{mark}b" for mark in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"),
]
NO_PATTERNS = [f"{DEEP}.>", f"{DEEP}.*", "a*", "*a", "a.b*", ">.a", "a.>.b", "a>", ">>", "**", "a.**", *NEITHER]


@pytest.mark.parametrize("topic", TOPICS, ids=repr)
def test_topics(topic: str) -> None:
    assert is_topic(topic)
    assert is_pattern(topic)
    assert check_topic(topic) == topic
    if "/" not in topic:  # subscribers name realms so
        assert check_pattern(topic) == topic


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_patterns(pattern: str) -> None:
    assert is_pattern(pattern)
    assert check_pattern(pattern) == pattern
    assert not is_topic(pattern)
    with pytest.raises(ConfigError, match="is not a topic"):
        check_topic(pattern)


@pytest.mark.parametrize("text", NO_PATTERNS, ids=lambda text: repr(text)[:30])
def test_what_is_no_pattern(text: str) -> None:
    assert not is_pattern(text)
    with pytest.raises(ConfigError, match="is not a topic pattern"):
        check_pattern(text)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("sensors/+", "wildcards of MQTT.*use 'sensors.\\*'"),
        ("sensors.#", "wildcards of MQTT.*use 'sensors.>'"),
        ("#", "wildcards of MQTT.*use '>'"),
        ("+.heat", "wildcards of MQTT.*use '\\*.heat'"),
        ("a/+/b/#", "wildcards of MQTT.*use 'a.\\*.b.>'"),
        ("acme/orders.>", "no realm is trusted here by the name of 'acme'"),
        ("plants/one/heat", "for topics of this realm use 'plants.one.heat'"),
        ("/heat", "no realm is trusted here by the name of ''"),
    ],
)
def test_a_pattern_that_would_match_nothing_that_is_meant_is_refused(pattern: str, said: str) -> None:
    assert is_pattern(pattern), "peers may say so"
    with pytest.raises(ConfigError, match=said):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "text", ["sensors/+", "sensors.+", "a.#.b", "#", "plants/one/heat", "/heat", "heat/", "acme/a", "/"]
)
def test_what_nobody_can_subscribe_to_by_its_name_nobody_publishes_on(text: str) -> None:
    assert is_topic(text), "peers may say so"
    assert not is_own_topic(text)
    for check in (check_topic, check_pattern):
        with pytest.raises(ConfigError, match=r"wildcards of MQTT|for topics of this realm use '"):
            check(text)


@pytest.mark.parametrize("text", ["a+b.c#", "c#.d", "++", "$a.b", "é.+b"])
def test_other_topics_are_published_on_and_subscribed_to_by_their_names(text: str) -> None:
    assert is_own_topic(text)
    assert check_topic(text) == check_pattern(text) == text


@pytest.mark.parametrize("pattern", ["a+b.c#", "c#.d", "++", "a.+b.>"])
def test_words_with_characters_of_wildcards_are_words(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("value", [*NO_PATTERNS, None, 1, b"a", ("a",)], ids=lambda value: repr(value)[:30])
def test_what_is_no_topic(value: object) -> None:
    assert not is_topic(value)


# -- the matcher against a model ---------------------------------------------------------------------------

tokens = st.sampled_from(["a", "b", "c"])
any_topic = st.lists(tokens, min_size=1, max_size=4).map(".".join)
any_pattern = st.one_of(
    st.just(">"),
    st.tuples(st.lists(tokens | st.just("*"), min_size=1, max_size=4), st.booleans()).map(
        lambda drawn: ".".join(drawn[0]) + (".>" if drawn[1] else "")
    ),
)


def matches(pattern: list[str], topic: list[str]) -> bool:
    """The definition, word for word."""
    if not pattern:
        return not topic
    if not topic:
        return False
    if pattern == [">"]:
        return True
    return pattern[0] in ("*", topic[0]) and matches(pattern[1:], topic[1:])


class Value:
    """Something with an identity."""


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "remove", "match", "match"]), any_pattern, st.integers(0, 3), any_topic
        )
    )
)
def test_the_matcher_finds_what_the_definition_says(steps: list[tuple[str, str, int, str]]) -> None:
    matcher: Matcher[Value] = Matcher()
    values = [Value() for _ in range(4)]
    model: list[tuple[str, Value]] = []
    for step, pattern, number, topic in steps:
        value = values[number]
        if step == "add":
            matcher.add(pattern, value)
            model.append((pattern, value))
        elif step == "remove":
            if (pattern, value) in model:
                matcher.remove(pattern, value)
                model.remove((pattern, value))
            else:
                with pytest.raises(KeyError):
                    matcher.remove(pattern, value)
        else:
            found = matcher.match(topic)
            expected = {value for known, value in model if matches(known.split("."), topic.split("."))}
            assert len(found) == len(expected)
            assert set(found) == expected
        assert len(matcher) == len(model)
    for known, value in model:
        matcher.remove(known, value)
    assert len(matcher) == 0
    assert not matcher._patterns  # nothing is left of patterns that were taken out
    assert not matcher._repeated
    assert not matcher.shapes


def test_a_value_under_several_patterns_is_found_once() -> None:
    matcher: Matcher[str] = Matcher()
    for pattern in ("a.b", "a.*", "*.b", "a.>", ">", "*.*"):
        matcher.add(pattern, "value")
    assert matcher.match("a.b") == ("value",)
    assert matcher.match("a") == ("value",)


def test_what_was_found_once_is_found_again_after_every_change() -> None:
    matcher: Matcher[str] = Matcher()
    for pattern in ("a.b", "a.*", ">"):
        before = matcher.match("a.b")
        matcher.add(pattern, pattern)
        assert set(matcher.match("a.b")) == {*before, pattern}
    matcher.remove("a.*", "a.*")
    assert set(matcher.match("a.b")) == {"a.b", ">"}
    assert matcher.match("b") == (">",)


def test_memory_of_matches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_REMEMBERED", 10)
    matcher: Matcher[str] = Matcher()
    matcher.add("a.>", "value")
    for number in range(100):
        assert matcher.match(f"a.{number}") == ("value",)
        assert len(matcher._found) <= 10


def many_patterns() -> Iterator[str]:
    for number in range(50_000):
        yield f"orders.{number}.created"
        yield f"orders.{number}.>"


def test_the_cost_of_a_match_does_not_grow_with_the_number_of_patterns() -> None:
    matcher: Matcher[int] = Matcher()
    for number, pattern in enumerate(many_patterns()):
        matcher.add(pattern, number)
    assert len(matcher) == 100_000
    assert len(matcher.match("orders.77.created")) == 2
    assert list(matcher._candidates("orders.77.created")) == ["orders.77.created", "orders.77.>"]


def test_a_match_looks_once_at_each_shape_of_patterns() -> None:
    matcher: Matcher[str] = Matcher()
    for tokens in itertools.product("*ab", repeat=5):
        matcher.add(".".join(tokens), ".".join(tokens))
    assert len(matcher) == 3**5
    assert len(matcher.shapes) == 2**5 - 1
    assert len(list(matcher._candidates("a.b.a.b.c"))) == 2**5
    assert len(matcher.match("a.b.a.b.c")) == 2**4
    assert matcher.match("a.b.a.b") == ()


def test_patterns_of_many_tokens_take_one_place_each() -> None:
    matcher: Matcher[int] = Matcher()
    for number in range(1000):
        matcher.add(f"{number}.{DEEP[:-4]}.>", number)
    assert len(matcher._patterns) == 1000
    assert len(matcher.shapes) == 1
    assert matcher.match(f"7.{DEEP[:-2]}") == (7,)


@pytest.mark.parametrize(
    ("pattern", "shape"),
    [
        ("a.b", None),
        (">", (0, True, ())),
        ("*", (1, False, (0,))),
        ("a.>", (1, True, ())),
        ("*.b.*.>", (3, True, (0, 2))),
        ("a.*", (2, False, (1,))),
    ],
)
def test_a_shape_says_where_the_wildcards_are(pattern: str, shape: tuple[int, bool, tuple[int, ...]] | None) -> None:
    assert shape_of(pattern) == shape


def test_what_no_pattern_was_asked_for_is_not_remembered() -> None:
    matcher: Matcher[int] = Matcher()
    assert matcher.match("a") == ()
    assert not matcher.remembered
    matcher.add("b", 1)
    assert matcher.match("a") == ()
    assert list(matcher.remembered) == ["a"]
