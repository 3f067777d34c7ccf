"""Events between two realms: which subscriber receives which publisher's, under which name, and no other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.cluster.directory.messages import TOPIC
from iris.federation.policy import Policy
from iris.kernel import wire
from iris.kernel.errors import ConfigError, NotAllowed
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.support.federations import EVERYTHING, Heard, echo
from tests.support.messages import raw
from tests.support.two_realms import Realms, open_realms

ORDERS = ("orders.>",)


async def wait_until(true: Callable[[], object], within: float = 10.0) -> None:
    """Wait, in virtual time, until something holds."""
    with trio.fail_after(within):
        while not true():  # noqa: ASYNC110 -- virtual time
            await trio.sleep(0.05)


async def publisher_of(realms: Realms, ears: int, *, name: str = "till") -> iris.Node:
    """Bring up a node over there that knows of so many subscribers of ours."""
    till = await realms.theirs.node("eu", name)
    sites = realms.ours.sites(till)
    await wait_until(lambda: len(sites.directory.subscribers()) >= ears)
    return till


async def test_events_of_another_realm_come_under_its_alias_each_once_and_in_order(autojump_clock: MockClock) -> None:
    heard: list[Heard] = []
    async with open_realms() as realms:
        realms.introduce(topics=ORDERS)
        await realms.link()
        await realms.ours.gateway("ap", to=["eu-gateway"])
        for site in ("eu", "eu", "ap"):
            await realms.ours.listen(site, "acme/orders.>", heard)
        await realms.ours.listen("eu", ">", heard)
        till = await publisher_of(realms, 3)
        crossed: list[bool] = []
        gateway = realms.ours.gateways["eu-gateway"]
        realms.ours.watch_frames(gateway, lambda message, _: crossed.append(isinstance(message, kinds.Copy)))
        for number in range(20):
            await till.publish("orders.new", {"number": number})
            await trio.sleep(0.01)
        await wait_until(lambda: len(heard) >= 60)
        await trio.sleep(5)
        assert len(heard) == 60, "and nobody who listens to our own topics only"
        assert {event.topic for event in heard} == {"acme/orders.new"}
        assert sum(event.missed for event in heard) == 0
        for site, ears in (("eu", 2), ("ap", 1)):
            numbers = [event.payload["number"] for event in heard if event.site == site]
            assert sorted(numbers) == sorted([*range(20)] * ears)
        border = realms.theirs.gateways["acme-eu-gateway"].statistics()
        assert border.refused == {}
        abroad = realms.parts[till.id].patterns.pubsub.publishing.remote_sites
        assert abroad is not None
        assert (abroad.frames, abroad.keys, sum(crossed)) == (20, 1, 20), "sealed once for all, and one copy crosses"


async def test_the_publisher_is_told_by_its_name_here_and_may_be_chosen(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce(topics=ORDERS)
        await realms.link()
        ear = await realms.ours.node("eu", "ear")
        async with (
            ear.subscribe("acme/orders.>", allow=["acme/till"]) as chosen,
            ear.subscribe("acme/orders.*") as all_,
        ):
            till = await publisher_of(realms, 1)
            other = await publisher_of(realms, 1, name="other")
            await till.publish("orders.new", 1)
            await wait_until(lambda: chosen.statistics().received)
            event = await anext(aiter(chosen))
            sender = event.sender
            assert (event.topic, sender.cluster, sender.realm) == ("acme/orders.new", "acme/till", "acme")
            assert sender.node == till.id
            await other.publish("orders.new", 2)
            await wait_until(lambda: all_.statistics().received == 2)
            assert chosen.statistics().refused == 1


@pytest.mark.parametrize(
    ("topics", "imported", "gateway", "heard"),
    [
        (("orders.>",), None, EVERYTHING, True),
        (("orders.new",), None, EVERYTHING, False),
        ((), None, EVERYTHING, False),
        ((">",), ("stock.>",), EVERYTHING, False),
        (("orders.>",), None, Policy(exports=(">",), export_topics=("stock.>",)), False),
        (("orders.>",), None, Policy(exports=(">",)), False),
    ],
)
async def test_events_cross_if_every_list_has_them(
    topics: tuple[str, ...],
    imported: tuple[str, ...] | None,
    gateway: Policy,
    heard: bool,
    autojump_clock: MockClock,
) -> None:
    async with open_realms() as realms:
        realms.introduce(topics=topics, import_topics=imported)
        await realms.link(policy=gateway)
        ear = await realms.ours.node("eu", "ear")
        till = await realms.theirs.node("eu", "till")
        if topics != ORDERS:
            with pytest.raises(NotAllowed, match="are not exported by realm 'acme', or not imported here"):
                async with ear.subscribe("acme/orders.>"):
                    pass
            return
        async with ear.subscribe("acme/orders.>") as events:
            await trio.sleep(3)
            await till.publish("orders.new", 1)
            await trio.sleep(3)
            assert events.statistics().received == heard
            assert realms.parts[till.id].patterns.pubsub.statistics().without_subscriber == (not heard)


async def test_our_gateways_may_keep_topics_of_another_realm_out(autojump_clock: MockClock) -> None:
    narrow = Policy(exports=(">",), import_topics=("acme/stock.>",))
    async with open_realms() as realms:
        realms.introduce(topics=(">",))
        await realms.theirs.gateway("eu")
        await realms.ours.gateway("eu", to=["acme/acme-eu-gateway"], policy=narrow)
        ear = await realms.ours.node("eu", "ear")
        async with ear.subscribe("acme/stock.>") as stock, ear.subscribe("acme/orders.>") as orders:
            till = await publisher_of(realms, 1)
            await till.publish("stock.eu", 1)
            await till.publish("orders.eu", 1)
            await wait_until(lambda: stock.statistics().received)
            await trio.sleep(3)
            assert orders.statistics().received == 0


async def test_what_cannot_be_is_one_clear_error(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce(topics=(">",))
        await realms.link()
        ear = await realms.ours.node("eu", "ear")
        with pytest.raises(ConfigError, match="'acme' is another realm, and each publishes on topics of its own"):
            await ear.publish("acme/orders.new", b"x")
        with pytest.raises(ConfigError, match="'acme' is another realm, and each publishes on topics of its own"):
            async with ear.confirming() as confirmed:
                await confirmed.publish("acme/orders.new", b"x")
        with pytest.raises(ConfigError, match=r"for topics of this realm use 'else\.orders\.new'"):
            await ear.publish("else/orders.new", b"no realm is called so, and nobody could subscribe to it by its name")
        for pattern in ("acme/>", "acme/*.new", "acme/", "acme/..", "acme/orders." + "x" * 220):
            with pytest.raises(ConfigError, match="no pattern of topics of another realm"):
                async with ear.subscribe(pattern):
                    pass
        options: list[dict[str, object]] = [{"group": "g"}, {"overflow": "wait"}]
        for option in options:
            with pytest.raises(ConfigError, match="has no group, is not durable"):
                async with ear.subscribe("acme/orders.>", **option):  # type: ignore[arg-type]
                    pass
        with pytest.raises(ConfigError, match="has no group, is not durable"):
            async with ear.subscribe_durable("acme/orders.>"):
                pass
        homeless = await realms.ours.node(None, "homeless")
        with pytest.raises(ConfigError, match="open it with site='NAME'"):
            async with homeless.subscribe("acme/orders.>"):
                pass


async def test_nothing_of_ours_is_told_there_and_nobody_is_waited_for(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce(topics=(">",))
        await realms.link()
        shop = await realms.shop(echo("databases"))
        assert await shop.request("acme/databases", 1) == 1  # the two are linked
        member = realms.theirs.nodes["acme-eu-databases"]
        began = trio.current_time()
        async with member.subscribe(">") as events, shop.subscribe("own.>"), shop.subscribe("acme/orders.>"):
            assert trio.current_time() - began < 1
            table = realms.parts[member.id].patterns.pubsub._table
            await wait_until(lambda: table.terms_of(shop.id))
            assert [terms.pattern for terms in table.terms_of(shop.id)] == ["orders.>"]
            assert list(realms.parts[shop.id].patterns.pubsub._table.terms_of(member.id)) == []
            await shop.publish("orders.created", b"secret")
            await trio.sleep(5)
            assert events.statistics().received == 0
        await wait_until(lambda: not table.terms_of(shop.id))
        for node in (shop, member):
            assert node.statistics().refusals.get("message of a kind that is not taken", 0) == 0


async def test_who_has_gone_or_is_distrusted_has_no_key_of_what_comes_after(autojump_clock: MockClock) -> None:
    heard: list[Heard] = []
    async with open_realms() as realms:
        realms.introduce(topics=ORDERS)
        await realms.link()
        leaver = await realms.ours.listen("eu", "acme/orders.>", heard)
        await realms.ours.listen("eu", "acme/orders.>", heard)
        home: list[Heard] = []
        await realms.theirs.gateway("us", to=["acme-eu-gateway"])
        await realms.theirs.listen("us", "orders.>", home)
        till = await publisher_of(realms, 3)
        abroad = realms.parts[till.id].patterns.pubsub.publishing.remote_sites
        assert abroad is not None
        await till.publish("orders.new", 1)
        await wait_until(lambda: len(heard) == 2 and len(home) == 1)
        keys = abroad.keys
        realms.parts[till.id].mesh.drop(leaver.id, "it is removed")
        await till.publish("orders.new", 2)
        await wait_until(lambda: len(home) == 2)
        assert abroad.keys == keys + 1, "the one that it had is not used again"
        realms.theirs.network.distrust("partner")
        known, handed_over = len(heard), till.statistics().publishing.handed_over
        await till.publish("orders.new", 3)
        await trio.sleep(10)
        assert (len(heard), len(home)) == (known, 3)
        assert till.statistics().publishing.handed_over == handed_over + 1
        realms.theirs.network.trust(realms.ours.network.bundle("ours", ">"), "partner")
        sites = realms.ours.sites(till)
        await wait_until(lambda: len(sites.directory.subscribers()) == 3, 30)
        await till.publish("orders.new", 4)
        await wait_until(lambda: [event.payload for event in heard[known:]] == [4, 4])


async def test_a_narrower_bundle_ends_what_was_heard(autojump_clock: MockClock) -> None:
    heard: list[Heard] = []
    async with open_realms() as realms:
        realms.introduce(topics=(">",))
        await realms.link()
        await realms.ours.listen("eu", "acme/orders.>", heard)
        await realms.ours.listen("eu", "acme/stock.>", heard)
        till = await publisher_of(realms, 2)
        for topic in ("orders.new", "stock.new"):
            await till.publish(topic, 1)
        await wait_until(lambda: len(heard) == 2)
        realms.theirs.network.bundle("acme", ">", topics=("stock.>",))
        await trio.sleep(10)
        for topic in ("orders.new", "stock.new"):
            await till.publish(topic, 2)
        await wait_until(lambda: len(heard) == 3)
        await trio.sleep(3)
        assert [event.topic for event in heard[2:]] == ["acme/stock.new"]


async def test_realms_hear_nothing_of_a_third_one(autojump_clock: MockClock) -> None:
    """Acme trusts us and a third realm; its gateway links both."""
    async with open_realms() as realms:
        realms.introduce(topics=(">",))
        third = realms.ours.other_realm("third-", seed=99)
        realms.theirs.network.trust(third.network.bundle("third", ">", topics=(">",)))
        third.network.trust(realms.theirs.network.bundle("acme", ">", topics=(">",)))
        realms.ours.network.trust(realms.theirs.network.bundle("acme", ">", topics=(">",)))
        await realms.link()
        await third.gateway("eu", to=["acme/acme-eu-gateway"])
        spy = await third.node("eu", "spy")
        speaker = await third.node("eu", "speaker")
        ear = await realms.ours.node("eu", "ear")
        async with ear.subscribe("acme/orders.>") as events, spy.subscribe("acme/orders.>") as spied:
            till = await publisher_of(realms, 2)
            await speaker.publish("orders.new", "of a third realm")
            await till.publish("orders.new", "acme's own")
            await wait_until(lambda: events.statistics().received and spied.statistics().received)
            await trio.sleep(3)
            assert (events.statistics().received, spied.statistics().received) == (1, 1)
            assert realms.parts[speaker.id].patterns.pubsub.statistics().without_subscriber == 1


async def test_a_gateway_that_asks_for_more_or_names_nodes_that_do_not_answer_holds_up_nobody(
    autojump_clock: MockClock,
) -> None:
    async with open_realms() as realms:
        realms.introduce(topics=ORDERS)
        await realms.link()
        ours, theirs = realms.ours.gateways["eu-gateway"], realms.theirs.gateways["acme-eu-gateway"]
        await ours.wait_for_site("acme/eu")
        (them,) = realms.between[ours].peers.values()
        till = await realms.theirs.node("eu", "till")
        sites = realms.ours.sites(till)
        gateway = realms.ours.nodes["eu-gateway"]
        origin = (f"{gateway.realm}/eu", bytes.fromhex(gateway.id))

        def claim(version: int, *wanted: tuple[str, int]) -> None:
            entries = tuple((TOPIC, pattern, number.to_bytes(16), b"") for pattern, number in wanted)
            them.link.post(raw(kinds.Exports, *origin, 0, version, entries, (), False), 64)

        claim(1000, (">", 1), ("stock.>", 2), (f"{'0c' * 16}/orders.>", 3), ("orders.>", 4))
        await wait_until(sites.directory.subscribers)
        await trio.sleep(1)
        assert {found.node for found in sites.directory.subscribers()} == {NodeId((4).to_bytes(16).hex())}
        began = trio.current_time()
        await till.publish("orders.new", 1)
        assert trio.current_time() - began < 6, "once, as long as a handshake may take"

        def named(node: NodeId) -> bool:
            return any(found.node == node for found in sites.directory.subscribers())

        for turn in range(5):
            claim(1001 + turn, *(("orders.>", 10 * turn + number + 10) for number in range(8)))
            first = NodeId((10 * turn + 10).to_bytes(16).hex())
            await wait_until(partial(named, first))
            await trio.sleep(0.2)
            mark = trio.current_time()
            await till.publish("orders.new", 2 + turn)
            assert trio.current_time() - mark < 0.01
        assert theirs.statistics().neighbours


async def test_a_node_of_another_realm_shares_no_group_and_holds_up_no_publisher(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce(topics=ORDERS)
        await realms.link()
        ear = await realms.ours.node("eu", "ear")
        async with ear.subscribe("acme/orders.>") as events:
            till = await publisher_of(realms, 1)
            await till.publish("orders.new", 1)
            await wait_until(lambda: events.statistics().received)
            link = realms.parts[ear.id].mesh.peers[till.id].link
            terms = (
                ("orders.>", "g", False, False, ()),
                ("orders.>", None, True, False, ()),
                ("orders.>", None, False, True, ()),
                ("stock.>", None, False, False, ()),
                ("orders.*", None, False, False, ()),
            )
            link.post(raw(kinds.Interest, 7, True, terms, ()), 64)
            await realms.parts[ear.id].mesh.barrier(till.id)
            table = realms.parts[till.id].patterns.pubsub._table
            assert [(known.pattern, known.group) for known in table.terms_of(ear.id)] == [("orders.*", None)]
            assert table.refused == 4
            many = tuple((f"orders.{number}", None, False, False, ()) for number in range(1000))
            for start in range(5):
                part = tuple((f"{terms[0]}.{start}", *terms[1:]) for terms in many)
                link.post(raw(kinds.Interest, 8 + start, False, part, ()), 64)
            await realms.parts[ear.id].mesh.barrier(till.id)
            assert len(table.terms_of(ear.id)) == 3001  # an eighth of what a node of the own realm may have
            assert till.statistics().refusals["message of kind Interest"] == 2


async def test_a_node_of_our_own_publishes_on_no_topic_of_another_realm(autojump_clock: MockClock) -> None:
    """Who listens to everything at home would take its events for those of that realm."""
    heard: list[Heard] = []
    async with open_realms() as realms:
        realms.introduce(topics=ORDERS)
        await realms.link()
        await realms.ours.gateway("ap", to=["eu-gateway"])
        ear = await realms.ours.listen("eu", ">", heard)
        senders = [await realms.ours.node(site, "sender") for site in ("eu", "ap")]
        for sender in senders:
            await sender.publish("own.news", 1)
            await wait_until(lambda: heard)
            link = realms.parts[sender.id].mesh.peers[ear.id].link
            link.post(kinds.Events("acme/orders.new", 1, 0, None, None, None, (b"x",), ()), 64)
            link.post(kinds.Retained("acme/orders.new", 1, 1, None, None, b"x", ()), 64)
            link.post(kinds.Events("other/orders.new", 1, 0, None, None, None, (b"x",), ()), 64)
            await wait_until(lambda: heard[-1].topic == "other/orders.new")
            assert [event.topic for event in heard] == ["own.news", "other/orders.new"]
            heard.clear()
        assert ear.statistics().refusals["message of kind Events"] == 2
        assert ear.statistics().refusals["message of kind Retained"] == 2


async def test_a_gateway_of_another_realm_holds_up_no_events_of_our_own(autojump_clock: MockClock) -> None:
    """Frames whose key has not come wait, and those that follow behind them: it sends such in the name of our node."""
    heard: list[Heard] = []
    async with open_realms() as realms:
        realms.introduce(topics=ORDERS)
        await realms.link()
        await realms.ours.gateway("ap", to=["eu-gateway"])
        ear = await realms.ours.listen("eu", "own.>", heard)
        await publisher_of(realms, 0)
        publisher = await realms.ours.node("ap", "publisher")
        async with ear.subscribe("acme/orders.>"):
            await trio.sleep(2)
            await publisher.publish("own.news", 0)
            await wait_until(lambda: len(heard) == 1)
            theirs = realms.theirs.gateways["acme-eu-gateway"]
            (ours_there,) = realms.between[theirs].peers.values()
            site = f"{realms.theirs.nodes['acme-eu-gateway'].realm}/eu"
            frame = wire.HEADER.pack(wire.COPY, wire.VERSION, 0, 77, 1000) + bytes(200)
            targets = ((f"{ear.realm}/eu", bytes.fromhex(ear.id)),)
            ours_there.link.post(kinds.Copy(5, site, bytes.fromhex(publisher.id), targets, frame), len(frame))
            await trio.sleep(0.5)
            assert ear.statistics().refusals["copy from a node that is not linked"] == 1
            await publisher.publish("own.news", 1)
            await wait_until(lambda: len(heard) == 2, within=1)
