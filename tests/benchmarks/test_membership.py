"""Whole realms of machines on one heap: small slices of what ``python -m benchmarks.membership`` measures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from benchmarks.membership import balancing, scenarios
from benchmarks.membership.__main__ import main
from benchmarks.membership.malice import malice
from benchmarks.membership.overlays import Drawn, Fingers, Hubs, Nearest, Overlay, Rings
from benchmarks.membership.realm import Realm
from benchmarks.membership.roots import announcing
from iris.cluster.swim.records import MemberState

_TRACE = """
from benchmarks.membership.realm import Realm
realm = Realm(12, 7, loss=0.05, traced=True)
realm.run(2.0)
realm.start(realm.nodes[0])
realm.run(1.0)
realm.kill(realm.nodes[3])
realm.vanish(realm.nodes[4])
realm.stall(realm.nodes[5], 1.5)
realm.run(6.0)
print(realm.digest, realm.events)
"""


def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    runs = {
        subprocess.run(
            [sys.executable, "-c", _TRACE],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(runs) == 1
    assert runs.pop().split()[1] > "1000"


def test_another_seed_gives_another_run() -> None:
    digests: set[str] = set()
    for seed in (1, 2):
        realm = Realm(5, seed, traced=True)
        realm.run(3.0)
        digests.add(realm.digest)
    assert len(digests) == 2


def test_sharing_what_everybody_knows_changes_nothing() -> None:
    digests: set[str] = set()
    for shared in (True, False):
        realm = Realm(20, 3, loss=0.05, traced=True, shared=shared)
        realm.run(3.0)
        realm.start(realm.nodes[1])
        realm.kill(realm.nodes[2])
        realm.vanish(realm.nodes[3])
        realm.run(8.0)
        digests.add(realm.digest)
    assert len(digests) == 1


def test_nodes_that_join_one_after_the_other_all_see_each_other() -> None:
    realm = Realm(1, 1, encoded=True)
    for _ in range(30):
        realm.start(realm.random.choice(realm.nodes))
        realm.run(0.05)
    realm.run(1.0)
    assert realm.complete()


def test_two_realms_that_grew_apart_become_one_when_any_two_nodes_meet() -> None:
    realm = Realm(2, 1, settled=False, encoded=True)
    one, other = realm.nodes
    for _ in range(10):
        realm.start(one)
        realm.start(other)
    realm.run(2.0)
    assert not realm.complete()
    late = realm.nodes[5]
    realm.perform(late, realm.machines[late].join([realm.nodes[6]], realm.now))
    realm.run(2.0)
    assert realm.complete()


@pytest.mark.parametrize("seed", range(3))
def test_a_vanished_host_is_dead_everywhere_in_time_and_nobody_else_is(seed: int) -> None:
    seen = scenarios.silent_death(40, seed, loss=0.05)
    assert seen.dead_everywhere < 7.0
    assert seen.last_request < 1.0
    assert seen.false_deaths == 0


@pytest.mark.parametrize("linked", [1.0, 0.1])
def test_a_killed_process_is_routed_out_at_once_and_dead_within_a_second(linked: float) -> None:
    seen = scenarios.killed(40, 1, linked=linked)
    assert seen.routed_out_everywhere < (0.05 if linked == 1.0 else 0.6)
    assert seen.dead_everywhere < 1.0
    assert seen.false_deaths == 0


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("way", ["silent", "killed"])
def test_the_smallest_realms_notice_deaths_too(size: int, way: str) -> None:
    seen = scenarios.silent_death(size, 1, callers=0) if way == "silent" else scenarios.killed(size, 1)
    assert seen.dead_everywhere < (10.0 if way == "silent" else 1.0)
    assert seen.false_deaths == 0


def test_joins_and_leaves_are_seen_by_all_within_a_second() -> None:
    seen = scenarios.arrivals(40, 1, count=3)
    assert max(*seen.joins, *seen.leaves) < 1.0


def test_a_steady_realm_costs_few_messages_and_loss_kills_nobody() -> None:
    quiet = scenarios.steady(30, 1)
    assert quiet.messages < 5.0
    assert (quiet.suspected, quiet.closed_routes, quiet.deaths) == (0, 0, 0)
    lossy = scenarios.steady(30, 1, seconds=120.0, loss=0.05)
    assert lossy.messages < 10.0
    assert lossy.deaths == 0


@pytest.mark.parametrize("minority", [0.5, 0.1])
def test_a_partition_heals_by_itself_and_harms_neither_side(minority: float) -> None:
    seen = scenarios.partition(30, 2, minority=minority)
    assert seen.full_view < 5.0
    assert seen.lost_within == 0


def test_who_joined_during_a_partition_is_known_after_it() -> None:
    realm = Realm(20, 5)
    realm.run(1.0)
    few = set(realm.nodes[:8])
    realm.cut = lambda one, other: (one in few) != (other in few)
    realm.run(20.0)
    new = realm.start(realm.nodes[0])
    few.add(new)
    gone = realm.nodes[10]
    realm.perform(gone, realm.machines[gone].leave(realm.now))
    realm.run(0.5)
    realm.vanish(gone)
    realm.run(10.0)
    realm.cut = None
    realm.run(5.0)
    assert realm.complete()
    assert not any(realm.machines[node].state(gone) is MemberState.ALIVE for node in realm.nodes)


def test_stalled_members_harm_no_healthy_one() -> None:
    seen = scenarios.stalls(20, 1, stalled=5, seconds=90.0)
    assert seen.healthy_deaths == 0
    assert seen.stalled_deaths > 0, "or they did not stand still long enough to prove anything"
    assert seen.full_view < 5.0


def test_a_malicious_member_evicts_nobody_and_closes_no_route() -> None:
    seen = malice(8, 1, seconds=20.0)
    assert (seen.deaths, seen.closed_routes) == (0, 0)
    assert seen.refutations > 10
    assert seen.rejected > 100


def test_a_one_way_drop_closes_one_route_and_kills_nobody() -> None:
    deaths, giving_work = scenarios.one_way(12, 1)
    assert deaths == 0
    assert giving_work == 10, "all but the one that cannot hear it"


def test_the_state_of_hundreds_comes_in_messages_of_bounded_size() -> None:
    realm = Realm(300, 1, encoded=True)
    realm.run(0.2)
    new = realm.start(realm.nodes[0])
    realm.run(0.3)
    assert realm.machines[new].statistics().alive == 300
    assert 40 * 1024 < realm.largest < 50 * 1024


@pytest.mark.parametrize("callers", [1, 5])
@pytest.mark.parametrize(
    "case", [partial(balancing.offered, load=0.7), partial(balancing.saturated, outstanding=200)], ids=["70 %", "full"]
)
def test_a_member_ten_times_slower_hardly_shows(case: Callable[..., balancing.Shares], callers: int) -> None:
    seen = case(1, callers=callers, seconds=20.0)
    without = case(1, callers=callers, seconds=20.0, one_slow=False)
    in_turn = case(1, callers=callers, seconds=20.0, in_turn=True)
    assert seen.p99 < 1.5 * without.p99
    assert 0.8 < seen.least_share <= seen.greatest_share < 1.2
    assert seen.slow_share < 1.2
    assert in_turn.p99 > 10 * seen.p99


def test_the_command_prints_a_table_for_each_scenario_named(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "one-way", "malicious"])
    lines = capsys.readouterr().out.splitlines()
    assert "One-way drop between two members" in lines
    assert "| 10, 120 s | 0 | 8 of 9 |" in lines
    assert sum(line.startswith("| ---") for line in lines) == 2
    with pytest.raises(SystemExit):
        main(["nonsense"])


@pytest.mark.parametrize(("load", "callers"), [(0.3, 1), (0.7, 1), (0.7, 10)])
def test_each_of_ten_gets_its_share_of_the_capacity_if_one_is_ten_times_slower(load: float, callers: int) -> None:
    seen = balancing.offered(1, load=load, callers=callers, seconds=10.0)
    without = balancing.offered(1, load=load, callers=callers, seconds=10.0, one_slow=False)
    assert 0.8 < seen.slow_share < 1.2
    assert 0.8 < seen.least_share < seen.greatest_share < 1.2
    assert seen.p99 < 1.5 * without.p99


@pytest.mark.parametrize("overlay", [Drawn(6), Fingers(), Nearest(6), Rings(6)], ids=lambda one: type(one).__name__)
def test_over_few_links_all_see_who_comes_and_who_is_gone(overlay: Overlay) -> None:
    seen = scenarios.arrivals(40, 1, count=1, overlay=overlay)
    assert max(*seen.joins, *seen.leaves) < 1.0
    assert seen.handshakes[0] < 40
    death = scenarios.silent_death(40, 1, callers=0, overlay=overlay)
    assert death.dead_everywhere < 7.0
    assert death.false_deaths == 0


def test_whoever_publishes_and_subscribes_to_a_root_know_each_other_over_few_links() -> None:
    seen = announcing(150, 20, 5, 40, 1)
    assert seen.missed == 0
    assert max(seen.links) < 50
    assert max(seen.messages) <= 150 * 2 * 16


def test_who_draws_keeps_as_many_links_as_it_is_to_draw_whoever_vanishes() -> None:
    realm = Realm(20, 1, overlay=Drawn(4))
    assert realm.links is not None
    realm.run(1.0)
    for node in realm.nodes[:8]:
        realm.vanish(node)
    realm.run(30.0)
    assert all(4 <= len(realm.links.of(node)) < 12 for node in realm.nodes)
    assert all(other in realm.machines for node in realm.nodes for other in realm.links.of(node))


def test_halves_that_were_parted_draw_each_other_again() -> None:
    realm = Realm(20, 1, overlay=Drawn(4))
    assert realm.links is not None
    few = set(realm.nodes[:10])
    realm.run(1.0)
    realm.cut = lambda one, other: (one in few) != (other in few)
    realm.run(30.0)
    assert not any(other not in few for node in few for other in realm.links.of(node))
    realm.cut = None
    realm.run(30.0)
    assert realm.complete()
    assert sum(other not in few for node in few for other in realm.links.of(node)) >= 10


def test_a_message_to_whom_no_link_is_kept_to_makes_one_that_lasts_while_it_is_used() -> None:
    realm = Realm(3, 1, overlay=Hubs(1))
    links = realm.links
    assert links is not None
    one, other = (node for node in realm.nodes if len(links.of(node)) == 1)
    made = links.made[one]
    assert links.use(one, other, 100.0) > 0
    assert [links.use(one, other, now) for now in (101.0, 125.0, 150.0)] == [0.0, 0.0, 0.0]
    assert other in links.open(one, 151.0)
    assert links.made[one] == made + 1
    assert links.use(other, one, 190.0) > 0
