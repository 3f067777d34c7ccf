"""Local registry: a directory with one small file for each node, by which the nodes of one machine find each other.

The directory belongs to the user and is closed to others, but nothing in it is believed: a file only suggests an
address to dial, and the node that answers there has to pass the handshake.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Container
from pathlib import Path
from random import Random
from typing import Final, final

from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId, is_node_id
from iris.kernel.shapes import is_list

_SUFFIX: Final = ".node"
_MAX_ENTRY: Final = 16 * 1024


@final
class Registry:
    """The nodes of one site that have announced themselves in ``directory``.

    Args:
        random: chooses whom ``entries`` returns of more than were asked for.

    Raises:
        ConfigError: the directory cannot be written to.
    """

    def __init__(self, directory: Path, site: str = "", random: Random | None = None) -> None:
        self._directory = directory
        self._site = site
        self._random = random or Random()

    @property
    def exists(self) -> bool:
        """True if the directory is there."""
        return os.path.isdir(self._directory)  # noqa: PTH112 -- where it may not be looked into, Path raises

    def holds(self, node: NodeId) -> bool:
        """Return whether a node's entry is there."""
        return os.path.lexists(self._directory / f"{node}{_SUFFIX}")

    def has_socket(self, node: NodeId) -> bool:
        """Return whether a node's socket is there."""
        return os.path.lexists(self._directory / node)

    def announce(self, node: NodeId, addresses: tuple[str, ...]) -> None:
        """Write this node's entry; readers see it whole or not at all."""
        entry = self._directory / f"{node}{_SUFFIX}"
        draft = self._directory / f".{node}.draft"
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)  # under any umask
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps({"addresses": addresses, "process": os.getpid(), "site": self._site}))
            draft.replace(entry)
        except OSError as error:
            raise ConfigError(f"cannot write to the registry {self._directory}: {error.strerror}") from None

    def withdraw(self, node: NodeId) -> bool:
        """Remove a node's entry and its socket: this node leaves, or nobody listens at that one's address.

        Returns:
            Whether that could be done.  What cannot be removed costs those that come later an attempt, and no more.
        """
        removed = True
        for name in (f"{node}{_SUFFIX}", node):
            try:
                (self._directory / name).unlink(missing_ok=True)
            except OSError:
                removed = False
        return removed

    def sweep(self) -> None:
        """Remove the directory if nothing is left in it.  A node that comes later makes it again."""
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def entries(self, besides: Container[NodeId] = (), limit: int = 1_000_000) -> dict[NodeId, tuple[str, ...]]:
        """Return the addresses of nodes announced, at most ``limit`` and none of those that are known already.

        Of more than ``limit``, which ones is left to chance: nodes that start together would otherwise all come to the
        same few, which have no time for so many.  Entries that cannot be read are passed over.  A realm that is
        complete costs the names in one directory.
        """
        found: dict[NodeId, tuple[str, ...]] = {}
        unknown = sorted(node for node in self._nodes() if node not in besides)
        self._random.shuffle(unknown)
        for node in unknown:
            if len(found) >= limit:
                break
            site, addresses = self._entry(node)
            if site == self._site:
                found[node] = addresses
        return found

    def sites(self) -> set[str]:
        """Return the sites of the nodes that have announced themselves; "" is one without a name."""
        return {site for node in self._nodes() if isinstance(site := self._entry(node)[0], str)}

    def _nodes(self) -> list[NodeId]:
        try:
            names = os.listdir(self._directory)  # noqa: PTH208 -- every two seconds; paths would be five times as dear
        except OSError:
            return []
        nodes = [name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)]
        return [NodeId(node) for node in nodes if is_node_id(node)]

    def _entry(self, node: NodeId) -> tuple[str | None, tuple[str, ...]]:
        """Return the site and the addresses of a node; no site if its entry cannot be read."""
        try:
            with (self._directory / f"{node}{_SUFFIX}").open() as file:
                entry = json.loads(file.read(_MAX_ENTRY))
            addresses, site = entry["addresses"], entry.get("site", "")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None, ()
        if not is_list(addresses) or not isinstance(site, str):
            return None, ()
        return site, tuple(url for url in addresses if isinstance(url, str))
