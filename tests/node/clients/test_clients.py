"""Clients: nodes that are no members.  What they can do, what they cannot, and what members have of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.cluster.swim import Swim
from iris.testing import inspect
from tests.support.clients import linked, naming, open_client, open_realm
from tests.support.stages import open_stage


async def test_a_client_links_to_one_node_and_to_those_that_it_asks(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one", "two")
        await stage.member(naming("other", "others"))
        client = await open_client(stage)
        assert linked(client) == {"door"}
        assert {await client.request("store") for _ in range(40)} == {"one", "two"}
        assert linked(client) == {"door", "store"}
        assert client.clusters() == ("store",)
        assert len(client.members("store")) == 2


async def test_members_hear_nothing_of_a_client_and_send_it_nothing(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        members = await open_realm(stage, "one", "two")
        client = await open_client(stage)
        assert await client.request("store")
        await trio.sleep(30)
        links = [
            stage.parts[node.id].mesh.peers[client.id].link
            for node in members.values()
            if client.id in inspect(node).peers
        ]
        links += [peer.link for peer in stage.parts[client.id].mesh.peers.values()]
        assert len(links) >= 4
        posted = [link.statistics().posted for link in links]
        await stage.member(naming("three"), "three")
        async with members["one"].subscribe("prices.>"):
            await trio.sleep(60)
        assert [link.statistics().posted for link in links] == posted, "nothing is said while nothing is asked"
        for member in members.values():
            assert client.id not in {other.node for other in member.nodes()}
            machine = stage.parts[member.id].view
            assert isinstance(machine, Swim)
            assert machine.state(client.id) is None


async def test_a_client_has_requests_broadcasts_surveys_and_tunnels(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one", "two", "three")
        client = await open_client(stage)
        async with client.survey("store", None) as answers:
            assert {answer.payload async for answer in answers} == {"one", "two", "three"}
        await client.broadcast("store", b"hello")
        async with client.open_tunnel("store") as tunnel:
            await tunnel.send("there and back")
            assert await tunnel.receive() == "there and back"


@pytest.mark.parametrize("by", ["key", "prefer"])
async def test_the_first_request_of_a_client_goes_to_the_right_member(autojump_clock: MockClock, by: str) -> None:
    names = ["one", "two", "three", "four"]
    async with open_stage() as stage:
        members = await open_realm(stage, *names)
        for number in range(8):
            key, wanted = (str(number), None) if by == "key" else (None, members[names[number % 4]])
            options = iris.RequestOptions(prefer=None if wanted is None else wanted.id)
            client = await open_client(stage, f"shop-{number}")
            first = await client.request("store", key=key, options=options)
            assert first == await members["one"].request("store", key=key, options=options)


async def test_a_member_that_cannot_be_linked_does_not_take_a_survey_from_a_client(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one", "two", "three")
        client = await open_client(stage, host="client")
        stage.network.memory.partition(["client"], ["three"])
        async with client.survey("store", None, timeout=2.0) as answers:
            assert {answer.payload async for answer in answers} == {"one", "two"}
        assert len(answers.missing) == 1


async def test_who_serves_nothing_is_known_at_once(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one")
        client = await open_client(stage)
        began = trio.current_time()
        with pytest.raises(iris.NoSuchCluster, match="no reachable member serves the cluster 'stores'"):
            await client.request("stores")
        assert trio.current_time() - began < 0.1


async def test_members_that_come_are_found_while_they_are_waited_for_and_when_a_name_is_used(
    autojump_clock: MockClock,
) -> None:
    async with open_stage() as stage:
        await open_realm(stage)
        client, node = await open_client(stage), await stage.node("store", "one")

        async def ask() -> None:
            await client.wait_for("store", timeout=5)
            assert trio.current_time() - began == pytest.approx(2, abs=1.1)
            asked.set()

        began, asked = trio.current_time(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(2)
            async with node.join("store", naming("one")):
                await asked.wait()
                assert await client.request("store") == "one"
                second = stage.network.open_node("store", host="two")
                async with second as other, other.join("store", naming("two")):
                    await trio.sleep(6)
                    assert {await client.request("store") for _ in range(40)} == {"one", "two"}


async def test_changes_are_watched(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        members = await open_realm(stage, "one")
        client = await open_client(stage)
        async with client.watch("store") as watch:
            with trio.fail_after(3):
                assert (await anext(watch)).kind == "joined"
            await stage.member(naming("two"), "two")
            with trio.fail_after(3):
                assert (await anext(watch)).kind == "joined"
            stage.crash("one")
            with trio.fail_after(20):
                change = await anext(watch)
            assert (change.kind, change.member.node) == ("suspected", members["one"].id) or change.kind == "lost"


async def test_a_client_goes_on_when_the_node_dies_that_it_came_by(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one")
        client = await open_client(stage)
        assert await client.request("store") == "one"
        stage.crash("door")
        await trio.sleep(10)
        await stage.member(naming("new", "archive"), "new")
        await trio.sleep(10)
        assert await client.request("store") == "one"
        assert await client.request("archive") == "new", "another node is asked"


async def test_a_client_that_has_lost_all_links_finds_the_realm_again(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one")
        client = await open_client(stage)
        stage.harmless = ("renewal",)
        assert await client.request("store") == "one"
        stage.network.memory.partition(["shop"], ["door", "one"])
        await trio.sleep(200)
        assert not linked(client)
        with pytest.raises(iris.DeliveryError, match="this node is linked to nobody"):
            await client.request("store")
        stage.network.memory.heal()
        await trio.sleep(10)
        assert await client.request("store") == "one"


async def test_a_request_that_may_be_repeated_waits_for_the_realm(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one")
        client = await open_client(stage)
        stage.network.memory.partition(["shop"], ["door", "one"])

        async def heal() -> None:
            await trio.sleep(8)
            stage.network.memory.heal()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(heal)
            assert await client.request("store", timeout=30, options=iris.RequestOptions(idempotent=True)) == "one"
        stage.harmless = ("renewal",)


async def test_a_member_that_dies_is_asked_no_more(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one", "two")
        client = await open_client(stage)
        assert {await client.request("store") for _ in range(40)} == {"one", "two"}
        stage.crash("one")
        for _ in range(40):
            assert await client.request("store", options=iris.RequestOptions(idempotent=True)) == "two"
        await trio.sleep(20)
        assert await client.request("store") == "two"
        assert len(client.members("store")) == 1


async def test_a_member_that_hangs_is_passed_over_until_it_answers(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one", "two")
        client = await open_client(stage)
        assert {await client.request("store") for _ in range(40)} == {"one", "two"}
        stage.network.memory.pause("one")
        slow = 0
        for _ in range(60):
            began = trio.current_time()
            await client.request("store", options=iris.RequestOptions(idempotent=True))
            slow += trio.current_time() - began > 0.1
        assert slow <= 3, "those in progress when it began to hang"
        stage.network.memory.resume("one")
        await trio.sleep(5)
        assert {await client.request("store") for _ in range(40)} == {"one", "two"}


async def test_a_member_that_leaves_finishes_what_it_has_begun_for_a_client(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage)
        service, begun = iris.Service("store"), trio.Event()

        @service.request
        async def slow(_: iris.Request) -> str:
            begun.set()
            await trio.sleep(3)
            return "done"

        node = await stage.node("store", "one")
        client = await open_client(stage)
        answers: list[object] = []

        async def ask() -> None:
            answers.append(await client.request("store", wait=5.0, timeout=10))

        async with trio.open_nursery() as nursery, node.join("store", service):
            nursery.start_soon(ask)
            await begun.wait()
        assert answers == ["done"]


async def enter(block: AbstractAsyncContextManager[object]) -> None:
    async with block:
        pass


REFUSED: dict[str, Callable[[iris.Node], Awaitable[object]]] = {
    "serve": lambda node: enter(node.join("shop", iris.Service("shop"))),
    "subscribe": lambda node: enter(node.subscribe("prices.>")),
    "publish": lambda node: node.publish("prices.eur", 1),
    "have a document": lambda node: enter(node.state("prices")),
    "forget a durable subscriber": lambda node: node.forget_subscriber("prices"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_a_client_cannot_is_refused_in_one_line(autojump_clock: MockClock, what: str) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one")
        client = await open_client(stage)
        with pytest.raises(iris.ConfigError, match=f"is a client and cannot {what}: open it without client=True"):
            await REFUSED[what](client)
        with pytest.raises(iris.ConfigError, match="cannot publish"):
            client.confirming()


async def test_two_clients_are_not_linked(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage, "one")
        first, second = await open_client(stage), await open_client(stage, "desk")
        assert first.id not in stage.parts[second.id].mesh.peers
        with pytest.raises(iris.AuthenticationError, match="two clients have nothing to say to each other"):
            await stage.parts[second.id].mesh.connect(first.addresses)


async def test_members_that_close_say_so_to_clients(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_realm(stage)
        client = await open_client(stage)
        async with stage.network.open_node("store", host="one") as node, node.join("store", naming("one")):
            assert await client.request("store", wait=3.0) == "one"
        await trio.sleep(0.5)
        assert linked(client) == {"door"}
