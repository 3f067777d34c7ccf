"""A machine behind a firewall that lets nobody in: nodes and gateways on it dial out, and take part all the same."""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest

from tests.support.machines import APP, Machine, open_machines, why_no_wall
from tests.support.watching import Changes

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why_no_wall()), reason=why_no_wall())]

CREDENTIAL = ("--credential", "credential")
CHANGED = 60.0
"""Seconds after which a change is taken never to be seen."""


@pytest.fixture
def machines() -> Generator[tuple[Machine, Machine]]:
    """An office that can be reached, and a home that cannot; both have credentials of one realm, as gateways too."""
    with open_machines() as (office, home):
        realm = str(office.terminal.directory / "realm.key")
        assert office.terminal.run("keys", "realm", realm).returncode == 0
        for machine, name in ((office, "office"), (home, "databases")):
            for extra, file in (((), "credential"), (("--gateway",), "gateway")):
                out = str(machine.terminal.directory / file)
                named = f"{name}-gateway" if extra else name
                done = office.terminal.run("keys", "cluster", realm, named, "--out", out, *extra)
                assert done.returncode == 0, done.stderr
        (home.terminal.directory / "app.py").write_text(APP)
        home.turn_away_callers()
        yield office, home


def test_the_firewall_lets_nobody_in(machines: tuple[Machine, Machine]) -> None:
    # Both find each other on the local network as well, and the member dials the asker: the request may succeed.
    office, home = machines
    serve = ("run", "app:databases", *CREDENTIAL, "--listen", home.web)
    with home.terminal.started(*serve, announces="serves databases"):
        office.terminal.run("request", "databases", "hello", *CREDENTIAL, "--seeds", home.web)
    assert home.turned_away() > 0


def test_a_member_that_only_dials_out_serves_and_is_found_again(machines: tuple[Machine, Machine]) -> None:
    office, home = machines
    seeds = ("--seeds", office.web)
    serve = ("run", "app:databases", *CREDENTIAL, "--dial-only", *seeds)
    watch = ("nodes", "databases", "--watch", "--json", *CREDENTIAL, "--listen", office.web)
    ask = ("request", "databases", "hello", *CREDENTIAL, *seeds, "--listen", f"ws://{office.address}:0/iris")
    with office.terminal.started(*watch) as watching, home.terminal.started(*serve, announces="serves databases"):
        changes = Changes(watching)
        changes.wait_for("joined", CHANGED)
        done = office.terminal.run(*ask)
        assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
        office.unplug()
        changes.wait_for("lost", CHANGED)
        office.plug()
        changes.wait_for("joined", CHANGED)
        done = office.terminal.run(*ask)
        assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
    assert home.turned_away() == 0, "nobody has tried to dial it"


def test_a_site_behind_a_firewall_is_joined_by_a_gateway_that_only_dials_out(machines: tuple[Machine, Machine]) -> None:
    office, home = machines
    near = {machine: f"tcp://{machine.address}:7000" for machine in machines}
    gate = ("--credential", "gateway", "--export", ">")
    with (
        office.terminal.started(
            "gateway",
            "--site",
            "office",
            "--listen",
            office.web,
            "--near",
            near[office],
            *gate,
            announces="is a gateway",
        ),
        home.terminal.started(
            "gateway", "--site", "home", "--peer", office.web, "--near", near[home], *gate, announces="only dials out"
        ),
        home.terminal.started(
            *("run", "app:databases", *CREDENTIAL, "--site", "home", "--seeds", near[home]),
            announces="serves databases",
        ),
    ):
        end = time.monotonic() + CHANGED
        while True:
            done = office.terminal.run(
                *("request", "databases", "hello", *CREDENTIAL, "--site", "office", "--seeds", near[office])
            )
            if done.returncode == 0 or time.monotonic() > end:
                break
    assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr


def test_of_three_sites_one_behind_a_firewall_is_reached_from_the_farthest(machines: tuple[Machine, Machine]) -> None:
    hub, home = machines
    gate = ("--credential", "gateway", "--export", ">")
    berlin, paris, tokyo = (f"tcp://{hub.address}:7000", f"tcp://{hub.address}:7100", f"tcp://{home.address}:7000")
    with (
        hub.terminal.started(
            *("gateway", "--site", "berlin", "--listen", hub.web, "--near", berlin, *gate), announces="is a gateway"
        ),
        hub.terminal.started(
            *("gateway", "--site", "paris", "--listen", f"ws://{hub.address}:7180/iris", "--peer", hub.web),
            *("--near", paris, *gate),
            announces="is a gateway",
        ),
        home.terminal.started(
            *("gateway", "--site", "tokyo", "--peer", hub.web, "--near", tokyo, *gate), announces="only dials out"
        ),
        home.terminal.started(
            *("run", "app:databases", *CREDENTIAL, "--site", "tokyo", "--seeds", tokyo), announces="serves databases"
        ),
    ):
        end = time.monotonic() + CHANGED
        while True:
            done = hub.terminal.run(
                *("request", "databases@tokyo", "hello", *CREDENTIAL, "--site", "paris", "--seeds", paris)
            )
            if done.returncode == 0 or time.monotonic() > end:
                break
    assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
