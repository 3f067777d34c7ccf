"""The books of a node: every message that was sent is in one column of one receiver."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import open_stage


class Cache:
    """A cluster of which each handler waits as long as its member is stuck."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.goes_on = trio.Event()
        self.stuck_after = 1_000_000

    def service(self) -> iris.Service:
        cache = iris.Service("cache")

        @cache.broadcast
        async def note(message: iris.Message) -> None:
            if len(self.heard) == self.stuck_after:
                await self.goes_on.wait()
            self.heard.append(message.payload)

        return cache


async def test_broadcasts_to_a_member_that_dies_are_received_or_in_doubt(autojump_clock: MockClock) -> None:
    cache = Cache()
    cache.stuck_after = 10
    async with open_stage() as stage:
        member = await stage.member(cache.service(), "cache")
        shop = await stage.node("shop")
        await shop.wait_for("cache")
        for number in range(30):
            await shop.broadcast("cache", number)
        before = await shop.books("cache", settle=1.0)
        assert (before.sent, before.received, before.waiting, before.balanced) == (30, 10, 20, False)
        async with shop.watch("cache") as changes:
            stage.crash("cache")
            while (await anext(changes)).kind != "lost":
                pass
        books = await shop.books("cache")
        assert (books.sent, books.received, books.in_doubt) == (30, 10, 20)
        assert books.balanced
        (row,) = books.rows
        assert (row.pattern, row.name, row.receiver) == ("broadcast", "cache", member.id)
        assert books.rows == (await shop.books()).rows


async def test_each_pattern_has_its_rows(autojump_clock: MockClock) -> None:
    cache = Cache()
    service = cache.service()

    @service.request
    async def answer(request: iris.Request) -> object:
        return request.payload

    @service.tunnel
    async def talk(tunnel: iris.Tunnel) -> None:
        async for message in tunnel:
            await tunnel.send(message)

    async with open_stage() as stage:
        member = await stage.member(service, "cache")
        shop = await stage.node("shop")
        await shop.wait_for("cache")
        for number in range(3):
            assert await shop.request("cache", number) == number
        async with shop.survey("cache", "all") as answers:
            assert [one.payload async for one in answers] == ["all"]
        for number in range(4):
            await shop.broadcast("cache", number)
        async with member.subscribe("orders.>") as orders, member.subscribe("orders.eu") as eu:
            for number in range(5):
                await shop.publish("orders.eu", number)
            await shop.publish("other", 0)
            for subscription in (orders, eu):
                assert [(await anext(subscription)).payload for _ in range(5)] == list(range(5))
        async with shop.open_tunnel("cache") as tunnel:
            for number in range(6):
                await tunnel.send(number)
            await tunnel.send_eof()
            assert [message async for message in tunnel] == list(range(6))
        books = await shop.books()
        assert books.balanced
        assert {(row.pattern, row.name): (row.receiver, row.sent, row.received) for row in books.rows} == {
            ("request", "cache"): (member.id, 3, 3),
            ("survey", "cache"): (member.id, 1, 1),
            ("broadcast", "cache"): (member.id, 4, 4),
            ("event", "orders.eu"): (member.id, 10, 10),
            ("tunnel", "cache"): (member.id, 6, 6),
        }
        assert [row.name for row in (await shop.books("orders.*")).rows] == ["orders.eu"]
        back = await member.books("cache")
        assert [(row.pattern, row.receiver, row.received) for row in back.rows] == [("tunnel", shop.id, 6)]


async def test_members_that_come_and_go_leave_a_bounded_number_of_rows(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, members = 4, 12
    monkeypatch.setattr("iris.patterns.books.ledger.FORMER", kept)
    async with open_stage() as stage:
        shop = await stage.node("shop")
        for number in range(members):
            cache = Cache()
            async with (
                stage.network.open_node("cache", host=f"host-{number}") as member,
                member.join("cache", cache.service()),
                member.subscribe("news.a") as news,
            ):
                await shop.wait_for("cache")
                for _ in range(3):
                    await shop.broadcast("cache", number)
                    await shop.publish("news.a", number)
                    await anext(news)
                await trio.sleep(0.2)
        books = await shop.books()
        assert (books.sent, books.received, books.balanced) == (6 * members, 6 * members, True)
        assert len({row.receiver for row in books.rows}) <= kept + 2, "one may be leaving, and one is nobody"
        assert len(stage.parts[shop.id].patterns.books.ledger._receiver_sets) <= 1


async def test_who_waits_for_books_with_many_rows_leaves_the_processor_to_others(autojump_clock: MockClock) -> None:
    looks = 0
    async with open_stage() as stage:
        member, shop = await stage.node("cache"), await stage.node("shop")
        async with member.subscribe("news.a"), trio.open_nursery() as nursery:  # which takes nothing

            async def publish() -> None:
                while True:
                    await shop.publish("news.a", b"")
                    stage.parts[shop.id].patterns.books._news.unpark_all()  # as by a report
                    await trio.sleep(0.001)

            def slow(_: str) -> bool:
                nonlocal looks
                looks += 1
                autojump_clock.jump(0.01)
                return True

            nursery.start_soon(publish)
            await trio.sleep(0.1)
            await stage.parts[shop.id].patterns.books.settled(slow, 1.0)
            nursery.cancel_scope.cancel()
        assert 5 < looks < 1.0 / (5 * 0.01) + 5
        stage.forget_accounts()


async def test_a_client_asks_what_became_of_its_broadcasts(autojump_clock: MockClock) -> None:
    cache = Cache()
    cache.stuck_after = 2
    async with open_stage() as stage:
        member = await stage.member(cache.service())
        shop = await stage.node("shop", client=True)
        await shop.wait_for("cache")
        for number in range(3):
            await shop.broadcast("cache", number)
        books = await shop.books("cache", settle=1.0)
        assert (books.sent, books.received, books.waiting) == (3, 2, 1)
        cache.goes_on.set()
        assert (await shop.books("cache")).balanced
        assert not stage.parts[member.id].mesh.refusals, "its questions were not taken"


async def test_a_steady_stream_that_is_taken_at_once_is_reported_ten_times_a_second(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        member, shop = await stage.node("cache"), await stage.node("shop")
        back = stage.parts[member.id].mesh.peer(shop.id)
        assert back is not None
        async with member.subscribe("news.a") as news:
            before = 0
            before = 0
            for count in (1, 2000):
                before = back.link.statistics().posted
                for number in range(count):
                    await shop.publish("news.a", number)
                    assert (await anext(news)).payload == number
                    await trio.sleep(0.001)
            reports = back.link.statistics().posted - before
            assert 15 <= reports <= 60  # with what membership has to say
            assert (await shop.books("news.a")).waiting <= 200
