"""Clients of a door: who they are by their tokens, what they may do, and how much of it at a time."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, final

import iris.aio
from iris.doors.bounds import check_numbers
from iris.doors.options import TIMEOUT
from iris.doors.problems import Problem
from iris.doors.processor import Processor
from iris.doors.tokens import LONGEST_TOKEN, Token, digest_of, load_tokens
from iris.doors.values import packed
from iris.kernel import wire
from iris.kernel.errors import ConfigError, IrisError, RequestTimeout
from iris.kernel.names import is_name
from iris.kernel.rates import Rates
from iris.patterns.pubsub.interest import shape_of
from iris.patterns.pubsub.subscribe import SubscriptionLimits
from iris.security.files import FileLook

_logger: Final = logging.getLogger("iris")

CLIENT_HEADER: Final = "iris-client"
"""The header that tells members which client of a door is asking."""

_REREAD: Final = 1.0
"""Seconds between two looks at the tokens file."""

Right = Literal["call", "publish", "subscribe", "serve", "take", "read", "lease"]


_WAITING: Final = SubscriptionLimits(events=1024, bytes=1 << 20)

_GROUP: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
"""Name that a client may give a group: without dots, so that the last one of ``door.CLIENT.GROUP`` is before it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of what one client may have going on at one door.

    Numbers are whole and above 0.

    Args:
        calls: requests, surveys, broadcasts and events that it publishes, at a time.
        streams: connections of MQTT, tunnels, and streams of events by HTTP, at a time.
        subscriptions: subscriptions of all of its streams and connections, at a time, unless its token says another
            number.
        shapes: shapes of their patterns with wildcards: two have one if their wildcards are at the same places.
            The door's node may have 64 for all clients.
        groups: groups with which they share the events of one pattern.  The node may have 16 for all clients.
        waiting: limits of what waits in each for a client that does not read, beside one event of the largest size that
            the node has; beyond it the oldest events are lost and counted.  So its events take ``subscriptions`` times
            as many bytes at most.
        bytes: bytes of messages by its tunnels and MQTT, until members have received them, and of answers by HTTP,
            until it has received them.
        retained: topics whose last value the door's node keeps for it.
        retained_bytes: bytes of all these values.  A node keeps four times as much, see ``Config``.
    """

    calls: int = 64
    streams: int = 256
    subscriptions: int = 64
    shapes: int = 8
    groups: int = 4
    waiting: SubscriptionLimits = _WAITING
    bytes: int = 64 << 20
    retained: int = 1024
    retained_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        check_numbers(self)


@final
class RetainedAccounts:
    """Accounts of the topics that the node of a door retains for clients: of each, the client that retained it last.

    Attributes:
        topics: number of its topics by name of the client, also under a token that has replaced another one.
        bytes: bytes of their values, likewise.
    """

    def __init__(self) -> None:
        self.topics: Final = Counter[str]()
        self.bytes: Final = Counter[str]()
        self._owners: dict[str, tuple[str, int]] = {}

    def owner(self, topic: str) -> tuple[str, int] | None:
        """Return the client that owns a topic, and its bytes; None if nobody has retained it."""
        return self._owners.get(topic)

    def put(self, topic: str, owned: tuple[str, int] | None) -> None:
        """Have a topic on this account and no other; None: it is cleared."""
        former = self._owners.pop(topic, None)
        if former is not None:
            self._add(former, -1)
        if owned is not None:
            self._owners[topic] = owned
            self._add(owned, 1)

    def _add(self, owned: tuple[str, int], sign: int) -> None:
        client, size = owned
        self.topics[client] += sign
        self.bytes[client] += sign * size


@final
class ClientStatistics(NamedTuple):
    """A snapshot of what a door keeps for one client."""

    bytes: int
    """Size of what waits for members, or to be read by the client, in bytes."""
    subscriptions: int
    retained: int
    """Topics that it has retained values of."""


@final
class Client:
    """Client that shows one token.  What is done for it is counted, and ends with the token."""

    def __init__(self, name: str, token: Token, clients: Clients) -> None:
        self.name: Final = name
        self.token: Final = token
        self.processor: Final = Processor()
        self._clients = clients
        self._limits = clients.limits
        self._calls = 0
        self._ended = False
        self._bytes = 0
        self._wanted: Counter[tuple[str, str | None]] = Counter()
        """Number of its subscriptions by pattern and group."""
        self._retained = clients.retained
        self._streams: set[asyncio.Timeout] = set()
        self._rates = Rates(token.rate, token.rate_bytes, monotonic())
        self._withdrawn = asyncio.Event()

    def check(self, right: Right, wanted: str) -> None:
        """Raise ``Problem`` unless it may do this with what ``Token`` says, and its token still counts."""
        self._check_token()
        if not self.token.may(right, wanted):
            raise Problem(403, "not_allowed", f"client {self.name} may not {right} {wanted!r:.300}")

    def statistics(self) -> ClientStatistics:
        """Return a snapshot of what is kept for it."""
        return ClientStatistics(
            bytes=self._bytes, subscriptions=self._wanted.total(), retained=self._retained.topics[self.name]
        )

    @property
    def is_expired(self) -> bool:
        """True if its time is over."""
        return self.token.expires is not None and self.token.expires <= self._clients.wall_time()

    def headers(self, given: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return headers that it gives, and the one that tells who it is, which it cannot give in any spelling."""
        kept = {name: value for name, value in given if name.strip().lower() != CLIENT_HEADER}
        return {**kept, CLIENT_HEADER: self.name}

    def _check_token(self) -> None:
        if self._ended or self.is_expired:
            raise Problem(401, "ended", "the token has ended, or the door closes")

    @contextmanager
    def calling(self) -> Generator[None]:
        """Do one thing for it; raise Problem if it has as many going on as it may."""
        if self._calls >= self._limits.calls:
            raise Problem(429, "too_many_calls", f"{self._calls} calls at a time are the limit", retry_after=1)
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def check_rate(self) -> None:
        """Raise Problem if it has sent more than its token lets it send in this time; else count a message."""
        delay = self._rates.delay(monotonic())
        if delay:
            raise Problem(
                429, "too_fast", f"client {self.name} has sent what its token lets it send", retry_after=delay
            )
        self._rates.owe(1, 0)

    def charge(self, size: int, messages: int = 0) -> None:
        """Count the bytes of the payload and the headers of a message, and messages that were not counted before."""
        self._rates.owe(messages, size)

    async def pace(self, size: int, messages: int = 1) -> bool:
        """Wait until its token lets it send more, and count messages and bytes; return whether it had to wait.

        It waits no more when its token is taken away: its name may have another one, with other rates.
        """
        paused = False
        while not self._ended and (delay := self._rates.delay(monotonic())):
            paused = True
            with suppress(TimeoutError):
                await asyncio.wait_for(self._withdrawn.wait(), delay)
        self._rates.owe(messages, size)
        return paused

    def hold(self, size: int) -> None:
        """Count bytes that are kept for it; raise Problem, and count none, if it has as many as it may."""
        if self._bytes + size > self._limits.bytes:
            detail = f"{self._limits.bytes} bytes of a client may wait at a time, for members and to be read by it"
            raise Problem(429, "too_many_bytes", detail)
        self._bytes += size

    def release(self, size: int) -> None:
        """Count bytes no more."""
        self._bytes -= size

    @contextmanager
    def holding(self) -> Generator[Callable[[int], None]]:
        """Let bytes be counted that are kept for the length of the block; its value counts as ``hold`` does."""
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            self.hold(size)
            held += size

        try:
            yield hold
        finally:
            self.release(held)

    async def publish(
        self,
        node: iris.aio.Node,
        topic: str,
        payload: object,
        *,
        confirm: bool = False,
        retain: bool = False,
        timeout: float = TIMEOUT,
        **options: Any,
    ) -> None:
        """Publish for it.  To retain bytes or a text of which there are none is to forget what was retained.

        Args:
            node: node whose place is lent.
            topic: topic that it may publish, as ``check`` has found.
            payload: payload of the event.
            confirm: True to return when every durable subscriber has it on disk.
            retain: True to keep it for later subscribers.
            timeout: seconds that the confirmation may take.
            options: options of ``Node.publish``.

        Raises:
            Problem: it retains as much as it may.
            IrisError: as ``Node.publish``.
        """
        publish: Callable[..., Awaitable[None]] = node.publish
        keep: Callable[..., Awaitable[None]] = node.retain
        if confirm:
            publish = partial(node.publish_confirmed, timeout=timeout)
            keep = partial(node.retain_confirmed, timeout=timeout)
        if not retain:
            await publish(topic, payload, **options)
            return
        if isinstance(payload, bytes | str) and not payload:
            try:
                await publish(topic, payload, **options)
            except RequestTimeout:  # it is published, though not everybody has confirmed it
                self._forget_retained(node, topic)
                raise
            self._forget_retained(node, topic)
            return
        former, owned = self._retained.owner(topic), (self.name, len(packed(payload)))
        self._retained.put(topic, owned)
        try:
            self._check_retained()
            await keep(topic, payload, **options)
        except RequestTimeout:  # it is retained, though not everybody has confirmed it
            raise
        except (Problem, IrisError):
            if self._retained.owner(topic) is owned:
                self._retained.put(topic, former)
            raise

    def _forget_retained(self, node: iris.aio.Node, topic: str) -> None:
        node.forget_retained(topic)
        self._retained.put(topic, None)

    def _check_retained(self) -> None:
        topics, size = self._limits.retained, self._limits.retained_bytes
        if self._retained.topics[self.name] > topics or self._retained.bytes[self.name] > size:
            detail = (
                f"{topics} topics and {size} bytes are retained for a client at most: clear some by an empty payload"
            )
            raise Problem(429, "too_much_retained", detail)

    @asynccontextmanager
    async def subscribed(
        self, node: iris.aio.Node, pattern: str, group: str | None = None, *, instead_of: int = 0
    ) -> AsyncGenerator[iris.aio.Subscription]:
        """Subscribe for it.

        Args:
            node: node whose place is lent.
            pattern: pattern of topics.
            group: client's name for the group with which it shares the events.  Its subscribers are those of this
                client, at all doors: members know it as ``door.CLIENT.GROUP``, so that no client gets what is for a
                group of theirs.
            instead_of: number of its subscriptions that end as soon as this one has begun; they do not count.

        Raises:
            Problem: it may not, has as many as it may, or its share of what the node may have; or the group is
                malformed.
            IrisError: as ``Node.subscribe``.
        """
        self.check("subscribe", pattern)
        named = None if group is None else self._group(group)
        self._check_wanted(pattern, named, instead_of)
        self._wanted[pattern, named] += 1
        try:
            async with node.subscribe(pattern, group=named, limits=_beside(node, self._limits.waiting)) as events:
                yield events
        finally:
            self._wanted[pattern, named] -= 1
            self._wanted += Counter()  # without those of which there are none

    def _check_wanted(self, pattern: str, group: str | None, instead_of: int) -> None:
        limits = self._limits
        most = self.token.subscriptions or limits.subscriptions
        if self._wanted.total() - instead_of >= most:
            detail = f"{most} subscriptions of a client at a time are the limit: end another first"
            raise Problem(429, "too_many_subscriptions", detail)
        shapes = {shape_of(one) for one, _ in [*self._wanted, (pattern, group)] if one} - {None}
        if len(shapes) > limits.shapes:
            detail = f"a client has its wildcards at {limits.shapes} different places at most: end another subscription"
            raise Problem(429, "too_many_shapes", f"{pattern!r:.200}: {detail}")
        groups = {one for wanted, one in [*self._wanted, (pattern, group)] if wanted == pattern} - {None}
        if len(groups) > limits.groups:
            detail = f"a client has {limits.groups} groups of one pattern at most: end another subscription"
            raise Problem(429, "too_many_groups", f"{pattern!r:.200}: {detail}")

    def _group(self, group: str) -> str:
        named = f"door.{self.name}.{group}"
        if not (_GROUP.match(group) and is_name(named)):
            detail = (
                f"{group!r:.200} is no group here: use letters, digits, '-' and '_'; door.CLIENT.GROUP has 128 at most"
            )
            raise Problem(400, "bad_group", detail)
        return named

    @asynccontextmanager
    async def streaming(self) -> AsyncGenerator[None]:
        """Have something open for it, until its token ends, is taken away, or the door closes.

        Raises:
            Problem: it has as many open as it may; or one of these ends has come.
        """
        if len(self._streams) >= self._limits.streams:
            raise Problem(
                429, "too_many_streams", f"{len(self._streams)} streams at a time are the limit", retry_after=1
            )
        self._check_token()
        expires, now = self.token.expires, asyncio.get_running_loop().time()
        scope = asyncio.timeout_at(None if expires is None else now + expires - self._clients.wall_time())
        try:
            async with scope:
                self._streams.add(scope)
                try:
                    yield
                finally:
                    self._streams.discard(scope)
        except TimeoutError:
            if scope.expired():
                raise Problem(401, "ended", "the token has ended, or the door closes") from None
            raise

    def withdraw(self) -> None:
        """End what is open for it, and begin nothing any more: its token has been taken away."""
        self._ended = True
        self._withdrawn.set()
        self.end_streams()

    def end_streams(self) -> None:
        """End what is open for it."""
        for scope in self._streams:
            if not scope.expired():  # one that ends already cannot be moved
                scope.reschedule(0)


def _beside(node: iris.aio.Node, waiting: SubscriptionLimits) -> SubscriptionLimits:
    """Return limits with room for an event of the largest size beside what may wait."""
    if waiting.bytes is None:
        return waiting
    return SubscriptionLimits(events=waiting.events, bytes=waiting.bytes + wire.largest_frame(node._inner._config))


@final
class Clients:
    """The clients that a tokens file names.  A changed file is read again within a second or so.

    Args:
        path: the tokens file.
        wall_clock: seconds of Unix time.
        limits: limits of each client.

    Attributes:
        limits: limits of each client.
        retained: the accounts of what is retained for them.
        unauthenticated: share of all connections together whose token the doors do not know yet.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, path: Path, wall_clock: Callable[[], float], limits: ClientLimits = ClientLimits()) -> None:
        self.unauthenticated: Final = Processor()
        self._path = path
        self.limits: Final = limits
        self.retained: Final = RetainedAccounts()
        self._wall_clock = wall_clock
        self._file = FileLook(path)
        self._by_digest: dict[str, Client] = {}
        self._by_name: dict[str, Client] = {}
        self.reload()

    def __len__(self) -> int:
        return len(self._by_name)

    def wall_time(self) -> float:
        """Return the seconds of Unix time."""
        return self._wall_clock()

    def admit(self, secret: str) -> Client:
        """Return the client that shows this token; raise Problem if there is none."""
        client = self._by_digest.get(digest_of(secret)) if len(secret) <= LONGEST_TOKEN else None
        if client is None or client.is_expired:
            raise Problem(401, "wrong_token", "this token is unknown here, or has expired")
        return client

    def named(self, name: str) -> Client:
        """Return the client of this name, where a door knows otherwise who it is; raise Problem if there is none."""
        client = self._by_name.get(name)
        if client is None or client.is_expired:
            raise Problem(401, "no_such_client", f"there is no client {name}, or its time is over")
        return client

    async def follow(self) -> None:
        """Read the file again whenever it has changed.  One that cannot be used is told, and the old one counts."""
        while True:
            await asyncio.sleep(_REREAD)
            for client in self._by_name.values():
                if client.is_expired:  # sooner than it was when it began: the clock has been set
                    client.end_streams()
            if not self._file.is_due():
                continue
            try:
                self.reload()
            except ConfigError as error:
                if self._file.failed(error):
                    _logger.warning("%s; the tokens of before still count", error, extra={"path": str(self._path)})

    def end_streams(self) -> None:
        """End everything that is open, as the door closes."""
        for client in self._by_name.values():
            client.end_streams()

    def reload(self) -> None:
        """Read the file of tokens; clients whose tokens are no longer there or are others end.

        Raises:
            ConfigError: the file cannot be used, and nothing has changed.
        """
        tokens = load_tokens(self._path)
        old, self._by_name = self._by_name, {}
        for name, token in tokens.items():
            known = old.get(name)
            if known is not None and known.token == token:
                self._by_name[name] = old.pop(name)
            else:
                self._by_name[name] = Client(name, token, self)
        self._by_digest = {client.token.digest: client for client in self._by_name.values()}
        for client in old.values():
            client.withdraw()
