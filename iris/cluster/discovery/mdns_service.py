"""mDNS service: the ``zeroconf`` package on threads of its own, announcing this node and browsing for others.

The package keeps 10,000 records of what it receives.  By itself it would work for each of them without end: report it,
ask for it again before it runs out, and ask for addresses that did not come along.  Here it does so only for those that
are followed (``iris.cluster.discovery.mdns_records``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, Protocol, final

import trio
import zeroconf
from zeroconf import ServiceInfo

from iris.cluster.discovery.local_network import LocalNetwork
from iris.cluster.discovery.mdns_records import MAX_FOLLOWED, TYPE, FollowedAnnouncements, announcements, urls_untrusted
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.tasks import run_in_thread

_ANSWER_MS: Final = 1000
"""Milliseconds that an announcement's addresses may take to come, if they did not come with it."""

_ASKED_AT_ONCE: Final = 4
"""Announcements that are asked for their addresses at one time."""

_LONGEST: Final = 4500
"""Seconds for which a node announces itself (RFC 6762, section 10); what is to last longer is made up."""

_POINTER: Final = 12
"""Type of record: RFC 1035."""


class AnnouncementUser(Protocol):
    """The user of what others announce.  Called on the package's own thread; must not block."""

    def concerns(self, name: str) -> bool:
        """Return whether an instance of this name is of this realm, and not this node's own."""
        ...

    def left_out(self, name: str | None) -> None:
        """There were too many: the one of this name is not followed any more; None: a new one is not."""
        ...


@final
class RecordFilter:
    """Passes those records of the package that concern the announcements followed.

    Args:
        followed: the announcements that are.
        user: the user of what others announce.

    Attributes:
        dropped: pointers to those that are not followed any more; emptied when they are dealt with.
    """

    def __init__(self, followed: FollowedAnnouncements, user: AnnouncementUser) -> None:
        self.dropped: list[Any] = []
        self._followed = followed
        self._user = user
        self._pointers: dict[str, Any] = {}

    def keep(self, update: zeroconf.RecordUpdate, now: float) -> zeroconf.RecordUpdate | None:
        """Return what is to be made of a record that was heard, or has run out; None if nothing is.

        Args:
            update: the record.
            now: this moment in milliseconds, of the package's clock.
        """
        record: Any = update.new
        if record.type != _POINTER:
            return update if instance_of(record.name) in self._followed else None
        name = instance_of(record.alias)
        if record.name != TYPE or not self._user.concerns(name):
            return None
        if record.is_expired(now):
            self._pointers.pop(name, None)
            return update if self._followed.lose(name) else None
        if name in self._followed:
            return update
        if record.ttl > _LONGEST:
            return None
        ignored = self._followed.ignored
        replaced = self._followed.follow(name, now / 1000)
        if replaced is not None:
            self.dropped.append(self._pointers.pop(replaced))
        if self._followed.ignored != ignored:
            self._user.left_out(replaced)
        if name not in self._followed:
            return None
        self._pointers[name] = record
        return zeroconf.RecordUpdate(record, None)  # new to us, however long the package has had it


class Browser(zeroconf.ServiceBrowser):
    """Hands on the records that the filter passes.

    Args:
        network: the network object of the package.
        sieve: the filter.
        notice: see ``ServiceBrowser``; called on the package's browsing thread.
    """

    def __init__(self, network: zeroconf.Zeroconf, sieve: RecordFilter, notice: Callable[..., None]) -> None:
        self._sieve = sieve
        super().__init__(network, TYPE, handlers=[notice])  # pyright: ignore[reportUnknownMemberType]

    def async_update_records(self, zc: zeroconf.Zeroconf, now: float, records: list[zeroconf.RecordUpdate]) -> None:
        """Process what the package has received; called on its own loop."""
        kept = [update for record in records if (update := self._sieve.keep(record, now)) is not None]
        while self._sieve.dropped:
            # Else it would be asked for again before it runs out, with all others that were made up.
            self.query_scheduler.cancel_ptr_refresh(self._sieve.dropped.pop())
        super().async_update_records(zc, now, kept)


def instance_of(name: str) -> str:
    """Return the name of an instance, from its own name or from that of its host."""
    return name.removesuffix(f".{TYPE}").removesuffix(".local.")


_log: Final = logging.getLogger("iris")


@final
class MdnsService:
    """The running mDNS service: what others announce goes to ``lan``.  Make and close it on a thread."""

    def __init__(self, lan: LocalNetwork, token: trio.lowlevel.TrioToken, interfaces: list[str] | None) -> None:
        self._lan = lan
        self._token = token
        self._loopback = interfaces is not None
        self._pending: dict[str, Callable[[], None]] = {}
        """The last news of each announcement, for the thread that the node runs in."""
        self._ignored = 0
        self._asking, self._to_ask = trio.open_memory_channel[str](MAX_FOLLOWED)
        self._threads = trio.CapacityLimiter(_ASKED_AT_ONCE)
        self._followed = FollowedAnnouncements(Random())
        self._zeroconf = zeroconf.Zeroconf(interfaces=interfaces or zeroconf.InterfaceChoice.All)
        Browser(self._zeroconf, RecordFilter(self._followed, self), self._notice)

    async def announce(self, own: str, urls: tuple[str, ...]) -> None:
        """Announce this node; that takes half a second, for which nobody should have to wait."""
        for announcement in announcements(self._lan.mark, own, urls, loopback=self._loopback):
            # Names are random: whether another one has the same need not be asked.
            register = partial(self._zeroconf.register_service, announcement, cooperating_responders=True)
            try:
                await run_in_thread(register, abandon_on_cancel=True)
            except (OSError, RuntimeError, zeroconf.Error) as error:  # the node goes on; seeds work everywhere
                text = "this node is not announced on the local network: %s"
                _log.warning(text, error, extra={"reason": type(error).__name__})
                return

    async def ask(self) -> None:
        """Ask for the addresses of announcements that came without them, some at a time, until it is cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(_ASKED_AT_ONCE):
                nursery.start_soon(self._ask_one_by_one)

    async def _ask_one_by_one(self) -> None:
        async for name in self._to_ask:
            ask = partial(self._zeroconf.get_service_info, TYPE, f"{name}.{TYPE}", _ANSWER_MS)
            with contextlib.suppress(OSError, RuntimeError, zeroconf.Error):  # as above
                info = await run_in_thread(ask, abandon_on_cancel=True, limiter=self._threads)
                if info is not None:
                    self._report_addresses(name, info)

    # -- on the package's threads ---------------------------------------------------------------------------

    def _hop(self, name: str, news: Callable[[], None]) -> None:
        """Have the news of an announcement taken in; of a flood of them the last one counts."""
        self._pending[name] = news
        self._hop_over()

    def _hop_over(self) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._handle_pending, idempotent=True)

    def concerns(self, name: str) -> bool:
        """See ``AnnouncementUser.concerns``."""
        return self._lan.concerns(name)

    def left_out(self, name: str | None) -> None:
        """See ``AnnouncementUser.left_out``."""
        if name is not None:
            self._hop(name, partial(self._lan.lost, name))
        self._hop_over()

    def _notice(
        self,
        zeroconf: zeroconf.Zeroconf,
        service_type: str,
        name: str,
        state_change: zeroconf.ServiceStateChange,
    ) -> None:
        label = instance_of(name)
        if state_change.name == "Removed":
            self._hop(label, partial(self._lan.lost, label))
            return
        info = ServiceInfo(service_type, name)
        if info.load_from_cache(zeroconf):
            self._hop(label, partial(self._report_addresses, label, info))
        elif state_change.name == "Added":
            self._hop(label, partial(self._ask_for, label))

    # -- on the node's thread -------------------------------------------------------------------------------

    def _handle_pending(self) -> None:
        while self._pending:
            _, news = self._pending.popitem()
            news()
        ignored, self._ignored = self._ignored, self._followed.ignored
        self._lan.leave_out(self._ignored - ignored)

    def _ask_for(self, name: str) -> None:
        with contextlib.suppress(trio.WouldBlock):  # when its addresses come, it is heard of once more
            self._asking.send_nowait(name)

    def _report_addresses(self, name: str, info: zeroconf.ServiceInfo) -> None:
        if name in self._followed:  # or it had to make room meanwhile
            with contextlib.suppress(RemoteProtocolError):  # anybody may say anything here
                urls = urls_untrusted(info.parsed_addresses(), info.port, info.properties, loopback=self._loopback)
                self._lan.found(name, urls)

    def close(self) -> None:
        """Take the announcement back."""
        self._zeroconf.close()
