"""Calls: the requests of a node with all that is around them, so that ``Node`` and what it is made of ask in one way.

Waits for a first member, links members at other sites, joins the trace, and then leaves it to ``Requests``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio

from iris.cluster.membership import Lookups, Membership, Watch
from iris.cluster.mesh import Mesh
from iris.cluster.sites import Reach, reach_one
from iris.kernel.errors import ConfigError, DeliveryError, RequestTimeout
from iris.kernel.names import Entropy, check_address
from iris.kernel.numerals import shown
from iris.kernel.tasks import checkpoint_after_error, protected_context
from iris.node.arguments import check_is, check_request, check_timeout, check_wait, is_wait
from iris.node.run_guard import RunGuard
from iris.patterns.bridge_protocol import Ask, as_fields, read_answer
from iris.patterns.payloads import converted_reply, reply_converter
from iris.patterns.picker import known_instead
from iris.patterns.priority import check_priority
from iris.patterns.request import PLAIN, REPEATED, Begun, RequestOptions, Requests, preference_of
from iris.patterns.tunnel import Tunnel

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from iris.node.telemetry.tracing import OpenSpan, TracedRequest, Tracing

    R = TypeVarWithDefault("R", default=Any)
else:
    R = TypeVar("R")
T = TypeVar("T")


@final
class FirstMembers:
    """Waits for clusters that have no member yet, and knows whether this node is a client.

    Args:
        lookups: search of a client for members.  None for a member, which knows them all.
    """

    def __init__(self, membership: Membership, lookups: Lookups | None, guard: RunGuard) -> None:
        self._membership = membership
        self._lookups = lookups
        self._guard = guard

    async def wait(self, cluster: str, wait: float) -> None:
        """Wait until a cluster has a member that can be asked, for ``wait`` seconds at most."""
        check_address(cluster)
        with self._guard.waiting(), self.following(cluster), trio.move_on_after(wait):
            await self._membership.wait_for(cluster, 1)

    def following(self, cluster: str) -> AbstractContextManager[None]:
        """Have a client look the members of a cluster up again and again, for the length of the block."""
        return nullcontext() if self._lookups is None else self._lookups.following(cluster)

    async def wait_for(self, cluster: str, members: int, within: float) -> bool:
        """Wait until a cluster has ``members`` members; return False if it has not in time."""
        with self._guard.waiting(), self.following(cluster), trio.move_on_after(within):
            await self._membership.wait_for(cluster, members)
            return True
        return False

    def watch(self, cluster: str) -> AbstractAsyncContextManager[Watch]:
        """Follow the members of a cluster; see ``Node.watch``."""
        watch = self._membership.watch(cluster)
        return watch if self._lookups is None else self._watch_following(cluster, watch)

    @protected_context
    async def _watch_following(self, cluster: str, watch: AbstractAsyncContextManager[Watch]) -> AsyncIterator[Watch]:
        with self.following(cluster):
            async with watch as changes:
                yield changes

    def check_not_client(self, what: str) -> None:
        """Raise ConfigError if this node is a client."""
        if self._lookups is not None:
            raise ConfigError(f"this node is a client and cannot {what}: open it without client=True")

    @protected_context
    async def entering(
        self, cluster: str, wait: float, opening: Callable[[], AbstractAsyncContextManager[T]]
    ) -> AsyncIterator[T]:
        """Enter a block once a cluster has a member, for which it waits ``wait`` seconds at most."""
        if wait:
            await self.wait(cluster, wait)
        with self._guard.waiting() as entered:
            async with opening() as opened:
                entered()
                yield opened

    @protected_context
    async def entering_tunnel(
        self, cluster: str, wait: float, opening: Callable[[], AbstractAsyncContextManager[Tunnel]]
    ) -> AsyncIterator[Tunnel]:
        """Enter the block of a tunnel likewise; it leaves no cancel scope open, so blocks may be left in any order."""
        if wait:
            await self.wait(cluster, wait)
        async with AsyncExitStack() as stack:
            with self._guard.waiting():
                tunnel = await stack.enter_async_context(opening())
            yield tunnel


def too_few(
    cluster: str, members: int, within: float, known: int, mesh: Mesh, membership: Membership
) -> RequestTimeout:
    """Return the error when a cluster does not have so many members in time, of those that are known."""
    present = membership.count(cluster)
    but = f"; {known - present} more cannot be asked: leaving, or not linked" if known > present else ""
    trouble = mesh.trouble()
    error = RequestTimeout(
        f"cluster {cluster!r} has {present} of {shown(members)} members after {within:g} s{but}{trouble}"
    )
    hint = "" if known or trouble else known_instead(cluster, membership.clusters())
    if hint:
        error.add_note(hint)
    return error


@final
class Calls:
    """The requests of one node.

    Args:
        reach: links members before they are asked.
        tracing: joins calls to traces.  None if the program traces nothing.
        entropy: source of the names of claims and holders at bridges.
    """

    def __init__(
        self,
        requests: Requests,
        first: FirstMembers,
        reach: Reach,
        guard: RunGuard,
        tracing: Tracing | None,
        entropy: Entropy,
    ) -> None:
        self._requests = requests
        self._first = first
        self._reach = reach
        self._guard = guard
        self._tracing = tracing
        self.entropy: Final = entropy

    async def request(
        self,
        cluster: str,
        payload: object,
        *,
        operation: str | None = None,
        key: str | None = None,
        timeout: float,
        headers: Mapping[str, str] | None = None,
        reply: type[R] | None = None,
        wait: float = 0.0,
        fallback: R | None = None,
        options: RequestOptions | None = None,
    ) -> R:
        """See ``Node.request``."""
        span: OpenSpan | None = None
        try:
            if get_ident() != self._guard.thread:
                self._guard.check()
            if operation is not None or key is not None or type(cluster) is not str:
                check_request(cluster, operation, key)
            options = PLAIN if options is None else check_is(options, RequestOptions, "options")
            if type(timeout) is not float or not timeout > 0:
                timeout = check_timeout(timeout)
            convert = None if reply is None else reply_converter(reply)
            if self._tracing is not None:
                span, headers = self._tracing.begin_call("request", cluster, operation, headers)
            if is_wait(wait) and (wait := check_wait(wait)):
                await self._first.wait(cluster, wait)
            keyed = key is not None or options.prefer is not None
            if options.prefer_site or self._reach.matters(cluster, keyed=keyed):
                with self._guard.waiting():
                    timeout = await reach_one(self._reach, cluster, options.prefer_site, timeout, keyed=keyed)
            call = self._requests.call(
                cluster,
                payload,
                timeout=timeout,
                idempotent=options.idempotent,
                operation=operation,
                key=key,
                prefer=None if options is PLAIN else preference_of(options.prefer, options.prefer_site),
                headers=headers,
                priority=None if options.priority is None else check_priority(options.priority),
                idempotency_key=options.idempotency_key,
            )
            came: Any = await self._requests.request(call, options.hedge)
            value: R = came if convert is None else converted_reply(convert, came, cluster)
        except BaseException as error:
            if span is not None:
                span.end(error)
            if isinstance(error, RuntimeError):
                self._guard.check()  # called from another framework in the node's thread: this says what to do
            if isinstance(error, Exception):
                await checkpoint_after_error()
            if fallback is None or not isinstance(error, DeliveryError):
                raise
            self._requests.fallbacks[type(error).__name__] += 1
            return fallback
        if span is not None:
            span.end()
        return value

    def begin(
        self,
        woken: Callable[[], None],
        until: float,
        cluster: str,
        payload: object,
        *,
        operation: str | None,
        key: str | None,
        timeout: float,
        headers: Mapping[str, str] | None,
        options: RequestOptions | None,
    ) -> Begun | TracedRequest | None:
        """Begin a request as ``request`` does, without waiting, for callers outside of trio's tasks.

        None if it has to wait for anything but a reply.
        See ``Requests.begin``.
        """
        if get_ident() != self._guard.thread:
            self._guard.check()
        if operation is not None or key is not None or type(cluster) is not str:
            check_request(cluster, operation, key)
        options = PLAIN if options is None else check_is(options, RequestOptions, "options")
        if options is not PLAIN and (options.hedge is not None or options.prefer_site is not None):
            return None
        if self._reach.matters(cluster, keyed=key is not None or options.prefer is not None):
            return None
        span: OpenSpan | None = None
        if self._tracing is not None:
            span, headers = self._tracing.begin_call("request", cluster, operation, headers)
        call = self._requests.call(
            cluster,
            payload,
            timeout=check_timeout(timeout),
            idempotent=options.idempotent,
            operation=operation,
            key=key,
            headers=headers,
            prefer=None if options is PLAIN else preference_of(options.prefer, options.prefer_site),
            priority=None if options.priority is None else check_priority(options.priority),
            until=until,
            idempotency_key=options.idempotency_key,
        )
        begun = self._requests.begin(call, woken)
        return begun if begun is None or span is None else span.following(begun)

    async def ask(self, bridge: str, request: Ask[T], timeout: float, /) -> T:
        """See ``iris.patterns.bridge_protocol.Bridges``, the port that this is for leases, sagas and outcomes."""
        fields, operation = as_fields(request), request.operation
        reply = await self.request(bridge, fields, operation=operation, timeout=timeout, options=REPEATED)
        return read_answer(request, reply)
