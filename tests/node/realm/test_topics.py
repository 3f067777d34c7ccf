"""Subscribers and publishers of each topic, as a survey finds them."""

from __future__ import annotations

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
from iris.kernel.wire.payload import payload_size
from iris.node.realm import TopicsSurvey
from iris.node.realm.checks import fault_of_topics
from iris.node.report import MOST_TOPICS, PublishedReport, SubscriptionReport, TopicsReport, topics_of
from iris.patterns.payloads import encoded
from iris.security.identity import Rights
from iris.testing import open_network


async def _take(events: iris.Subscription) -> None:
    async for _ in events:
        pass


async def test_patterns_have_their_subscribers_publishers_and_rates(autojump_clock: MockClock) -> None:
    async with (
        open_network() as network,
        network.open_node("ear") as one,
        network.open_node("ear") as two,
        network.open_node("shop") as shop,
        network.open_node("operator") as operator,
        one.subscribe("orders.>") as first,
        two.subscribe("orders.>") as second,
        two.subscribe("orders.*", group="billing") as shared,
        trio.open_nursery() as nursery,
    ):
        for events in (first, second, shared):
            nursery.start_soon(_take, events)
        survey = TopicsSurvey(operator)
        await shop.publish("lonely", b"")
        await survey.collect()
        for number in range(10):
            await shop.publish("orders.new", number)
            await shop.publish("orders.new.big", number)
            await shop.publish("lonely", number)
        await trio.sleep(2)
        view = await survey.collect()
        rows = {(row.pattern, row.group): row for row in view.patterns}
        assert rows.keys() == {("orders.>", None), ("orders.*", "billing"), ("lonely", None)}
        every, group, lonely = rows["orders.>", None], rows["orders.*", "billing"], rows["lonely", None]
        assert every.subscribers == tuple(sorted((one.id, two.id)))
        assert every.publishers == (shop.id,)
        assert every.delivered_rate == pytest.approx(20, rel=0.05)
        assert every.published_rate == pytest.approx(10, rel=0.05)
        assert group.subscribers == (two.id,)
        assert group.delivered_rate == pytest.approx(5, rel=0.05)
        assert (lonely.subscribers, lonely.publishers, lonely.lost) == ((), (shop.id,), 0)
        assert lonely.published_rate == pytest.approx(5, rel=0.05)
        assert (view.silent, view.omitted) == ({}, 0)
        nursery.cancel_scope.cancel()


async def test_what_waits_and_what_was_dropped_is_told(autojump_clock: MockClock) -> None:
    async with (
        open_network() as network,
        network.open_node("ear") as ear,
        network.open_node("shop") as shop,
        network.open_node("operator") as operator,
        ear.subscribe("orders", limits=iris.SubscriptionLimits(events=4)),
    ):
        for number in range(10):
            await shop.publish("orders", number)
        await trio.sleep(1)
        (row,) = (await TopicsSurvey(operator).collect()).patterns
        assert (row.waiting, row.lost, row.delivered_rate) == (4, 6, 0.0)


async def test_topics_are_told_to_who_may_see_the_survey_and_to_nobody_else(autojump_clock: MockClock) -> None:
    async with open_network() as network, network.open_node("shop") as shop:
        network.credential("guest", Rights())
        async with network.open_node("guest") as guest:
            await trio.sleep(1)
            view = await TopicsSurvey(guest).collect()
            assert view.patterns == ()
            assert "does not serve cluster 'guest'" in view.silent[shop.id]


def test_a_report_of_topics_is_bounded() -> None:
    report = topics_of((), ((f"{n}." + "x" * 240, n, 0) for n in range(1000)))
    assert [of.published for of in report.published] == list(range(999, 999 - MOST_TOPICS, -1))
    assert report.omitted == 1000 - MOST_TOPICS
    payload = encoded(structs.replace(report, subscribed=[_subscription("y" * 250)] * MOST_TOPICS), 2**20)
    assert payload_size(payload) < 256 * 1024


def _subscription(pattern: str, received: int = 0) -> SubscriptionReport:
    return SubscriptionReport(
        pattern=pattern, group=None, durable=False, subscriptions=1, received=received, delivered=0, lost=0, waiting=0
    )


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (TopicsReport(subscribed=[_subscription("a..b")], published=[], omitted=0), "no pattern"),
        (TopicsReport(subscribed=[_subscription("a", -1)], published=[], omitted=0), "subscribed is -1"),
        (TopicsReport(subscribed=[_subscription("a")] * 1000, published=[], omitted=0), "more than 128"),
        (
            TopicsReport(subscribed=[], published=[PublishedReport(topic="a.>", published=1, lost=0)], omitted=0),
            "no topic",
        ),
    ],
)
async def test_a_report_that_cannot_be_is_refused(
    report: TopicsReport, text: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert text in (fault_of_topics(report) or "")

    async def lie(*_: object) -> TopicsReport:
        return report

    monkeypatch.setattr("iris.node.realm.topics.ask_topics", lie)
    async with open_network() as network, network.open_node("shop") as liar, network.open_node("operator") as operator:
        await trio.sleep(1)
        view = await TopicsSurvey(operator).collect()
        assert view.patterns == ()
        assert text in view.silent[liar.id]
        assert operator.statistics().refusals["report of a node that cannot be"] == 1
