"""Node: one process's entry into Iris.  Everything a program does begins here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio

from iris.cluster.membership import Member, NodeInfo, Watch
from iris.cluster.sites import open_with_all, open_with_one, reach_all
from iris.kernel.errors import ConfigError, NoSuchCluster
from iris.kernel.names import OWN, NodeId, check_address, check_name
from iris.kernel.tasks import checkpoint_after_error, checkpointed, protected_context
from iris.node.arguments import check_count, check_is, check_request, check_timeout, check_wait, check_whom
from iris.node.bridge import Bridge
from iris.node.calls import too_few
from iris.node.documents import Documents
from iris.node.join import ClusterMembership
from iris.node.parts import NodeParts
from iris.node.statistics import NodeStatistics, gather_statistics
from iris.patterns import state as documents
from iris.patterns.books import Books, LossWatch, matching
from iris.patterns.messages import OwnNode
from iris.patterns.multicast import Answers, StopRules
from iris.patterns.priority import PriorityName, check_priority
from iris.patterns.pubsub.interest import DurableSubscriber, Share, check_topic
from iris.patterns.pubsub.publish import ConfirmedEvents, open_confirmed_events
from iris.patterns.pubsub.subscribe import Overflow, Subscription, SubscriptionLimits, with_expiry
from iris.patterns.request import RequestOptions, check_preference, preference_of
from iris.patterns.service import Limits, Role, Service, callers, provided
from iris.patterns.tunnel import Tunnel
from iris.security.files import CredentialWatch
from iris.security.identity import Credential

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from iris.node.telemetry.tracing import OpenSpan

    R = TypeVarWithDefault("R", default=Any)
else:
    R = TypeVar("R")


@final
class Node(OwnNode):
    """A node that is up.  Made by ``iris.open_node``; all its methods are for use inside that block, in one trio run.

    After it they raise ``trio.ClosedResourceError``, as do those that wait then, and what is iterated over ends; only
    what tells of the node still works: ``statistics``, ``clusters`` and ``members``.  From other threads use
    ``trio.from_thread``.

    Clusters, topics and operations are names; a node never names a host.  Errors are ``iris.IrisError`` and say
    which cluster, member or limit they are about.
    """

    # Of so many attributes Python makes a dict, which each call of a method searches: 3 % of an event.
    __slots__ = (
        "__weakref__",
        "_blocked",
        "_books",
        "_bridges",
        "_broadcasts",
        "_calls",
        "_config",
        "_environment",
        "_first",
        "_guard",
        "_joined",
        "_lookups",
        "_membership",
        "_mesh",
        "_meshes",
        "_parts",
        "_publishing",
        "_pubsub",
        "_reach",
        "_relays",
        "_reports",
        "_requests",
        "_revoking",
        "_serving",
        "_sites",
        "_states",
        "_subscriber_links",
        "_surveys",
        "_tracing",
        "_tunnels",
        "id",
        "name",
        "realm",
        "site",
    )  # fmt: skip

    def __init__(self, parts: NodeParts, credential: Credential) -> None:
        self.id: Final = parts.mesh.node
        """This boot of this process: 32 hexadecimal digits."""
        self.name: Final = credential.name
        """The cluster that this node speaks for; others see it as ``sender.cluster``."""
        self.realm: Final = credential.realm_id
        """Fingerprint of the realm: 32 hexadecimal digits."""
        self.site: Final = parts.mesh.tag.site
        """The site the node belongs to; empty if none was given."""
        self._parts: Final = parts
        self._mesh, self._membership, self._revoking = parts.mesh, parts.membership, parts.revoking
        self._meshes = [parts.mesh]
        """The node's mesh, and on a gateway the mesh of gateways too."""
        self._config, self._environment = parts.config, parts.environment
        self._joined, self._sites, self._lookups, self._reach = parts.joined, parts.sites, parts.lookups, parts.reach
        self._reports: dict[str, Callable[[], Any]] = {}
        """Statistics of what is built on this node ("gateway", "bridge"): callables that return or await them."""
        self._bridges: dict[str, Bridge] = {}
        patterns = parts.patterns
        self._states, self._blocked = Documents(parts), patterns.blocked
        self._guard, self._tracing, self._books = patterns.guard, patterns.tracing, patterns.books
        self._requests, self._first, self._calls = patterns.requests, patterns.first, patterns.calls
        self._relays, self._broadcasts, self._surveys = patterns.relays, patterns.broadcasts, patterns.surveys
        self._pubsub, self._serving, self._tunnels = patterns.pubsub, patterns.serving, patterns.tunnels
        self._subscriber_links = patterns.pubsub.subscriber_links
        """None once all who may hear are linked, and will be."""
        self._publishing = patterns.pubsub.publishing

    @property
    def addresses(self) -> tuple[str, ...]:
        """The URLs really bound.  Without ``listen`` no port until it serves; then the machine's address."""
        return self._mesh.listening

    def __repr__(self) -> str:
        return f"<Node {self.id[:8]} of cluster {self.name!r}>"

    # -- request and reply ----------------------------------------------------------------------------------

    async def request(
        self,
        cluster: str,
        payload: object = b"",
        *,
        operation: str | None = None,
        key: str | None = None,
        timeout: float = 5.0,
        headers: Mapping[str, str] | None = None,
        reply: type[R] | None = None,
        wait: float = 0.0,
        fallback: R | None = None,
        options: RequestOptions | None = None,
    ) -> R:
        """Ask one member of a cluster and return its reply.

        The member is chosen by load.  At most once: the handler runs never or once.  With
        ``options=RequestOptions(idempotent=True)`` the request is repeated until the timeout when members are lost or
        leave, or there is none for a moment, and members recognise repeats: effectively once while the member that ran
        it lives.

        Args:
            cluster: name of the cluster.
            payload: bytes, None, bool, int, float, str, list, dict with str keys, dataclass; at most ``max_payload``.
            operation: name of the handler within the service.
            key: requests with the same key go to the same member while it lives.
            timeout: seconds until ``RequestTimeout``; the handler is cancelled when they are over.  The caller's own
                cancel scope shortens it, and what is left is what nested requests in the handler may use.
            headers: str to str, at most ``Config.max_headers`` bytes.
            reply: the type to convert the reply to: a dataclass, a model of msgspec or pydantic, or a type made of
                such; one that does not fit raises ``RemoteError`` with the code ``reply_malformed``.  None: as it is.
            wait: seconds to wait for a first member if the cluster has none; they come before those of ``timeout``.
            fallback: returned in the place of a ``DeliveryError``, and counted (``statistics().fallbacks``).  None:
                errors are raised.
            options: repeats, idempotency key, hedging, priority, preferred member or site.

        Raises:
            NoSuchCluster: nobody serves it; known at once, or when ``wait`` is over.  An idempotent request waits for
                another member within its timeout if there was one in the last ``Config.absence_patience`` seconds; any
                waits 2 s if the last one has left in order.
            Overloaded: the members that were asked are at their limits; the handler did not run.
            RequestTimeout: the time is over; the handler ran never or once, or once at each member that was lost.
            NotSent: the request certainly did not run.
            Unknown: the member was lost while it had the request; only if not idempotent.  With a key: a member was
                lost in the middle, or the handler was cancelled, and the service does not run such requests again.
            RemoteError: the handler raised; it holds the code and text.  With a key also ``key_reused``: it stands for
                another payload; ``no_outcomes``: the service keeps none; ``no_bridge``, ``not_stored``,
                ``too_many_keys``: the bridge cannot be reached, or has no room.  With these the handler did not run.
            NotAllowed: the member refuses this caller.
            PayloadTooLarge, LocalProtocolError: the payload or the headers cannot be sent.

        Cancelling it tells the member to stop, and leaves nothing behind here.  A key whose handler has begun is in
        doubt then, as if the member had been lost.
        """
        return await self._calls.request(
            cluster,
            payload,
            operation=operation,
            key=key,
            timeout=timeout,
            headers=headers,
            reply=reply,
            wait=wait,
            fallback=fallback,
            options=options,
        )

    # -- broadcast and survey -------------------------------------------------------------------------------

    @checkpointed
    async def broadcast(
        self, cluster: str, payload: object, *, headers: Mapping[str, str] | None = None, wait: float = 0.0
    ) -> None:
        """Send a message to every member of a cluster; at most once per member, without replies.

        Waits until every member has room for it, and returns when the links have taken it.  A member that has made
        broadcasts wait for ``Config.broadcast_patience`` seconds in all since it had room for half a window is skipped
        until it has that again.  Its copies are counted as refused
        (``statistics().broadcasts.refused_because``).  Members that join later do not get it.  Broadcasts of several
        tasks to one cluster that have to wait go in the order in which they came.

        Args:
            cluster: name of the cluster; its present members receive it.
            payload: see ``request``.
            headers: see ``request``.
            wait: as for ``request``; members after the first are not waited for, see ``wait_for``.

        Raises:
            NoSuchCluster: nobody serves it.
            PayloadTooLarge, LocalProtocolError: the payload or the headers cannot be sent.

        Cancelled, it has told nobody, and its copies are counted as expired if it waited for room; once it has told
        somebody, it has told everybody and is over.
        """
        self._guard.check()
        check_address(cluster)
        span: OpenSpan | None = None
        if self._tracing is not None:
            span, headers = self._tracing.begin_call("broadcast", cluster, None, headers)
        with nullcontext() if span is None else span:
            within = check_wait(wait)
            if within:
                await self._first.wait(cluster, within)
            _, without_link = await reach_all(self._reach, cluster, self._config.handshake_timeout)
            try:
                await self._broadcasts.broadcast(cluster, payload, headers=headers, without_link=without_link)
            except NoSuchCluster:
                self._guard.check()  # else nobody is left because this node was closed meanwhile
                raise

    def _broadcast_at_once(self, cluster: str, payload: object, headers: Mapping[str, str] | None) -> bool:
        """Broadcast as ``broadcast`` does if nothing has to be waited for; return whether the message is sent.

        For any code of the node's thread, in a task of trio or not.
        """
        if (
            get_ident() != self._guard.thread
            or (self._tracing is not None and self._tracing.is_within)
            or self._reach.lists(check_address(cluster))
        ):
            return False
        return self._broadcasts.broadcast_at_once(cluster, payload, headers, self._reach.without_link(cluster))

    def survey(
        self,
        cluster: str,
        payload: object,
        *,
        operation: str | None = None,
        timeout: float = 1.0,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
        count: int | None = None,
        quiet: float | None = None,
        priority: PriorityName | None = None,
    ) -> AbstractAsyncContextManager[Answers]:
        """Ask every member of a cluster and gather the replies; at most once per member.

        Example::

            async with node.survey("databases", b"how full?") as answers:
                async for answer in answers:
                    print(answer.member, answer.payload)
            print(answers.missing)

        The iteration ends when all have answered or failed, or by one of the rules; ``answers.ended_by`` says which.
        Afterwards ``answers.missing`` says who has not answered and ``answers.errors`` why, where that is known.  The
        members' request handlers answer.

        Args:
            cluster: name of the cluster; its present members are asked.
            payload: see ``request``.
            operation: see ``request``.
            timeout: seconds that the survey takes at most.
            headers: see ``request``.
            wait: as for ``request``; members after the first are not waited for, see ``wait_for``.
            count: end it after so many answers.
            quiet: end it when, after the first, no answer has come for so many seconds.
            priority: see ``RequestOptions``.

        Raises:
            NoSuchCluster: nobody serves it.
            PayloadTooLarge, LocalProtocolError: the payload or the headers cannot be sent.

        Leaving the block early, or cancelling it, stops the members that are still at work.
        """
        self._guard.check()
        check_whom(cluster, operation)
        rules = StopRules(timeout=check_timeout(timeout), count=count, quiet=quiet)
        within, asked_as = check_wait(wait), check_priority(priority)

        def opening(headers: Mapping[str, str] | None) -> AbstractAsyncContextManager[Answers]:
            survey = partial(self._surveys.open, cluster, payload, rules, operation, headers, asked_as)
            asking = partial(open_with_all, self._reach, cluster, survey, rules.timeout)
            return self._first.entering(cluster, within, asking)

        tracing = self._tracing
        return opening(headers) if tracing is None else tracing.within("survey", cluster, operation, headers, opening)

    # -- publish and subscribe ------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """Send an event to every subscriber of a topic, whatever its cluster, and wait for no confirmation.

        At most once per subscriber, in the order of this publisher.  What is lost is counted, shown to the subscriber
        as ``event.missed``, and raised by ``raise_for_losses``.  It waits when the links to subscribers are full but
        moving.

        Args:
            topic: tokens joined by dots.
            payload: see ``request``.
            key: keeps events together: within a group of subscribers, the same key goes to the same member.
            headers: see ``request``.
            expires: seconds that it may wait at a subscriber; then it is not delivered any more, and counted there as
                expired.  In a bridge's log they count from when it was stored.  None: it never expires.

        Raises:
            ConfigError: the topic is malformed, or ``expires`` are no seconds.
            NotAllowed: this node's certificate does not permit to publish on it.
            PayloadTooLarge, LocalProtocolError: the payload or the headers cannot be sent.

        It yields to other tasks every 1,024 events or 256 KiB.  Cancelled while it waits, the event is in flight, or
        unsent if it yielded or waited for a patient subscriber or another site.
        """
        try:
            if get_ident() != self._guard.thread:
                self._guard.check()
            if self._lookups is not None:
                self._first.check_not_client("publish")
            if expires is not None:
                headers = with_expiry(headers, expires)
            if self._tracing is not None:
                span, headers = self._tracing.begin_call("event", topic, None, headers)
                if span is not None:
                    with span:  # once more, with the trace in its headers
                        return await self.publish(topic, payload, key=key, headers=headers)
            publishing, links = self._publishing, self._subscriber_links
            # A plain call where nothing has to be waited for: a coroutine more would cost a third of the whole.
            plain = type(payload) is bytes and key is None and not headers
            if plain and not links.has_sites and publishing.extend(topic, payload, len(payload)):
                return None  # those who hear the event before hear this one
            if links.pending(topic):
                await self._reach_subscribers(topic)
            if not (plain and links.has_sites and publishing.extend(topic, payload, len(payload))):
                await publishing.publish(topic, payload, key=key, headers=headers)
        except Exception:
            await checkpoint_after_error()
            raise
        return None

    @checkpointed
    async def publish_confirmed(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        timeout: float = 5.0,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """Publish an event, and return when every durable subscriber (a bridge) has it on disk.

        Durable subscribers that have a name are waited for also while they are away.  Other subscribers get it as with
        ``publish``.  For many events see ``confirming``.

        Args:
            topic: tokens joined by dots.
            payload: see ``request``.
            key: see ``publish``.
            timeout: seconds that this may take; links to other sites are waited for half of it at most.
            headers: see ``request``.
            expires: see ``publish``.

        Raises:
            NotSent: no durable subscriber is known: no bridge stores the topic (``iris bridge``), and nobody has it by
                ``subscribe_durable``.
            RequestTimeout: not confirmed in time, and by whom; others may have the event on disk all the same.
            ConfigError, NotAllowed, PayloadTooLarge, LocalProtocolError: see ``publish``.

        Cancelled, the event may be stored; a late confirmation is dropped.
        """
        await self._publish(topic, payload, key, headers, expires, within=check_timeout(timeout), retain=False)

    @checkpointed
    async def retain(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """Publish an event, and keep it as the topic's last value for subscribers that come later.

        Each of them gets it once, with ``event.retained``; groups and durable subscribers do not.  This node keeps it,
        in memory, until the next one that is retained on the topic, or ``forget_retained``.

        Args:
            topic: tokens joined by dots.
            payload: see ``request``.
            key: see ``publish``.
            headers: see ``request``.
            expires: seconds after which the value is kept no longer, and not delivered where it waits since.  None: it
                never expires.

        Raises:
            NotSent: ``Config.retained_events`` or ``Config.retained_bytes`` are retained already.
            ConfigError, NotAllowed, PayloadTooLarge, LocalProtocolError: see ``publish``.

        Cancelled while it waits, the event is in flight and retained, or neither.
        """
        await self._publish(topic, payload, key, headers, expires, within=None, retain=True)

    @checkpointed
    async def retain_confirmed(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        timeout: float = 5.0,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """Publish an event, keep it as ``retain`` does, and return when it is confirmed as by ``publish_confirmed``.

        The value is kept from when the event is published, confirmed or not: who comes later gets what others have got.

        Raises what both raise.  After ``RequestTimeout`` the value is retained if the event was published: it was not
        if a subscriber asked for a pause all the time.  After any other error the former value is.

        Cancelled before the event is published, nothing has happened; after that it is retained, and may be stored.
        """
        await self._publish(topic, payload, key, headers, expires, within=check_timeout(timeout), retain=True)

    async def _publish(
        self,
        topic: str,
        payload: object,
        key: str | None,
        headers: Mapping[str, str] | None,
        expires: float | None,
        *,
        within: float | None,
        retain: bool,
    ) -> None:
        """Publish an event that is retained, or confirmed within some seconds, or both."""
        if expires is not None:
            headers = with_expiry(headers, expires)
        self._guard.check()
        self._first.check_not_client("publish")
        span: OpenSpan | None = None
        if self._tracing is not None:
            span, headers = self._tracing.begin_call("event", topic, None, headers)
        with nullcontext() if span is None else span:
            if self._subscriber_links.pending(topic):
                within = await self._reach_subscribers(topic, within)
            with nullcontext() if within is None else self._guard.waiting():
                await self._pubsub.publish(topic, payload, key=key, headers=headers, within=within, retain=retain)

    async def _reach_subscribers(self, topic: str, within: float | None = None) -> float | None:
        """Link to those who may hear an event; return what is left of the time in which it is to be confirmed."""
        with self._guard.waiting():
            left = await self._subscriber_links.reach(topic, within=within)
        return None if within is None else left

    def raise_for_losses(self, topic: str) -> None:
        """Raise an error if subscribers did not get events that this node has published on a topic.

        Each loss is raised once.

        Raises:
            EventsLost: since the last call events were lost; it holds how many.
        """
        self._guard.check()
        self._publishing.raise_for_losses(check_topic(topic))

    def _publish_at_once(
        self,
        topic: str,
        payload: object,
        key: str | None,
        headers: Mapping[str, str] | None,
        expires: float | None = None,
        *,
        retain: bool = False,
    ) -> bool:
        """Publish, or retain, if nothing has to be waited for; return whether the event is published.

        For any code of the node's thread, in a task of trio or not.
        """
        if (
            get_ident() != self._guard.thread
            or self._lookups is not None
            or (self._tracing is not None and self._tracing.is_within)
            or self._subscriber_links.pending(topic)
        ):
            return False
        if expires is not None:
            headers = with_expiry(headers, expires)
        if retain:
            return self._pubsub.retain_at_once(topic, payload, key, headers)
        return self._publishing.publish_at_once(topic, payload, key, headers)

    async def _publish_posted(self, topic: str, payload: bytes) -> None:
        """Publish as ``publish`` does, but wait for no room after the event: if this raises anything, it is unsent."""
        self._guard.check()
        if self._subscriber_links.pending(topic):
            await self._reach_subscribers(topic)
        await self._publishing.publish_in_turn(topic, payload)

    def _surely_publishes(self, topic: str, size: int) -> bool:
        """Return whether nothing can refuse an event of so many bytes, without a key and headers.  For any thread."""
        return (
            not self._guard.is_closed
            and self._lookups is None
            and not (self._tracing is not None and self._tracing.is_within)
            and size <= self._config.max_payload
            and self._publishing.has(topic)
        )

    def forget_retained(self, topic: str) -> bool:
        """Keep the last value of a topic no longer; return whether there was one."""
        self._guard.check()
        return self._pubsub.retention.events.forget(topic)

    def confirming(self, *, timeout: float = 5.0) -> AbstractAsyncContextManager[ConfirmedEvents]:
        """Publish many events at full speed; leaving the block waits until all are confirmed, each within ``timeout``.

        See ``ConfirmedEvents``.  Leaving it by an error or by cancelling leaves events on their way.
        """
        self._guard.check()
        self._first.check_not_client("publish")
        within, confirming = check_timeout(timeout), self._pubsub.confirming
        return open_confirmed_events(confirming, self._config, within, observer=self._tracing, guard=self._guard)

    def subscribe(
        self,
        pattern: str,
        *,
        group: str | None = None,
        overflow: Overflow = "drop_oldest",
        limits: SubscriptionLimits | None = None,
        allow: Iterable[str] | None = None,
    ) -> AbstractAsyncContextManager[Subscription]:
        """Receive the events of every topic that matches a pattern.

        Entering the block returns when every reachable node knows of the subscription: what is published after that
        is not missed.

        Args:
            pattern: a topic in which ``*`` stands for one token and a last ``>`` for the rest.
            group: each event goes to one subscriber of the group, in turns.  What still waits when the block ends goes
                to another one on this node, or is lost and reported to its publisher.
            overflow: the action beyond the limits: ``drop_oldest`` and ``drop_newest`` lose events, counted in
                ``event.missed`` and the statistics; ``wait`` makes the publishers of these topics wait, at half of the
                limits, for ``Config.broadcast_patience`` in all.  Then they publish past this subscriber, which counts
                as missed, and wait for it again when it has room; ``fail`` ends the subscription by
                ``SubscriberTooSlow``, and what waits goes to nobody but others of its group.
            limits: limits of events waiting here; by default those of ``Config``.
            allow: clusters whose events are taken, as their certificates name them; None: all.

        Raises:
            ConfigError: the pattern, the group or ``overflow`` is malformed.
            NotAllowed: this node's certificate does not permit to subscribe to it.

        Cancelling the iteration loses no event; leaving the block drops what still waits.
        """
        return self._subscribe(pattern, limits, group=group, overflow=overflow, allow=allow)

    def subscribe_durable(
        self,
        pattern: str,
        *,
        name: str | None = None,
        group: str | None = None,
        share: Share | None = None,
        overflow: Overflow = "drop_oldest",
        limits: SubscriptionLimits | None = None,
        allow: Iterable[str] | None = None,
    ) -> AbstractAsyncContextManager[Subscription]:
        """Receive events in order to store them, and answer ``publish_confirmed`` with ``subscription.confirm``.

        Example::

            async with node.subscribe_durable("orders.>", name="archive") as orders:
                while True:
                    events = await orders.receive_batch()
                    await write(events)
                    await orders.confirm(events)

        For programs that are a store themselves.  What a bridge has stored is read by ``node.bridge().consume``.

        Args:
            pattern: see ``subscribe``.
            name: the subscriber's name within this node's own cluster: also while nobody subscribes under it,
                confirmed events wait for it, until ``forget_subscriber``.  One subscription has it at a time; one with
                another pattern takes its place.  None: it is waited for only while it is subscribed.
            group: see ``subscribe``.
            share: the share of a group that divides its events by shard for ever, see ``Share``; needs ``group``.
            overflow: see ``subscribe``.  Confirmed events go past no durable subscriber that makes them wait.
            limits: see ``subscribe``.
            allow: see ``subscribe``.

        Raises:
            ConfigError: the pattern, the group, the name, the share or ``overflow`` is malformed; this node has a
                subscription of this name; or durable subscribers fill ``Config.durable_bytes``.
            NotAllowed: this node's certificate does not permit to subscribe to it.

        Cancelling the iteration loses no event; leaving the block drops what still waits.
        """
        return self._subscribe(
            pattern, limits, group=group, overflow=overflow, allow=allow, durable=True, name=name, share=share
        )

    def _subscribe(
        self,
        pattern: str,
        limits: SubscriptionLimits | None,
        *,
        group: str | None,
        overflow: Overflow,
        allow: Iterable[str] | None,
        durable: bool = False,
        name: str | None = None,
        share: Share | None = None,
    ) -> AbstractAsyncContextManager[Subscription]:
        self._guard.check()
        self._first.check_not_client("subscribe")
        limits = SubscriptionLimits() if limits is None else check_is(limits, SubscriptionLimits, "limits")
        return self._pubsub.subscribe(
            pattern,
            group=group,
            overflow=overflow,
            durable=durable,
            name=name,
            allow=allow,
            share=share,
            max_events=limits.events,
            max_bytes=limits.bytes,
        )

    def durable_subscribers(self) -> tuple[DurableSubscriber, ...]:
        """Return the durable subscribers that have a name, those that are away included, by name."""
        return self._pubsub.durable.known()

    @checkpointed
    async def forget_subscriber(self, name: str) -> None:
        """Have publishers wait no more for a durable subscriber that is away, and belongs to this node's cluster.

        Returns when every reachable node knows.  If it comes back, it is a durable subscriber again from then on.

        Raises:
            NotAllowed: it belongs to another cluster.
            ConfigError: there is none of this name, or it is not away.

        Cancelling it leaves it forgotten.
        """
        self._guard.check()
        self._first.check_not_client("forget a durable subscriber")
        await self._pubsub.forget_durable(name)

    # -- bridges ----------------------------------------------------------------------------------------------

    def bridge(self, name: str = "bridge") -> Bridge:
        """Return the handle of a bridge: its work queues, its log, its leases and its sagas.

        Asks nobody: whether the bridge is there is found out by what is done with the handle.

        Args:
            name: cluster of the bridge.

        Raises:
            ConfigError: the name is malformed.
        """
        self._guard.check()
        bridge = self._bridges.get(check_name(name, "cluster"))
        if bridge is None:
            bridge = self._bridges[name] = Bridge(name, self, self._calls, self._environment.random, self._guard)
        return bridge

    # -- tunnels --------------------------------------------------------------------------------------------

    def open_tunnel(
        self,
        cluster: str,
        *,
        operation: str | None = None,
        key: str | None = None,
        timeout: float = 5.0,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
        prefer: Member | NodeId | None = None,
        prefer_site: str | None = None,
    ) -> AbstractAsyncContextManager[Tunnel]:
        """Open an ordered, throttled, two-way channel to one member of a cluster.

        Nothing is lost or doubled for as long as both ends live, across reconnects; otherwise both ends get an error
        and never a silent truncation.

        Args:
            cluster: name of the cluster; one member is chosen by load.
            operation: name of the tunnel handler within the service.
            key: tunnels with the same key go to the same member while it lives.
            timeout: seconds that the opening may take.
            headers: str to str, for the handler.
            wait: see ``request``.
            prefer: see ``RequestOptions``.
            prefer_site: see ``RequestOptions``.

        Raises:
            ConfigError: an argument is malformed, or both ``prefer`` and ``prefer_site`` are given.
            NoSuchCluster: nobody serves it.
            RequestTimeout: no member accepted in time.
            Overloaded, NotSent: the members that were asked are at their limits, or leaving.
            RemoteError: the member has no such tunnel handler.
            NotAllowed: the member refuses this caller.
            TunnelBroken: the member was lost while it was asked; its handler may have begun.
            PayloadTooLarge, LocalProtocolError: the headers cannot be sent.

        Leaving the block closes the tunnel: it says the end of file, waits until the other end has everything that
        was sent, and raises ``TunnelBroken`` if it never gets it.  Leaving it by an error or by cancelling aborts
        the tunnel: the other end gets ``TunnelBroken``.  Cancelling the opening leaves nothing behind.
        """
        self._guard.check()
        check_address(cluster)
        check_request(cluster, operation, key)
        check_preference(prefer, prefer_site)
        timeout, within = check_timeout(timeout), check_wait(wait)

        def opening(headers: Mapping[str, str] | None) -> AbstractAsyncContextManager[Tunnel]:
            preferred = preference_of(prefer, prefer_site)
            tunnel = partial(
                self._tunnels.open, cluster, operation=operation, headers=headers, key=key, prefer=preferred
            )
            keyed = key is not None or prefer is not None
            with_one = partial(open_with_one, self._reach, cluster, prefer_site, tunnel, timeout, keyed=keyed)
            return self._first.entering_tunnel(cluster, within, with_one)

        tracing = self._tracing
        return opening(headers) if tracing is None else tracing.within("tunnel", cluster, operation, headers, opening)

    # -- shared state ---------------------------------------------------------------------------------------

    @protected_context
    async def state(
        self,
        cluster: str,
        *,
        path: Path | str | None = None,
        max_bytes: int = documents.MAX_BYTES,
        allow: Iterable[str] = (),
        timeout: float = 10.0,
        credential: Credential | CredentialWatch | Path | str | None = None,
    ) -> AsyncIterator[documents.SharedState]:
        """Have a document in common with the other members of a cluster, and be one of them, until the block ends.

        Example::

            async with node.state("prices") as state:
                state["eur"] = 1.07
                async for change in state.watch("fx.*"):
                    print(change.key, change.value)

        Entering the block returns when this node has what one other member has; at once if there is none.  Nodes that
        may serve the cluster may read and write the document, and no others.  The cluster is for the document alone: a
        service needs another one.  A document lives as long as one member has it, or a copy on disk.

        Args:
            cluster: the name of the cluster, and of the document.
            path: a file of this machine, for this node alone: the document is read from it, and written to it
                within a second after each change and when the block ends.
            max_bytes: limit on the document: names, values, 128 for each entry.  What this node would write beyond is
                refused, but for the 32nd part of it that each member may always keep.  Where others send so much that
                there is twice as much, the newest entries of the member that most bytes are of are removed.  Give the
                same to all members.
            allow: clusters whose nodes may read and write the document without being members, by requests and the
                tunnel ``watch`` (docs/reference/state.md): those of doors.
            timeout: seconds within which another member has to give the document.
            credential: see ``join``.

        Raises:
            ConfigError: this node has no right to the name, serves it already, others serve something else under it,
                or the file is damaged.
            RequestTimeout: there are other members, and none of them gave the document in time.

        Leaving the block gives what was written last to another member, within a second.  Cancelling it does the same;
        what no other member got is lost then, unless it is on disk.
        """
        self._guard.check()
        self._first.check_not_client("have a document")
        check_name(cluster, "cluster")
        if path is not None and not isinstance(path, str | Path):
            raise ConfigError(f"path is {path!r}: use a text or a pathlib.Path")
        settings = documents.DocumentSettings(
            check_count(max_bytes, "max_bytes"), None if path is None else Path(path), callers(allow) or frozenset()
        )
        document = self._states.make(cluster, settings, lambda: [member.node for member in self.members(cluster)])
        await document._load()
        async with (
            self.join(cluster, document._service(), credential=credential),
            self._states.running(cluster, document, check_timeout(timeout)),
        ):
            yield document

    # -- clusters -------------------------------------------------------------------------------------------

    @protected_context
    async def join(
        self,
        cluster: str,
        service: Service,
        *,
        limits: Limits | None = None,
        credential: Credential | CredentialWatch | Path | str | None = None,
    ) -> AsyncIterator[ClusterMembership]:
        """Be a member of a cluster: take its requests, broadcasts and tunnels until the block ends.

        Leaving the block drains first: the member takes no new work, callers turn to others without an error, and
        what runs may finish within ``Config.drain_timeout``.

        Args:
            cluster: name of the cluster, usually ``service.name``.
            service: the handlers.
            limits: limits on the work that this member accepts.
            credential: portable, or such a file's path; proves the right to a name that is not the node's own.

        Raises:
            ConfigError: this node is a member already, has no right to the name, or it is one of Iris; the document
                that pauses the service is not open; something that a handler needs is not there; or the service is of
                another kind of program, as an ``iris.aio.Service`` is.
            Whatever the service's lifespan raises.

        Cancelling the block skips the draining: callers of what still runs get an error.
        """
        self._guard.check()
        self._first.check_not_client("serve")
        if check_name(cluster, "cluster").startswith(OWN):
            raise ConfigError(
                f"cluster {cluster!r}: names that begin with {OWN!r} are Iris's own, which it serves itself"
            )
        limits = Limits() if limits is None else check_is(limits, Limits, "limits")
        flag = self._states.flag(check_is(service, Service, "service").paused_by)
        service._check_front("trio")
        async with provided(service, self, self, lambda opening: opening) as served:
            role = Role(served, limits, flag, self)
            async with self._joined.open(self._serving, cluster, role, credential) as membership:
                yield membership

    def clusters(self) -> tuple[str, ...]:
        """Return the name of every cluster that has members here or is exported by another site, sorted."""
        return self._membership.clusters()

    def members(self, cluster: str) -> tuple[Member, ...]:
        """Return the members of a cluster as seen now, suspected ones included; those at other sites come last."""
        here = self._membership.members(check_address(cluster))
        return here if self._sites is None else (*here, *self._sites.remote_members.members(cluster))

    def nodes(self) -> tuple[NodeInfo, ...]:
        """Return every other node of this node's own site as seen now, those that serve nothing included."""
        return tuple(other for other in self._membership.nodes() if other.node != self.id)

    @checkpointed
    async def wait_for(self, cluster: str, members: int = 1, timeout: float = 5.0) -> None:
        """Wait until ``members`` members of a cluster are linked, and at least one of them can be asked now.

        Raises:
            RequestTimeout: it does not within ``timeout`` seconds.
            trio.ClosedResourceError: this node was closed meanwhile.

        Cancelling it leaves nothing behind.
        """
        self._guard.check()
        within, cluster, members = check_timeout(timeout), check_address(cluster), check_count(members, "members")
        if not await self._first.wait_for(cluster, members, within):
            raise too_few(cluster, members, within, len(self.members(cluster)), self._mesh, self._membership)

    def watch(self, cluster: str) -> AbstractAsyncContextManager[Watch]:
        """Follow a cluster's members at this node's own site: an async iterator of changes, see ``Watch``.

        The present members come first, as joined; then each member that joins, leaves, is suspected or lost, and load.
        Members at other sites are never among them: see ``members``.  Leaving the block, also cancelled, leaves
        nothing behind.
        """
        self._guard.check()
        check_name(cluster, "cluster")
        return self._first.watch(cluster)

    @checkpointed
    async def revoke(self, revocations: bytes) -> bool:
        """Put a revocation list, signed by the realm's owner, in force in the whole realm.

        Nodes that it names are cut off at once from nodes linked to this one, and from others when these are linked.

        Args:
            revocations: the list as ``iris keys revoke`` writes it.

        Returns:
            Whether it is newer than the list in force; an older one changes nothing.

        Raises:
            AuthenticationError: it is not a list of this realm.

        Cancelling it leaves the list in force.
        """
        self._guard.check()
        newer = self._revoking.apply(revocations)
        await trio.lowlevel.checkpoint()
        return newer

    @checkpointed
    async def books(self, pattern: str = ">", *, settle: float = 2.0) -> Books:
        """Return what became of all that this node has sent: every message is in one column of one receiver.

        Of events, broadcasts, requests, surveys and tunnels: of each topic or cluster and receiver how many were sent,
        received, expired, refused, lost, or are in doubt because the receiver died.  See ``Books``.

        Args:
            pattern: a pattern of topics and clusters.  What was sent under more names than have rows is in
                rows called ``(other)``, which are part of every answer.
            settle: seconds to wait at most until everything has its outcome.  What receivers that are linked have not
                accounted for by then is ``waiting``.

        Raises:
            ConfigError: ``pattern`` is none, or ``settle`` no time.

        Counts begin when this node was opened.  Cancelling it leaves nothing behind.
        """
        self._guard.check()
        matches = matching(pattern)
        return await self._books.settled(matches, check_wait(settle, "settle"))

    def watch_losses(self, pattern: str = ">", *, every: float = 1.0) -> LossWatch:
        """Follow what is lost, expires, is refused or comes in doubt from now on: an async iterator of ``Loss``.

        Args:
            pattern: see ``books``.
            every: seconds between two looks.

        Raises:
            ConfigError: ``pattern`` is none, or ``every`` no time above 0.

        Cancelling a wait loses nothing: the next one begins where it was.  It ends when the node is closed.
        """
        self._guard.check()
        return LossWatch(self._books, pattern, check_timeout(every, "every"), self._guard)

    def statistics(self) -> NodeStatistics:
        """Return a snapshot of every counter."""
        parts = self._requests, self._broadcasts, self._relays, self._pubsub, self._serving, self._tunnels
        return gather_statistics(self._mesh, self._membership, *parts, self._states, self._blocked, self._parts.seeds)

    def _close(self) -> None:
        """Accept no more calls, and end those that wait; ``open_node`` does this when its block ends."""
        self._guard.close()
        self._requests.close()
        self._states.end_watches()
        self._pubsub.end_subscriptions()
        self._membership.end_watches()

    async def _run(self) -> None:
        """Look after what needs the time; ``open_node`` runs it for as long as the node is up."""
        async with trio.open_nursery() as nursery:
            for part in (self._requests, self._relays, self._pubsub, self._tunnels, self._books):
                nursery.start_soon(part.run)
