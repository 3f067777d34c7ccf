"""Connection settings of a reader or a writer: which bridge, with which credential, through which seeds."""

from __future__ import annotations

import dataclasses
from typing import final


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Settings with which a Spark process reaches a bridge.  Equal connections share a node."""

    bridge: str = "bridge"
    credential: str | None = None
    seeds: tuple[str, ...] = ()
    timeout: float = 60.0
    """Time to wait for a bridge which is down, in seconds."""
    member: bool = False
    """True if the node is a member of the realm, which it has to be to publish; else it is a client."""
