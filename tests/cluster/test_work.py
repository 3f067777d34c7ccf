"""Work limit of a frame: what links put together of honest messages is never beyond it."""

from __future__ import annotations

import random

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.cluster.work import TooMuchWork, Work
from iris.kernel.config import Config
from iris.kernel.wire import CHECK, MAX_CARRIED, MAX_CHECKS, MAX_MESSAGES, RELAYED_CHECK
from tests.support.links import Way, open_link
from tests.support.messages import array


def test_copies_take_nothing_of_what_is_carried() -> None:
    work = Work()
    while work.may_open(12 * MAX_MESSAGES):
        pass
    work.add_messages(MAX_CARRIED)
    work.check(MAX_CHECKS)
    with pytest.raises(TooMuchWork):
        work.add_messages(1)
    work.begin(is_frame=True)
    assert work.may_open(1)


def test_copies_of_one_event_have_as_many_signatures_checked_as_others() -> None:
    work = Work()
    opened = 0
    while work.may_open(12):
        opened += 1
    assert opened == MAX_CHECKS


@pytest.mark.parametrize("seed", range(5))
async def test_an_honest_mix_is_never_beyond_the_work_of_a_frame(autojump_clock: MockClock, seed: int) -> None:
    drawn = random.Random(seed)
    way, carried, checks, sizes = Way(), [0] * 3000, [0] * 3000, [0] * 3000
    async with open_link(Config(), way) as link:
        for number in range(3000):
            match drawn.choice(("copy", "signed", "signed", "relayed", "relayed", "carried")):
                case "copy":
                    sizes[number] = drawn.choice((1, MAX_MESSAGES))
                    link.post(array(1, number), 10)
                case "signed":
                    checks[number] = drawn.randrange(1, 4)
                    link.post(array(1, number), CHECK * checks[number])
                case "relayed":
                    carried[number], checks[number] = drawn.randrange(1, 8), 1
                    link.post_carrying(array(1, number), 10, RELAYED_CHECK + carried[number])
                case _:
                    carried[number] = drawn.choice((1, 50, MAX_MESSAGES))
                    link.post_carrying(array(1, number), 10, carried[number])
            if drawn.random() < 0.001:
                await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
    assert sum(map(len, way.batches)) == 3000
    work = Work()
    for batch in way.batches:
        work.begin(is_frame=True)
        for number in [int(message[1]) for message in batch]:
            if sizes[number]:
                work.may_open(12 * sizes[number])
            work.check(checks[number])
            work.add_messages(carried[number])
