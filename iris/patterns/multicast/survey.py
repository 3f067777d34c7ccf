"""Survey: scatter-gather over a cluster.  Asks every member and collects answers until a stop rule ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import final

import trio
from msgspec import structs
from msgspec.structs import replace

from iris.cluster.mesh import Mesh
from iris.kernel.config import Config
from iris.kernel.errors import IrisError, NotSent, Unknown
from iris.kernel.names import NodeId
from iris.kernel.tasks import open_background
from iris.kernel.wire import kinds
from iris.patterns.multicast.answers import Answers, StopRules
from iris.patterns.multicast.inquiry import Inquiry
from iris.patterns.multicast.relay import Relays, stands_alone
from iris.patterns.picker import MemberDirectory, nobody_serves
from iris.patterns.priority import Priority
from iris.patterns.request import EACH, Requests


@final
class Surveys:
    """The surveys of one node: up to ``Config.relay_above`` members it asks each, more of them over a relay tree."""

    def __init__(
        self, mesh: Mesh, requests: Requests, directory: MemberDirectory, relays: Relays, config: Config
    ) -> None:
        self._mesh = mesh
        self._requests = requests
        self._directory = directory
        self._relays = relays
        self._config = config

    @asynccontextmanager
    async def open(
        self,
        cluster: str,
        payload: object,
        rules: StopRules,
        operation: str | None,
        headers: Mapping[str, str] | None,
        priority: Priority | None,
        *,
        timeout: float,
        without_link: Collection[NodeId] = (),
    ) -> AsyncIterator[Answers]:
        """See ``Node.survey``.

        Args:
            timeout: seconds that are left of those in ``rules``.
            without_link: members that may not be linked: these have failed.
        """
        rules = structs.replace(rules, timeout=timeout)
        call = self._requests.call(
            cluster, payload, timeout=timeout, operation=operation, headers=headers, priority=priority
        )
        call.pattern = "survey"
        call.flags |= EACH
        members = tuple(self._directory.member_ids(cluster))
        if not members:
            raise nobody_serves(cluster, self._mesh, self._directory)
        unreached = sorted(set(without_link).difference(members))
        asked = (*members, *unreached)
        answers = Answers(asked, rules, {member: self._directory.weight(cluster, member) for member in asked})
        for member in unreached:
            answers._receive_failure(member, NotSent(f"no link to node {member}"))

        def receive_part(member: NodeId, part: kinds.Part) -> None:
            if answers._admits(member, part):
                try:
                    value = self._requests.decode_part_untrusted(part, cluster, member)
                except IrisError as error:
                    answers._receive_failure(member, error)
                else:
                    answers._receive_answer(member, value)

        call.part = receive_part

        async def ask(member: NodeId) -> None:
            try:
                reply = await self._requests.request(replace(call, only=member, tried=set()))
            except IrisError as error:
                answers._receive_failure(member, error)
            except trio.ClosedResourceError:
                answers._receive_failure(member, Unknown(f"this node was closed while node {member} had the survey"))
            else:
                answers._receive_answer(member, reply, last=True)

        alone = [member for member in members if stands_alone(self._mesh, member)]
        many = [member for member in members if not stands_alone(self._mesh, member)]
        if len(many) <= self._config.relay_above:
            alone, many = list(members), []
        askings: list[Callable[[], Awaitable[None]]] = [partial(ask, member) for member in alone]
        if many:
            inquiry = Inquiry(self._mesh, self._requests, self._relays, call, many, answers)
            askings.append(inquiry.ask)
        try:
            async with open_background() as nursery:
                nursery.start_soon(answers._gather, *askings)
                yield answers
        finally:
            answers.close()
