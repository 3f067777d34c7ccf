"""Limits of what one neighbour can have a directory remember and forward, and the reach of a lie about others."""

from __future__ import annotations

import contextlib
import gc
import random
import tracemalloc
from collections.abc import Iterable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.cluster.directory.directory import SiteDirectory
from iris.cluster.directory.messages import (
    CLUSTER,
    COMPANION,
    TOPIC,
    Export,
    ExportsUpdate,
    Hop,
    RouteAdvertisement,
    split_exports,
)
from iris.cluster.directory.neighbour_table import MAX_ORIGINS, MAX_WEIGHT, ORIGIN_SHARES, SHARES
from iris.federation.advertising import Advertiser, fair_share
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.support.federations import echo, open_federation, reports_of
from tests.support.messages import fields_of
from tests.support.site_worlds import World

A, B, C, D = (NodeId(f"{number:032x}") for number in range(1, 5))
KIB = 1024


def node(number: int) -> NodeId:
    return NodeId(f"{number:032x}")


def members(cluster: str, numbers: Iterable[int]) -> list[Export]:
    return [Export(CLUSTER, cluster, node(number)) for number in numbers]


def listening(**options: int) -> SiteDirectory:
    directory = SiteDirectory(Hop("home", A), **options)
    directory.add(B, 0.0, local=False)
    directory.add(C, 0.0, local=False)
    return directory


def lead(directory: SiteDirectory, neighbour: NodeId, site: str, origin: Hop, now: float = 0.0) -> None:
    """Have a neighbour announce a route."""
    path = (Hop(site, neighbour),) if origin.gateway == neighbour else (Hop(site, neighbour), origin)
    directory.receive_route_untrusted(neighbour, RouteAdvertisement(origin, path).message(), now)


def tell(
    directory: SiteDirectory,
    neighbour: NodeId,
    origin: Hop,
    added: Iterable[Export],
    removed: Iterable[Export] = (),
    *,
    change: tuple[int, int] = (0, 1),
) -> None:
    for part in split_exports(origin, *change, added, removed):
        assert directory.receive_exports_untrusted(neighbour, part.message(), 0.0) is None


# -- what one neighbour can have remembered -----------------------------------------------------------------


def test_what_one_neighbour_tells_beyond_its_share_is_not_taken_and_harms_nobody_else() -> None:
    directory = listening(max_weight=100 * KIB)
    lead(directory, C, "other", Hop("other", C))
    tell(directory, C, Hop("other", C), members("store", range(90)))
    first, second = Hop("x1", D), Hop("x2", D)
    for origin in (first, second):
        lead(directory, B, "far", origin)
    tell(directory, B, first, members("first", range(90)))
    with pytest.raises(RemoteProtocolError, match="tells of more than 102400 bytes"):
        tell(directory, B, second, members("second", range(90)))
    assert directory.clusters() == {"store", "first"}
    assert directory.sites() == ("other", "x1")
    tell(directory, B, second, members("second", range(90)))  # passed over: no route leads there any more
    tell(directory, B, first, (), members("first", range(90)), change=(1, 2))
    lead(directory, B, "far", second)
    tell(directory, B, second, members("second", range(90)))
    assert directory.clusters() == {"store", "second"}


def test_a_change_that_never_ends_takes_no_more_than_the_share() -> None:
    directory = listening(max_weight=125 * KIB)
    origin = Hop("far", B)
    lead(directory, B, "far", origin)
    tell(directory, B, origin, members("first", range(10)))
    gone = tuple(members("first", [0]))
    parts = [ExportsUpdate(origin, 1, 2, tuple(members("more", [number])), gone, more=True) for number in range(120)]
    for part in parts[:110]:
        assert directory.receive_exports_untrusted(B, part.message(), 0.0) is None
    assert directory.sites() == ("far",)
    for part in parts[110:-1]:
        with contextlib.suppress(RemoteProtocolError):
            directory.receive_exports_untrusted(B, part.message(), 0.0)
    assert directory.sites() == ()


def test_who_tells_all_anew_has_use_for_its_share_once() -> None:
    """After a reset all comes again: what was there before is still there until the last part has come."""
    directory = listening(max_weight=125 * KIB)
    origin = Hop("far", B)
    lead(directory, B, "far", origin)
    for version in range(1, 10):
        tell(directory, B, origin, members("store", range(120)), change=(0, version))
    assert len(directory.members("store")) == 120


@pytest.mark.parametrize("seed", [*range(1), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 2))])
def test_whatever_a_neighbour_tells_the_memory_stays_within_its_share(seed: int) -> None:
    """Lists that grow, change all the time, never end, and are announced anew, of many origins."""
    rng = random.Random(seed)
    share = 1024 * KIB
    directory = listening(max_weight=share)
    versions = dict.fromkeys(range(40), 0)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for step in range(300):
            number = rng.choice((rng.randrange(40), 0))
            origin = Hop(f"x{number}", node(number + 99))
            kind, name = rng.choice((CLUSTER, TOPIC)), f"c{step}" if rng.random() < 0.8 else "c"
            some = [Export(kind, name, node(rng.randrange(2**100))) for _ in range(rng.choice((1, 20, 100)))]
            known = directory.contents(origin)
            gone = tuple(known.entries)[: len(some)] if known and rng.random() < 0.7 else ()
            base = versions[number] if rng.random() < 0.9 else 0
            message = ExportsUpdate(
                origin, base, versions[number] + 1, tuple(some), gone, more=rng.random() < 0.3
            ).message()
            lead(directory, B, "far", origin, step * 1.0)
            try:
                if directory.receive_exports_untrusted(B, message, step * 1.0) is None and not fields_of(message)[-1]:
                    versions[number] += 1
            except RemoteProtocolError:
                versions[number] = 0
            if step % 20 == 0:
                taken = tracemalloc.get_traced_memory()[0] - before
                assert taken < 2 * share, f"step {step}"  # with what was there a few changes ago
    finally:
        tracemalloc.stop()
    weights = [0 if contents is None else contents.weight for contents in map(directory.contents, directory.origins())]
    assert sum(weights) > share / 2, "the share was needed"


def test_neighbours_of_one_owner_have_so_many_shares_together_and_harm_nobody_else() -> None:
    """The holder of the credential of a gateway can come as any number of them."""
    directory = SiteDirectory(Hop("home", A), max_origins=4, max_weight=20 * KIB)
    directory.add(C, 0.0, local=False, owner="honest")
    lead(directory, C, "other", Hop("other", C))
    many = [node(1000 + number) for number in range(20)]
    refused: list[str] = []
    for number, neighbour in enumerate(many):
        directory.add(neighbour, 0.0, local=False, owner="greedy")
        origin = Hop(f"x{number}", neighbour)
        lead(directory, neighbour, origin.site, origin)
        try:
            tell(directory, neighbour, origin, members(f"false{number}", range(20)))
        except RemoteProtocolError as error:
            refused.append(str(error))
    weighs = sum(export.weight for export in members("false0", range(20)))
    fitting = SHARES * 20 * KIB // weighs
    assert 8 <= fitting <= 15
    assert len(refused) == 20 - fitting
    assert refused[0] == (
        f"with what site x{fitting} exports the {fitting + 1} of its owner tell of more than {SHARES * 20 * KIB} bytes"
    )
    tell(directory, C, Hop("other", C), members("store", range(20)))
    assert len(directory.members("store")) == 20
    directory.forget(many[0])
    late = Hop("late", node(5000))
    directory.add(late.gateway, 1.0, local=False, owner="greedy")
    lead(directory, late.gateway, "late", late, 1.0)
    tell(directory, late.gateway, late, members("late", range(20)))
    assert len(directory.members("late")) == 20, "who is gone takes no room"
    for neighbour in (*many, late.gateway, C):
        directory.forget(neighbour)
    assert directory._owners == {}


def test_neighbours_of_one_owner_tell_of_so_many_gateways_together() -> None:
    directory = SiteDirectory(Hop("home", A), max_origins=2)
    refused: list[str] = []
    for number in range(ORIGIN_SHARES + 3):
        neighbour = node(1000 + number)
        directory.add(neighbour, 0.0, local=False, owner="greedy")
        for other in range(2):
            try:
                lead(directory, neighbour, "far", Hop(f"x{number}-{other}", node(5000 + 2 * number + other)))
            except RemoteProtocolError as error:
                refused.append(str(error))
    assert len(directory.origins()) == 2 * ORIGIN_SHARES
    assert len(refused) == 6
    assert refused[0] == "the 65 of its owner tell of more than 128 gateways"


# -- what is passed on --------------------------------------------------------------------------------------


def passing(
    directory: SiteDirectory,
    neighbour: NodeId,
    *,
    max_origins: int = MAX_ORIGINS // 2,
    max_weight: int = MAX_WEIGHT // 2,
) -> Advertiser:
    advertising = Advertiser(directory, max_origins=max_origins, max_weight=max_weight)
    advertising.add(neighbour, "next")
    advertising.export([])
    return advertising


def hand_over(advertising: Advertiser, there: SiteDirectory, changed: Iterable[Hop] | None, now: float) -> None:
    """Have all announcements received by a directory, which refuses none."""
    for message in advertising.messages(D, changed, now):
        if isinstance(message, kinds.Route):
            there.receive_route_untrusted(A, message, now)
        else:
            assert there.receive_exports_untrusted(A, message, now) is None


def test_what_is_passed_on_fits_and_is_shared_by_those_who_told_it() -> None:
    directory = listening()
    advertising = passing(directory, D, max_origins=8, max_weight=100 * KIB)
    there = SiteDirectory(Hop("next", D), max_origins=16, max_weight=200 * KIB)
    there.add(A, 0.0, local=False)
    many = [Hop(f"b{number:02}", node(100 + number)) for number in range(30)]
    for origin in many:
        lead(directory, B, "far", origin)
        tell(directory, B, origin, members(origin.site, range(3)))
    few = [Hop(f"c{number}", node(200 + number)) for number in range(3)]
    for origin in few:
        lead(directory, C, "other", origin)
        tell(directory, C, origin, members(origin.site, range(3)))
    changed, directory.changed = {directory.own, *directory.changed}, set()
    hand_over(advertising, there, changed, 0.0)
    assert there.sites() == ("b00", "b01", "b02", "b03", "c0", "c1", "c2", "home")
    assert advertising.left_out == 26
    for origin in many[:28]:
        directory.receive_route_untrusted(B, RouteAdvertisement(origin, ()).message(), 1.0)
    changed, directory.changed = {directory.own, *directory.changed}, set()
    hand_over(advertising, there, changed, 1.0)
    assert there.sites() == ("b28", "b29", "c0", "c1", "c2", "home")
    assert advertising.left_out == 0


def test_who_exports_very_much_has_no_more_of_it_passed_on_than_the_others_leave() -> None:
    directory = listening()
    advertising = passing(directory, D, max_origins=8, max_weight=100 * KIB)
    there = SiteDirectory(Hop("next", D), max_weight=200 * KIB)
    there.add(A, 0.0, local=False)
    for number in range(3):
        big, small = Hop(f"b{number}", node(100 + number)), Hop(f"c{number}", node(200 + number))
        lead(directory, B, "far", big)
        tell(directory, B, big, members(big.site, range(60)))
        lead(directory, C, "other", small)
        tell(directory, C, small, members(small.site, range(10)))
    hand_over(advertising, there, None, 0.0)
    assert there.sites() == ("b0", "c0", "c1", "c2", "home")


def test_when_not_all_fits_each_site_is_passed_on_by_one_gateway_before_any_by_two() -> None:
    directory = listening()
    advertising = passing(directory, D, max_origins=4)
    there = SiteDirectory(Hop("next", D))
    there.add(A, 0.0, local=False)
    for site in range(3):
        pair = [Hop(f"b{site}", node(100 + 2 * site + number)) for number in range(2)]
        for origin, other in (pair, pair[::-1]):
            lead(directory, B, "far", origin)
            tell(directory, B, origin, [*members("store", [site]), Export(COMPANION, "", other.gateway)])
    assert len(directory.origins()) == 6
    hand_over(advertising, there, None, 0.0)
    assert there.sites() == ("b0", "b1", "b2", "home")
    assert advertising.left_out == 3


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_withdrawal_that_is_lost_is_told_again(in_the_middle: bool) -> None:
    directory = listening()
    advertising = passing(directory, D)
    there = SiteDirectory(Hop("next", D))
    there.add(A, 0.0, local=False)
    origin = Hop("far", B)
    lead(directory, B, "far", origin)
    tell(directory, B, origin, members("store", [7]))
    hand_over(advertising, there, None, 0.0)
    assert there.sites() == ("far", "home")
    directory.forget(B)
    withdrawal = advertising.messages(D, {origin}, 1.0)
    assert next(withdrawal) == RouteAdvertisement(origin, ()).message()
    if not in_the_middle:
        assert list(withdrawal) == []
    advertising.repeat(D)
    hand_over(advertising, there, None, 2.0)
    assert there.sites() == ("home",)
    assert list(advertising.messages(D, None, 3.0)) == [], "nothing is told twice"


def test_of_withdrawals_a_neighbour_is_told_again_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.federation.advertising.MAX_ORIGINS", 4)
    directory = listening()
    advertising = passing(directory, D)
    origins = [Hop("far", node(100 + number)) for number in range(10)]
    for origin in origins:
        lead(directory, B, "far", origin)
        tell(directory, B, origin, members("store", [7]))
        assert len(list(advertising.messages(D))) >= 2
        directory.receive_route_untrusted(B, RouteAdvertisement(origin, ()).message(), 1.0)
        assert list(advertising.messages(D)) == [RouteAdvertisement(origin, ()).message()]
    advertising.repeat(D)
    again = [message for message in advertising.messages(D) if isinstance(message, kinds.Route)]
    own = RouteAdvertisement(directory.own, (directory.own,))
    assert again == [*(RouteAdvertisement(origin, ()).message() for origin in origins[-4:]), own.message()]


def test_a_site_that_goes_and_comes_at_once_is_not_passed_on_as_empty() -> None:
    directory = listening()
    advertising = passing(directory, D)
    there = SiteDirectory(Hop("next", D))
    there.add(A, 0.0, local=False)
    origin = Hop("far", B)
    lead(directory, B, "far", origin)
    tell(directory, B, origin, members("store", [7]))
    hand_over(advertising, there, None, 0.0)
    directory.receive_route_untrusted(B, RouteAdvertisement(origin, ()).message(), 1.0)
    lead(directory, B, "far", origin, 1.0)
    hand_over(advertising, there, {origin}, 1.0)
    assert there.clusters() == {"store"}, "its exports are on their way"
    tell(directory, B, origin, members("archive", [8]))
    hand_over(advertising, there, {origin}, 1.0)
    assert there.clusters() == {"archive"}


def test_a_site_of_too_many_entries_exports_a_part_of_each_node_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.federation.advertising.MAX_EXPORTS", 20)
    advertising = passing(listening(), D)
    greedy = [Export(TOPIC, f"t{number}", B) for number in range(1_000)]
    advertising.export([*greedy, *members("store", [3, 4, 5]), Export(TOPIC, "orders.>", C)])
    wanted = advertising.exported.clusters, advertising.exported.topics
    assert set(wanted[0]["store"]) == {node(3), node(4), node(5)}
    assert wanted[1]["orders.>"] == {C}
    assert len(advertising.exported.entries) == 20
    assert advertising.cut == 984
    advertising.export((), greedy[5:])
    assert advertising.cut == 0


@given(
    wanted=st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 40), max_size=12), max_size=6),
    places=st.integers(1, 20),
    weight=st.integers(1, 100),
)
def test_shares_fit_and_nobody_gets_less_than_an_equal_part_of_what_he_has_use_for(
    wanted: dict[int, list[int]], places: int, weight: int
) -> None:
    lists = {who: [((who, number), weighs) for number, weighs in enumerate(items)] for who, items in wanted.items()}
    chosen = fair_share(lists, places=places, weight=weight)
    weights = {item: weighs for items in lists.values() for item, weighs in items}
    assert len(chosen) <= places
    assert sum(weights[item] for item in chosen) <= weight
    for items in lists.values():
        modest = len(items) <= places // len(lists) and sum(weighs for _, weighs in items) <= weight // len(lists) - 40
        if modest:
            assert chosen.issuperset(item for item, _ in items)


async def test_a_neighbour_that_tells_of_more_than_its_share_is_reported_once_and_the_rest_goes_on(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_federation(seed=7) as federation:
        await federation.gateway("eu")
        await federation.member("eu", echo("store"))
        us = await federation.gateway("us", to=["eu-gateway"])
        federation.gateway_parts[us].directory._reporter.keywords["max_weight"] = 64 * KIB
        greedy = await federation.gateway("ap", to=["us-gateway"])
        shop = await federation.node("us", "shop")
        await federation.wait_for_sites("eu", "us", "ap")
        own = Hop("ap", federation.nodes["ap-gateway"].id)
        link = federation.between[greedy].peers[federation.nodes["us-gateway"].id].link
        for number in range(5):
            false = Hop(f"x{number}", node(number + 99))
            link.post(RouteAdvertisement(false, (own, false)).message(), 50)
            for part in split_exports(false, 0, 1, members("false", range(100 * number, 100 * number + 100)), ()):
                link.post(part.message(), 10_000)
        await trio.sleep(2)
        assert federation.between[us].refusals["message of kind Exports"] == 5
        assert us.statistics().sites == ("ap", "eu")
        await shop.wait_for("store")
        assert await shop.request("store", 1) == 1
        assert len(reports_of(caplog, "tells what cannot be, and is refused: with what site x0 exports")) == 1


def test_what_a_gateway_passes_on_is_taken_by_its_neighbours_while_it_changes_too() -> None:
    """Half of the share each for what was there and what comes: a change may arrive before what it replaces."""
    advertising = Advertiser(listening())
    assert advertising._max_origins * 2 <= MAX_ORIGINS
    assert advertising._max_weight * 2 <= MAX_WEIGHT


# -- lies about others --------------------------------------------------------------------------------------


def test_who_claims_a_version_far_ahead_does_not_have_the_origin_ignored() -> None:
    world = World()
    origin, near, liar, far = (world.add(name) for name in ("origin", "near", "liar", "far"))
    for one, other in ((origin, near), (origin, liar), (liar, far), (near, far), (near, liar)):
        world.link(one, other)
    origin.members["store"] = {world.node(): b""}
    world.settle()
    false = [Export(CLUSTER, "false", node(9))]
    for part in split_exports(origin.hop, 0, 2**62, false, ()):
        for site in (near, far):
            site.directory.receive_exports_untrusted(liar.hop.gateway, part.message(), world.now)
    origin.members["archive"] = {world.node(): b""}
    world.settle()
    assert near.directory.clusters() == {"store", "archive"}, "who is nearer to it than the liar does not hear him"
    world.remove(liar)
    world.settle()
    assert far.directory.clusters() == {"store", "archive"}, "and when he is gone nobody does"


def test_what_was_told_by_the_way_that_is_left_does_not_stay() -> None:
    """The origin has restarted its count, say, or a gateway on one route has lied: the other route counts."""
    directory = listening()
    origin = Hop("far", D)
    lead(directory, B, "b", origin)
    lead(directory, C, "c", origin)
    tell(directory, B, origin, members("old", [7]), change=(0, 1_000))
    tell(directory, C, origin, members("new", [8]), change=(0, 3))
    assert directory.clusters() == {"old"}
    first = directory.contents(origin)
    assert first is not None
    version = first.version
    directory.forget(B)
    assert directory.clusters() == {"new"}
    assert first.version > version, "what others are told is counted here"
    tell(directory, C, origin, members("newer", [8]), members("new", [8]), change=(3, 4))
    assert directory.clusters() == {"newer"}


def test_what_is_known_of_an_origin_stays_while_a_better_way_has_not_told_it_yet() -> None:
    directory = listening()
    origin = Hop("far", C)
    lead(directory, B, "b", origin)
    tell(directory, B, origin, members("store", [7]))
    lead(directory, C, "far", origin)
    assert directory.clusters() == {"store"}
    tell(directory, C, origin, members("better", [7]))
    assert directory.clusters() == {"better"}
