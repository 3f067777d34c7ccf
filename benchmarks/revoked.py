"""A revocation in a realm of real processes: ``python -m benchmarks.security revoked``.

So many nodes, dealt out to a few processes, are linked to each other over ipc; one of them, in a process of its own,
has a stolen credential.  Then its cluster is revoked by the command of the manual, whose list goes to one node.  It is
measured when each of the others has ended its link, and looked at again when the thief has had time to come back.
Each node keeps lists in a file of its own, so that they receive it from each other.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, final

import trio

import iris
from iris.cluster.mesh.mesh import Mesh
from iris.cluster.mesh.peer import Peer, PeerObserver

_STOLEN: Final = "stolen"
_PATIENCE: Final = 120.0
_ROOT: Final = Path(__file__).resolve().parents[1]


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a run.  Times are seconds since the command was started."""

    published: float
    """Time at which the command had ended; its list was in place by then."""
    cut: tuple[float, ...]
    """Times at which each node had ended its link to the thief, sorted."""
    returned: int
    """Number of times that a node was linked to the thief again."""


@final
class Links(PeerObserver):
    """The links of one node, as they come and go."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._news = trio.Event()
        self.cut: float | None = None
        """Time at which the link to the thief ended. None: it has not."""
        self.returned = 0
        mesh.observe(self)

    def peer_connected(self, peer: Peer) -> None:
        """See ``PeerObserver.peer_connected``."""
        self.returned += self.cut is not None and peer.identity.cluster == _STOLEN
        self._news.set()

    def peer_removed(self, peer: Peer, reason: str) -> None:  # noqa: ARG002 -- as the protocol has it
        """See ``PeerObserver.peer_removed``."""
        if peer.identity.cluster == _STOLEN:
            self.cut = time.monotonic()
        self._news.set()

    async def wait_count(self, count: int) -> None:
        """Wait until there are so many."""
        while len(self._mesh.peers) != count:
            self._news = trio.Event()
            await self._news.wait()

    async def wait_cut(self) -> float:
        """Wait until there is none to the thief; return since when."""
        while self.cut is None:
            self._news = trio.Event()
            await self._news.wait()
        return self.cut


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)


async def be_nodes(directory: Path, cluster: str, size: int, numbers: Sequence[int]) -> None:
    """Be some of the nodes; say when all are linked, when each has cut off the thief, and how often it came back."""
    async with AsyncExitStack() as stack:
        every: list[Links] = []
        for number in numbers:
            node = iris.open_node(
                credential=directory / f"{cluster}.iris", revocations=directory / f"list-{number}", lan=False
            )
            every.append(Links((await stack.enter_async_context(node))._parts.mesh))
        for links in every:
            await links.wait_count(size - 1)
        _say("linked")
        if cluster != _STOLEN:
            _say([await links.wait_cut() for links in every])
        await trio.to_thread.run_sync(sys.stdin.readline)
        _say(sum(links.returned for links in every))


@final
class Nodes:
    """A process of some nodes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def hear(self) -> Any:
        """Return what it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process of nodes has ended, or took too long")
        return json.loads(line)

    def ask(self) -> Any:
        """Have it look once more; return what it says."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.hear()


@contextmanager
def open_nodes(directory: Path, cluster: str, size: int, numbers: Sequence[int]) -> Generator[Nodes]:
    """Have a process of some nodes; it is killed after two minutes."""
    arguments = [str(directory), cluster, str(size), *map(str, numbers)]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.revoked", *arguments],
        cwd=_ROOT,
        env=_environment(directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the thief says there how it is turned away, again and again
        text=True,
    ) as process:
        timer = threading.Timer(_PATIENCE, process.kill)
        timer.start()
        try:
            yield Nodes(process)
        finally:
            timer.cancel()
            process.kill()


def _environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "IRIS_HOME": str(directory / "home"), "XDG_RUNTIME_DIR": str(directory)}


def _keys(directory: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "iris", "keys", *arguments],
        cwd=directory,
        env={**_environment(directory), "PYTHONPATH": os.pathsep.join((str(_ROOT), os.environ.get("PYTHONPATH", "")))},
        stderr=subprocess.DEVNULL,
        check=True,
    )


def measure(*, nodes: int, processes: int, again: float = 5.0) -> Outcome:
    """Revoke one of ``nodes`` nodes, the others of which are in so many processes.

    Args:
        again: seconds for which the revoked one may try to come back.
    """
    with tempfile.TemporaryDirectory(prefix="ir-", dir="/tmp") as place, ExitStack() as stack:
        directory = Path(place)
        _keys(directory, "realm", "the.realm")
        for cluster in ("honest", _STOLEN):
            _keys(directory, "cluster", "the.realm", cluster, "--out", f"{cluster}.iris")
        honest = range(nodes - 1)
        running = [
            stack.enter_context(open_nodes(directory, "honest", nodes, honest[first::processes]))
            for first in range(processes)
        ]
        thief = stack.enter_context(open_nodes(directory, _STOLEN, nodes, [nodes - 1]))
        for one in (*running, thief):
            one.hear()
        began = time.monotonic()
        _keys(directory, "revoke", "the.realm", "--cluster", _STOLEN, "--out", "list-0")
        published = time.monotonic()
        cut = sorted(moment - began for one in running for moment in one.hear())
        time.sleep(again)
        return Outcome(
            published=published - began,
            cut=tuple(cut),
            returned=sum(one.ask() for one in running),
        )


def report(outcome: Outcome) -> None:
    """Print an outcome."""
    middle, last = outcome.cut[len(outcome.cut) // 2], outcome.cut[-1]
    print(f"iris keys revoke took {outcome.published:.2f} s; since it was started:")
    print(f"links of {len(outcome.cut)} nodes to the revoked one ended: half {middle:.2f} s, the last {last:.2f} s")
    print(f"links to it that came back: {outcome.returned}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the size of the realm."""
    parser.add_argument("--nodes", type=int, default=20, help="of the realm, the revoked one included")
    parser.add_argument("--processes", type=int, default=4, help="that the other nodes are dealt out to")


def main(arguments: Sequence[str]) -> None:
    """Be one process of nodes."""
    directory, cluster, size, *numbers = arguments
    trio.run(be_nodes, Path(directory), cluster, int(size), [int(number) for number in numbers])


if __name__ == "__main__":
    main(sys.argv[1:])
