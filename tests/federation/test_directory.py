"""The directory of sites: routes without loops on any graph, withdrawn when they end; hostile neighbours."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.cluster.directory.directory import FORMER, RemoteSubscriber, SiteDirectory, TooManyChanges
from iris.cluster.directory.exports import ExportTable
from iris.cluster.directory.messages import (
    CLUSTER,
    COMPANION,
    TOPIC,
    Export,
    Hop,
    RouteAdvertisement,
    exports_untrusted,
    split_exports,
)
from iris.cluster.directory.neighbour_table import UPDATES
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId, realm_of_topic
from iris.kernel.wire import encode_batch, kinds
from tests.support.messages import arrived, decoded, raw
from tests.support.site_worlds import Site, World

A, B, C, D = (NodeId(f"{number:032x}") for number in range(1, 5))


def ring(count: int) -> tuple[World, list[Site]]:
    world = World()
    sites = [world.add(f"s{number}", clusters=["databases"]) for number in range(count)]
    for number, site in enumerate(sites):
        world.link(site, sites[(number + 1) % count])
    world.settle()
    return world, sites


def full(count: int) -> tuple[World, list[Site]]:
    world = World()
    sites = [world.add(f"s{number}", clusters=["databases"]) for number in range(count)]
    for one, other in itertools.combinations(sites, 2):
        world.link(one, other)
    world.settle()
    return world, sites


def test_a_site_is_told_when_the_exports_of_all_its_gateways_have_come() -> None:
    directory = SiteDirectory(Hop("eu", A))
    directory.add(B, 0.0, local=False)
    origin = Hop("us", B)
    directory.receive_route_untrusted(B, RouteAdvertisement(origin, (origin,)).message(), 0.0)
    assert directory.sites() == ("us",)
    assert not directory.is_fully_exported("us")
    assert directory.settles("us", 10.0) == math.inf
    for part in split_exports(origin, 0, 1, [Export(CLUSTER, "store", C)], []):
        directory.receive_exports_untrusted(B, part.message(), 0.0)
    assert directory.is_fully_exported("us")
    assert directory.lists("us", C)
    assert list(directory.listing("us", C)) == [origin]
    assert list(directory.listing("us", D)) == list(directory.listing("ap", C)) == []


def test_a_site_has_settled_when_each_of_its_gateways_has_been_known_for_a_while() -> None:
    directory = SiteDirectory(Hop("eu", A))
    for gateway, other, now in ((B, C, 1.0), (C, B, 5.0)):
        directory.add(gateway, now, local=False)
        origin = Hop("us", gateway)
        directory.receive_route_untrusted(gateway, RouteAdvertisement(origin, (origin,)).message(), now)
        for part in split_exports(origin, 0, 1, [Export(COMPANION, "", other)], []):
            directory.receive_exports_untrusted(gateway, part.message(), now)
    assert directory.settles("us", 10.0) == 15.0
    assert directory.settles("ap", 10.0) == math.inf
    directory.forget(C)
    assert directory.settles("us", 10.0) == 11.0
    directory.forget(B)
    assert directory.settles("us", 10.0) == math.inf


def test_a_site_without_a_route_is_remembered_and_their_number_is_bounded() -> None:
    directory = SiteDirectory(Hop("eu", A))

    def come_and_go(number: int) -> None:
        directory.add(B, float(number), local=False)
        origin = Hop(f"s{number}", B)
        directory.receive_route_untrusted(B, RouteAdvertisement(origin, (origin,)).message(), float(number))
        assert directory.has_reached(origin.site)
        directory.forget(B)
        assert not directory.reaches(origin.site)
        assert directory.has_reached(origin.site)

    come_and_go(0)
    assert not directory.has_reached("nowhere")
    for number in range(1, FORMER + 1):
        come_and_go(number)
    assert [directory.has_reached(f"s{number}") for number in (0, 1, FORMER)] == [False, True, True]


def test_a_cut_ring_becomes_a_chain_and_heals() -> None:
    world, sites = ring(4)
    world.cut(sites[0], sites[1])
    world.settle()
    assert world.path(sites[0], "s1") == ["s0", "s3", "s2", "s1"]
    world.link(sites[0], sites[1])
    world.settle()
    assert world.path(sites[0], "s1") == ["s0", "s1"]


def test_a_site_that_goes_away_is_withdrawn_everywhere() -> None:
    world, sites = full(6)
    world.remove(sites[5])
    world.settle()
    for site in sites[:5]:
        assert site.directory.sites() == tuple(f"s{number}" for number in range(5) if site is not sites[number])
        assert len(site.directory.members("databases")) == 4


def test_nothing_is_told_twice() -> None:
    world, sites = ring(4)
    assert world.settle() == 0
    told = world.messages
    sites[0].members["archive"] = {world.node(): b""}
    world.settle()
    # Both neighbours receive it, the site behind them from both, and one of these from that site.
    assert world.messages - told == 5
    assert [len(site.directory.members("archive")) for site in sites] == [0, 1, 1, 1]


def test_a_change_travels_as_the_difference() -> None:
    world = World()
    one, other = world.add("one", clusters=[f"c{number}" for number in range(2_000)]), world.add("other")
    world.link(one, other)
    world.settle()
    before = world.bytes
    one.members["more"] = {world.node(): b""}
    world.settle()
    assert world.bytes - before < 200
    assert len(other.directory.clusters()) == 2_001


def test_without_transit_sites_do_not_reach_each_other_through_this_one() -> None:
    world = World()
    left, middle, right = world.add("left"), world.add("middle", transit=False), world.add("right")
    world.link(left, middle)
    world.link(middle, right)
    world.settle()
    assert left.directory.sites() == ("middle",)
    assert middle.directory.sites() == ("left", "right")


def test_two_gateways_of_one_site_hand_on_what_only_the_other_reaches() -> None:
    world = World()
    west, one, two, east = world.add("west"), world.add("home"), world.add("home"), world.add("east")
    world.link(west, one)
    world.link(two, east)
    world.link(one, two)
    world.settle()
    assert world.path(west, "east") == ["west", "home", "home", "east"]
    assert world.path(east, "west") == ["east", "home", "home", "west"]
    assert one.directory.sites() == ("east", "west")


def test_with_one_of_two_gateways_gone_the_other_is_used() -> None:
    world = World()
    west, one, two = world.add("west"), world.add("home", clusters=["x"]), world.add("home", clusters=["x"])
    for site in (one, two):
        world.link(west, site)
    # Gateways of one site get to know each other by their announcements of other sites.
    world.link(one, two)
    world.settle()
    assert len(west.directory.origins()) == 2
    world.remove(one)
    world.settle()
    assert world.path(west, "home") == ["west", "home"]
    assert [found.site for found in west.directory.members("x")] == ["home"]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(2, 9),
    links=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=24),
    cuts=st.lists(st.integers(0, 23), max_size=8),
)
def test_on_any_graph_whoever_is_connected_finds_a_way_without_loops(
    count: int, links: list[tuple[int, int]], cuts: list[int]
) -> None:
    world = World()
    sites = [world.add(f"s{number}") for number in range(count)]
    graph = {(min(a, b) % count, max(a, b) % count) for a, b in links}
    graph = {(min(a, b), max(a, b)) for a, b in graph if a != b}
    for one, other in sorted(graph):
        world.link(sites[one], sites[other])
    world.settle()
    check(world, sites, graph)
    for cut in cuts:
        if graph:
            one, other = sorted(graph)[cut % len(graph)]
            graph.discard((one, other))
            world.cut(sites[one], sites[other])
    world.settle()
    check(world, sites, graph)


def check(world: World, sites: list[Site], graph: set[tuple[int, int]]) -> None:
    distances = dict.fromkeys(graph, 1) | {(other, one): 1 for one, other in graph}
    for middle, start, end in itertools.product(range(len(sites)), repeat=3):
        by_way = distances.get((start, middle), 99) + distances.get((middle, end), 99)
        if start != end and by_way < distances.get((start, end), 99):
            distances[start, end] = by_way
    for start, end in itertools.permutations(range(len(sites)), 2):
        passed = world.path(sites[start], f"s{end}")
        expected = distances.get((start, end))
        assert (None if passed is None else len(passed) - 1) == expected


# -- what neighbours may not do -----------------------------------------------------------------------------


def listening(**options: int) -> SiteDirectory:
    directory = SiteDirectory(Hop("home", A), **options)
    directory.add(B, 0.0, local=False)
    return directory


def route(*path: Hop) -> kinds.Route:
    return RouteAdvertisement(path[-1], path).message()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("begins elsewhere", route(Hop("far", C), Hop("end", D))),
        ("ends elsewhere", RouteAdvertisement(Hop("end", D), (Hop("far", B), Hop("end", C))).message()),
        ("says that it is of this site", route(Hop("home", B))),
        ("half a hop", raw(kinds.Route, "far", bytes.fromhex(B), (("far",),))),
        ("no site", kinds.Route("not a name", bytes.fromhex(B), ())),
        ("no node", raw(kinds.Route, "far", b"short", ())),
        ("a path without end", raw(kinds.Route, "far", bytes.fromhex(B), (("far", bytes.fromhex(B)),) * 17)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_route_that_cannot_be_is_refused(what: str, message: Any) -> None:
    directory = listening()
    with pytest.raises(RemoteProtocolError):
        directory.receive_route_untrusted(B, decoded(encode_batch([message]))[0], 0.0)
    assert directory.sites() == (), what


@pytest.mark.parametrize(
    "path",
    [
        (Hop("far", B), Hop("home", C), Hop("end", D)),
        (Hop("far", B), Hop("end", A)),
        (Hop("far", B), Hop("mid", C), Hop("far", D)),
        (Hop("far", B), Hop("mid", C), Hop("end", C)),
    ],
)
def test_a_path_that_would_loop_is_not_taken_and_ends_the_one_before(path: tuple[Hop, ...]) -> None:
    directory = listening()
    directory.receive_route_untrusted(B, RouteAdvertisement(path[-1], (Hop("far", B), path[-1])).message(), 0.0)
    directory.receive_route_untrusted(B, RouteAdvertisement(path[-1], path).message(), 0.0)
    assert directory.sites() == ()


def test_a_stranger_is_not_listened_to() -> None:
    with pytest.raises(RemoteProtocolError):
        listening().receive_route_untrusted(C, route(Hop("far", C)), 0.0)


def test_a_neighbour_has_so_many_places_and_no_more() -> None:
    directory = listening(max_origins=3)
    for number in range(3):
        directory.receive_route_untrusted(B, route(Hop("far", B), Hop(f"s{number}", NodeId(f"{number + 9:032x}"))), 0.0)
    with pytest.raises(RemoteProtocolError):
        directory.receive_route_untrusted(B, route(Hop("far", B), Hop("more", D)), 0.0)
    assert directory.sites() == ("s0", "s1", "s2")


def test_a_flood_is_an_error_of_that_neighbour_and_ends_with_time() -> None:
    directory = listening()
    directory.add(C, 0.0, local=False)
    message = route(Hop("far", B))
    for _ in range(UPDATES):
        directory.receive_route_untrusted(B, message, 0.0)
    with pytest.raises(TooManyChanges):
        directory.receive_route_untrusted(B, message, 0.0)
    directory.receive_route_untrusted(C, route(Hop("other", C)), 0.0)
    directory.receive_route_untrusted(B, message, 1.0)
    assert directory.sites() == ("far", "other")


def test_of_two_sites_with_one_name_the_first_stays_until_it_is_gone() -> None:
    directory = listening()
    directory.add(C, 0.0, local=False)
    directory.receive_route_untrusted(B, route(Hop("far", B)), 0.0)
    directory.receive_route_untrusted(C, route(Hop("far", C)), 1.0)
    assert directory.origins() == (Hop("far", B),)
    assert directory.name_conflicts(3.0, 5.0) == []
    assert directory.name_conflicts(7.0, 5.0) == [Hop("far", C)]
    directory.forget(B)
    assert directory.origins() == (Hop("far", C),)
    assert directory.name_conflicts(7.0, 5.0) == []


def test_companions_have_to_name_each_other() -> None:
    directory = listening()
    directory.add(C, 0.0, local=False)
    for node in (B, C):
        directory.receive_route_untrusted(node, route(Hop("far", node)), 0.0)
    tell(directory, C, Hop("far", C), [Export(3, "", B)])
    assert directory.origins() == (Hop("far", B),), "its word alone is not enough"
    tell(directory, B, Hop("far", B), [Export(3, "", C)])
    assert directory.origins() == (Hop("far", B), Hop("far", C))


def told_backwards(gateways: list[Hop], named: Callable[[int], Iterable[int]]) -> tuple[SiteDirectory, int]:
    """Tell of gateways, the first one last; return the directory and the function calls that the last message took."""
    directory = listening()
    for hop in gateways:
        directory.receive_route_untrusted(B, route(Hop("far", B), hop), 0.0)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    for place in reversed(range(len(gateways))):
        exports = [Export(COMPANION, "", gateways[other].gateway) for other in named(place)]
        sys.setprofile(None if place else count)
        try:
            tell(directory, B, gateways[place], exports)
        finally:
            sys.setprofile(None)
    return directory, calls


def chain(length: int) -> int:
    gateways = [Hop("end", NodeId(f"{100 + place:032x}")) for place in range(length)]
    directory, calls = told_backwards(
        gateways, lambda place: [other for other in (place - 1, place + 1) if 0 <= other < length]
    )
    assert set(directory.origins()) == set(gateways)
    return calls


def test_a_site_of_many_gateways_that_are_companions_one_by_one_is_settled_in_one_go() -> None:
    assert chain(256) < 3 * chain(128)


def test_a_gateway_speaks_for_its_site_as_long_as_it_can_be_reached() -> None:
    first, second, third = gateways = [Hop("end", NodeId(f"{100 + place:032x}")) for place in range(3)]
    directory, _ = told_backwards(gateways, lambda place: [other for other in range(3) if other != place])
    tell(directory, B, second, [], version=2)
    assert set(directory.origins()) == set(gateways), "those who are accepted stay"
    directory.receive_route_untrusted(B, RouteAdvertisement(third, ()).message(), 0.0)
    assert set(directory.origins()) == {first, second}


def tell(directory: SiteDirectory, neighbour: NodeId, origin: Hop, exports: list[Export], version: int = 1) -> None:
    for part in split_exports(origin, 0, version, exports, ()):
        assert directory.receive_exports_untrusted(neighbour, part.message(), 0.0) is None


def test_a_change_of_something_unknown_is_asked_for_as_a_whole() -> None:
    directory = listening()
    directory.receive_route_untrusted(B, route(Hop("far", B)), 0.0)
    (part,) = split_exports(Hop("far", B), 7, 8, [Export(CLUSTER, "x", C)], ())
    question = directory.receive_exports_untrusted(B, part.message(), 0.0)
    assert question == kinds.ExportsWanted("far", bytes.fromhex(B))
    assert directory.clusters() == set()


def test_exports_of_an_origin_without_a_route_are_passed_over() -> None:
    directory = listening()
    tell(directory, B, Hop("far", B), [Export(CLUSTER, "x", C)])
    assert directory.clusters() == set()


def test_what_is_not_permitted_is_dropped() -> None:
    directory = listening()
    directory.permit(lambda _, export: export.name != "secrets")
    directory.receive_route_untrusted(B, route(Hop("far", B)), 0.0)
    tell(directory, B, Hop("far", B), [Export(CLUSTER, "secrets", C), Export(CLUSTER, "open", C)])
    assert directory.clusters() == {"open"}


# -- exports as messages ------------------------------------------------------------------------------------

NODES = st.integers(0, 7).map(lambda number: f"{number:032x}")
EXPORTS = st.one_of(
    st.builds(Export, st.just(CLUSTER), st.sampled_from(["a", "b", "c.d"]), NODES, st.sampled_from([b"", b"proof"])),
    st.builds(Export, st.just(TOPIC), st.sampled_from(["a.>", "*.b", "c"]), NODES, st.just(b"")),
    st.builds(Export, st.just(COMPANION), st.just(""), NODES, st.just(b"")),
)


@given(versions=st.lists(st.sets(EXPORTS, max_size=12), min_size=1, max_size=80), behind=st.integers(0, 80))
def test_whoever_is_told_the_difference_has_the_same(versions: list[set[Export]], behind: int) -> None:
    origin = Hop("far", B)
    contents, copy = ExportTable(origin), listening()
    copy.receive_route_untrusted(B, route(origin), 0.0)
    told = 0
    for number, entries in enumerate(versions, 1):
        contents.replace(number, entries)
        if number == behind or number == len(versions):
            for part in contents.since(told):
                assert exports_untrusted(part.message()) == part
                assert copy.receive_exports_untrusted(B, part.message(), 0.0) is None
            told = number
    held = copy.contents(origin)
    assert held is not None
    assert held.entries == versions[-1]
    names = {name: set(members) for name, members in held.clusters.items()}
    assert names == {
        name: {export.node for export in versions[-1] if export[:2] == (CLUSTER, name)}
        for name in {export.name for export in versions[-1] if export.kind == CLUSTER}
    }


def test_what_does_not_fit_into_a_message_comes_in_parts_and_counts_when_it_is_whole() -> None:
    origin = Hop("far", B)
    entries = [Export(CLUSTER, f"c{number}", C) for number in range(1_500)]
    parts = list(split_exports(origin, 0, 1, entries, ()))
    assert len(parts) == 3
    directory = listening()
    directory.receive_route_untrusted(B, route(origin), 0.0)
    for part in parts:
        assert directory.clusters() == set()
        directory.receive_exports_untrusted(B, part.message(), 0.0)
    assert len(directory.clusters()) == 1_500


@given(st.binary(max_size=200) | st.tuples(st.integers(), st.text(max_size=3), st.binary(max_size=20)))
def test_anything_that_is_no_export_is_one_error(junk: object) -> None:
    directory = listening()
    directory.receive_route_untrusted(B, route(Hop("far", B)), 0.0)
    with pytest.raises(RemoteProtocolError):
        directory.receive_exports_untrusted(
            B, arrived(kinds.Exports, "far", bytes.fromhex(B), 0, 1, (junk,), (), False), 0.0
        )


@pytest.mark.parametrize("pattern", ["", "a..b", ">.a", "a\x9b[2J", "a.\u202eb", "x" * 257, ".".join("x" * 33)])
def test_what_a_site_says_that_it_subscribes_to_is_a_pattern(pattern: str) -> None:
    entry = (TOPIC, pattern, bytes(16), b"")
    with pytest.raises(RemoteProtocolError, match=r"an export has|malformed batch"):
        exports_untrusted(arrived(kinds.Exports, "far", bytes.fromhex(B), 0, 1, (entry,), (), False))


@pytest.mark.parametrize("kind", [TOPIC, COMPANION])
def test_only_members_of_clusters_come_with_a_proof(kind: int) -> None:
    """Two exports that differ in a proof which nobody reads would be one entry that is removed twice."""
    entry = (kind, "a.>" if kind == TOPIC else "", bytes(16), b"proof")
    with pytest.raises(RemoteProtocolError, match=r"an export has|malformed batch"):
        exports_untrusted(arrived(kinds.Exports, "far", bytes.fromhex(B), 0, 1, (entry,), (), False))


def wanting(directory: SiteDirectory) -> set[RemoteSubscriber]:
    """Return who wants events of this realm, worked out anew."""
    return {
        RemoteSubscriber(origin.site, node, pattern)
        for origin in directory.origins()
        if (contents := directory.contents(origin)) is not None
        for pattern, nodes in contents.topics.items()
        if not realm_of_topic(pattern)
        for node in nodes
    }


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["route", "withdraw", "exports"]), st.integers(0, 2), st.sets(st.integers(0, 5), max_size=4)
        ),
        max_size=40,
    )
)
def test_who_wants_events_is_told_with_each_change_whatever_neighbours_tell(
    script: list[tuple[str, int, set[int]]],
) -> None:
    directory = listening()
    told: set[RemoteSubscriber] = set()

    def note(found: RemoteSubscriber, *, wants: bool) -> None:
        assert (found in told) is not wants
        (told.add if wants else told.discard)(found)

    directory.subscriptions.note = note  # type: ignore[method-assign]
    gateways = [Hop("end", NodeId(f"{100 + place:032x}")) for place in range(3)]
    topics = ["a.>", "b", "c.*", f"{'ab' * 16}/x"]
    for version, (what, place, chosen) in enumerate(script, 1):
        origin = gateways[place]
        if what == "exports":
            # Numbers below 4 stand for topics, wanted by one of two nodes; the others for companions.
            exports = [Export(TOPIC, topics[number], (C, D)[number % 2]) for number in chosen if number < 4]
            exports += [
                Export(COMPANION, "", gateways[(place + number - 3) % 3].gateway) for number in chosen - {0, 1, 2, 3}
            ]
            tell(directory, B, origin, exports, version)
        else:
            path = (Hop("far", B), origin) if what == "route" else ()
            directory.receive_route_untrusted(B, RouteAdvertisement(origin, path).message(), 0.0)
        assert directory.subscribers() == told == wanting(directory)
