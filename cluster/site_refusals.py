"""What a gateway says of a frame that it does not carry, or carries more slowly: codes on the wire, and their words."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

GONE: Final = 1
"""Why a frame could not be carried: its site does not know the node, or not any more."""
NOT_EXPORTED: Final = 2
NO_ROUTE: Final = 3
BUSY: Final = 4
"""The frame was carried, and no more are to follow for now: much waits for the next link."""
READY: Final = 5
"""It was busy, and is no more."""

REASONS: Final = MappingProxyType(
    {GONE: "its site does not know the node", NOT_EXPORTED: "not exported", NO_ROUTE: "no route"}
)
"""In words, those after which nothing is carried."""
