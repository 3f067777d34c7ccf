"""A measured system: a name, what it needs on this machine, and the programs that do its part of each case."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

from iris.bench.cases import Case, Kind


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Task of one process of a trial, and its line to the process that conducts the trial.

    Attributes:
        case: the work.
        seconds: time for which the source works, in seconds.
        broker: address of the system's broker; empty if it has none.
        addresses: addresses at which the sinks listen, in a source; empty in a sink.
        seat: number of this sink.
    """

    case: Case
    seconds: float
    broker: str
    addresses: tuple[str, ...]
    seat: int = 0

    def ready(self, address: str = "") -> None:
        """Say that this sink now receives, at ``address``."""
        self._say({"ready": address})

    def finish(self, **figures: float) -> None:
        """Say what was measured."""
        self._say({"figures": figures})

    def _say(self, line: Mapping[str, object]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


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
        module: the library that must be importable.
        program: the broker that must be on the PATH; empty if it needs none.
        broker: starts the broker for the whole run; its value is the broker's address.
        roles: the programs, by kind of work; a kind that is not here is not measured.
        without: cases of those kinds that it cannot do, by name, with the reason.
        quick: whether ``--quick`` measures it.
    """

    name: str
    package: str
    encrypted: bool
    module: str
    program: str = ""
    broker: Callable[[Path], contextlib.AbstractContextManager[str]] | None = None
    roles: Mapping[Kind, Roles]
    without: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    quick: bool = False

    def absence(self) -> str:
        """Return why this system cannot be measured here; empty if it can."""
        if importlib.util.find_spec(self.module) is None:
            return f"the Python package {self.package} is not installed"
        if self.program and not shutil.which(self.program):
            return f"{self.program} is not installed (Debian: apt install {self.program})"
        return ""

    def does(self, case: Case) -> bool:
        """Return whether this system can do ``case``."""
        return case.kind in self.roles and case.name not in self.without

    def version(self) -> str:
        """Return the version of the library."""
        return importlib.metadata.version(self.package)
