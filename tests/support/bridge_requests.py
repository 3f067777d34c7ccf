"""Requests to a bridge that no client makes: payloads as they travel, be they well-formed or not."""

from __future__ import annotations

from typing import Any

from iris.kernel.errors import RemoteError
from iris.spark_bridge.client.client import BridgeClient, error_of


async def ask_raw(client: BridgeClient, operation: str, payload: object, address: str = "bridge") -> Any:
    """Ask a member anything; raise the errors that the client would."""
    try:
        return await client.node.request(address, payload, operation=operation)
    except RemoteError as error:
        raise error_of(error.code, error.message) from None
