"""Topics of MQTT and of Iris: what stands for what, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.doors import Problem
from iris.doors.mqtt.topics import RequestedTopic, name_of, topic_of, wanted_of
from iris.kernel.topic_syntax import is_pattern, is_topic


@pytest.mark.parametrize(
    ("name", "topic"),
    [("a", "a"), ("a/b/c", "a.b.c"), ("ä/1$", "ä.1$"), ("a b/c.d", "a%20b.c%2Ed"), ("/a//b/", "%00.a.%00.b.%00")],
)
def test_names_are_topics_and_back(name: str, topic: str) -> None:
    assert topic_of(name) == topic
    assert name_of(topic) == name


BAD_NAMES = (
    "", "a/%00", "a%20b", "a%2Eb", "a\tb", "$SYS/x", "a/+", "#", "a/*", ">", "a\n", "\ud800", "x" * 257,
    "/".join(["a"] * 33),
)  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_no_topics_are_refused(name: str) -> None:
    with pytest.raises(Problem) as caught:
        topic_of(name)
    assert caught.value.code == "bad_topic"


@pytest.mark.parametrize("topic", ["a/b", "0123/a.b", "a+", "#a", "$SYS.a"])
def test_topics_that_have_no_name_are_not_told(topic: str) -> None:
    assert is_topic(topic)
    assert name_of(topic) is None


FILTERS = [
    ("a/b", ("a.b",)),
    ("a b/+/c.d/#", ("a%20b.*.c%2Ed", "a%20b.*.c%2Ed.>")),
    ("+", ("*",)),
    ("+/b/+", ("*.b.*",)),
    ("#", (">",)),
    ("/", ("%00.%00",)),
    ("/+/#", ("%00.*", "%00.*.>")),
    ("a/#", ("a", "a.>")),
    ("+/#", ("*", "*.>")),
]


@pytest.mark.parametrize(("text", "patterns"), FILTERS)
def test_filters_are_patterns(text: str, patterns: tuple[str, ...]) -> None:
    assert wanted_of(text, sharing=True) == RequestedTopic(patterns)
    assert wanted_of(f"$share/g-1/{text}", sharing=True) == RequestedTopic(patterns, "g-1")
    with pytest.raises(Problem):
        wanted_of(f"$share/g-1/{text}", sharing=False)


BAD_FILTERS = (
    "", "a%00/#", "#/a", "a/#/b", "a#", "a+/b", "+a", "*", "a/*", ">", "a/>", "a%20b", "a/%2E/#", "a\tb", "$SYS/#",
    "$share/g", "$share/g/", "$share", "$share/g/$SYS", "/".join(["a"] * 33),
    "/".join(["a"] * 32) + "/#",
)  # fmt: skip


@pytest.mark.parametrize("text", BAD_FILTERS)
def test_filters_that_are_no_patterns_are_refused(text: str) -> None:
    with pytest.raises(Problem) as caught:
        wanted_of(text, sharing=True)
    assert caught.value.code == "bad_topic"


PIECES = st.lists(
    st.sampled_from(["a", "ä", "+", "#", "*", ">", ".", "/", "$", " ", "%", "2", "0", "E", "$share/"]), max_size=12
)


@given(PIECES.map("".join))
def test_whatever_is_taken_is_what_iris_takes(text: str) -> None:
    try:
        topic = topic_of(text)
    except Problem:
        pass
    else:
        assert is_topic(topic)
        assert name_of(topic) == text
    try:
        wanted = wanted_of(text, sharing=True)
    except Problem:
        pass
    else:
        assert all(map(is_pattern, wanted.patterns))
        assert text.count("+") >= sum(pattern.split(".").count("*") for pattern in wanted.patterns[:1])
