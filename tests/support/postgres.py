"""A PostgreSQL server of a test's own, the real one."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

_OWNER = "postgres"
"""The server refuses to run as root."""


def find_server() -> Path | None:
    """Return the folder of PostgreSQL's programs; None if it is not installed."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("initdb")
    if found is not None:
        places.append(Path(found).resolve().parent)
    return next((place for place in places if (place / "initdb").exists()), None)


@contextmanager
def open_postgres(programs: Path) -> Iterator[dict[str, str]]:
    """Run a server; yield what the environment of its clients has to say."""
    user = _OWNER if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    directory = Path(tempfile.mkdtemp(prefix="iris-pg-"))
    port = str(free_port())
    try:
        shutil.chown(directory, user)
        data = directory / "data"
        make = [str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "iris", "--no-sync"]
        make += ["--locale=C", "--encoding=UTF8"]
        subprocess.run(make, user=user, check=True, capture_output=True, cwd=directory)
        serve = [str(programs / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", port, "-k", str(directory)]
        quiet = subprocess.DEVNULL
        server = subprocess.Popen(
            [*serve, "-c", "fsync=off", "-c", "max_connections=500"],
            user=user,
            cwd=directory,
            stdout=quiet,
            stderr=quiet,
        )
        try:
            ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", port, "-t", "1"]
            while subprocess.run(ready, capture_output=True, check=False).returncode:
                assert server.poll() is None, "PostgreSQL does not start"
            yield {"PGHOST": "127.0.0.1", "PGPORT": port, "PGUSER": "iris", "PGDATABASE": "postgres"}
        finally:
            server.kill()
            server.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
