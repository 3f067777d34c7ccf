"""Scatter-gather: one request to many members over a relay tree; each member replies by itself.

The scatter costs the same for any number of members.  Replies arrive one by one, like the replies of any request.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh
from iris.kernel.errors import IrisError, NotSent, RemoteError, Unknown
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.books import Tally
from iris.patterns.multicast.answers import Answers
from iris.patterns.multicast.relay import RelayPlan, Relays
from iris.patterns.request import NOT_HERE, Call, Requests, failure_of

_LOOK_EVERY: Final = 5.0
"""Seconds after which members that have not answered are asked whether they have the request: the node that was to
forward it may have been lost with it, and others than its origin may be those who know."""

_LOOK_SOON: Final = 1.0
"""Seconds after a member was lost; messages in flight over others should have arrived by then."""


@final
class Inquiry:
    """One request, and the members that have not answered it yet.

    Args:
        requests: source of the number, receiver of the answers, owner of the counters.
        relays: relays that carry it.
        call: the request.
        members: members to ask; all of them at this site, and none of them this node.
        answers: receiver of the replies, and of the errors of members that do not reply.
    """

    def __init__(
        self,
        mesh: Mesh,
        requests: Requests,
        relays: Relays,
        call: Call,
        members: Sequence[NodeId],
        answers: Answers,
    ) -> None:
        self._mesh = mesh
        self._requests = requests
        self._relays = relays
        self._config: Final = mesh.config
        self._call = call
        self._members = members
        self._answers = answers
        self._asked = frozenset(members)
        self._waiting = dict.fromkeys(members)  # a set that keeps its order
        self._done = trio.Event()
        self._pause = trio.CancelScope()

    async def ask(self) -> None:
        """Ask, and wait until all have answered or failed.

        Members have what is left of the call's time; a caller that waits no longer than that cancels it.  The members
        that are still at work then get a CANCEL.
        """
        requests = self._requests
        number = requests.number()
        requests.opened(self._call, len(self._members))
        for member in self._members:
            if self._mesh.peer(member) is None:
                self._end(member, NotSent(f"no link to node {member}"))
        tree = self._relays.tree(tuple(self._waiting))
        requests.gathering[number] = self._receive
        try:
            if self._waiting:
                self._relays.send(tree, self._call.message(number, trio.current_time()), Tally())
                while not self._done.is_set():
                    with trio.CancelScope(deadline=trio.current_time() + _LOOK_EVERY) as self._pause:
                        await self._done.wait()
                    self._ask_whether_there(number)
        finally:
            del requests.gathering[number]
            if self._waiting:
                self._cancel(number, tree)
                for member in self._waiting:
                    requests.expire(self._call, member)

    def _ask_whether_there(self, number: int) -> None:
        for member in self._waiting:
            with suppress(NotSent):  # a member that cannot be asked is being given up, or is asked the next time
                self._mesh.post(member, kinds.Awaited(number), 0, CONTROL_RESERVE)

    def _cancel(self, number: int, tree: RelayPlan) -> None:
        cancel = kinds.Cancel(number)
        if len(self._waiting) > self._config.relay_above:
            self._relays.send(tree, cancel, Tally())
            return
        for member in self._waiting:
            try:
                self._mesh.post(member, cancel, 0)
            except NotSent:
                continue  # a member without room on its link is being given up

    def _receive(self, member: NodeId, outcome: kinds.Reply | kinds.Failure | kinds.Part | None) -> None:
        """Accept the answer of one member; None: it is gone."""
        if outcome is None and member in self._asked:
            self._pause.deadline = min(self._pause.deadline, trio.current_time() + _LOOK_SOON)
        if member not in self._waiting:
            return
        cluster = self._call.cluster
        match outcome:
            case kinds.Reply(payload=reply):
                try:
                    value = self._requests.decode_reply_untrusted(reply, cluster, member)
                except RemoteError as error:
                    self._end(member, error)
                else:
                    del self._waiting[member]
                    self._requests.answered(self._call, member)
                    self._answers._receive_answer(member, value, last=True)
                    self._look()
            case kinds.Part():
                assert self._call.part is not None
                self._call.part(member, outcome)
            case kinds.Failure(code=code) if code == NOT_HERE:
                text = f"node {member} of cluster {cluster!r} does not have the request, and no reply has come"
                self._end(member, Unknown(f"{text}: it ran never or once; a node that handed it on may be lost"))
            case kinds.Failure():
                self._end(member, failure_of(cluster, member, outcome))
            case _:
                self._end(member, Unknown(f"node {member} of cluster {cluster!r} was lost while it was asked"))

    def _end(self, member: NodeId, error: IrisError) -> None:
        del self._waiting[member]
        self._requests.failed(self._call, member, error)
        self._answers._receive_failure(member, error)
        self._look()

    def _look(self) -> None:
        if not self._waiting:
            self._done.set()
