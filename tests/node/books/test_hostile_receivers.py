"""Receivers and senders that lie: the books of others hold, and neither end grows."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.wire import kinds
from iris.node.operators import ask_books
from iris.node.realm.checks import fault_of_books
from iris.node.report import BooksOrder
from iris.patterns.books.columns import Columns
from iris.patterns.books.ledger import _LARGEST
from iris.patterns.books.receipts import NAMES
from tests.support.stages import open_stage

LIES = [
    kinds.Received(1, 0, False, Columns(*(2**62,) * 7), (kinds.ReceivedEntry("news.a", *(2**62,) * 7),)),
    kinds.Received(1, 0, False, (0, 0, 9, 0, 0, 0, 0), (kinds.ReceivedEntry("news.a", 0, 0, 9, 0, 0, 0, 0),)),
    kinds.Received(1, 0, True, (2, 0, 2, 0, 0, 0, 0), (kinds.ReceivedEntry("(other)", 9, 9, 9, 0, 0, 0, 0),)),
    kinds.Received(1, 1, True, (5, 0, 0, 0, 0, 0, 0), ()),
    kinds.Received(1, 0, False, (1, 0, 1, 0, 0, 0, 0), (kinds.ReceivedEntry("news.a", 1, 0, 1, 0, 0, 0, 0),)),  # again
    *(
        kinds.Received(
            1, 0, True, Columns(*(n,) * 7), tuple(kinds.ReceivedEntry(f"t.{n}.{at}", *(n,) * 7) for at in range(64))
        )
        for n in range(100)
    ),
]


@pytest.mark.parametrize("lie", range(6))
async def test_a_receiver_that_lies_falsifies_its_own_rows_only(autojump_clock: MockClock, lie: int) -> None:
    async with open_stage() as stage:
        liar, honest, shop = await stage.node("liar"), await stage.node("honest"), await stage.node("shop")
        async with liar.subscribe("news.a"), honest.subscribe("news.a") as news:
            for number in range(4):
                await shop.publish("news.a", number)
                await anext(news)
            told = LIES[lie:] if lie == 5 else LIES[lie : lie + 1]
            for message in told:
                stage.parts[liar.id].mesh.post(shop.id, message, 4096)
                await trio.sleep(0.01)
            books = await shop.books("news.>", settle=0.0)
            (row,) = [row for row in books.rows if row.receiver == honest.id]
            assert (row.sent, row.received, row.difference) == (4, 4, 0)
            assert {row.name for row in books.rows} <= {"news.a", "(other)"}
            assert all(row.sent < 8 * _LARGEST for row in books.rows)
            # What it says is on its rows, and the operators' report of the honest sender can be sent and is believed.
            report = await ask_books(honest, BooksOrder(pattern=">", settle=0.0), shop.id, 5.0)
            assert fault_of_books(report) is None
        stage.forget_accounts()


async def test_names_of_a_sender_beyond_the_limit_share_a_row_at_both_ends(autojump_clock: MockClock) -> None:
    names = NAMES + 300
    async with open_stage() as stage:
        member, shop = await stage.node("cache"), await stage.node("shop")
        async with member.subscribe("news.>") as news:
            for number in range(names):
                await shop.publish(f"news.{number}", b"")
                await shop.publish("news.0", b"")
                await anext(news)
                await anext(news)
            books = await shop.books("news.>", settle=30.0)
        assert len(books.rows) == NAMES + 1
        other = next(row for row in books.rows if row.name == "(other)")
        assert (other.sent, other.received) == (300, 300)
        assert (books.sent, books.received) == (2 * names, 2 * names)
        assert books.balanced


async def test_a_receiver_that_has_no_room_for_a_name_is_compared_all_the_same(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        member, shop, other = await stage.node("cache"), await stage.node("shop"), await stage.node("other")
        async with member.subscribe("news.>") as news:
            # Of a sender that names what nobody wants: the receiver has no accounts left when it says something of use.
            raw = [kinds.Events(f"x.{number}", 1, 0, None, None, None, (b"",), (0,)) for number in range(NAMES + 5)]
            for message in raw:
                stage.parts[shop.id].mesh.post(member.id, message, 64)
                await trio.sleep(0.0001)
            await trio.sleep(1)
            for number in range(5):
                await shop.publish("news.b", number)
                await anext(news)
            row = (await shop.books("news.b", settle=1.0)).rows[-1]
            assert (row.name, row.sent, row.waiting) == ("(other)", 5, 0)
            await other.publish("news.b", 1)
            await anext(news)
            assert (await other.books("news.b")).received == 1
        stage.forget_accounts()


async def test_a_flood_of_names_does_not_hold_up_the_reports_to_others(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        member, flooder, shop = await stage.node("cache"), await stage.node("flooder"), await stage.node("shop")
        async with member.subscribe("news.>"):  # which takes nothing, so that all stays due
            for number in range(NAMES):
                await flooder.publish(f"news.{number}", b"")
            async with member.subscribe("quick.*") as quick:
                await shop.publish("quick.a", b"")
                await anext(quick)
                await trio.sleep(1.2)
                (row,) = stage.parts[shop.id].patterns.books.books(lambda name: name == "quick.a").rows
                assert row.received == 1, "it was reported without being asked"
        stage.forget_accounts()


async def test_who_asks_again_and_again_gets_one_answer_a_frame(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        member, shop = await stage.node("cache"), await stage.node("shop")
        async with member.subscribe("news.>") as news:
            await shop.publish("news.a", b"")
            await anext(news)
            await trio.sleep(1)
            before = stage.parts[member.id].mesh.peers[shop.id].link.statistics().posted
            for mark in range(1, 401):
                stage.parts[shop.id].mesh.post(member.id, kinds.ReceivedWanted(mark), 16)
            await trio.sleep(0.5)
            posted = stage.parts[member.id].mesh.peers[shop.id].link.statistics().posted - before
            assert posted < 20
            assert (await shop.books("news.a")).balanced


async def test_numbers_that_go_back_and_forth_are_losses_once(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        liar, shop = await stage.node("liar"), await stage.node("shop")
        async with liar.subscribe("news.a"):
            for number in range(4):
                await shop.publish("news.a", number)
            await trio.sleep(1)
            for dropped in (3, 0) * 50:
                counts = (4, 0, 0, 0, 0, dropped, 0)
                report = kinds.Received(1, 0, False, counts, (kinds.ReceivedEntry("news.a", *counts),))
                stage.parts[liar.id].mesh.post(shop.id, report, 4096)
                await trio.sleep(0.01)
            with pytest.raises(iris.EventsLost) as caught:
                shop.raise_for_losses("news.a")
            assert caught.value.count == shop.statistics().publishing.dropped == 3
            shop.raise_for_losses("news.b")
        stage.forget_accounts()
