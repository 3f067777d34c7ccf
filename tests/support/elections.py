"""An engine of elections in memory."""

from __future__ import annotations

from typing import final

from iris.spark_bridge.election.engine import EngineAway


@final
class Memory:
    """A lease that never ends by itself, in a mapping that its candidates share."""

    def __init__(self, leases: dict[str, str], holder: str) -> None:
        self._leases = leases
        self._holder = holder
        self.away = False
        self.looks = 0

    def is_free(self) -> bool:
        """Look."""
        self.looks += 1
        if self.away:
            raise EngineAway("somebody has pulled the plug")
        return not self._leases

    def acquire(self) -> bool:
        """Take it, or renew it."""
        if self.away:
            raise EngineAway("somebody has pulled the plug")
        return self._leases.setdefault("lease", self._holder) == self._holder

    def release(self) -> None:
        """Give it up."""
        if self._leases.get("lease") == self._holder:
            del self._leases["lease"]

    def close(self) -> None:
        """Nothing is open."""
