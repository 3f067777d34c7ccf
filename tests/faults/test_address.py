"""A member without a configured address to listen on, on a machine that comes to another network."""

from __future__ import annotations

import time

import pytest

from tests.faults.test_cable import machines
from tests.support.machines import NETWORK, Machine, why_not

__all__ = ("machines",)

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def test_a_member_comes_back_when_the_address_of_its_machine_has_changed(machines: tuple[Machine, Machine]) -> None:
    hub, member = machines
    (hub.terminal.directory / "app.py").write_text("import iris\nwatchers = iris.Service('watchers')\n")
    seeds = ("--credential", "credential", "--seeds", hub.url)
    ask = ("request", "databases", "hello", *seeds, "--listen", f"tcp://{hub.address}:0", "--timeout", "5")
    with (
        hub.terminal.started("run", "app:watchers", "--credential", "credential", "--listen", hub.url),
        member.terminal.started("run", "app:databases", *seeds, announces="serves databases"),
    ):
        assert hub.terminal.run(*ask).returncode == 0
        member.move(f"{NETWORK}.9")
        began = time.monotonic()
        while (done := hub.terminal.run(*ask)).returncode != 0:
            assert time.monotonic() - began < 60, done.stderr
        print(f"{time.monotonic() - began:.1f} s")  # noqa: T201 -- a figure for the log
