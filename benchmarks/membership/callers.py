"""Nodes that have work for one member: how long do they go on sending to it once it is silent?

They do what the node around the machine does: work goes out while the route is open, and a member from which
nothing has come for ``probe_timeout`` although something is owed is doubted.
"""

from __future__ import annotations

import math
from typing import Final, final

from benchmarks.membership.realm import Realm
from iris.cluster.swim.context import Effect, Routable
from iris.kernel.names import NodeId

_EVERY: Final = 0.01
_ROUND_TRIP: Final = 0.002


@final
class Callers:
    """Each of ``callers`` sends a request to ``subject`` every 10 ms while its route is open."""

    def __init__(self, realm: Realm, callers: list[NodeId], subject: NodeId) -> None:
        self._realm = realm
        self._subject = subject
        self._heard = dict.fromkeys(callers, realm.now)
        self._closed: set[NodeId] = set()
        self.last_sent = dict.fromkeys(callers, -math.inf)
        realm.listener = self._notice
        for caller in callers:
            realm.after(_EVERY * realm.random.random(), self._call, caller)

    def _notice(self, observer: NodeId, effect: Effect) -> None:
        if isinstance(effect, Routable) and effect.node == self._subject and observer in self._heard:
            if effect.open:
                self._closed.discard(observer)
                self._heard[observer] = self._realm.now
            else:
                self._closed.add(observer)

    def _call(self, caller: NodeId) -> None:
        realm = self._realm
        realm.after(_EVERY, self._call, caller)
        if caller in self._closed:
            return
        self.last_sent[caller] = realm.now
        if self._subject in realm.machines and realm.random.random() >= realm.loss:
            realm.after(_ROUND_TRIP, self._answer, caller)
        elif realm.now - self._heard[caller] >= realm.config.probe_timeout:
            realm.perform(caller, realm.machines[caller].doubt(self._subject, realm.now))

    def _answer(self, caller: NodeId) -> None:
        self._heard[caller] = self._realm.now
