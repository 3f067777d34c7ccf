"""Many sources of bulk data at one link: each call costs the same however many there are."""

from __future__ import annotations

from iris.kernel.link.link import Link
from iris.kernel.wire.kinds import Message
from tests.support.links import NODE, SMALL, PlainSession, Way
from tests.support.messages import array


class Compared:
    """A source that counts how often sources are compared with one another."""

    comparisons = 0

    def __init__(self) -> None:
        self.taken = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def pop(self, limit: int, *, shared: bool) -> tuple[Message, int] | None:
        self.taken += 1
        return None if self.taken > 1 else (array(9, "x"), limit)


async def test_a_source_is_found_without_a_look_at_the_others() -> None:
    link = Link(NODE, SMALL)
    sources = [Compared() for _ in range(1000)]
    Compared.comparisons = 0
    for _ in range(3):
        for source in sources:
            link.add_bulk_source(source)
    assert Compared.comparisons <= 3 * len(sources)  # a hash may meet another one


async def test_a_source_that_is_told_twice_is_asked_once_in_a_turn() -> None:
    link = Link(NODE, SMALL)
    first, second = Compared(), Compared()
    for source in (first, second, first, first):
        link.add_bulk_source(source)
    way = Way()
    link.use(PlainSession())
    link.attach(way)
    # Each piece fills a batch of its own, so that a frame asks one source.
    assert link._next_frame(PlainSession())
    assert (first.taken, second.taken) == (1, 0)
    link._frame = None
    assert link._next_frame(PlainSession())
    assert (first.taken, second.taken) == (1, 1)
