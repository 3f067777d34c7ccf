"""Directories that a node uses: the home of Iris, and the runtime directory with this machine's sockets."""

from __future__ import annotations

import os
import shlex
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from iris.cli.operators.doctor.findings import Diagnosis, ok, problem, warning
from iris.cluster.discovery import Registry
from iris.security.files import runtime_place

_OTHERS: Final = 0o077
_SHOWN: Final = 3
"""Names of stale sockets in the command that removes them; the rest goes by a pattern."""


def examine_home(home: Path, user: int) -> Diagnosis:
    """Look whether this user can keep files below ``home``, and nobody else reads them."""
    existing = home
    while not os.path.lexists(existing):
        existing = existing.parent
    quoted = shlex.quote(str(existing))
    if not existing.is_dir():
        return problem("home-unwritable", f"Iris home {home}: {existing} is not a directory", "export IRIS_HOME=DIR")
    if existing == home and (finding := _not_private("home-private", "Iris home", home, user)) is not None:
        return finding
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        cause = f"Iris home {home}: user {user} cannot write to {existing}"
        remedy = "export IRIS_HOME=DIR" if existing.stat().st_uid == user else f"chown {user} {quoted}"
        return problem("home-unwritable", cause, remedy)
    return ok("home-ok", f"Iris home {home}" + ("" if existing == home else ": will be made"))


def examine_runtime(realm_id: str, environment: Mapping[str, str], user: int) -> list[Diagnosis]:
    """Look at the runtime directory of a realm: who may use it, and which sockets killed processes have left there."""
    directory, unfit = runtime_place(realm_id, environment)
    found: list[Diagnosis] = []
    if unfit:
        base = shlex.quote(environment["XDG_RUNTIME_DIR"])
        remedy = f"chmod 700 {base}" if "written to" in unfit else f"export XDG_RUNTIME_DIR=/run/user/{user}"
        found.append(warning("runtime-unfit", f"{unfit}; sockets are in {directory.parent}", remedy))
    for part in (directory.parent, directory):
        if os.path.lexists(part) and (wrong := _not_private("runtime-private", "runtime directory", part, user)):
            return [*found, wrong]
    made = next(part for part in (directory, *directory.parents) if os.path.lexists(part))
    if not os.access(made, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        cause = f"runtime directory {directory}: user {user} cannot write to {made}"
        return [*found, problem("runtime-private", cause, f"chmod u+rwx {shlex.quote(str(made))}")]
    stale = stale_sockets(directory)
    if stale:
        names = " ".join(shlex.quote(f"{directory}/{name}") + "{,.node}" for name in stale[:_SHOWN])
        cause = f"{directory}: sockets that killed processes have left: {len(stale)}; nodes that start try them in vain"
        found.append(warning("runtime-stale", cause, f"rm -f {names}"))
    if not found:
        found.append(ok("runtime-ok", f"runtime directory {directory}"))
    return found


def examine_site(realm_id: str, environment: Mapping[str, str], site: str) -> Diagnosis | None:
    """Look whether nodes of this machine are at other sites than a node that is linked to nobody."""
    others = sorted(Registry(runtime_place(realm_id, environment)[0]).sites() - {site})
    if not others:
        return None
    here, there = (f"the site {site}" if site else "no site"), ", ".join(one or "no site" for one in others)
    cause = f"no other node of this machine is at {here}; nodes are at: {there}"
    remedy = f"iris doctor --site {others[-1]}" if others[-1] else "iris doctor"
    return warning("site-empty", cause, remedy)


def stale_sockets(directory: Path) -> list[str]:
    """Return the names of the sockets in a directory at which nobody listens."""
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return []
    return [entry.name for entry in entries if stat.S_ISSOCK(_mode(entry)) and _is_refused(entry)]


def _is_refused(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:  # busy, or not ours to tell
            return False
    return False


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _not_private(
    code: Literal["home-private", "runtime-private"], what: str, path: Path, user: int
) -> Diagnosis | None:
    """Return what is wrong with a directory that is to be private to this user.

    A link of root's is followed for another user: systemd makes one for a unit with ``DynamicUser=``.
    """
    status, quoted = path.lstat(), shlex.quote(str(path))
    if stat.S_ISLNK(status.st_mode) and status.st_uid == 0 != user:
        status = path.stat()
    if stat.S_ISLNK(status.st_mode):
        return problem(code, f"{what} {path}: is a symbolic link", f"rm {quoted}")
    if status.st_uid != user:
        cause = f"{what} {path}: belongs to user {status.st_uid}, not to user {user}"
        return problem(code, cause, f"chown {user} {quoted}")
    if status.st_mode & _OTHERS:
        cause = f"{what} {path}: open to others (mode {stat.S_IMODE(status.st_mode):04o})"
        return problem(code, cause, f"chmod 700 {quoted}")
    return None
