"""Environment of a node: network, randomness and wall clock as arguments.  Production takes the real ones."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import final

from msgspec import Struct, field

from iris.cluster.addresses import source_url
from iris.cluster.discovery import FindSource, OpenLan, Resolve, open_lan, resolve_seed
from iris.kernel.config import Config
from iris.kernel.names import Entropy
from iris.kernel.tasks import ThreadRunner, run_in_thread
from iris.kernel.transport import NetworkTransport, Transport, check_url
from iris.node.blocked import BlockObserver, watch_loop
from iris.node.descriptors import open_descriptors
from iris.security.files import runtime_directory


@final
class Environment(Struct, frozen=True, kw_only=True):
    """The ports of a node.  trio's own clock is the clock of all deadlines; this one gives the date."""

    transport: Callable[[Config], Transport] = NetworkTransport
    check_url: Callable[[str], str] = check_url
    """Returns a URL that the transport could use, or raises ConfigError."""
    directory: Callable[[str], Path] | None = runtime_directory
    """Returns the directory where nodes of a realm on this machine meet, by the realm's fingerprint.  None: there is no
    such place, and this node leaves no files."""
    in_thread: ThreadRunner = run_in_thread
    """Runs what looks at files while a node opens."""
    resolve: Resolve = resolve_seed
    """Asks what a seed stands for: looks up host names and SRV records, asks Kubernetes, reads the file."""
    source: FindSource = source_url
    """Finds the address of this machine that faces a URL."""
    lan: OpenLan | None = open_lan
    """Announces this node on the local network and finds others; None: nobody does."""
    entropy: Entropy = os.urandom
    wall_clock: Callable[[], float] = time.time  # noqa: TID251 -- certificates are valid by date
    processor_time: Callable[[], float] | None = time.thread_time
    """Returns the seconds of processor time that the calling thread has had; None: nobody asks for them."""
    descriptors: Callable[[], tuple[int, int]] | None = open_descriptors
    """Returns how many file descriptors this process has open, and how many it may have; None: nobody asks."""
    watch: Callable[[BlockObserver], Awaitable[None]] | None = watch_loop
    """Watches the event loop for handlers that block it, until cancelled; None: nobody does."""
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Environment variables, such as ``IRIS_CREDENTIAL``, ``IRIS_SEEDS`` and ``IRIS_LISTEN``; see ``open_node``."""
    random: random.Random = field(default_factory=random.Random)
