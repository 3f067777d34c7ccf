"""How long publishers wait for subscribers elsewhere: gateways that name nodes which do not answer stop nobody."""

from __future__ import annotations

import contextlib

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.directory.messages import TOPIC, Export, Hop, RouteAdvertisement, split_exports
from iris.cluster.sites.remote_links import _in_turns
from iris.cluster.sites.reports import ExportDoubts
from iris.cluster.sites.wait_budget import WINDOW, WaitBudget
from iris.kernel.errors import RequestTimeout
from iris.kernel.names import NodeId
from tests.support.federations import Heard, open_federation, reports_of

REALM, OTHER = "0a" * 16, "0b" * 16


def test_a_site_is_waited_for_so_long_in_a_window_and_others_as_before() -> None:
    patience = WaitBudget(5.0)
    assert patience.left("eu", 100.0) == 5.0
    patience.spend("eu", 100.0, 103.0)
    assert (patience.left("eu", 104.0), patience.left("us", 104.0)) == (2.0, 5.0)
    patience.spend("eu", 104.0, 106.0)
    assert patience.left("eu", 107.0) == 0.0
    assert patience.left("us", 107.0) == 5.0
    assert patience.left("eu", 99.9 + WINDOW) == 0.0
    assert patience.left("eu", 100.0 + WINDOW) == 5.0


def test_however_many_names_of_sites_are_made_up_a_publisher_waits_for_two_of_them() -> None:
    patience = WaitBudget(5.0)
    now, waited = 0.0, 0.0
    for number in range(10_000):
        left = patience.left(f"x{number}", now)
        if left > 0:
            patience.spend(f"x{number}", now, now + left)
            now, waited = now + left, waited + left
        now += 0.01
    windows = now // WINDOW + 1
    assert waited <= windows * 10.0
    assert len(patience) < 100, "what nobody waits for takes no memory"
    assert patience.left(f"{REALM}/eu", now) == 5.0


def test_another_realm_is_waited_for_as_one_site_and_takes_nothing_of_this_one() -> None:
    patience = WaitBudget(5.0)
    patience.spend(f"{REALM}/eu", 0.0, 5.0)
    assert patience.left(f"{REALM}/ap", 1.0) == 0.0
    assert (patience.left(f"{OTHER}/eu", 1.0), patience.left("eu", 1.0)) == (5.0, 5.0)


def test_who_waits_at_the_same_time_as_others_holds_up_nothing_more() -> None:
    patience = WaitBudget(5.0)
    for since, until in ((10.0, 12.0), (10.0, 12.0), (11.0, 13.0), (10.5, 12.5)):
        patience.spend("eu", since, until)
    assert patience.left("eu", 14.0) == 2.0


def test_of_sites_that_are_over_none_is_remembered_when_there_are_many() -> None:
    patience = WaitBudget(5.0)
    for number in range(5_000):
        patience.spend(f"x{number}", number * 1.0, number + 0.5)
    assert len(patience) <= 1024 + 1


def test_each_site_has_its_turn() -> None:
    named = [("b", NodeId(f"{number:032x}")) for number in range(5)]
    other = ("a", NodeId("f" * 32))
    turns = list(_in_turns([*named, other]))
    assert sorted(turns) == sorted([*named, other])
    assert turns.index(other) == 1


@pytest.mark.parametrize("names", [1, 10])
async def test_a_gateway_that_names_nodes_which_never_answer_does_not_stop_publishers(
    autojump_clock: MockClock, names: int
) -> None:
    """Ever new ones, at one site or at ever new ones, which it says are behind it."""
    heard: list[Heard] = []
    async with open_federation(seed=3) as federation:
        await federation.mesh("eu", "us", "ap")
        await federation.wait_for_sites("eu", "us", "ap")
        ear = await federation.listen("us", "orders.>", heard)
        till = await federation.node("eu", "till")
        own = Hop("ap", federation.nodes["ap-gateway"].id)
        hostile = federation.gateways["ap-gateway"]
        federation.alter_frames(hostile, lambda _: [])  # frames for those end there
        link = federation.between[hostile].peers[federation.nodes["eu-gateway"].id].link
        await trio.sleep(2)
        await till.publish("orders.new", -1)
        stood = 0.0
        began = trio.current_time()
        for turn in range(40):
            site = Hop(f"x{turn % names}", NodeId(f"{99 + turn % names:032x}"))
            wanted = [Export(TOPIC, "orders.>", f"{1000 * turn + number:032x}") for number in range(3)]
            link.post(RouteAdvertisement(site, (own, site)).message(), 50)
            for part in split_exports(site, 0, 1 + turn, wanted, ()):
                link.post(part.message(), 200)
            await trio.sleep(0.5)
            mark = trio.current_time()
            await till.publish("orders.new", turn)
            stood += trio.current_time() - mark
        passed = trio.current_time() - began
        assert stood <= (passed // WINDOW + 1) * (5.0 if names == 1 else 10.0)
        assert stood >= 5.0, "it was waited for"
        await trio.sleep(2)
        assert [event.payload for event in heard] == list(range(-1, 40))
        published = till.statistics().publishing
        assert published.sent == published.handed_over + sum(published.lost.values())
        assert published.lost["no link to another site yet"] == sum(3 * min(turn + 1, names) for turn in range(40))
        assert till.statistics().links.keys() >= {ear.id}


@pytest.mark.parametrize("confirms", [True, False])
@pytest.mark.parametrize("how", ["publish", "retain", "confirming"])
async def test_the_timeout_of_a_confirmed_event_includes_waiting_for_other_sites(
    autojump_clock: MockClock, how: str, confirms: bool
) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us", "ap")
        await federation.wait_for_sites("eu", "us", "ap")
        events = await federation.enter((await federation.node("us", "store")).subscribe_durable("orders.>"))

        async def confirm() -> None:
            async for event in events:
                await trio.sleep(1)
                await events.confirm([event])

        till = await federation.node("eu", "till")
        own = Hop("ap", federation.nodes["ap-gateway"].id)
        hostile = federation.gateways["ap-gateway"]
        federation.alter_frames(hostile, lambda _: [])  # a node that does not answer
        link = federation.between[hostile].peers[federation.nodes["eu-gateway"].id].link
        exports = [
            *federation.gateway_parts[hostile].advertising.exported.entries,
            Export(TOPIC, "orders.>", f"{7:032x}"),
        ]
        for part in split_exports(
            own, 0, federation.gateway_parts[hostile].advertising.exported.version + 1, exports, ()
        ):
            link.post(part.message(), 200)
        await trio.sleep(1)
        if confirms:
            federation.nursery.start_soon(confirm)
        began = trio.current_time()
        with contextlib.nullcontext() if confirms else pytest.raises(RequestTimeout, match="has confirmed within"):
            if how == "confirming":
                async with till.confirming(timeout=4) as confirming:
                    await confirming.publish("orders.new", b"paid")
            else:
                publish = till.retain_confirmed if how == "retain" else till.publish_confirmed
                await publish("orders.new", b"paid", timeout=4)
        assert trio.current_time() - began == pytest.approx(3.1 if confirms else 4.1, abs=0.11)


async def test_a_node_that_never_answers_does_not_cost_every_confirmed_event_half_its_timeout(
    autojump_clock: MockClock,
) -> None:
    async with open_federation() as federation:
        await federation.mesh("eu", "us", "ap")
        await federation.wait_for_sites("eu", "us", "ap")
        events = await federation.enter((await federation.node("us", "store")).subscribe_durable("orders.>"))

        async def confirm() -> None:
            async for event in events:
                await events.confirm([event])

        federation.nursery.start_soon(confirm)
        till = await federation.node("eu", "till")
        own = Hop("ap", federation.nodes["ap-gateway"].id)
        hostile = federation.gateways["ap-gateway"]
        federation.alter_frames(hostile, lambda _: [])  # a node that does not answer
        link = federation.between[hostile].peers[federation.nodes["eu-gateway"].id].link
        exports = [
            *federation.gateway_parts[hostile].advertising.exported.entries,
            Export(TOPIC, "orders.>", f"{7:032x}"),
        ]
        for part in split_exports(
            own, 0, federation.gateway_parts[hostile].advertising.exported.version + 1, exports, ()
        ):
            link.post(part.message(), 200)
        await trio.sleep(1)
        began = trio.current_time()
        stood = 0.0
        while trio.current_time() < began + 3 * WINDOW:
            mark = trio.current_time()
            await till.publish_confirmed("orders.new", b"paid", timeout=8)
            stood += trio.current_time() - mark
            await trio.sleep(0.5)
        assert 5.0 <= stood <= 4 * 5.5, "in each window the site is waited for once"


def test_clusters_that_are_not_believed_are_counted_and_reported_once_and_not_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    doubts = ExportDoubts()
    node = NodeId("1" * 32)
    assert doubts.note("ap", node, {"store", "safe"}) == 2
    assert doubts.note("ap", node, {"store", "safe"}) == 0
    for number in range(1_000):
        assert doubts.note("ap", node, {"store", f"c{number}"}) == 1
    assert doubts.note("ap", node, {"store", "c999"}) == 0
    assert doubts.note("ap", node, {"store", "c998"}) == 1, "what was before is not kept"
    assert repr(doubts) == "<ExportDoubts about 1 nodes>"
    assert len(reports_of(caplog, "which it has no right to be")) == 1
    assert doubts.note("ap", node, set()) == 0
    assert repr(doubts) == "<ExportDoubts about 0 nodes>"
    for number in range(1_000):
        doubts.note(f"x{number}", node, {"store"})
        doubts.forget(node)
    assert repr(doubts) == "<ExportDoubts about 0 nodes>"
    assert len(reports_of(caplog, "which it has no right to be")) == 100
