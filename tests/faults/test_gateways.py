"""``kill -9`` of gateways under load, in processes and on the real clock: what is lost, and for how long nothing comes.

Two sites with two gateways each, all linked across.  A store at one site answers callers at the other; one gateway is
killed, and started again when the gap was measured, and then the next one.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

import iris
from iris.cluster.directory.directory import SiteDirectory
from iris.node.open import open_parts
from tests.support.command import COMMAND
from tests.support.ports import free_port
from tests.support.processes import Child, open_realm

CALLERS: Final = 10
_PAUSE: Final = 0.02
"""Seconds between an answer and the next request of one caller: about 400 requests/s in all."""

_WATCHED: Final = 3.0
"""Seconds after a kill in which the longest gap between two answers is looked for."""

_PATIENCE: Final = 60.0


def _gateway(directory: Path, name: str, own: str, others: Sequence[str]) -> Child:
    """Return a gateway of the site ``near`` or ``far`` that exports everything."""
    peers = [part for other in others for part in ("--peer", other)]
    arguments = ("--site", name.split("-")[0], "--listen", own, *peers, "--export", ">", "--export-topic", ">")
    return Child([*COMMAND, "gateway", *arguments], ready="", log=directory / f"{name}.txt")


@contextmanager
def _processes(directory: Path) -> Iterator[dict[str, Child]]:
    """Run a store, and the gateways of two sites."""
    urls = [f"ws://127.0.0.1:{free_port()}/gateway" for _ in range(4)]
    gateways = {
        "near-one": _gateway(directory, "near-one", urls[0], urls[2:]),
        "far-one": _gateway(directory, "far-one", urls[2], ()),
        "near-two": _gateway(directory, "near-two", urls[1], urls[2:]),
        "far-two": _gateway(directory, "far-two", urls[3], ()),
    }
    command = [*COMMAND, "run", "tests.support.programs.store:store", "--site", "far"]
    children = [*gateways.values(), Child(command, ready="", log=directory / "store.txt")]
    try:
        for child in children:
            child.launch()
        yield gateways
    finally:
        for child in children:
            child.end()


async def _wait_whole(directory: SiteDirectory) -> None:
    """Wait until both gateways here lead to both over there."""
    with trio.fail_after(_PATIENCE):
        while sum(1 for origin in directory.origins() for _ in directory.routes_to(origin)) < 4:  # noqa: ASYNC110
            await trio.sleep(0.05)  # other processes report it


def longest_gap(answers: Sequence[float], since: float, until: float) -> float:
    """Return the longest time between two answers, of which the later one came after ``since``.

    The last answer before ``since`` counts, and the first one after ``until``; without that one there is no end.
    """
    later = next((at for at in answers if at > until), None)
    if later is None:
        return math.inf
    return max((two - one for one, two in itertools.pairwise(answers) if since < two <= later), default=math.inf)


@pytest.mark.faults
@pytest.mark.parametrize("kills", [4])
async def test_with_one_of_two_gateways_killed_nothing_is_lost_and_nobody_waits_for_a_second(kills: int) -> None:
    answers: list[list[float]] = [[] for _ in range(CALLERS)]
    errors: Counter[str] = Counter()
    numbers = itertools.count()

    async def call(node: iris.Node, own: list[float]) -> None:
        while True:
            payload = next(numbers).to_bytes(100)
            try:
                if (
                    await node.request("store", payload, timeout=20.0, options=iris.RequestOptions(idempotent=True))
                    != payload
                ):
                    errors["a wrong answer"] += 1
            except iris.IrisError as error:
                errors[f"{type(error).__name__}: {error}"] += 1
            own.append(time.monotonic())
            await trio.sleep(_PAUSE)

    killed: list[float] = []
    with open_realm() as directory:
        async with open_parts("shop", site="near") as (node, parts):
            assert parts.sites is not None
            with _processes(directory) as gateways:
                await node.wait_for("store", timeout=_PATIENCE)
                await _wait_whole(parts.sites.directory)
                async with trio.open_nursery() as nursery:
                    for own in answers:
                        nursery.start_soon(call, node, own)
                    await trio.sleep(_WATCHED)
                    for gateway in itertools.islice(itertools.cycle(gateways.values()), kills):
                        gateway.end()
                        killed.append(time.monotonic())
                        await trio.sleep(_WATCHED + 1)
                        gateway.launch()
                        await _wait_whole(parts.sites.directory)
                        await trio.sleep(1)
                    nursery.cancel_scope.cancel()
    assert errors == {}
    assert sum(map(len, answers)) > 100
    gaps = sorted(longest_gap(own, since, since + _WATCHED) for own in answers for since in killed)
    assert gaps[math.ceil(0.99 * len(gaps)) - 1] <= 1.0


@pytest.mark.parametrize(
    ("answers", "gap"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0], 1.0),
        ([0.0, 1.75, 2.0, 2.75, 3.0, 4.0], 1.75),  # in progress when it was killed
        ([0.0, 0.9, 1.0, 1.5, 3.5, 4.0], 2.0),  # the first answer after the window counts
        ([0.0, 0.1, 0.9, 1.1, 2.9, 3.1, 9.0], 1.8),  # what comes later does not
        ([0.0, 0.9, 1.0], math.inf),  # no answer ever
        ([0.0, 0.9, 1.5, 2.5], math.inf),  # nor to the last request
        ([], math.inf),
    ],
)
def test_the_gap_is_the_longest_between_two_answers_around_the_kill(answers: list[float], gap: float) -> None:
    assert longest_gap(answers, 1.0, 3.0) == pytest.approx(gap)
