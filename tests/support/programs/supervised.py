"""A supervisor of small workers: ``python -m tests.support.programs.supervised COUNT DIRECTORY``.

COUNT 0 is ``--reload``: one worker, started anew when a Python file of the directory changes.  Each worker writes its
place to a file of the directory that is called as its process, and serves until SIGTERM.  A file ``fails`` there has it
end with an error that it tells; a file ``stuck`` has it ignore SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

DRAIN = 0.2


def supervise(count: int, directory: Path) -> int:
    """Run workers, and return the exit status."""
    import trio

    from iris.cli.printable import write_log
    from iris.cli.readiness import Readiness
    from iris.cli.supervision.reloading import reload
    from iris.cli.supervision.source_files import SourceFiles
    from iris.cli.supervision.supervisor import Supervisor
    from iris.cli.supervision.workforce import Workforce

    write_log("text")
    command = [sys.executable, "-m", "tests.support.programs.supervised", str(directory)]
    if count == 0:
        return trio.run(reload, command, SourceFiles(directory), DRAIN, Readiness(os.environ))
    return trio.run(Supervisor(command, Workforce(count, DRAIN, DRAIN), Readiness(os.environ)).run)


def work(directory: Path) -> int:
    """Be a worker, and return the exit status."""
    from iris.cli.supervision.worker import VARIABLE, worker_of_environment

    worker = worker_of_environment()
    assert worker is not None
    assert VARIABLE not in os.environ
    if (directory / "fails").exists():
        worker.failed((directory / "fails").read_text())
        return 2
    signals = {signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    worker.follow(DRAIN)
    written = directory / f".{os.getpid()}"
    written.write_text(str(worker.place.listen))
    written.rename(directory / str(os.getpid()))
    worker.announce()
    while signal.sigwait(signals) != signal.SIGTERM or (directory / "stuck").exists():
        pass
    (directory / str(os.getpid())).unlink()
    return 0


if __name__ == "__main__":
    *number, place = sys.argv[1:]
    sys.exit(supervise(int(number[0]), Path(place)) if number else work(Path(place)))
