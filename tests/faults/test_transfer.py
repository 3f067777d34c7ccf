"""A large transfer through a bad network between two machines: packets are lost, the link flaps, connections break."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from tests.support.bad_cable import ADDRESSES, kill_connections, open_cable, why_not
from tests.support.hashed import CLUSTER, MIB, make_credentials
from tests.support.parts import Part, open_run, resident

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not())]

_CASE: Final = "tests.support.programs.transfer"


@pytest.mark.parametrize(
    ("size", "flap_every", "reset_every", "lost", "flaps", "resets"),
    [
        pytest.param(32 * MIB, 250, 2 * MIB, 10, 10, 10, marks=pytest.mark.long),
        pytest.param(
            10 * 1024 * MIB, 6000, 40 * MIB, 5000, 100, 100, marks=[pytest.mark.faults, pytest.mark.timeout(3 * 3600)]
        ),
    ],
    ids=["32 MiB", "10 GiB"],
)
def test_what_is_sent_through_loss_flaps_and_resets_arrives_as_it_was_sent(
    size: int, flap_every: int, reset_every: int, lost: int, flaps: int, resets: int
) -> None:
    """The faults come by what has passed, so that their number does not depend on how fast that was."""
    with open_run() as run, open_cable(run, loss=0.01, flap_every=flap_every, flap=(0.05, 0.4)) as (cable, namespaces):
        credential = make_credentials(run, **{CLUSTER: ()})[CLUSTER]
        prefixes = [("ip", "netns", "exec", namespace) for namespace in namespaces]
        urls = [f"tcp://{address}:7000" for address in ADDRESSES]
        member = run.start(_CASE, "member", prefix=prefixes[0], credential=credential, listen=urls[0])
        member.hear("ready")
        task = {"credential": credential, "listen": urls[1], "seed": urls[0], "bytes": size}
        opener = run.start(_CASE, "opener", prefix=prefixes[1], **task)
        opener.hear("ready")
        reset, said = _reset_until_done(opener, namespaces[1], every=reset_every)
        cable.tell()
        counted = cable.hear_line("lost")
        memory = max(resident(part.pid, "VmHWM") for part in (opener, member))
    assert said["equal"], "what arrived is not what was sent"
    assert counted["lost"] > lost
    assert counted["flaps"] >= flaps
    assert reset >= resets
    assert memory < (64 + 64) * MIB, "a node and one tunnel take less, whatever passes through"


def _reset_until_done(opener: Part, namespace: str, every: int) -> tuple[int, dict[str, Any]]:
    """Reset all connections after each ``every`` bytes, in the mean; return how often, and the opener's last line."""
    rng = random.Random(2)
    resets = 0
    due = float(every)
    while True:
        said = opener.hear_line("", 120.0)
        if "done" in said:
            return resets, said
        if said["sent"] >= due:
            kill_connections(namespace)
            resets += 1
            due += rng.uniform(0.5, 1.5) * every
