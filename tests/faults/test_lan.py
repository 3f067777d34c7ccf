"""Nodes on two machines of one local network find each other without configured addresses."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.machines import APP, Machine, open_machines, why_not

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture
def machines() -> Generator[tuple[Machine, Machine]]:
    """Two machines; each has credentials of one realm, and nothing else in common."""
    with open_machines() as (asker, member):
        realm = str(asker.terminal.directory / "realm.key")
        assert asker.terminal.run("keys", "realm", realm).returncode == 0
        for machine, name in ((asker, "askers"), (member, "databases")):
            credential = str(machine.terminal.directory / "credential")
            assert asker.terminal.run("keys", "cluster", realm, name, "--out", credential).returncode == 0
        (member.terminal.directory / "app.py").write_text(APP)
        yield asker, member


def test_a_member_is_found_on_the_local_network_and_remembered_where_it_was(machines: tuple[Machine, Machine]) -> None:
    asker, member = machines
    listen = ("--credential", "credential", "--listen")
    ask = ("request", "databases", "hello", *listen, f"tcp://{asker.address}:0", "--timeout", "20")
    with member.terminal.started("run", "app:databases", *listen, member.url, announces="serves databases"):
        done = asker.terminal.run(*ask)
        assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
    books = list((Path(asker.terminal.environment["IRIS_HOME"]) / "addresses").glob("*.json"))
    assert len(books) == 1
    assert re.search(re.escape(member.url), books[0].read_text())
    assert books[0].stat().st_mode & 0o777 == 0o600
