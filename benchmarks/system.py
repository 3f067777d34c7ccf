"""A measured system: a name, what it needs on this machine, and the programs that do its part of each case."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, final

from benchmarks.broker import Broker, find_program, program_version
from iris.bench.cases import Case, Kind

__all__ = ["Role", "Roles", "System", "Task"]


class Task(Protocol):
    """Task of one process of a trial: the part of ``benchmarks.worker.Task`` that a role needs.

    Attributes:
        case: the work.
        broker: address of the system's broker; empty if it has none.
        addresses: addresses at which the sinks listen, in a source; empty in a sink.
        seat: number of this sink.
    """

    case: Case
    broker: str
    addresses: tuple[str, ...]
    seat: int

    @property
    def seconds(self) -> float:
        """Time for which the source works, in seconds.  The first one that asks begins the time."""
        ...

    def ready(self, address: str = "") -> None:
        """Say that this sink now receives, at ``address``."""

    def finish(self, **figures: float) -> None:
        """Say what was measured, and when."""


Role = Callable[[Task], None]


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The two programs of one kind of work.  The sink is started first and says when it receives."""

    sink: Role
    source: Role


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system that can be measured.  Its file imports the system's library inside its roles only.

    Attributes:
        name: the stable name in the JSON.
        package: the distribution on PyPI, for the version.
        encrypted: whether what it sends is encrypted here.
        lacks: what the measured program does not do and the one of Iris does, in the words of the page's list.
        module: the library that must be importable.
        program: the broker that must be installed; empty if it needs none.
        oldest: the oldest version of the broker that is measured; empty if any is.
        install: how the broker is installed; empty if by its name from Debian.
        broker: starts the broker for the whole run.
        roles: the programs, by kind of work; a kind that is not here is not measured.
        without: cases of those kinds that it cannot do, by name, with the reason.
        quick: whether ``--quick`` measures it.
    """

    name: str
    package: str
    encrypted: bool
    lacks: tuple[str, ...] = ()
    module: str
    program: str = ""
    oldest: str = ""
    install: str = ""
    broker: Callable[[Path], contextlib.AbstractContextManager[Broker]] | None = None
    roles: Mapping[Kind, Roles]
    without: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    quick: bool = False

    def absence(self) -> str:
        """Return why this system cannot be measured here; empty if it can."""
        if importlib.util.find_spec(self.module) is None:
            return f"the Python package {self.package} is not installed"
        if not self.program:
            return ""
        install = self.install or f"Debian: apt install {self.program}"
        if (path := find_program(self.program)) is None:
            return f"{self.program} is not installed ({install})"
        if self.oldest and _parts(version := program_version(path)) < _parts(self.oldest):
            return f"{self.program} {version} is older than {self.oldest} ({install})"
        return ""

    def does(self, case: Case) -> bool:
        """Return whether this system can do ``case``."""
        return case.kind in self.roles and case.name not in self.without

    def version(self) -> str:
        """Return the version of the library."""
        return importlib.metadata.version(self.package)

    def server(self) -> str:
        """Return name and version of the broker, as in ``nats-server 2.15.1``; empty if it needs none."""
        path = find_program(self.program) if self.program else None
        return f"{self.program} {program_version(path)}" if path else ""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
