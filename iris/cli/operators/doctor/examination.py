"""Examination: the checks in the order in which a set-up breaks, each with what the ones before have found."""

from __future__ import annotations

import ipaddress
import os
import resource
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, final

import trio
from msgspec import Struct, field, structs

import iris
from iris.cli.operators.doctor import clock, seeds, versions
from iris.cli.operators.doctor.credential import examine_credential, read_credential, revoked
from iris.cli.operators.doctor.directories import examine_home, examine_runtime, examine_site
from iris.cli.operators.doctor.findings import Diagnosis, ok, problem, warning
from iris.cli.operators.doctor.firewall import examine_firewall, opening, read_rules
from iris.cli.operators.doctor.lan import examine_multicast
from iris.cli.operators.doctor.limits import examine_descriptors
from iris.cli.operators.doctor.listening import beside, examine_listening, port_of
from iris.cli.operators.doctor.neighbours import examine_neighbours
from iris.cli.operators.doctor.realms import examine_realms
from iris.cli.operators.doctor.scraping import examine_metrics
from iris.cluster.addresses import advertised, is_loopback, split_url
from iris.cluster.discovery import Registry, Resolve, resolve_seed
from iris.cluster.seed_urls import check_seed, source_of
from iris.kernel.errors import ConfigError, IrisError
from iris.kernel.shapes import is_map
from iris.node.environment import Environment
from iris.patterns.service import DESCRIBE
from iris.security.files import iris_home, load_revocations, open_local_realm, runtime_place
from iris.security.identity import Credential, RevocationList

Report = Callable[[Diagnosis], None]

_MARGIN: Final = 60.0
"""Seconds before the end of a credential at which a node is opened with it; it has ended before those are over."""

_ANSWERED: Final = 2.0
"""Seconds that members have to say which version they run."""

_CLUSTERS: Final = 16
"""Clusters whose members are asked for their version."""

_AT_ONCE: Final = 4
"""Seeds that are looked at at one time, and networks."""


_MOST_SEEDS: Final = 32
"""Seeds, and addresses of theirs, that are looked at: so it is over within a minute or two whatever is given."""


@final
class Setup(Struct, frozen=True, kw_only=True):
    """The set-up that is examined: the options of a verb that opens a node.

    Args:
        credential: the credential of a realm; None: the local realm.
        passphrase: the passphrase that it is wrapped with.
        seeds: URLs, besides those in the credential.
        listen: URLs.
        site: the site of the node.
        dial_only: it listens nowhere.
        dial_networks: networks that it connects to.
        metrics: address and port at which it serves its metrics; None: it does not.
        environment: variables.
        resolve: asks a source of seeds.
    """

    credential: Path | None
    passphrase: str | None
    seeds: tuple[str, ...]
    listen: tuple[str, ...]
    site: str | None
    dial_only: bool
    dial_networks: tuple[str, ...]
    metrics: tuple[str, int] | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    resolve: Resolve = resolve_seed


async def examine(setup: Setup, report: Report, wall_clock: Callable[[], float] = time.time) -> None:  # noqa: TID251
    """Make all checks, and report each finding as soon as it is known.

    It takes seconds: 5 for each seed that does not answer, four of them at one time, and 32 at most.  Cancelling it
    leaves nothing behind.

    Args:
        setup: the set-up to examine.
        report: called with each finding.
        wall_clock: the date.
    """
    await _Examination(setup, report, wall_clock).run()


@final
class _Examination:
    def __init__(self, setup: Setup, report: Report, wall_clock: Callable[[], float]) -> None:
        self._setup = setup
        self._report = report
        self._wall_clock = wall_clock
        self._user = os.geteuid()
        self._revocations: Path | None = None
        self._rules: str | None = None
        """Rules of the firewall.  None before they are read."""

    async def run(self) -> None:
        files = examine_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE), nodes=0)
        if files.level == "problem":  # whatever is opened next could be what fails, and would get the blame
            self._report(files)
            return
        self._rules = await trio.to_thread.run_sync(read_rules)
        self._report(versions.examine_python(sys.version_info[:3], sys.prefix))
        for finding in versions.examine_packages(versions.requirements(), versions.installed):
            self._report(finding)
        at_home = self._examine_home()
        if self._setup.credential is None:
            await self._examine_local(at_home)
        else:
            await self._examine_realm(self._setup.credential)
        self._report(examine_firewall(self._rules, _ports(self._setup.listen)))

    def _examine_home(self) -> bool:
        try:
            finding = examine_home(iris_home(self._setup.environment), self._user)
        except ConfigError as error:
            finding = problem("home-unwritable", str(error), "export IRIS_HOME=DIR")
        self._report(finding)
        return finding.level == "ok"

    # -- the local realm ------------------------------------------------------------------------------------

    async def _examine_local(self, at_home: bool) -> None:
        for url in self._setup.seeds:
            try:
                check_seed(url)
            except ConfigError as error:
                self._report(seeds.malformed(error))
                return
        outside = [url for url in (*self._setup.seeds, *self._setup.listen) if not is_loopback(url)]
        if outside:
            cause = f"no credential is given, and without one nodes meet on this machine only, not at {outside[0]}"
            self._report(problem("credential-needed", cause, "export IRIS_CREDENTIAL=FILE"))
            return
        if not at_home:
            return
        try:
            realm = await trio.to_thread.run_sync(open_local_realm)
        except ConfigError as error:
            self._report(problem("node-fails", str(error), "ls -lR $IRIS_HOME/local"))
            return
        self._report(ok("credential-local", f"no credential: the local realm of this user, {realm.fingerprint}"))
        if not self._examine_runtime(realm.fingerprint):
            return
        usable = await self._examine_listening(self._setup.listen)
        await self._examine_metrics(None)
        try:
            async with iris.open_node(
                listen=[url for url in usable if url],
                seeds=self._setup.seeds,
                site=self._setup.site,
                dial_only=self._setup.dial_only,
                dial_networks=self._setup.dial_networks,
                environment=Environment(variables={}),
            ) as node:
                self._report(ok("node-ok", f"linked to {len(node.nodes())} nodes of this machine"))
                empty = examine_site(realm.fingerprint, self._setup.environment, self._setup.site or "")
                if empty is not None and not node.nodes():
                    self._report(empty)
                directory, _ = runtime_place(realm.fingerprint, self._setup.environment)
                for finding in await examine_neighbours(node, Registry(directory, self._setup.site or "")):
                    self._report(finding)
                await self._examine_members(node)
        except IrisError as error:
            self._report(problem("node-fails", str(error), "iris -v nodes"))

    def _examine_runtime(self, realm_id: str) -> bool:
        findings = examine_runtime(realm_id, self._setup.environment, self._user)
        for finding in findings:
            self._report(finding)
        return all(finding.level != "problem" for finding in findings)

    # -- a realm with a credential --------------------------------------------------------------------------

    async def _examine_realm(self, path: Path) -> None:
        read = partial(read_credential, path, self._setup.passphrase)
        credential, unreadable = await trio.to_thread.run_sync(read)
        if credential is None:
            assert unreadable is not None
            self._report(unreadable)
            return
        now = self._wall_clock()
        findings = examine_credential(path, credential, wall_now=now, revocations=self._load_revocations(credential))
        dated = [finding for finding in findings if finding.code in ("credential-early", "credential-expired")]
        for finding in findings:
            if finding not in dated:
                self._report(finding)
        self._examine_runtime(credential.realm_id)
        wrong_clock = await self._examine_network(path, credential, now, on_time=not dated)
        for finding in dated:  # of a clock that is wrong it is no more than a consequence
            if not wrong_clock:
                self._report(finding)

    def _load_revocations(self, credential: Credential) -> RevocationList | None:
        try:
            file = iris_home(self._setup.environment) / "revocations" / credential.realm_id
            known = load_revocations(file, credential.realm)
        except ConfigError as error:
            self._report(problem("node-fails", str(error), "ls -l $IRIS_HOME/revocations"))
            return None
        self._revocations = None if known is None else file
        return known

    async def _examine_network(self, path: Path, credential: Credential, now: float, *, on_time: bool) -> bool:
        """Look at the ports, the seeds and the members; return True if this machine's clock is shown to be wrong."""
        usable = await self._examine_listening(self._setup.listen)
        await self._examine_metrics(credential.name)
        addresses = await self._resolve((*credential.seeds, *self._setup.seeds))
        listen = tuple(filter(None, usable))
        date = now if on_time else _date_within(credential, now)
        found: list[Diagnosis] = []
        try:
            async with self._open(credential, listen, date) as node:
                own = node.addresses
                for url, taken in zip(self._setup.listen, usable, strict=True):
                    if taken and taken != url:
                        self._report(await _who_is_at(node, url))
                async with trio.open_nursery() as nursery:
                    limiter = trio.CapacityLimiter(_AT_ONCE)
                    for url in addresses:
                        nursery.start_soon(self._examine_seed, node, credential, url, own, now, limiter, found)
                if not on_time:  # the dates of the credential are the reason
                    found = [finding for finding in found if finding.code != "seed-unlinked"]
                reason = node._parts.mesh.expelled()
                if reason is not None:
                    self._report(revoked(path, reason, credential))
                else:
                    for finding in found:
                        self._report(finding)
                    await self._examine_members(node)
                    for finding in examine_realms(node):
                        self._report(finding)
        except IrisError as error:
            self._report(problem("node-fails", str(error), "iris -v nodes"))
            return False
        wrong_clock = any(finding.code in ("clock-ahead", "clock-behind") for finding in found)
        if any(finding.code == "seed-ok" for finding in found) and not any(f.code.startswith("clock") for f in found):
            self._report(ok("clock-ok", "no node that was reached has a clock that is known to differ"))
        if own:
            self._report(await examine_multicast(_networks(own)[:_AT_ONCE], opening(self._rules, "udp dport 5353")))
        return wrong_clock

    async def _resolve(self, urls: tuple[str, ...]) -> list[str]:
        if not urls:
            cause = "no seeds: nodes of other machines are found on the local network only"
            self._report(warning("seed-none", cause, "iris doctor --seeds tcp://HOST:PORT"))
        found: dict[str, tuple[str, ...]] = dict.fromkeys(urls, ())
        limiter = trio.CapacityLimiter(_AT_ONCE)

        async def resolve(url: str) -> tuple[str, ...]:
            async with limiter:
                addresses, wrong = await seeds.resolve(url)
            if wrong is not None:
                self._report(wrong)
            elif addresses != (url,):
                self._report(ok("dns-ok", f"{url} is {', '.join(addresses)}"))
            return addresses

        async def ask(seed: str) -> None:
            if not source_of(seed):
                found[seed] = await resolve(seed)
                return
            async with limiter:
                named, finding = await seeds.ask(seed, self._setup.resolve)
            self._report(finding)
            answers: dict[str, tuple[str, ...]] = dict.fromkeys(named[:_MOST_SEEDS], ())

            async def look_up(url: str) -> None:
                answers[url] = await resolve(url)

            async with trio.open_nursery() as names:
                for url in answers:
                    names.start_soon(look_up, url)
            found[seed] = tuple(address for several in answers.values() for address in several)

        async with trio.open_nursery() as nursery:
            for url in [*found][:_MOST_SEEDS]:
                nursery.start_soon(ask, url)
        addresses = dict.fromkeys(address for several in found.values() for address in several)
        if len(found) > _MOST_SEEDS or len(addresses) > _MOST_SEEDS:
            cause = f"{len(found)} seeds with {len(addresses)} addresses: {_MOST_SEEDS} of them are looked at"
            self._report(warning("seed-many", cause, "iris doctor --seeds tcp://HOST:PORT"))
        return [*addresses][:_MOST_SEEDS]

    async def _examine_seed(
        self,
        node: iris.Node,
        credential: Credential,
        url: str,
        own: tuple[str, ...],
        now: float,
        limiter: trio.CapacityLimiter,
        found: list[Diagnosis],
    ) -> None:
        async with limiter:
            wrong = await seeds.connect(url)
            if wrong is not None:
                found.append(wrong)
                return
            reached = await seeds.reach(node, url)
            ports = ", ".join(map(str, _ports(own)))
            finding = seeds.judge(url, reached, own, now, opening(self._rules, f"tcp dport {{ {ports} }}"))
            delegation = reached.delegation
            if finding.code == "seed-unlinked" and delegation is not None and clock.started(delegation) < now:
                # It has ended the link although this node took its dates.  Would it have, at an earlier date?
                finding = await self._try_earlier(credential, url, own, now, clock.started(delegation)) or finding
            found.append(finding)
            noticed = None if reached.peer is None else clock.clock_difference(url, delegation, now)
            if noticed is not None and noticed != finding:
                found.append(noticed)
            if reached.peer is not None:
                await node._parts.membership.introduce(reached.peer.node)

    async def _try_earlier(
        self, credential: Credential, url: str, own: tuple[str, ...], now: float, date: float
    ) -> Diagnosis | None:
        listen = tuple(beside(address) for address in own if split_url(address) is not None)
        async with self._open(credential, listen, _date_within(credential, date)) as earlier:
            reached = await seeds.reach(earlier, url)
        if reached.peer is None or reached.delegation is None:
            return None
        return clock.ahead(url, reached.delegation, now)

    @asynccontextmanager
    async def _open(self, credential: Credential, listen: tuple[str, ...], date: float) -> AsyncGenerator[iris.Node]:
        """Open an ordinary node at a date; it announces itself to nobody, and leaves no files."""
        began = trio.current_time()
        environment = Environment(
            directory=None,
            lan=None,
            wall_clock=lambda: date + trio.current_time() - began,  # which runs on evenly
            variables={},
        )
        async with iris.open_node(
            credential=structs.replace(credential, seeds=()),
            listen=() if self._setup.dial_only else listen,
            site=self._setup.site,
            dial_only=self._setup.dial_only,
            dial_networks=self._setup.dial_networks,
            revocations=self._revocations,
            environment=environment,
        ) as node:
            yield node

    # -- what both have -------------------------------------------------------------------------------------

    async def _examine_listening(self, urls: tuple[str, ...]) -> list[str]:
        """Report where this machine can listen; return where the node of this examination is to, for each URL."""
        usable: list[str] = []
        for url in urls:
            finding = await examine_listening(url)
            if finding.code != "listen-taken":
                self._report(finding)
            if finding.level == "ok":
                usable.append(url)
            elif finding.code == "listen-taken" and self._setup.credential is not None:
                usable.append(beside(url))
            else:
                if finding.code == "listen-taken":
                    self._report(finding)
                usable.append("")
        return usable

    async def _examine_metrics(self, own: str | None) -> None:
        if self._setup.metrics is not None:
            self._report(await examine_metrics(*self._setup.metrics, own))

    async def _examine_members(self, node: iris.Node) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._report(examine_descriptors(soft, hard, len(node.nodes())))
        members: dict[str, str] = {}
        for cluster in node.clusters()[:_CLUSTERS]:
            async with node.survey(cluster, None, operation=DESCRIBE, timeout=_ANSWERED) as answers:
                async for answer in answers:
                    if is_map(answer.payload):
                        members[answer.member] = str(answer.payload.get("iris", ""))[:40]
        finding = versions.examine_versions(versions.installed("iris-mesh"), members)
        if finding is not None:
            self._report(finding)


async def _who_is_at(node: iris.Node, url: str) -> Diagnosis:
    """Name what listens where this node was to listen: the node that runs here already, or another program."""
    reached = await seeds.reach(node, advertised([url])[0])
    if reached.peer is not None:
        return ok(
            "listen-running", f"{url}: node {reached.peer.node[:8]} of cluster {reached.peer.identity.cluster} listens"
        )
    return await examine_listening(url)


def _date_within(credential: Credential, now: float) -> float:
    """Return the date nearest to ``now`` at which a credential is valid."""
    begins, ends = credential.certificate.not_before + 1, credential.expires - _MARGIN
    return begins if ends <= begins else min(max(now, begins), ends)


def _ports(urls: tuple[str, ...]) -> tuple[int, ...]:
    parts = [split_url(url) for url in urls]
    return tuple(dict.fromkeys(port_of(part[2]) for part in parts if part is not None))


def _networks(urls: tuple[str, ...]) -> list[str]:
    """Return the IPv4 addresses in URLs at which others can reach this machine."""
    found: dict[str, None] = {}
    for url in advertised(urls):
        parts = split_url(url)
        if parts is not None and not is_loopback(url) and _is_ipv4(parts[1]):
            found[parts[1]] = None
    return list(found)


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
