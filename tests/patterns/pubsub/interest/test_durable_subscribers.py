"""Durable subscribers that have a name: confirmed events wait for those that are away."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.config import KIB, Config
from iris.kernel.errors import AuthenticationError, ConfigError, NotAllowed, NotSent, RequestTimeout
from iris.kernel.wire import kinds
from iris.patterns.pubsub.interest.durable_names import DurableRecord, sign_record
from iris.patterns.pubsub.interest.shards import Share
from iris.patterns.pubsub.publish.ack_batch import ConfirmedEvents, open_confirmed_events
from iris.patterns.pubsub.subscribe.events import Event
from iris.security.identity.identity import PeerIdentity
from tests.support.meshes import Fleet, MeshNode, open_meshes
from tests.support.messages import raw
from tests.support.realms import WALL


class Store:
    """Store of a durable subscriber, over several runs."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def payloads(self) -> list[object]:
        """Each stored event once."""
        return list({(event.publisher, event.sequence): event.payload for event in self.events}.values())


@asynccontextmanager
async def storing(
    node: MeshNode,
    name: str | None,
    pattern: str = ">",
    *,
    store: Store | None = None,
    group: str | None = None,
    share: Share | None = None,
) -> AsyncIterator[Store]:
    """A durable subscriber, with a name mostly, that stores and confirms what it gets."""
    store = store or Store()
    async with (
        node.pubsub.subscribe(pattern, durable=True, name=name, group=group, share=share) as events,
        trio.open_nursery() as nursery,
    ):

        async def run() -> None:
            while True:
                batch = await events.receive_batch()
                store.events += batch
                await events.confirm(batch)

        nursery.start_soon(run)
        yield store
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other tasks bring about."""
    while not condition():  # noqa: ASYNC110 -- what is waited for has no event
        await trio.sleep(0.001)


async def confirm(
    node: MeshNode, topic: str, payload: object = b"", *, timeout: float = 5.0, key: str | None = None
) -> None:
    await node.pubsub.confirming.publish(topic, payload, key=key, timeout=timeout, headers=None)


def away(node: MeshNode) -> list[tuple[str, str]]:
    return [(one.cluster, one.name) for one in node.pubsub.durable.known() if not one.present]


# -- who is waited for -------------------------------------------------------------------------------------


async def test_an_event_waits_for_a_subscriber_that_is_away_though_another_has_it(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, storing(fleet["b"], "east") as east:
        west = Store()
        async with fleet.open_node("c") as c:
            await fleet.link()
            async with storing(c, "west", store=west):
                await confirm(fleet["a"], "t", 1)
        began = trio.current_time()
        with pytest.raises(RequestTimeout, match=r"'west' of cluster 'c' of 't' is away .* within 3 s.* forget west'"):
            await confirm(fleet["a"], "t", 2, timeout=3)
        assert trio.current_time() - began == pytest.approx(3.0)
        assert (east.payloads, west.payloads) == ([1, 2], [1])


async def test_who_comes_back_in_time_gets_what_waits(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, storing(fleet["b"], "east") as east:
        west = Store()
        async with fleet.open_node("c") as c:
            await fleet.link()
            async with storing(c, "west", store=west):
                await confirm(fleet["a"], "t", 0)
        await trio.sleep(1)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(1, 100):
                nursery.start_soon(confirm, fleet["a"], "t", number)
            await trio.sleep(2)
            async with fleet.open_node("c") as again:
                await fleet.link("a", "c")
                async with storing(again, "west", store=west):
                    await until(lambda: not nursery.child_tasks)
        assert 2 < trio.current_time() - began < 3
        assert east.payloads == west.payloads
        assert sorted(map(int, map(str, west.payloads))) == list(range(100))


async def test_what_waits_for_one_that_comes_back_is_sent_in_order(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        west = Store()
        async with fleet.open_node("c") as c:
            await fleet.link()
            async with storing(c, "west", store=west):
                await confirm(fleet["a"], "t", 0)
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                async with confirming(fleet["a"]) as events:
                    for number in range(1, 500):
                        await events.publish(f"t.{number}", number)  # each is a run of its own

            nursery.start_soon(publish)
            await trio.sleep(1)
            async with fleet.open_node("c") as again:
                await fleet.link()
                async with storing(again, "west", store=west):
                    began = trio.current_time()
                    await until(lambda: not nursery.child_tasks)
        assert west.payloads == list(range(500))
        assert trio.current_time() - began < 0.1, "one round trip, and not one for each event"


@asynccontextmanager
async def confirming(node: MeshNode) -> AsyncIterator[ConfirmedEvents]:
    async with open_confirmed_events(node.pubsub.confirming, node.mesh.config, 5.0) as events:
        yield events


async def test_what_it_has_confirmed_is_not_waited_for_again(autojump_clock: MockClock) -> None:
    async with (
        open_meshes("a", "b", "c") as fleet,
        fleet["b"].pubsub.subscribe(">", durable=True, name="slow") as slow,
        storing(fleet["c"], "west") as west,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(confirm, fleet["a"], "t", 1)
        await until(lambda: bool(west.payloads))
        await trio.sleep(0.1)  # until its confirmation has arrived
        fleet.network.crash("c")
        await trio.sleep(1)
        assert away(fleet["a"]) == [("c", "west")]
        await slow.confirm(await slow.receive_batch())


async def test_other_topics_do_not_wait(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, storing(fleet["b"], "east") as east:
        async with fleet.open_node("c") as c:
            await fleet.link()
            async with storing(c, "west", "orders.*"):
                pass
        await confirm(fleet["a"], "t", 1)
        await confirm(fleet["a"], "orders", 2)
        with pytest.raises(RequestTimeout, match="'west'"):
            await confirm(fleet["a"], "orders.new", 3)
        assert east.payloads == [1, 2, 3]


async def test_with_nobody_there_it_is_not_said_that_there_is_no_subscriber(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        async with fleet.open_node("c") as c:
            await fleet.link()
            async with storing(c, "west"):
                pass
        with pytest.raises(RequestTimeout, match="'west' of cluster 'c'"):
            await confirm(fleet["a"], "t")


async def test_several_that_are_away_are_all_named(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        for number in range(5):
            async with storing(fleet["b"], f"bridge.{number}"):
                pass
        with pytest.raises(
            RequestTimeout, match=r"'bridge\.0' .* 'bridge\.1' .* 'bridge\.2' of cluster 'b' and 2 more"
        ):
            await confirm(fleet["a"], "t")


async def test_a_subscription_without_a_name_is_gone_with_its_node(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet, storing(fleet["b"], "east"):
        async with fleet["c"].pubsub.subscribe(">", durable=True):
            with pytest.raises(RequestTimeout, match="no durable subscriber of 't' has confirmed"):
                await confirm(fleet["a"], "t")
        await confirm(fleet["a"], "t")
        assert away(fleet["a"]) == []


async def test_a_subscriber_that_names_other_topics_is_owed_those(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, storing(fleet["b"], "east"):
        for pattern in ("old", "new"):
            async with fleet.open_node("c") as c:
                await fleet.link()
                async with storing(c, "west", pattern):
                    await confirm(fleet["a"], pattern)
        await confirm(fleet["a"], "old")
        with pytest.raises(RequestTimeout, match="'west'"):
            await confirm(fleet["a"], "new")


# -- groups ------------------------------------------------------------------------------------------------


async def test_of_a_group_any_member_will_do(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        async with storing(fleet["b"], "archive", group="archive"):
            async with storing(fleet["b"], "archive-2", group="archive"):
                pass
            await confirm(fleet["a"], "t")
            assert away(fleet["a"]) == []
        with pytest.raises(RequestTimeout, match=r"'archive(-2)?' of cluster 'b'"):
            await confirm(fleet["a"], "t")


async def test_the_events_of_a_shard_wait_for_who_has_it(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        for shard in range(2):
            async with storing(fleet["b"], f"bridge.{shard}", group="bridge", share=Share(2, (shard,))):
                pass
        # All are away; then one comes back, and what belongs to the other one goes on waiting.
        outcomes: dict[int, str] = {}
        async with storing(fleet["b"], "bridge.0", group="bridge", share=Share(2, (0,))) as store:
            for number in range(20):
                try:
                    await confirm(fleet["a"], "t", number, key=str(number), timeout=1)
                except RequestTimeout as error:
                    outcomes[number] = str(error).partition(" of ")[0]
                else:
                    outcomes[number] = "stored"
        assert store.payloads == [number for number, outcome in outcomes.items() if outcome == "stored"]
        assert set(outcomes.values()) == {"durable subscriber 'bridge.1'", "stored"}


async def test_nobody_of_another_cluster_confirms_for_a_group(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "thief") as fleet:
        async with storing(fleet["b"], "bridge.0", group="bridge", share=Share(1, (0,))):
            pass
        thief = fleet["thief"]
        async with thief.pubsub.subscribe(">", durable=True, group="bridge", share=Share(1, (0,))) as events:
            with pytest.raises(RequestTimeout, match=r"'bridge\.0' of cluster 'b'"):
                await confirm(fleet["a"], "t", timeout=1)
            assert events.statistics().received == 1  # as a group of its own


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("share", [Share(2, (0, 1)), Share(7, (6,)), None])
async def test_nobody_of_another_cluster_takes_the_events_of_a_group(
    autojump_clock: MockClock, share: Share | None, *, named: bool
) -> None:
    own = None if share is None else Share(2, (0, 1))
    async with open_meshes("a", "b", "thief") as fleet:
        publisher, thief = fleet["a"], fleet["thief"]
        async with (
            storing(fleet["b"], "bridge.0", group="bridge", share=own) as store,
            thief.pubsub.subscribe(
                ">", durable=True, name="thief" if named else None, group="bridge", share=share
            ) as stolen,
        ):
            for number in range(100):
                await publisher.pubsub.publish("t", number, key=str(number), headers=None, within=None, retain=False)
            await trio.sleep(1)
            assert [event.payload for event in store.events] == list(range(100))
            assert stolen.statistics().received <= 100


async def test_a_record_of_another_cluster_takes_no_group_from_those_who_have_none(autojump_clock: MockClock) -> None:
    async with (
        open_meshes("a", "b", "c", "thief") as fleet,
        fleet["b"].pubsub.subscribe("t", group="workers") as plain,
        fleet["c"].pubsub.subscribe("u", durable=True, group="workers") as durable,
        storing(fleet["thief"], "thief", group="workers"),
    ):
        await confirm(fleet["a"], "t")
        with pytest.raises(RequestTimeout):
            await confirm(fleet["a"], "u")
        assert plain.statistics().received == durable.statistics().received == 1


@pytest.mark.parametrize("name", ["c", None])
async def test_a_group_that_is_called_like_a_node_does_not_confirm_for_it(
    autojump_clock: MockClock, name: str | None
) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        node = fleet["b"].id
        async with (
            storing(fleet["c"], name, group=node) as store,
            fleet["b"].pubsub.subscribe(">", durable=True) as silent,
        ):
            for number in (1, 2):  # as the members of a group have turns, so that it depends on nobody's
                with pytest.raises(RequestTimeout):
                    await confirm(fleet["a"], "t", number)
            assert silent.statistics().received == len(store.payloads) == 2


async def test_a_name_and_a_group_of_one_cluster_may_be_the_same(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        async with storing(fleet["b"], "disk"):
            pass
        async with storing(fleet["b"], "replica", group="disk") as store:
            with pytest.raises(RequestTimeout, match="'disk' of cluster 'b'"):
                await confirm(fleet["a"], "t", 1)
            assert store.payloads == [1]


# -- how it is known ---------------------------------------------------------------------------------------


async def test_a_publisher_that_comes_later_learns_it_from_whoever_knows(autojump_clock: MockClock) -> None:
    async with open_meshes("bystander") as fleet:
        async with fleet.open_node("c") as c:
            await fleet.link()
            async with storing(c, "west"):
                pass
        async with fleet.open_node("late") as late:
            await fleet.link("bystander", "late")
            assert away(late) == [("c", "west")]
            with pytest.raises(RequestTimeout, match="'west'"):
                await confirm(late, "t")


async def test_without_anybody_who_knows_it_is_not_known(autojump_clock: MockClock) -> None:
    """The limit that the documents state."""
    async with open_meshes() as fleet:
        async with fleet.open_node("c") as c, storing(c, "west"):
            pass
        async with fleet.open_node("late") as late:
            with pytest.raises(NotSent, match="no durable subscriber"):
                await confirm(late, "t")


async def test_what_was_known_can_be_kept_and_loaded(autojump_clock: MockClock) -> None:
    async with open_meshes("b") as fleet:
        async with fleet.open_node("c") as c:
            await fleet.link()
            async with storing(c, "west"):
                pass
        kept = fleet["b"].pubsub.durable.records()
        async with fleet.open_node("d") as d:
            assert d.pubsub.durable.load([*kept, b"junk", kept[0][:-1]]) == 2
            assert away(d) == [("c", "west")]


async def test_news_of_those_who_keep_them(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        seen: list[int] = []
        end = fleet["a"].pubsub.durable.on_changed(lambda: seen.append(len(fleet["a"].pubsub.durable.records())))
        async with storing(fleet["b"], "east"):
            await trio.sleep(0.1)
            assert seen == [1]
        end()
        async with storing(fleet["b"], "west"):
            pass
        assert seen == [1]


async def test_the_newest_record_counts_whatever_the_order(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        fleet.network.partition(["a"], ["b", "c"])
        async with storing(fleet["b"], "east", "old"):
            old = fleet["c"].pubsub.durable.records()
        async with storing(fleet["b"], "east", "new"):
            pass
        fleet["c"].pubsub.durable.load(old)
        fleet.network.heal()
        await trio.sleep(30)
        await fleet.link()
        for node in fleet.nodes.values():
            (record,) = node.pubsub.durable.names
            assert record.patterns == ("new",)


async def test_a_record_of_an_older_run_with_a_clock_ahead_is_replaced(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "c") as fleet, storing(fleet["c"], "west", "new"):
        identity = fleet["c"].mesh.identity
        ahead = int((fleet["c"].mesh.wall_clock() + 200) * 1e6)
        former = fleet.realm.identity("c")
        stale = sign_record(former, "west", version=ahead, site="", patterns=["old"])
        fleet["a"].pubsub.durable.load([stale.signed])
        fleet["a"].pubsub.durable.send_all(fleet["a"].peer(fleet["c"]))
        await trio.sleep(0.1)
        for node in fleet.nodes.values():
            record = node.pubsub.durable.names.get(("c", "west"))
            assert record is not None
            assert (record.node, record.patterns, record.version) == (identity.node_id, ("new",), ahead + 1)


async def test_two_nodes_with_one_name_do_not_argue_for_ever(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c", linked=False) as fleet:
        async with fleet.open_node("b2") as other:  # linked to b by way of a alone
            twin = other.mesh
            twin.renew_identity(fleet.realm.identity("b"))
        await fleet.link("a", "b")
        async with storing(fleet["b"], "east"):
            for turn in range(40):
                record = fleet["a"].pubsub.durable.names.get(("b", "east"))
                assert record is not None
                rival = sign_record(
                    fleet.realm.identity("b"), "east", version=record.version + 1, site="", patterns=[f"t.{turn}"]
                )
                fleet["a"].pubsub.durable.load([rival.signed])
                fleet["a"].pubsub.durable.send_all(fleet["a"].peer(fleet["b"]))
                await trio.sleep(0.01)
        (record,) = fleet["a"].pubsub.durable.names
        assert record.patterns == ("t.39",)


# -- forgetting --------------------------------------------------------------------------------------------


async def test_a_subscriber_that_is_forgotten_is_waited_for_no_more(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "d") as fleet, storing(fleet["b"], "east") as east:
        async with fleet.open_node("c") as c:
            await fleet.link()
            async with storing(c, "west"):
                pass
        async with trio.open_nursery() as nursery:
            nursery.start_soon(confirm, fleet["a"], "t", 1)
            await trio.sleep(1)
            began = trio.current_time()
            async with fleet.open_node("c") as owner:
                await fleet.link("a", "b", "d", "c")
                await owner.pubsub.forget_durable("west")
        assert trio.current_time() - began < 2
        assert east.payloads == [1]
        assert away(fleet["a"]) == away(fleet["d"]) == []
        async with fleet.open_node("late") as late:
            await fleet.link("b", "d", "late")
            assert away(late) == []
            await confirm(late, "t", 2)


async def confirm_none(node: MeshNode) -> None:
    with pytest.raises(NotSent, match="no durable subscriber"):
        await confirm(node, "t")


async def test_a_subscriber_that_was_forgotten_may_come_again(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "c") as fleet:
        async with storing(fleet["c"], "west"):
            pass
        await fleet["c"].pubsub.forget_durable("west")
        await trio.sleep(0.1)
        await confirm_none(fleet["a"])
        async with storing(fleet["c"], "west"):
            await confirm(fleet["a"], "t")
        with pytest.raises(RequestTimeout, match="'west'"):
            await confirm(fleet["a"], "t")


async def test_who_has_just_left_is_forgotten_also_while_its_node_is_busy(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "c") as fleet:
        node = fleet["c"]
        async with storing(node, "west"):
            for number in range(10):
                node.mesh.own.link.post(kinds.Ping(number), 16)
        await node.pubsub.forget_durable("west")
        await trio.sleep(0.1)
        await confirm_none(fleet["a"])


async def test_who_is_there_is_not_forgotten(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "c") as fleet, storing(fleet["c"], "west"):
        with pytest.raises(ConfigError, match=r"'west' is there, at node .*: stop it"):
            await fleet["c"].pubsub.forget_durable("west")
        await confirm(fleet["a"], "t")


async def test_only_nodes_of_its_cluster_may_forget_it(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "c", "thief") as fleet:
        async with storing(fleet["c"], "west"):
            pass
        with pytest.raises(NotAllowed, match="'west' belongs to cluster 'c', and this node speaks for 'thief'"):
            await fleet["thief"].pubsub.forget_durable("west")
        with pytest.raises(ConfigError, match="no durable subscriber 'east' is known here; known: west"):
            await fleet["c"].pubsub.forget_durable("east")
        # One who does it all the same has forgotten a subscriber of its own cluster.
        thief = fleet["thief"].mesh
        forged = sign_record(thief.identity, "west", version=2**61, site="", patterns=())
        now = sign_record(thief.identity, "west", version=int(thief.wall_clock() * 1e6), site="", patterns=())
        for record in (forged, now):
            fleet["thief"].peer(fleet["a"]).link.post(kinds.Durable((record.signed,)), 100)
        await trio.sleep(0.1)
        assert away(fleet["a"]) == [("c", "west")]
        assert fleet["a"].mesh.refusals["durable subscriber of a time to come"] == 0, "its certificates end before"
        assert fleet["a"].mesh.refusals["message of kind Durable"] == 1
        with pytest.raises(RequestTimeout, match="'west' of cluster 'c'"):
            await confirm(fleet["a"], "t")


# -- bad input and peers -----------------------------------------------------------------------------------


async def test_bad_input_is_the_callers_error(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet:
        pubsub = fleet["a"].pubsub
        for durable, name, message in (
            (True, "no name", "not a durable subscriber name"),
            (False, "west", "only a durable subscriber is waited for by its name 'west': use subscribe_durable"),
        ):
            with pytest.raises(ConfigError, match=message):
                async with pubsub.subscribe("t", durable=durable, name=name):
                    pass
        async with pubsub.subscribe("t", durable=True, name="west"):
            with pytest.raises(ConfigError, match="this node is the durable subscriber 'west' already"):
                async with pubsub.subscribe("u", durable=True, name="west"):
                    pass
        with (
            pytest.raises(ConfigError, match="has 257 patterns: use at most 256"),
            pubsub.durable.claim("many", [f"t.{number}" for number in range(257)]),
        ):
            pass


def record_of(
    fleet: Fleet, cluster: str, name: str, patterns: Collection[str] = ("t",), at: float = 0
) -> DurableRecord:
    return sign_record(
        fleet.realm.identity(cluster), name, version=int((WALL + at) * 1e6) + 1, site="", patterns=patterns
    )


async def test_records_are_bounded_and_one_cluster_has_a_quarter(autojump_clock: MockClock) -> None:
    config = Config(durable_bytes=32 * KIB)
    async with open_meshes("a", "greedy", config=config) as fleet:
        a = fleet["a"]
        many = [record_of(fleet, "greedy", f"n{number}", ["other"]).signed for number in range(100)]
        assert a.pubsub.durable.load(many) == 0
        own = [record for record in a.pubsub.durable.names if record.id[0] == "greedy"]
        assert 4 * KIB < sum(len(record.signed) for record in own) <= 8 * KIB
        assert a.mesh.refusals["durable subscriber without room"] == 100 - len(own)
        async with storing(fleet["greedy"], "one-more"):  # at a it finds no room; it is there all the same
            await confirm(a, "t")
        for number in range(100):
            a.pubsub.durable.load([record_of(fleet, f"c{number}", "n").signed])
        assert sum(len(record.signed) for record in a.pubsub.durable.names) <= 32 * KIB
        with (
            pytest.raises(ConfigError, match="too many are known in this realm; forget those that do not come back"),
            a.pubsub.durable.claim("x", [f"{'t' * 100}.{number}" for number in range(250)]),
        ):
            pass


async def test_those_that_were_forgotten_make_room(autojump_clock: MockClock) -> None:
    config = Config(durable_bytes=32 * KIB)
    async with open_meshes("a", config=config) as fleet:
        durable = fleet["a"].pubsub.durable
        durable.load([record_of(fleet, "c", f"n{number}", ()).signed for number in range(100)])
        kept = len(durable.names)
        assert durable.load([record_of(fleet, "c", "new").signed]) == 0
        assert durable.names.get(("c", "new")) is not None
        assert len(durable.names) == kept


@pytest.mark.parametrize(
    "field", [None, b"", "x", (None,), ("text",), (b"",), (b"junk",), (b"\x94" + b"\xc4\x00" * 4,), (b"x",) * 257]
)
async def test_malformed_records_are_refused(autojump_clock: MockClock, field: object) -> None:
    async with open_meshes("a", "villain") as fleet:
        fleet["villain"].peer(fleet["a"]).link.post(raw(kinds.Durable, field), 100)
        await trio.sleep(0.1)
        assert fleet["a"].mesh.refusals.total() == 1
        assert len(fleet["a"].pubsub.durable.names) == 0


async def test_what_comes_behind_a_record_that_is_known_is_taken(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        known, new = (record_of(fleet, "b", name).signed for name in ("west", "east"))
        for records in ((known,), (known, new)):
            fleet["b"].peer(fleet["a"]).link.post(kinds.Durable(records), 100)
            await trio.sleep(0.1)
        assert sorted(record.name for record in fleet["a"].pubsub.durable.names) == ["east", "west"]


async def test_a_record_has_as_many_patterns_as_a_subscriber_may_have(autojump_clock: MockClock) -> None:
    patterns = [f"t.{number}" for number in range(257)]
    async with open_meshes("a") as fleet:
        durable = fleet["a"].pubsub.durable
        for name, count, refused in (("west", 256, 0), ("east", 257, 1)):
            assert durable.load([record_of(fleet, "b", name, patterns[:count]).signed]) == refused
        assert [record.name for record in durable.names] == ["west"]


async def test_a_record_that_was_changed_or_is_of_another_time_is_refused(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "villain") as fleet:
        good = record_of(fleet, "villain", "west")
        changed = bytearray(good.signed)
        changed[good.signed.rindex(b"west")] ^= 1
        to_come = record_of(fleet, "villain", "west", at=3600)
        before = record_of(fleet, "villain", "west", at=-30 * 86_400)  # its certificates were not valid then
        for signed in (bytes(changed), to_come.signed, before.signed):
            fleet["villain"].peer(fleet["a"]).link.post(kinds.Durable((signed,)), 100)
        await trio.sleep(0.1)
        assert fleet["a"].mesh.refusals["message of kind Durable"] == 2
        assert fleet["a"].mesh.refusals["durable subscriber of a time to come"] == 1
        assert len(fleet["a"].pubsub.durable.names) == 0


async def test_a_record_cannot_make_every_match_dear(autojump_clock: MockClock) -> None:
    """Its patterns over a star and one token would all match one topic."""
    patterns = [".".join(tokens) for tokens in itertools.product("*a", repeat=7)]
    async with open_meshes("a", "villain") as fleet:
        for name, count in (("west", 65), ("east", 64)):
            record = record_of(fleet, "villain", name, patterns[:count])
            fleet["villain"].peer(fleet["a"]).link.post(kinds.Durable((record.signed,)), 100)
        await trio.sleep(0.1)
        assert fleet["a"].mesh.refusals["message of kind Durable"] == 1
        assert [record.name for record in fleet["a"].pubsub.durable.names] == ["east"]


async def test_the_records_of_one_cluster_cannot_make_every_match_dear(autojump_clock: MockClock) -> None:
    patterns = [".".join(tokens) for tokens in itertools.product("*a", repeat=9)]
    async with open_meshes("a") as fleet:
        durable = fleet["a"].pubsub.durable

        def told(name: str, first: int, at: float, *, cluster: str = "villain") -> bool:
            chosen = patterns[first : first + 64] if first >= 0 else ()
            record = record_of(fleet, cluster, name, chosen, at)
            durable.load([record.signed])
            return durable.names.get(record.id) == record

        assert [told(f"n{number}", 64 * number, 0) for number in range(5)] == [True] * 4 + [False]
        assert durable.names.shapes == 256
        assert told("x", 0, 0), "other names for the same"
        assert told("y", 256, 0, cluster="honest")
        assert told("n3", 256, 1), "in the place of what it had"
        assert not told("z", 192, 1)
        assert told("n3", -1, 2)
        assert told("z", 192, 2)
        durable.load([record_of(fleet, "plain", name).signed for name in "ab"])
        assert durable.names.drop(lambda _: False)
        assert durable.names.shapes == 0
        assert all(told(f"n{number}", 64 * number, 3) for number in range(4)), "nothing counts any more"


async def test_what_a_revoked_node_has_signed_counts_no_more(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a = fleet["a"]
        async with storing(fleet["b"], "east"):
            pass
        (record,) = a.pubsub.durable.names

        def refuse(peer: PeerIdentity) -> None:
            if peer.cluster == "b":
                raise AuthenticationError("revoked")

        a.admission.refuse = refuse
        a.pubsub.durable.recheck()
        assert len(a.pubsub.durable.names) == 0
        assert a.pubsub.durable.load([record.signed]) == 0
        assert len(a.pubsub.durable.names) == 0
        assert a.mesh.refusals["durable subscriber of a revoked node"] == 1
