"""The mixed workload: every pattern across two sites with a bridge, and what must hold of it whatever goes wrong.

| part | what is done | what must hold |
|---|---|---|
| requests | orders that are not repeated; questions that may be | an order that was answered was carried out, once |
| register | reads, writes and swaps from both sites | linearizable |
| events | news for all, at both sites | in the order of each publisher, none twice |
| groups | jobs for one of the workers each | none twice |
| confirmed events | receipts for the bridge | each that was confirmed is in its log, once and in order |
| a queue | parcels for one of two workers each | each that was put is done, those of one key in their order |
| broadcasts, surveys | to every member of the ledger | at most once for each member |
| tunnels | numbers there and back | in order, none missing, none twice |

When the faults are over, everything works again within a minute, and the books of every node balance.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from contextlib import suppress
from typing import Any, Final, final

import trio

import iris
import iris.testing
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log.recovery import open_store
from iris.spark_bridge.server.bridge import open_bridge

EVERYTHING: Final = Policy(exports=(">",), export_topics=(">",))
EXPECTED: Final = (iris.DeliveryError, iris.TunnelBroken, trio.BrokenResourceError)
"""Errors that clients get while something is broken."""

TUNNELLED: Final = 20
"""Numbers that go through each tunnel."""

PIECE: Final = bytes(8000)
"""Payload beside each number: together more than the window of a tunnel."""

_LONGEST: Final = 60.0
"""Seconds within which whatever a client does has an outcome."""


@final
class Problems(logging.Handler):
    """Keeps what is logged as an error: nothing that happens here is one, but that a disk is full."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        line = self.format(record)
        if "No space left on device" not in line:
            self.lines.append(line)


@final
class MixedWorkload:
    """The programs of one run, and what they have seen.

    Args:
        world: where they run.
        pause: mean seconds between two rounds of the clients.
        bridged: have a bridge.
        sites: have a second site.
        probe_interval: of the nodes; the dead are tried again half as often, as with the defaults.  A tenth of the
            usual probes: an hour of eight nodes takes half of the processor time, and a member that is silent is
            noticed later.
    """

    def __init__(
        self,
        world: iris.testing.World,
        *,
        pause: float = 60.0,
        bridged: bool = True,
        sites: bool = True,
        probe_interval: float = 5.0,
    ) -> None:
        self._world = world
        self._pause = pause
        self._bridged = bridged
        self._sites = sites
        # The window of a tunnel is small enough to be in use.
        self._config = iris.Config(
            probe_interval=probe_interval, lost_interval=2 * probe_interval, tunnel_window=64 * 1024
        )
        self._registers: dict[str, int] = {}
        self.history: Final = iris.testing.History()
        self.orders: Final[list[int]] = []
        """Orders that were carried out."""
        self.answered: Final[set[int]] = set()
        """Orders that were answered."""
        self.news: Final[dict[str, list[tuple[str, int]]]] = defaultdict(list)
        """Publishers and numbers that have come, by subscription."""
        self.jobs: Final[list[int]] = []
        self.told: Final[list[tuple[str, int]]] = []
        """Broadcasts that each member received."""
        self.confirmed: Final[list[int]] = []
        self.parcels: Final[dict[int, str]] = {}
        """Key of each parcel in the queue."""
        self.delivered: Final[dict[int, None]] = {}
        """Parcels that were done, in the order in which each was done first."""
        self._number = 0

    def _next(self) -> int:
        self._number += 1
        return self._number

    # -- programs --------------------------------------------------------------------------------------------

    async def ledger(self) -> None:
        """A member of ``ledger``, which also receives the news and works on jobs."""
        service = iris.Service("ledger")
        own = f"{self._next()}"

        @service.request("order")
        async def order(request: iris.Request) -> object:
            await trio.sleep(self._world.random.uniform(0, 0.02))
            self.orders.append(request.payload)
            return request.payload

        @service.request("question")
        async def question(request: iris.Request) -> object:
            await trio.sleep(self._world.random.uniform(0, 0.02))
            return request.payload

        @service.broadcast
        async def hear(message: iris.Message) -> None:
            self.told.append((own, message.payload))
            await trio.lowlevel.checkpoint()

        @service.tunnel
        async def back(tunnel: iris.Tunnel) -> None:
            async for number in tunnel:
                await tunnel.send(number)

        async with (
            iris.open_node("ledger", site="eu", config=self._config) as node,
            node.join("ledger", service, limits=iris.Limits(concurrency=4)),
            node.subscribe("jobs.>", group="workers") as jobs,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._hear_news, node, own)
            if self._bridged:
                nursery.start_soon(self._deliver, node)
            async for job in jobs:
                self.jobs.append(job.payload)

    async def _hear_news(self, node: iris.Node, own: str) -> None:
        async with node.subscribe("news.>") as news:
            async for event in news:
                publisher, number = event.payload
                self.news[own].append((publisher, number))

    async def _deliver(self, node: iris.Node) -> None:
        async with node.bridge().queue("parcels", attempts=1000) as parcels:
            async for parcel in parcels.receive(limit=4):
                async with parcel:
                    await trio.sleep(self._world.random.uniform(0, 0.02))
                    self.delivered.setdefault(parcel.payload)

    async def register(self) -> None:
        """The one member of ``register``; what it keeps outlives its crashes."""
        service = iris.Service("register")

        @service.request("read")
        async def read(request: iris.Request) -> object:
            await trio.sleep(self._world.random.uniform(0, 0.02))
            return self._registers.get(request.payload, 0)

        @service.request("write")
        async def write(request: iris.Request) -> object:
            await trio.sleep(self._world.random.uniform(0, 0.02))
            key, value = request.payload
            self._registers[key] = value
            return None

        @service.request("swap")
        async def swap(request: iris.Request) -> object:
            await trio.sleep(self._world.random.uniform(0, 0.02))
            key, expected, value = request.payload
            if self._registers.get(key, 0) != expected:
                return False
            self._registers[key] = value
            return True

        async with iris.open_node("register", site="eu", config=self._config) as node, node.join("register", service):
            await trio.sleep_forever()

    async def bridge(self) -> None:
        """A bridge that stores receipts, and the queue of parcels."""
        async with (
            iris.open_node("bridge", site="eu", config=self._config) as node,
            open_bridge(node, topics=["receipts.>", "parcels"], directory=self._world.directory() / "log"),
        ):
            await trio.sleep_forever()

    async def gateway(self, site: str, *peers: str) -> None:
        """The gateway of a site."""
        async with (
            iris.open_node("gateway", site=site, config=self._config) as node,
            open_gateway(node, listen=[self._world.url(f"{site}-gateway")], peers=peers, policy=EVERYTHING),
        ):
            await trio.sleep_forever()

    async def abroad(self) -> None:
        """A node at the other site, which receives the news and asks for the register."""
        service = iris.Service("abroad")

        @service.request
        async def answer(request: iris.Request) -> object:
            await trio.lowlevel.checkpoint()
            return request.payload

        async with (
            iris.open_node("abroad", site="us", config=self._config) as node,
            node.join("abroad", service),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._hear_news, node, f"abroad {self._next()}")
            while True:
                await trio.sleep(self._world.random.expovariate(1 / self._pause))
                with suppress(iris.DeliveryError):
                    await self._use_register(node)

    # -- clients ---------------------------------------------------------------------------------------------

    async def _use_register(self, node: iris.Node) -> None:
        chance, history = self._world.random, self.history
        key, value = chance.choice("abc"), self._next()
        match chance.randrange(3):
            case 0:
                await history.read(
                    key,
                    node.request(
                        "register", key, operation="read", timeout=2, options=iris.RequestOptions(idempotent=True)
                    ),
                )
            case 1:
                await history.write(key, value, node.request("register", [key, value], operation="write", timeout=2))
            case _:
                expected = self._registers.get(key, 0)
                asked: Any = node.request("register", [key, expected, value], operation="swap", timeout=2)
                await history.swap(key, expected, value, asked)

    async def _order(self, node: iris.Node) -> None:
        number = self._next()
        assert await node.request("ledger", number, operation="order", timeout=2) == number
        self.answered.add(number)

    async def _question(self, node: iris.Node) -> None:
        number = self._next()
        assert (
            await node.request(
                "ledger", number, operation="question", timeout=2, options=iris.RequestOptions(idempotent=True)
            )
            == number
        )

    async def _publish(self, node: iris.Node) -> None:
        for _ in range(3):
            await node.publish("news.today", ["desk", self._next()])
        for _ in range(3):
            await node.publish("jobs.small", self._next())
        for _ in range(2):
            await node.broadcast("ledger", self._next())

    async def _survey(self, node: iris.Node) -> int:
        async with node.survey("ledger", self._next(), operation="question") as answers:
            members = [answer.member async for answer in answers]
        iris.testing.check_at_most_once(members)
        return len(members)

    async def _all_members_answer(self, node: iris.Node) -> None:
        if await self._survey(node) != 2:
            raise iris.DeliveryError("not all members of ledger have answered a survey")

    async def _confirm(self, node: iris.Node) -> None:
        number = self._next()
        await node.publish_confirmed("receipts.paid", b"%d" % number, timeout=5)
        self.confirmed.append(number)

    async def _put(self, node: iris.Node) -> None:
        async with node.bridge().queue("parcels", attempts=1000) as parcels:
            for _ in range(3):
                number, key = self._next(), self._world.random.choice("abc")
                await parcels.put(number, key=key)
                self.parcels[number] = key

    async def _all_parcels_are_delivered(self, node: iris.Node) -> None:
        await self._put(node)
        await trio.sleep(2)
        left = self.parcels.keys() - self.delivered.keys()
        if left:
            raise iris.DeliveryError(f"parcels are not delivered: {sorted(left)}")

    async def _tunnel(self, node: iris.Node) -> None:
        async with node.open_tunnel("ledger", timeout=2) as tunnel, trio.open_nursery() as nursery:

            async def send() -> None:
                for number in range(TUNNELLED):
                    await tunnel.send([number, PIECE])
                await tunnel.send_eof()

            nursery.start_soon(send)
            came = [number async for number, _ in tunnel]
        assert came == list(range(TUNNELLED)), f"through the tunnel came {came}"

    async def _client(self, node: iris.Node, part: Any) -> None:
        while self._world.is_faulty:
            with trio.move_on_after(self._world.random.expovariate(1 / self._pause)):
                await self._world.healed.wait()
                return
            with trio.move_on_after(_LONGEST) as waiting:
                await _failing_well(part, node)
            assert not waiting.cancelled_caught, f"{part.__name__} has no outcome after {_LONGEST:g} s"

    # -- the whole -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until the faults are over, and check what must hold."""
        world = self._world
        problems = Problems()
        logging.getLogger("iris").addHandler(problems)
        try:
            world.start("eu-one", self.ledger)
            world.start("eu-two", self.ledger)
            world.start("eu-register", self.register)
            if self._bridged:
                world.start("eu-bridge", self.bridge, restart=(iris.IrisError, OSError))
            if self._sites:
                world.start("eu-gateway", self.gateway, "eu")
                world.start("us-gateway", self.gateway, "us", world.url("eu-gateway"))
                world.start("us-abroad", self.abroad)
            async with iris.open_node("desk", site="eu", config=self._config) as desk:
                async with trio.open_nursery() as nursery:
                    parts = [
                        self._order, self._question, self._publish, self._survey, self._tunnel, self._use_register
                    ]  # fmt: skip
                    for part in [*parts, self._confirm, self._put] if self._bridged else parts:
                        nursery.start_soon(self._client, desk, part)
                await world.wait_healed()
                await self._check_alive(desk)
            if self._bridged:
                await self._check_log()
            self._check()
            assert not problems.lines, f"errors were logged: {problems.lines}"
        finally:
            logging.getLogger("iris").removeHandler(problems)

    async def _check_alive(self, desk: iris.Node) -> None:
        await iris.testing.check_answers(
            desk, "ledger", 0, operation="question", options=iris.RequestOptions(idempotent=True)
        )
        await iris.testing.check_answers(
            desk, "register", "a", operation="read", options=iris.RequestOptions(idempotent=True)
        )
        if self._sites:
            await iris.testing.check_answers(desk, "abroad", 0, options=iris.RequestOptions(idempotent=True))
        await _within_a_minute(self._members_are_known, desk)
        await _within_a_minute(self._all_members_answer, desk)
        await _within_a_minute(self._tunnel, desk)
        await _within_a_minute(self._news_arrive, desk)
        if self._bridged:
            await _within_a_minute(self._confirm, desk)
            await _within_a_minute(self._all_parcels_are_delivered, desk)

    async def _members_are_known(self, desk: iris.Node) -> None:
        known = {cluster: len(desk.members(cluster)) for cluster in ("ledger", "register")}
        if known != {"ledger": 2, "register": 1}:
            raise iris.DeliveryError(f"there are two members of ledger and one of register, and {known} are known")
        await trio.lowlevel.checkpoint()

    async def _news_arrive(self, desk: iris.Node) -> None:
        number = self._next()
        await desk.publish("news.last", ["desk", number])
        await trio.sleep(2)
        heard = [own for own, news in self.news.items() if ("desk", number) in news[-3:]]
        if len(heard) != (3 if self._sites else 2):
            raise iris.DeliveryError(f"the news {number} was heard by {heard} only")

    def _check(self) -> None:
        iris.testing.check_at_most_once(self.orders)
        lost = self.answered - set(self.orders)
        assert not lost, f"orders were answered and not carried out: {lost}"
        for news in self.news.values():
            iris.testing.check_fifo(news)
        iris.testing.check_at_most_once(self.jobs)
        iris.testing.check_fifo((self.parcels[number], number) for number in self.delivered if number in self.parcels)
        iris.testing.check_at_most_once(self.told)
        self.history.check_linearizable(initial=0)

    async def _check_log(self) -> None:
        self._world.crash("eu-bridge")
        await trio.sleep(5)
        directory = self._world.directory("eu-bridge") / "log"
        store = open_store(directory, shards=(), entropy=os.urandom, look_only=True)
        try:
            found: list[int] = []
            for state in store.shards():
                at = state.earliest
                while at < state.next:
                    for chunk in store.reader.read(state.number, state.epoch, at, state.next, max_bytes=1 << 20):
                        events = decode_events(chunk.data).select(("topic", "value")).to_pylist()
                        found += [int(event["value"]) for event in events if event["topic"] == "receipts.paid"]
                        at = chunk.end
        finally:
            store.close()
        missing = set(self.confirmed) - set(found)
        assert not missing, f"receipts were confirmed and are not in the log: {missing}"
        iris.testing.check_fifo([("desk", number) for number in found])


async def _failing_well(part: Any, node: iris.Node) -> BaseException | None:
    """Do something that may fail, as things do under faults; return the error."""
    failed: BaseException | None = None
    try:
        await part(node)
    except* EXPECTED as errors:
        failed = errors
    return failed


async def _within_a_minute(part: Any, node: iris.Node) -> None:
    last: BaseException | None = None
    with trio.move_on_after(60):
        while True:
            last = await _failing_well(part, node)
            if last is None:
                return
            await trio.sleep(1)
    raise AssertionError(f"a minute after the faults were over, {part.__name__} does not work: {last!r}")


async def mixed(world: iris.testing.World) -> None:
    """Run the mixed workload."""
    await MixedWorkload(world).run()
