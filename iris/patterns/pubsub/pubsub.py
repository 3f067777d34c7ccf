"""Publish/subscribe of one node: its subscriptions, the exchange of interest with peers, and the dispatch of events."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, final

import trio
from msgspec.structs import replace

from iris.cluster.mesh import Mesh, Peer, PeerObserver
from iris.cluster.sites import Sites
from iris.kernel import wire
from iris.kernel.errors import ConfigError, NotAllowed, NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import Entropy, NodeId, check_name, qualified
from iris.kernel.tasks import protected_context
from iris.kernel.wire import kinds
from iris.patterns.books import EVENT, GROUP_EVENT, RELAYED_EVENT, Account, Bookkeeper, Tally
from iris.patterns.messages import Sender
from iris.patterns.picker import MemberHealth
from iris.patterns.pubsub.announcements import Announcements
from iris.patterns.pubsub.interest import (
    DurableSubscribers,
    InterestRetry,
    InterestTable,
    Matcher,
    OwnInterest,
    ServedClusters,
    Share,
    StartOffsets,
    Terms,
    check_pattern,
    check_share,
    stable_hash,
)
from iris.patterns.pubsub.publish import (
    MAX_ROTATIONS,
    REPEATED,
    Acknowledgements,
    EventAccounts,
    Publisher,
    PublishStatistics,
    RetainedPublishing,
    Rotation,
    check_retained_untrusted,
)
from iris.patterns.pubsub.remote import RemoteSubscribers, check_other_realm, other_realm_of
from iris.patterns.pubsub.sealed import SealedReceiver, SealedSender
from iris.patterns.pubsub.subscribe import (
    EXPIRES,
    EventRun,
    OpenSubscriptions,
    Overflow,
    QueueLimits,
    Subscription,
    SubscriptionOptions,
    SubscriptionStatistics,
    check_run_untrusted,
    labels_size,
    most_sharing,
)
from iris.patterns.pubsub.subscriber_links import LinkedMembers, SubscriberLinks
from iris.patterns.pubsub.tree import EventRelays
from iris.patterns.receive_limits import Arriving, Excess
from iris.patterns.service import callers
from iris.security.identity import OtherRealm

_NO_MEMBERS: Final = "event for a group without members here"
"""Reason of a refusal: the event was in flight when the last member left."""

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


InterestListener = Callable[[NodeId, Iterable[Terms], Iterable[Terms]], None]
"""Function called with a node of this site, the terms that it has added, and those that it has removed."""


class PubSubMembers(MemberHealth, ServedClusters, LinkedMembers, Protocol):
    """Nodes of this site, and the clusters that are served."""


@final
class Elsewhere(NamedTuple):
    """Other sites, as publish/subscribe needs them.

    Attributes:
        receiver: receiver of their events.
        entropy: source of the keys that seal this node's events.
    """

    sites: Sites
    receiver: SealedReceiver
    entropy: Entropy


@final
class PubSub(PeerObserver):
    """All subscriptions and publications of one node.

    Args:
        mesh: mesh whose links it uses.
        books: books of the node.
        subscriptions: the subscriptions; this object alone changes them.
        members: nodes of this site, and the clusters that are served.
        relayed: counters of what this node forwards for others.
        elsewhere: other sites.  None if this node is at none.
    """

    of_clients = False

    def __init__(
        self,
        mesh: Mesh,
        books: Bookkeeper,
        subscriptions: OpenSubscriptions,
        members: PubSubMembers,
        relayed: Tally,
        elsewhere: Elsewhere | None,
    ) -> None:
        config = mesh.config
        sites = None if elsewhere is None else elsewhere.sites
        self._mesh = mesh
        self._config = config
        self._books = books
        self._account = books.account
        self._due_of = books.due_of
        self._arriving = Arriving(mesh.refusals, mesh.node, config)
        self._own = OwnInterest(config.interest_bytes)
        self._table = InterestTable(config.interest_bytes)
        self._interest_listeners: list[InterestListener] = []
        self._unannounced = InterestRetry(mesh)
        accounts = EventAccounts(books.ledger)
        border = None if sites is None else sites.border
        self.durable: Final = DurableSubscribers(mesh, self._table, accounts, self._unannounced, members, border)
        sealed = None if elsewhere is None else SealedSender(mesh, elsewhere.sites.copies, config, elsewhere.entropy)
        self.publishing: Final = Publisher(mesh, self._table, self.durable, accounts, members, sealed)
        remote = None if sites is None else RemoteSubscribers(sites, mesh, self._table, self.publishing)
        self.announcements: Final = Announcements(mesh, members, self._own, self._unannounced)
        self.subscriber_links: Final = SubscriberLinks(mesh, members, self._table, self.announcements, remote)
        """Those who may hear what this node publishes."""
        self.confirming: Final = Acknowledgements(
            mesh, self._table, self.durable, self.publishing, members, self.subscriber_links
        )
        self.retention: Final = self.publishing.retention
        self._retaining = RetainedPublishing(self.publishing, self.confirming, config)
        self._relays = EventRelays(mesh, relayed, self._table, self, members)
        self.ended: SubscriptionStatistics | None = None
        """Sum of the counters of all subscriptions that have ended.  None if there was none."""
        self.unconfirmed_subscriptions = 0
        """Peers that had not confirmed a subscription within ``Config.subscribe_timeout``."""
        self._subscriptions: Matcher[Subscription] = Matcher()
        self._other_realms: Matcher[Subscription] = Matcher()
        """Subscriptions to topics of other realms, each with the alias of its realm before it."""
        self._every: Final = subscriptions
        self._holding: Counter[str] = Counter()
        self._withdrawn: set[Subscription] = set()
        """Subscriptions of groups that have failed, and whose blocks were not left yet."""
        self._turns: dict[tuple[Subscription, ...], Rotation[Subscription]] = {}
        """Rotations by the subscriptions of this node that are in one group and want the same topics."""
        self._rng = random.Random(mesh.node)  # decides about nothing but turns
        self._senders: dict[NodeId, tuple[Sender, Mapping[str, Account], Mapping[str, Account]]] = {}
        """Publishers, and the accounts of their topics that are due in the books: of events, of those for groups."""
        self._known: dict[NodeId, int] = {mesh.node: 0}
        self._beginnings = StartOffsets()
        self._known_news = trio.lowlevel.ParkingLot()
        mesh.register(kinds.Interest, self._receive_interest)
        mesh.register(kinds.InterestKnown, self._receive_known)
        mesh.register(kinds.Events, self._receive_events)
        mesh.register(kinds.Retained, self._receive_retained)
        mesh.register(kinds.CopiesLost, self._receive_copies_lost)
        self.sealed_receiver: Final = None if elsewhere is None else elsewhere.receiver
        """Receiver of the events of other sites.  None if this node is at no site."""
        self.durable.on_changed(self._durable_changed)

    def on_interest_changed(self, listener: InterestListener) -> None:
        """Call ``listener`` whenever what ``wanted`` yields has changed.  It must not block."""
        self._interest_listeners.append(listener)

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The subscriptions of this node."""
        return tuple(self._every)

    def subscribers_of(self, topic: str) -> set[NodeId]:
        """Return the nodes that subscribe to exactly this topic, and not by a pattern with wildcards."""
        return {one.node for one in self._table.match(topic) if one.terms.pattern == topic}

    def subscribed(self) -> Iterator[tuple[str, Terms, SubscriptionStatistics]]:
        """Yield each subscription of this node: its pattern as the program knows it, its terms and its counters."""
        for subscription, terms in self._every.items():
            yield subscription.pattern, terms, subscription.statistics()

    async def run(self) -> None:
        """Look after what needs the time, until cancelled."""
        async with trio.open_nursery() as nursery:
            for part in (
                self._relays,
                self.publishing.trees,
                self.retention,
                self.sealed_receiver,
                self.publishing.remote_sites,
            ):
                if part is not None:
                    nursery.start_soon(part.run)
            nursery.start_soon(self.announcements.run)
            nursery.start_soon(self._unannounced.run, self._send_all_interest)

    async def wait_copies_sent(self) -> None:
        """Wait until events for other sites have left."""
        if self.publishing.remote_sites is not None:
            await self.publishing.remote_sites.wait_sent()

    # -- publishing with one of the options -----------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None,
        headers: Mapping[str, str] | None,
        within: float | None,
        retain: bool,
    ) -> Awaitable[None]:
        """See ``Node.publish_confirmed`` and ``Node.retain``; ``within`` is the timeout of a confirmed event."""
        if retain:
            return self._retaining.publish(topic, payload, key=key, headers=headers, within=within)
        if within is not None:
            return self.confirming.publish(topic, payload, key=key, timeout=within, headers=headers)
        return self.publishing.publish(topic, payload, key=key, headers=headers)

    def retain_at_once(self, topic: str, payload: object, key: str | None, headers: Mapping[str, str] | None) -> bool:
        """Retain an event if nothing has to be waited for; return whether it is published."""
        return self._retaining.publish_at_once(topic, payload, key, headers)

    def statistics(self) -> PublishStatistics:
        """Return a snapshot of the counters of what this node publishes."""
        return self.publishing.statistics()

    def refusals(self) -> dict[str, int]:
        """Return the frames of events that did not leave for other sites, by reason."""
        return {} if self.publishing.remote_sites is None else self.publishing.remote_sites.refusals()

    # -- subscribing ----------------------------------------------------------------------------------------

    @protected_context
    async def subscribe(
        self,
        pattern: str,
        *,
        group: str | None = None,
        overflow: Overflow = "drop_oldest",
        durable: bool = False,
        name: str | None = None,
        claimed: str | None = None,
        allow: Iterable[str] | None = None,
        share: Share | None = None,
        max_events: int | None = None,
        max_bytes: int | None = None,
    ) -> AsyncIterator[Subscription]:
        """See ``Node.subscribe`` and ``Node.subscribe_durable``.

        Args:
            claimed: instead of a name, one that this node claims by ``DurableSubscribers.claim`` for several patterns.
        """
        realm = other_realm_of(pattern, self._mesh.identity) if isinstance(pattern, str) else None
        if realm is None:
            check_pattern(pattern)
        else:
            plain = group is None and not durable and overflow != "wait" and share is None
            check_other_realm(pattern, realm, at_site=self.publishing.remote_sites is not None, plain=plain)
        if group is not None:
            check_name(group, "group")
        if share is not None:
            check_share(share)
            if group is None or not durable:
                raise ConfigError("only a durable group divides its events by shard: use subscribe_durable with group")
        if name is not None and not durable:
            raise ConfigError(f"only a durable subscriber is waited for by its name {name!r}: use subscribe_durable")
        certificate = self._mesh.identity.certificate
        if not certificate.rights.may_subscribe(pattern):
            raise NotAllowed(
                f"the certificate of cluster {certificate.name!r} does not permit to subscribe to {pattern!r}"
            )
        options = SubscriptionOptions(
            group=group, overflow=overflow, durable=durable, allow=callers(allow), owner=name or claimed
        )
        limits = QueueLimits(
            max_events or self._config.subscription_messages, max_bytes or self._config.subscription_bytes
        )
        shards = () if share is None else (share.of, *share.shards)
        terms = Terms(pattern, group, durable, overflow == "wait", shards)
        self._own.check(terms)
        claim = nullcontext() if name is None else self.durable.claim(name, (pattern,), group=group, share=shards)
        with claim:
            change = self._own.add(terms)
            self.announcements.interest_changed()
            mark = self._own.mark() if change is None and realm is None and group is None else None
            subscription = Subscription(pattern, options, limits, self, self._every.observer, self._own.version)
            self._every[subscription] = terms
            self._matcher(realm).add(pattern, subscription)
            self._turns.clear()
            try:
                if change is not None:
                    self._send_to_all(change)
                    self._send_to_realm(realm)
                elif mark is not None:
                    if not durable:
                        self.retention.ask(pattern)
                    self._send_to_all(mark)  # the confirmation takes the path of the values, behind them
                await self._wait_heard()
                yield subscription
            finally:
                subscription._close()
                self._withdraw(subscription, realm)
                del self._every[subscription]
                self._withdrawn.discard(subscription)
                subscription._release()
                if group is not None:
                    self._leave_group(subscription)
                else:
                    subscription._end_books()
                ended = subscription.statistics()
                self.ended = ended if self.ended is None else self.ended + ended

    def _matcher(self, realm: OtherRealm | None) -> Matcher[Subscription]:
        return self._subscriptions if realm is None else self._other_realms

    def _withdraw(self, subscription: Subscription, realm: OtherRealm | None = None) -> None:
        """Have no more events come for a subscription, unless that was done before."""
        if subscription in self._withdrawn:
            return
        self._withdrawn.add(subscription)
        self._matcher(realm).remove(subscription.pattern, subscription)
        self._turns.clear()
        change = self._own.remove(self._every[subscription])
        self.announcements.interest_changed()
        if change is not None:
            self._send_to_all(change)
            self._send_to_realm(realm)

    def _leave_group(self, subscription: Subscription) -> None:
        """Pass the queue of a subscription that has ended to another one of its group here, or report it as lost."""
        for run in subscription._abandon():
            takers = [one for one in self._subscriptions.match(run.topic) if one.group == subscription.group]
            taker = self._taker(takers, run.publisher, run.topic, run.key, durable=subscription.durable)
            if taker is None:
                subscription._count_abandoned(run)
            else:
                subscription._count_moved(run)
                taker._deliver(run)
        # Now, because the node may be about to leave: publishers would presume lost what is not reported.
        self._books.flush()

    def end_subscriptions(self) -> None:
        """End all subscriptions: consumers receive what is queued, and then their iterations end."""
        for subscription in self._every:
            subscription._close()

    def _durable_changed(self) -> None:
        self.publishing.routes_changed()
        self.confirming.durable_changed((">",))
        self.confirming.look_for_absent()

    async def forget_durable(self, name: str) -> None:
        """See ``Node.forget_subscriber``."""
        self.durable.forget(name)
        await self.subscriber_links.link_publishers(self._config.subscribe_timeout, all_of_them=True)
        self._send_to_all(self._own.mark())  # a peer that confirms it has all changes before it
        await self._wait_known(self._own.version)

    def _everybody(self) -> list[Peer]:
        """Return the nodes that events come from and go to: this node, and its peers of the realm that are members."""
        peers = self._mesh.peers.values()
        return [self._mesh.own, *(p for p in peers if not p.other_realm and self._mesh.is_between_members(p))]

    def _send_to_all(self, change: kinds.Interest) -> None:
        for peer in self._everybody():
            self._send_interest(peer, change)

    def _send_to_realm(self, realm: OtherRealm | None) -> None:
        """Send the linked nodes of another realm the interest in its topics."""
        for peer in self._mesh.peers.values():
            if realm is not None and peer.identity.other_realm_id == realm.id:
                self._send_all_interest(peer)

    def _send_interest(self, peer: Peer, message: kinds.Interest) -> None:
        size = sum(len(one.pattern) + wire.ELEMENT * (6 + len(one.share)) for one in (*message.added, *message.removed))
        try:
            peer.link.post(message, size, CONTROL_RESERVE)
        except NotSent:
            self._unannounced.note(peer, "interest without room on the link")

    async def _wait_heard(self) -> None:
        """Wait until all publishers of what this node subscribes to know it.

        What a peer that confirms it knew of publishers has come before.
        """
        until = trio.current_time() + self._config.subscribe_timeout
        self.announcements.begin()
        while True:
            await self.subscriber_links.link_publishers(until - trio.current_time())
            await self._wait_known(self._own.version)
            if trio.current_time() >= until or not self.subscriber_links.lacks_publishers():
                return

    async def _wait_known(self, version: int) -> None:
        """Wait until this node and every peer have confirmed the version, for at most ``Config.subscribe_timeout``."""
        with trio.move_on_after(self._config.subscribe_timeout) as scope:
            while self._lagging(version):
                await self._known_news.park()
        if scope.cancelled_caught:
            self.unconfirmed_subscriptions += len(self._lagging(version))

    def _lagging(self, version: int) -> list[NodeId]:
        return [
            peer.node
            for peer in self._everybody()
            if self._known.get(peer.node, -1) < version and (peer.link.is_up or peer is self._mesh.own)
        ]

    async def wait_interest_exchanged(self) -> None:
        """Wait until every present peer has sent its interest and has confirmed this node's.

        From then on publishers are announced to this node.  Peers that do not answer are passed over after
        ``Config.subscribe_timeout``.
        """
        self.announcements.begin()
        with trio.move_on_after(self._config.subscribe_timeout):
            async with trio.open_nursery() as nursery:
                for peer in self._everybody()[1:]:
                    nursery.start_soon(self._mesh.barrier, peer.node, self.has_interest_of)
        await self._wait_known(self._own.version)

    def has_interest_of(self, node: NodeId) -> bool:
        """Return whether a node is linked, and has sent all that it subscribes to."""
        return self._table.is_whole(node)

    def wanted(self) -> Iterator[tuple[NodeId, str]]:
        """Yield every node of this site, with each pattern that it subscribes to."""
        for peer in self._everybody():
            if not peer.at_remote_site:
                for terms in self._table.terms_of(peer.node):
                    yield peer.node, terms.pattern

    def _changed_durable(self) -> list[str]:
        """Return the patterns of durable subscriptions that the last change of the interest has added, and removed."""
        return [terms.pattern for terms in (*self._table.added, *self._table.removed) if terms.durable]

    def _send_changed(self, peer: Peer) -> None:
        if not (peer.at_remote_site or peer.other_realm):
            for listener in self._interest_listeners:
                listener(peer.node, self._table.added, self._table.removed)

    # -- what arrives ---------------------------------------------------------------------------------------

    def _receive_interest(self, peer: Peer, message: kinds.Interest) -> None:
        work = self._mesh.work
        version = self._table.receive_untrusted(
            peer.node, message, peer.may_receive, realm_id=peer.identity.other_realm_id
        )
        self.publishing.trees.interest_changed(peer.node)
        self._relays.interest_changed(peer.node)
        self._send_changed(peer)
        self.publishing.routes_changed()
        if message.whole:
            self.publishing.release_all(peer.node)  # what it still needs follows
        elif message.removed:
            work.once(("pauses", peer.node), partial(self.publishing.interest_ended, peer.node))
        if peer.other_realm:
            return  # there is nothing to confirm to it, and no value to send
        changed = self._changed_durable()
        if message.whole or changed:
            self.durable.interest_changed(peer.node)
        self.retention.interest_added(peer, self._table.added)
        if any(terms.durable for terms in self._table.removed):  # what has ended confirms nothing any more
            work.once(("unconfirmed", peer.node), partial(self.confirming.lost, peer.node))
        if changed:
            self.confirming.durable_changed(changed)
            work.once("interest", self.confirming.look_for_absent)
        known = kinds.InterestKnown(version, self.publishing.published)
        try:
            if len(self.retention.events):
                self.publishing.trees.confirm_interest(peer, known)
            else:
                peer.link.post(known, 0, CONTROL_RESERVE)
        except NotSent:
            self._mesh.refusals["interest without room on the link"] += 1

    def _receive_known(self, peer: Peer, known: kinds.InterestKnown) -> None:
        self._beginnings.confirmed(peer.node, known.version, known.published)
        self._known[peer.node] = max(known.version, self._known.get(peer.node, -1))
        self._known_news.unpark_all()

    def _receive_events(self, peer: Peer, message: kinds.Events) -> None:
        """Receive a run of events: each subscription that it is for gets it by ``Subscription._deliver``."""
        size, plain = check_run_untrusted(message, self._subscriptions.remembered)
        if message.group is None and self._relays.holds(peer, message):
            return
        self._accept_events(peer, message, size, plain=plain)

    def receive_relayed(self, peer: Peer, message: wire.Message) -> None:
        """See ``RelayReceiver``."""
        match message:
            case kinds.Events():
                size, plain = check_run_untrusted(message, self._subscriptions.remembered)
                self._accept_events(peer, message, size, plain=plain, relayed=True)
            case kinds.Retained():
                self._accept_retained(peer, message, check_retained_untrusted(message))
            case kinds.InterestKnown():
                self._receive_known(peer, message)
            case _:
                raise AssertionError("trees carry nothing else")

    def _accept_events(
        self, peer: Peer, message: kinds.Events, size: int, *, plain: bool, relayed: bool = False
    ) -> None:
        topic, group, headers, key, payloads = (
            message.topic, message.group, message.headers, message.key, message.payloads
        )  # fmt: skip
        if size > self._arriving.max_payload and not self._fits(payloads):
            self._accept_those_that_fit(peer, message, plain=plain, relayed=relayed)
            return
        pattern = GROUP_EVENT if group else EVENT
        realm = peer.identity.other_realm
        if realm is None:
            if "/" in topic:
                self._check_own_untrusted(topic)
        elif not realm.may_listen(topic):
            raise RemoteProtocolError(f"events on {topic!r} of realm {realm.alias!r} are not heard here")
        local = topic if realm is None else qualified(realm.alias, topic)
        wanted = (self._subscriptions if realm is None else self._other_realms).match(local)
        if not wanted:
            if group:
                self._count_no_members(peer.node, topic, len(payloads))
            else:
                self._count_arrived(peer.node, topic, len(payloads), 0, relayed=relayed)
            return
        rights = peer.identity.certificate.rights
        if rights.publishes is not None and not rights.may_publish(topic):
            raise RemoteProtocolError(f"cluster {peer.identity.cluster!r} may not publish on {topic!r}")
        if peer.border is not None and not peer.border.may_enter(local):
            raise RemoteProtocolError(f"events on {local!r} from other sites are not let in")
        known = self._senders.get(peer.node)
        if known is None:
            found = Sender(peer.identity.caller, peer.node)
            dues = self._due_of(peer.node, EVENT), self._due_of(peer.node, GROUP_EVENT)
            known = self._senders[peer.node] = (found, *dues)
        sender, due, due_of_groups = known
        excess = None if headers is None else self._arriving.headers_excess(headers)
        if excess is not None:
            self._count_refused(peer.node, pattern, topic, len(payloads), relayed=relayed)
            self._refuse_events(peer, local, excess, len(payloads), message.confirm)
            return
        decoded = _NO_HEADERS if headers is None else MappingProxyType(wire.decode_headers_untrusted(headers))
        if headers is not None or key is not None:
            labels = labels_size(headers, key)
            if len(payloads) > most_sharing(labels):
                raise RemoteProtocolError(f"{len(payloads)} events share headers and a key of {labels} bytes")
            size += labels
        if group is None:
            takers = [subscription for subscription in wanted if subscription.group is None]
        elif group == REPEATED:
            takers = [subscription for subscription in wanted if subscription.group is None and subscription.durable]
        else:
            members = [subscription for subscription in wanted if subscription.group == group]
            taker = self._taker(members, peer.node, topic, key, durable=message.confirm > 0)
            if taker is None:
                self._count_no_members(peer.node, topic, len(payloads))
                return
            takers = [taker]
        if group:
            due = due_of_groups
        account = due.get(topic) or self._account(peer.node, pattern, topic, relayed=relayed)
        account.arrived += len(payloads)
        if len(takers) != 1:
            _count_copies(account, len(payloads), len(takers))
        named = message if realm is None else replace(message, topic=local)
        for subscription in takers:
            run = EventRun(sender, named, decoded, size, plain=plain, account=account)
            for part in run.each() if EXPIRES in decoded else (run,):
                subscription._deliver(part)

    def _count_arrived(self, publisher: NodeId, topic: str, count: int, takers: int, *, relayed: bool) -> Account:
        """Count events that have come, for so many subscriptions, in the books of their publisher."""
        account = self._account(publisher, EVENT, topic, relayed=relayed)
        account.arrived += count
        _count_copies(account, count, takers)
        return account

    def _count_refused(self, publisher: NodeId, pattern: int, topic: str, count: int, *, relayed: bool) -> None:
        account = self._account(publisher, pattern, topic, relayed=relayed)
        account.arrived += count
        account.refused += count

    def _taker(
        self, members: list[Subscription], publisher: NodeId, topic: str, key: str | None, *, durable: bool
    ) -> Subscription | None:
        """Return the subscription of a group on this node that receives an event; a durable one, if that is wanted."""
        if len(members) > 1:
            members = [one for one in members if self._has_shard(one, publisher, topic, key)]
            if durable:
                members = [one for one in members if one.durable] or members
        if len(members) < 2:
            return members[0] if members else None
        if key is not None:
            return members[stable_hash(key) % len(members)]
        every = tuple(members)
        turns = self._turns.get(every)
        if turns is None:
            if len(self._turns) >= MAX_ROTATIONS:
                self._turns.clear()
            turns = self._turns[every] = Rotation(every, self._rng)
        return turns.next_receiver(lambda one: not one._is_full(), lambda one: one._waits(), lambda _: False)

    def _count_no_members(self, publisher: NodeId, topic: str, count: int) -> None:
        """Count events that were in flight to a group when its last member left."""
        self._mesh.refusals[_NO_MEMBERS] += count
        self._count_dropped(publisher, GROUP_EVENT, topic, count)

    def _count_dropped(self, publisher: NodeId, pattern: int, topic: str, count: int) -> None:
        account = self._account(publisher, pattern, topic)
        account.arrived += count
        account.dropped += count
        self._books.report_soon()

    def _fits(self, payloads: Sequence[wire.Payload]) -> bool:
        """Return whether none of the payloads is too large for this node."""
        return max(map(wire.payload_size, payloads)) <= self._arriving.max_payload

    def _accept_those_that_fit(self, peer: Peer, message: kinds.Events, *, plain: bool, relayed: bool) -> None:
        """Accept a run of events of which some are too large for this node; these leave gaps in its numbers."""
        sequence, confirm, payloads = message.sequence, message.confirm, message.payloads
        sizes = [*map(wire.payload_size, payloads)]
        limit = self._arriving.max_payload
        begin = 0
        for fits, several in itertools.groupby(sizes, lambda size: size <= limit):
            sizes_here = list(several)
            end = begin + len(sizes_here)
            if fits:
                first, asked = sequence + begin, confirm and confirm + begin
                part = replace(message, sequence=first, confirm=asked, payloads=payloads[begin:end])
                self._accept_events(peer, part, sum(sizes_here), plain=plain, relayed=relayed)
            else:
                excess = self._arriving.payload_excess(max(sizes_here))
                pattern = GROUP_EVENT if message.group else EVENT
                self._count_refused(peer.node, pattern, message.topic, len(sizes_here), relayed=relayed)
                self._refuse_events(peer, message.topic, excess, len(sizes_here), confirm)
            begin = end

    def _refuse_events(self, peer: Peer, topic: str, excess: Excess, count: int, confirm: int) -> None:
        """Count events that are too large for this node; the report to their publisher says so too."""
        self._arriving.refused("event", excess, peer.node, peer.identity.caller, topic, count=count)
        self._books.report_soon()
        if confirm:
            self.delay((peer.node,), excess.text)

    def _check_own_untrusted(self, topic: str) -> None:
        """Check that a node of this realm publishes on no topic of another realm, for a node of which it would pass."""
        if other_realm_of(topic, self._mesh.identity) is not None:
            raise RemoteProtocolError(f"{topic!r} is a topic of another realm, and its publisher is of this one")

    def _has_shard(self, subscription: Subscription, publisher: NodeId, topic: str, key: str | None) -> bool:
        """Return whether an event may go to a subscription of its group, which has the shard, or there are none."""
        share = self._every[subscription].share
        return not share or self.publishing.shard_of(share[0], key, topic, publisher) in share[1:]

    def _receive_copies_lost(self, peer: Peer, _: kinds.CopiesLost) -> None:
        self._mesh.work.once(("unconfirmed", peer.node), partial(self.confirming.lost, peer.node))

    def _receive_retained(self, peer: Peer, message: kinds.Retained) -> None:
        size = check_retained_untrusted(message)
        if not self._relays.holds(peer, message):
            self._accept_retained(peer, message, size)

    def _accept_retained(self, peer: Peer, message: kinds.Retained, size: int) -> None:
        topic, headers, key, payload = message.topic, message.headers, message.key, message.payload
        self._check_own_untrusted(topic)
        if not peer.identity.certificate.rights.may_publish(topic):
            raise RemoteProtocolError(f"cluster {peer.identity.cluster!r} may not publish on {topic!r}")
        if peer.border is not None and not peer.border.may_enter(topic):
            raise RemoteProtocolError(f"events on {topic!r} from other sites are not let in")
        excess = self._arriving.excess_of(payload, headers)
        if excess is not None:
            self._count_refused(peer.node, EVENT, topic, 1, relayed=False)
            self._refuse_events(peer, topic, excess, 1, 0)
            return
        sender = Sender(peer.identity.cluster, peer.node)
        decoded = _NO_HEADERS if headers is None else MappingProxyType(wire.decode_headers_untrusted(headers))
        plain = type(payload) is bytes
        size += labels_size(headers, key)
        takers = [one for one in self._subscriptions.match(topic) if one.group is None and not one.durable]
        account = self._count_arrived(peer.node, topic, 1, len(takers), relayed=False)
        event = kinds.Events(topic, message.sequence, 0, None, headers, key, (payload,), message.milestones)
        for subscription in takers:
            run = EventRun(sender, event, decoded, size, plain=plain, account=account)
            subscription._deliver_retained(run, message.last)

    # -- Upstream -------------------------------------------------------------------------------------------

    def report_soon(self) -> None:
        """See ``Upstream``."""
        self._books.report_soon()

    def too_slow(self, subscription: Subscription) -> None:
        """See ``Upstream``."""
        if subscription.group is not None:
            self._mesh.work.once(("too slow", subscription), partial(self._withdraw, subscription))

    def count_not_handed_on(self, publisher: NodeId, topic: str, copies: int) -> None:
        """See ``RelayReceiver``."""
        self._count_dropped(publisher, RELAYED_EVENT, topic, copies)

    def unreadable(self, run: EventRun, error: RemoteProtocolError) -> None:
        """See ``Upstream``."""
        self._arriving.malformed("event", error, run.sender.node, run.sender.cluster, run.topic)

    def published(self, owner: str | None, publisher: NodeId, version: int) -> int | None:
        """See ``Upstream``."""
        published = self._beginnings.published(publisher, version)
        return published if owner is None else self.durable.owed_since(publisher, owner, published)

    def confirm(self, ranges: Mapping[NodeId, Sequence[int]]) -> None:
        """See ``Upstream``.  At the publisher they come to ``Acknowledgements._receive_confirmed``."""
        for node, numbers in ranges.items():
            pairs = tuple(zip(numbers[::2], numbers[1::2], strict=True))
            for start in range(0, len(pairs), wire.MAX_ARRAY):
                part = pairs[start : start + wire.MAX_ARRAY]
                try:
                    self._mesh.post(node, kinds.Confirmed(part), 3 * wire.ELEMENT * len(part), CONTROL_RESERVE)
                except NotSent:
                    break  # this publisher is gone, or will ask again

    def delay(self, publishers: Iterable[NodeId], reason: str) -> None:
        """See ``Upstream``."""
        for node in publishers:
            with contextlib.suppress(NotSent):  # this publisher is gone
                self._mesh.post(node, kinds.ConfirmDelayed(reason), len(reason), CONTROL_RESERVE)

    def pause(self, pattern: str, *, paused: bool) -> None:
        """Ask for a pause when the first subscription to a pattern needs one, end it when the last does not."""
        self._holding[pattern] += 1 if paused else -1
        if self._holding[pattern] == (1 if paused else 0):
            for peer in self._everybody():
                self._send_pause(peer, pattern, held=paused)
        if not self._holding[pattern]:
            del self._holding[pattern]

    def _send_pause(self, peer: Peer, pattern: str, *, held: bool) -> None:
        try:
            peer.link.post(kinds.Hold(pattern, held), len(pattern), CONTROL_RESERVE)
        except NotSent:
            self._unannounced.note(peer, "hold without room on the link")

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def peer_connected(self, peer: Peer) -> None:
        """Send a new peer the full interest of this node."""
        self._send_all_interest(peer)
        self.publishing.routes_changed()

    def holds(self, node: NodeId) -> bool:
        """Return whether this node hands events on to another one."""
        return self._relays.hands_on_to(node)

    def frames_lost(self, peer: Peer) -> None:
        """Send the full interest again, to be confirmed again: changes and confirmations may be lost."""
        self._relays.frames_lost(peer.node)
        if self._table.narrow(peer.node, peer.may_receive):
            self._send_changed(peer)
            self.publishing.routes_changed()
        self.publishing.frames_lost(peer.node)
        if not peer.other_realm:
            self.retention.frames_lost(peer)
        self._send_all_interest(peer)
        self.confirming.lost(peer.node)

    def _send_all_interest(self, peer: Peer) -> None:
        realm = peer.identity.other_realm
        self.announcements.compare(peer)
        self.durable.send_all(peer)
        for message in self._own.whole() if realm is None else self._own.whole_of(realm.alias):
            self._send_interest(peer, message)
        for pattern in self._holding if realm is None else ():
            self._send_pause(peer, pattern, held=True)

    def peer_unreachable(self, node: NodeId) -> None:
        """Stop waiting for a peer that cannot be reached."""
        self.confirming.lost(node)
        self._known_news.unpark_all()

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        """Forget the peer."""
        node = peer.node
        self._table.forget(node)
        gone = self._changed_durable()
        self.durable.interest_changed(node)
        self._send_changed(peer)
        self._known.pop(node, None)
        self._senders.pop(node, None)
        self.announcements.peer_gone(node)
        self._relays.peer_gone(node)
        if self.sealed_receiver is not None:
            self.sealed_receiver.peer_removed(node)
        self.publishing.peer_gone(node)
        self.confirming.lost(node)
        self.confirming.durable_changed(gone)
        self.confirming.look_for_absent()
        self.retention.peer_gone(node)
        self._known_news.unpark_all()


def _count_copies(account: Account, count: int, takers: int) -> None:
    """Count events that go to so many subscriptions; to none: they were on their way when the last one ended."""
    if takers:
        account.copied += count * (takers - 1)
    else:
        account.ended += count
