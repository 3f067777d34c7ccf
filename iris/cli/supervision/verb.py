"""The two ways in which ``iris run`` starts other processes instead of serving itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import trio

from iris.cli.connection import NodeOptions
from iris.cli.readiness import Readiness
from iris.cli.supervision.places import options_at
from iris.cli.supervision.processes import command_of
from iris.cli.supervision.reloading import reload
from iris.cli.supervision.source_files import SourceFiles
from iris.cli.supervision.supervisor import Supervisor
from iris.cli.supervision.worker import GRACE, Place
from iris.cli.supervision.workforce import Workforce


def run_workers(
    arguments: Sequence[str], options: NodeOptions, count: int, drain_timeout: float, readiness: Readiness
) -> int:
    """Run workers until SIGINT or SIGTERM, and return the exit status.

    Args:
        arguments: those of this process, which each worker gets as well.
        options: see ``places``.
        count: how many.
        drain_timeout: see ``Config.drain_timeout``.
        readiness: told when all serve.

    Raises:
        ConfigError: the ports of the last place would be too high.
    """
    options_at(options, Place(count, count - 1, follows=False), 0.0, os.environ)  # the highest ports
    workforce = Workforce(count, drain_timeout, GRACE)
    return trio.run(Supervisor(command_of(arguments), workforce, readiness).run)


def reload_workers(arguments: Sequence[str], drain_timeout: float, readiness: Readiness) -> int:
    """Run one worker after the other until SIGINT or SIGTERM, and return the exit status."""
    files = SourceFiles(Path.cwd())
    return trio.run(reload, command_of(arguments), files, drain_timeout + GRACE, readiness)
