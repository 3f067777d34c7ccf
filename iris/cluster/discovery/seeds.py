"""Seeds of one node: what each stands for now, what it stood for when it answered last, and how often it did.

Rules of this file:

- A seed that does not answer, or has an empty or malformed answer, goes on standing for what it did before.  That it
  fails is said in one line, and so is that it answers again.
- What a source names may be host names.  Each of them is looked up as if the user had given it.
- A source beyond this machine that fails is asked again after a pause that grows to 5 s, give or take a half: nodes
  that lost it together do not come back together.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final, final

import trio
from msgspec import Struct

from iris.cluster.discovery.dns import MAX_ADDRESSES, PATIENCE, names_a_host, resolve_url
from iris.cluster.discovery.seeds_file import ask_file
from iris.cluster.discovery.srv import MakeResolver, ask_srv, check_installed, system_resolver
from iris.cluster.seed_urls import FILE, KUBERNETES, SRV, check_seed, place_of, source_of, split_service
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.statistics import Statistics

if TYPE_CHECKING:
    from iris.cluster.discovery.kubernetes import Pod

_log: Final = logging.getLogger("iris")

Resolve = Callable[[str], Awaitable[tuple[str, ...]]]
"""Returns the URLs that a seed stands for at the moment, one at least; it raises NotSent if it does not know.  A host
name in an answer of a source stands for its addresses in turn."""

_DNS: Final = "dns"
"""The source of a host name in an address: its A and AAAA records."""

_AGAIN: Final[Mapping[str, float]] = {_DNS: 30.0, SRV: 30.0, KUBERNETES: 30.0, FILE: 5.0}
"""Seconds after which a source is asked again although a node behind its seed is linked; it is asked before each
attempt if none is."""

_PAUSES: Final = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Seconds before a source that has failed is asked again; the last one repeats."""

_REMEMBERED: Final = 1024
"""Host names in the answers of sources of which the last answer is remembered."""


@final
class SeedStatistics(Statistics, frozen=True, kw_only=True):
    """Answer of a seed: where other nodes are."""

    source: str
    """Service that is asked: ``dns``, ``dns+srv``, ``kubernetes`` or ``file``."""
    answered: int
    failed: int
    addresses: int
    """Addresses that it stands for, by its last answer; of more than 32 those that are dialled."""
    answered_at: float | None
    """Date of its last answer.  None if there was none."""
    error: str | None
    """Reason why it did not answer when it was asked last.  None if it did, or was not asked."""


@final
class _Asked(Struct):
    source: str
    urls: tuple[str, ...] = ()
    found: int = 0
    answered: int = 0
    failed: int = 0
    row: int = 0
    """Failures since the last answer."""
    due: float = 0.0
    answered_at: float | None = None
    error: str | None = None


async def resolve_seed(
    seed: str, *, pod: Pod | None = None, make_resolver: MakeResolver = system_resolver
) -> tuple[str, ...]:
    """Ask what a seed stands for; see ``Resolve``.

    Args:
        seed: a seed of the form that ``check_seed`` takes.
        pod: what Kubernetes gives this pod; by default as it is mounted.
        make_resolver: makes what asks for SRV records.

    Raises:
        NotSent: it does not answer within 4 s, or names no address; the message says why.
    """
    source, place = source_of(seed), place_of(seed)
    if not source:
        return await resolve_url(seed)
    try:
        check_seed(seed)
    except ConfigError as error:  # of a credential, which nobody has looked at
        raise NotSent(str(error)) from None
    with trio.move_on_after(PATIENCE):
        if source == SRV:
            return await ask_srv(seed, place, make_resolver)
        if source == FILE:
            return await ask_file(seed, place)
        from iris.cluster.discovery.kubernetes import ask_kubernetes  # here: it loads HTTP, which takes 20 ms

        return await ask_kubernetes(seed, split_service(seed), pod)
    raise NotSent(f"{seed}: no answer within {PATIENCE:g} s")


@final
class Seeds:
    """The seeds of one node.

    Args:
        urls: the seeds, as ``check_seed`` takes them.
        resolve: asks what one stands for.
        random: chooses among more than 32 addresses, the same ones each time, and the pauses.
        wall_clock: the date.

    Raises:
        ConfigError: a package is missing that one of them needs.
    """

    def __init__(
        self, urls: tuple[str, ...], resolve: Resolve, random: Random, wall_clock: Callable[[], float]
    ) -> None:
        self.urls: Final = urls
        self._wall_clock = wall_clock
        self._resolve = resolve
        self._random = random
        self._salt = 0
        self._asked = {url: _Asked(source) for url in urls if (source := _source_of(url))}
        self._names: dict[str, _Asked] = {}
        """Host names in answers of sources, the latest last."""
        for url in urls:
            if source_of(url) == SRV:
                check_installed(url)
            if source_of(url):
                self._salt = self._salt or random.getrandbits(32)

    def __repr__(self) -> str:
        return f"<Seeds: {len(self.urls)}>"

    def statistics(self) -> dict[str, SeedStatistics]:
        """Return what was learned of each seed that somebody is asked about."""
        return {
            url: SeedStatistics(
                source=asked.source,
                answered=asked.answered,
                failed=asked.failed,
                addresses=asked.found,
                answered_at=asked.answered_at,
                error=asked.error,
            )
            for url, asked in self._asked.items()
        }

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses in the seeds, and those that sources have named; without asking anybody."""
        return tuple(dict.fromkeys(one for url in self.urls for one in self._known_of(url)))

    def _known_of(self, url: str) -> tuple[str, ...]:
        return self._asked[url].urls if source_of(url) else (url,)

    @staticmethod
    def asked_again(url: str) -> float:
        """Return after how many seconds a seed is to be asked again though a node behind it is linked."""
        return _AGAIN.get(_source_of(url), float("inf"))

    async def resolve(self, url: str) -> tuple[str, ...]:
        """Return the addresses that a seed stands for: by its last answer, where there is none now.

        Cancelling it leaves the seed as it was.

        Raises:
            NotSent: it has never answered; the message says why.
        """
        asked = self._asked.get(url)
        return await self._resolve(url) if asked is None else await self._ask(url, asked)

    async def _ask(self, url: str, asked: _Asked) -> tuple[str, ...]:
        if trio.current_time() >= asked.due:
            try:
                found = await self._resolve(url)
                if not found:
                    raise NotSent(f"{url}: the answer has no address")
                if source_of(url):
                    found = await self._expand(url, found)
            except NotSent as error:
                self._failed(url, asked, str(error))
            else:
                self._answered(url, asked, found)
        if not asked.urls:
            raise NotSent(asked.error or url)
        return asked.urls

    async def _expand(self, url: str, found: tuple[str, ...]) -> tuple[str, ...]:
        """Return the addresses of an answer, with those of its host names in their place."""
        answers: dict[str, tuple[str, ...]] = {one: (one,) for one in self._choose(found)}

        async def look_up(name: str) -> None:
            asked = self._names.pop(name, None) or _Asked(_DNS)
            self._names[name] = asked
            if len(self._names) > _REMEMBERED:
                del self._names[next(iter(self._names))]
            try:
                answers[name] = await self._ask(name, asked)
            except NotSent:
                answers[name] = ()

        async with trio.open_nursery() as nursery:
            for one in filter(names_a_host, list(answers)):
                nursery.start_soon(look_up, one)
        addresses = tuple(dict.fromkeys(one for several in answers.values() for one in several))
        if not addresses:
            raise NotSent(f"{url}: none of the {len(answers)} names in the answer is known")
        return self._choose(addresses)

    def _choose(self, urls: tuple[str, ...]) -> tuple[str, ...]:
        """Return some of too many: each node its own, and mostly the same ones when others come and go."""
        if len(urls) <= MAX_ADDRESSES:
            return urls
        return tuple(sorted(urls, key=lambda url: zlib.crc32(url.encode(), self._salt))[:MAX_ADDRESSES])

    def _answered(self, url: str, asked: _Asked, found: tuple[str, ...]) -> None:
        if asked.row:
            _log.info("%s answers again", url, extra={"address": url, "cause": url})
        asked.urls, asked.found = found, len(found)
        asked.answered, asked.row, asked.error = asked.answered + 1, 0, None
        asked.answered_at = self._wall_clock()

    def _failed(self, url: str, asked: _Asked, reason: str) -> None:
        if not asked.row:
            former = f"; its last {len(asked.urls)} addresses stay in use" if asked.urls else ""
            _log.warning(
                "%s%s; trying again", reason, former, extra={"address": url, "reason": "NotSent", "cause": url}
            )
        if asked.source in (SRV, KUBERNETES):
            pause = _PAUSES[min(asked.row, len(_PAUSES) - 1)]
            asked.due = trio.current_time() + pause * (0.5 + self._random.random())
        asked.failed, asked.row, asked.error = asked.failed + 1, asked.row + 1, reason


def _source_of(url: str) -> str:
    """Return who is asked about a seed; an empty string for an address that stands for itself."""
    return source_of(url) or (_DNS if names_a_host(url) else "")
