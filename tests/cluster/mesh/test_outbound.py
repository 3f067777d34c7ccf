"""Connections out: dialled, given to peers, closed, and broken at any moment."""

from __future__ import annotations

from typing import cast

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh.outbound import OutboundConnections
from iris.cluster.mesh.peer import Peer
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.tasks.happy_eyeballs import STAGGER
from iris.kernel.transport.port import ConnectionUser, OutgoingConnection, Permit, Refused, Transport


class Line:
    """A connection that can be broken."""

    def __init__(self, url: str, user: ConnectionUser) -> None:
        self.url = url
        self.closed = 0
        self.snap = user.connection_broken

    def close(self) -> None:
        self.closed += 1


class Exchange:
    """A transport on which every address answers, but for those that are refused."""

    def __init__(self, **refused: Exception) -> None:
        self.lines: list[Line] = []
        self.breaks_at_once = False
        self._refused = refused

    async def dial(self, url: str, user: ConnectionUser, permit: Permit | None = None) -> Line:
        await trio.lowlevel.checkpoint()
        if permit is not None:
            permit("the host of all")
        if url in self._refused:
            raise self._refused[url]
        self.lines.append(Line(url, user))
        if self.breaks_at_once:
            user.connection_broken()
        return self.lines[-1]


class Watched:
    """Routes over an exchange, and those that were reported as broken."""

    def __init__(self, **refused: Exception) -> None:
        self.exchange = Exchange(**refused)
        self.broken: list[tuple[str, object]] = []
        self.ways = OutboundConnections(cast("Transport", self.exchange), self)

    def connection_broke(self, outgoing: OutgoingConnection, peer: Peer | None) -> None:
        self.broken.append((cast("Line", outgoing).url, peer))

    @property
    def closed(self) -> list[tuple[str, int]]:
        return [(line.url, line.closed) for line in self.exchange.lines]


def peer(name: str) -> Peer:
    return cast("Peer", name)


async def test_a_connection_belongs_to_nobody_until_it_is_given() -> None:
    watched = Watched()
    outgoing = await watched.ways.dial("one")
    assert outgoing in watched.ways
    assert watched.ways.owner(outgoing) is None
    watched.ways.give(outgoing, peer("A"))
    assert watched.ways.owner(outgoing) == peer("A")
    assert len(watched.ways) == 1


@pytest.mark.parametrize("owner", [None, "A"])
async def test_a_connection_that_breaks_is_closed_and_told_once(owner: str | None) -> None:
    watched = Watched()
    outgoing = await watched.ways.dial("one")
    if owner is not None:
        watched.ways.give(outgoing, peer(owner))
    for _ in range(2):
        watched.exchange.lines[0].snap()
    assert watched.broken == [("one", owner)]
    assert watched.closed == [("one", 1)]
    assert outgoing not in watched.ways
    assert watched.ways.owner(outgoing) is None


async def test_a_connection_that_breaks_while_it_is_made_was_never_there() -> None:
    watched = Watched()
    watched.exchange.breaks_at_once = True
    with pytest.raises(NotSent, match="the connection to one broke at once"):
        await watched.ways.dial("one")
    assert watched.closed == [("one", 1)]
    assert (watched.broken, len(watched.ways)) == ([], 0)


async def test_what_is_closed_on_purpose_is_not_told_even_if_it_breaks_later() -> None:
    watched = Watched()
    outgoing = await watched.ways.dial("one")
    watched.ways.close(outgoing)
    watched.exchange.lines[0].snap()
    assert watched.broken == []
    assert outgoing not in watched.ways


async def test_the_first_address_that_can_be_reached_is_taken() -> None:
    watched = Watched(one=Refused("nobody listens"), two=ConfigError("no such scheme"))
    outgoing = await watched.ways.dial_any(["one", "two", "three", "four"])
    assert cast("Line", outgoing).url == "three"
    assert [line.url for line in watched.exchange.lines] == ["three"]


@pytest.mark.parametrize(
    ("urls", "error"),
    [
        (["refuses"], Refused),
        (["malformed"], ConfigError),
        (["refuses", "malformed"], Refused),
        (["malformed", "refuses"], Refused),
        (["silent", "refuses"], NotSent),
        (["refuses", "silent", "refuses"], NotSent),
        ([], NotSent),
    ],
)
async def test_a_node_refuses_only_if_nobody_listens_at_any_of_its_addresses(
    urls: list[str], error: type[Exception]
) -> None:
    watched = Watched(
        refuses=Refused("nobody listens"), malformed=ConfigError("no such scheme"), silent=NotSent("no route")
    )
    with pytest.raises((NotSent, ConfigError)) as caught:
        await watched.ways.dial_any(urls)
    assert type(caught.value) is error


async def test_an_error_of_ours_is_not_taken_for_an_address_that_fails() -> None:
    watched = Watched(one=ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await watched.ways.dial_any(["one", "two"])
    assert watched.exchange.lines == []


async def test_every_connection_of_one_peer_is_closed_and_those_of_others_stay() -> None:
    watched = Watched()
    for url, owner in (("one", "A"), ("two", "B"), ("three", "A"), ("four", None)):
        outgoing = await watched.ways.dial(url)
        if owner is not None:
            watched.ways.give(outgoing, peer(owner))
    watched.ways.close_all(peer("A"))
    assert watched.closed == [("one", 1), ("two", 0), ("three", 1), ("four", 0)]
    watched.ways.close_all()
    assert watched.closed == [("one", 1), ("two", 1), ("three", 1), ("four", 1)]
    assert (len(watched.ways), watched.broken) == (0, [])


class Unwatched:
    """An owner of connections of which none breaks."""

    def connection_broke(self, outgoing: OutgoingConnection, peer: Peer | None) -> None:
        raise AssertionError(outgoing)


class Silence(Exchange):
    """A transport on which nobody answers at some addresses, ever."""

    def __init__(self, *silent: str, **refused: Exception) -> None:
        super().__init__(**refused)
        self.silent = silent
        self.tried: list[tuple[float, str]] = []

    async def dial(self, url: str, user: ConnectionUser, permit: Permit | None = None) -> Line:
        self.tried.append((trio.current_time(), url))
        if url in self.silent:
            await trio.sleep_forever()
        return await super().dial(url, user, permit)


async def test_of_two_addresses_that_answer_one_connection_stays(autojump_clock: MockClock) -> None:
    exchange = Silence()
    gate = trio.Event()
    plain = exchange.dial

    async def dial(url: str, user: ConnectionUser, permit: Permit | None = None) -> Line:
        await gate.wait()
        return await plain(url, user, permit)

    exchange.dial = dial  # type: ignore[method-assign]
    ways = OutboundConnections(cast("Transport", exchange), Unwatched())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ways.dial_any, ["one", "two", "three"])
        await trio.sleep(3 * STAGGER)
        gate.set()
    assert len(ways) == 1
    assert sum(line.closed == 0 for line in exchange.lines) == 1


async def test_of_a_stranger_s_addresses_two_are_dialled_at_a_time(autojump_clock: MockClock) -> None:
    """He may name sixteen from which nothing comes back, in each of many first frames."""
    exchange = Exchange()
    dialled: list[str] = []

    async def dial(url: str, user: ConnectionUser, permit: Permit | None = None) -> Line:
        dialled.append(url)
        await trio.sleep_forever()
        raise AssertionError(user)

    exchange.dial = dial  # type: ignore[method-assign]
    ways = OutboundConnections(cast("Transport", exchange), Unwatched())
    with trio.move_on_after(0.9):
        await ways.answer([str(number) for number in range(16)])
    assert dialled == ["0", "1"]


async def test_a_connection_that_has_ended_was_dialled_nowhere() -> None:
    watched = Watched()
    outgoing = await watched.ways.dial("one")
    assert watched.ways.url_of(outgoing) == "one"
    watched.ways.close(outgoing)
    assert watched.ways.url_of(outgoing) == ""
