"""Private files: files and directories that hold secrets and that only their owner may read; mounted secrets too.

Refused, with one line that says how to mend it: a file that others can read, that belongs to somebody else, or that
is reached through a symbolic link (links that only root could have made are followed: /tmp on some systems is one).
Written whole or not at all: to a fresh file of mode 0600 beside it, synced, then renamed.

A *mounted secret* is what root has put before this program alone, and what this program cannot change:

- Kubernetes, Docker Swarm and systemd: a file on a read-only mount in memory (tmpfs or ramfs).  It may belong to root
  or to this user, be readable by all, and be a link of root's.
- Docker Compose and Podman: a file that is a read-only mount by itself.  Only who may mount has named this very file,
  so it may belong to anybody and be readable by all: who reads it outside, the directory around it decides, which is
  not seen here.

Nobody but its owner may write to it.  Elsewhere such a file is refused: a temporary directory in memory is not mounted
read-only, a read-only disk is there for all users, and so is the memory of the whole machine (``/run``, ``/tmp``),
which systemd mounts read-only for a unit with ``ProtectSystem=strict``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shlex
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from iris.kernel.errors import ConfigError
from iris.kernel.tasks import close_locked, try_lock

MAX_FILE: Final = 1024 * 1024
"""Limit in bytes on a private file that is read; a revocation list of 4,096 entries takes a third of it."""

LOCK_PATIENCE: Final = 30.0
"""Seconds that a lock is waited for.  What is done under one takes milliseconds, but where a hundred processes start at
once on two slow processors, each after the other, that is seconds."""

_LOCK_PAUSE: Final = 0.01
"""Seconds between two attempts: ``flock`` waits without a limit or not at all."""

_OTHERS: Final = 0o077
_WRITABLE: Final = 0o022

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_MOUNTS: Final = Path("/proc/self/mountinfo")
_DESCRIPTORS: Final = Path("/proc/self/fdinfo")
_OF_THE_MACHINE: Final = re.compile(r"/|/dev/shm|/run|/run/lock|/run/user/\d+|/tmp|/var/tmp")
"""Where a file system in memory is that of all programs of the machine, or of all of a user."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
"""Blanks and backslashes in ``mountinfo``."""

_SWAPS: Final = 5
"""Attempts to open what a link leads to: Kubernetes replaces all files of a secret at once, by a link in between."""
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@final
class LockHeld(ConfigError):
    """Another process has held a lock for too long; later it may be free."""


@final
class UnreadableFile(ConfigError):
    """A file could not be opened or read; later it may be, though nobody has written to it."""


@final
class FileLook:
    """Tells when a file is to be read again: it was replaced, changed or given other rights, or could not be read.

    Args:
        path: the path of the file, which is read next.
    """

    __slots__ = ("_again", "_path", "_reported", "_seen")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._state()
        self._again = False
        """True if the file could not be read the last time."""
        self._reported = ""

    def is_due(self) -> bool:
        """Return whether to read it now."""
        state = self._state()
        if state == self._seen and not self._again:
            return False
        self._seen, self._again = state, False
        return True

    def failed(self, error: ConfigError) -> bool:
        """Note that it was of no use; return whether that is news, and not the same as the last time."""
        self._again = isinstance(error, UnreadableFile)
        reported, self._reported = self._reported, str(error)
        return not self._again or reported != self._reported

    def note(self) -> None:
        """Take the file as it is now for one that has been read: this process has just written it."""
        self._seen, self._again = self._state(), False

    def _state(self) -> tuple[int, int, int, int] | None:
        try:
            status = self._path.stat()
        except (OSError, ValueError):  # of what is wrong with it who reads it tells
            return None
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def read_private(path: Path, what: str, *, mounted: bool = False) -> bytes:
    """Return the content of a file that only this user can read.

    Args:
        path: the path of the file.
        what: names it in errors.
        mounted: take a mounted secret, too.

    Raises:
        ConfigError: it is missing, too large, not a plain file, or not private; the message says how to mend it.
            ``UnreadableFile``: the system does not let it be opened or read.
    """
    linked = _check_links(path, what, end=mounted)
    descriptor = _open_private(path, what, linked=linked)
    try:
        # Of the open file and not of the path: a user who may write the directory can put another file there meanwhile.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{what} {path}: not a plain file")
        mount = mount_of(descriptor) if mounted else None
        if mount is not None and mount.is_read_only and _is_alone(mount, path, linked=linked):
            _check_mounted(path, status, what, owners=None)
        elif mount is not None and mount.is_read_only and mount.is_apart_in_memory:
            _check_mounted(path, status, what, owners=(0, os.geteuid()))
        elif linked:
            raise ConfigError(_symlink(path, what))
        else:
            _check_private(path, status, what, "600", mount=mount)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise UnreadableFile(f"{what} {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE:
        raise ConfigError(f"{what} {path}: larger than {MAX_FILE} bytes")
    return data


def _open_private(path: Path, what: str, *, linked: bool) -> int:
    """Open a file; if it is a link, what that leads to now."""
    for attempt in range(_SWAPS):
        try:
            return os.open(os.path.realpath(path) if linked else path, _READ)
        except OSError as error:
            if linked and error.errno == errno.ENOENT and attempt + 1 < _SWAPS:
                continue  # Kubernetes has put another version in its place
            if error.errno == errno.ELOOP:
                raise ConfigError(_symlink(path, what)) from None
            by = f" to user {os.geteuid()}" if error.errno == errno.EACCES else ""
            raise UnreadableFile(f"{what} {path}: {error.strerror}{by}") from None
    raise AssertionError("the last attempt returns or raises")


def write_private(path: Path, data: bytes, what: str, *, replace: bool = True) -> None:
    """Write a file of mode 0600, whole or not at all, and sync it to disk.

    Raises:
        ConfigError: it cannot be written, or exists and ``replace`` is False.
    """
    with prepared_private(path, data, what, replace=replace):
        pass


@contextmanager
def prepared_private(path: Path, data: bytes, what: str, *, replace: bool = True) -> Generator[None]:
    """Write a file of mode 0600 beside its place, and put it there when the block has ended without an error.

    For what must not be there before something else has been done, which must not be done if it could not be written.

    Raises:
        ConfigError: it cannot be written, in which case the block does not begin; or it exists at the end, and
            ``replace`` is False.
    """
    _check_links(path, what)
    draft = path.with_name(f".{path.name[:64]}.{secrets.token_hex(8)}")
    try:
        with _explained(path, what):
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
        yield
        with _explained(path, what):
            # From here on everybody reads the new content.  It was synced before, so that after a crash there is the
            # old file or the new one, and never an empty one.
            if replace:
                draft.replace(path)
            else:
                os.link(draft, path)  # unlike a rename, it fails where something is
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    with _explained(path, what):
        _sync_directory(path.parent)


@contextmanager
def _explained(path: Path, what: str) -> Generator[None]:
    try:
        yield
    except FileExistsError:
        raise ConfigError(f"{what} {path}: exists already; choose another path or remove it first") from None
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be written: {error.strerror}") from None


def make_private_directory(path: Path, what: str, instead: str = "") -> Path:
    """Make a directory of mode 0700, and what is missing above it; return it.

    Args:
        path: the path of the directory.
        what: names it in errors.
        instead: the remedy to name if somebody else has made it, where anybody can.

    Raises:
        ConfigError: it cannot be made, or it exists and is not private to this user.
    """
    # Its end may be a link if root has made it for another user, as systemd does for a unit with DynamicUser=.
    _check_links(path, what, end=os.geteuid() != 0)
    try:
        make_directories(path)
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{what} {path}: not a directory; move away what stands there")
    _check_private(path, status, what, "700", instead)
    return path


def make_directories(path: Path) -> None:
    """Make a directory, and what is missing above it, each of mode 0700 whatever the umask; others stay as they are.

    Raises:
        OSError: it cannot be made.
    """
    for directory in reversed((path, *path.parents)):
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)  # parents=True would make those above with the mode of the umask


@contextmanager
def locked(path: Path, what: str, patience: float = LOCK_PATIENCE) -> Generator[None]:
    """Hold a lock that one process at a time has; it ends with the process, however that ends.

    Blocks the thread while another process holds it: for critical sections of milliseconds.  A process that is stopped
    in its own keeps the lock, and must not stop all others.

    Args:
        path: the path of the lock file.
        what: names it in errors.
        patience: seconds that it is waited for.

    Raises:
        ConfigError: the lock file cannot be made, or another process holds the lock for longer.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from None
    try:
        _acquire(descriptor, path, what, patience)
        yield
    finally:
        close_locked(descriptor)


def _acquire(descriptor: int, path: Path, what: str, patience: float) -> None:
    until = time.monotonic() + patience
    while True:
        try:
            try_lock(descriptor)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise LockHeld(
                    f"{what} {path}: another process has held this lock for {patience:g} s: see which one it is "
                    "('fuser' tells), and end it"
                ) from None
        except OSError as error:  # a file system without locks
            raise ConfigError(f"{what} {path}: cannot be locked: {error.strerror}") from None
        else:
            return
        time.sleep(_LOCK_PAUSE)


def _check_links(path: Path, what: str, *, end: bool = False) -> bool:
    """Refuse a path with a symbolic link in it that anybody but root has made.

    Args:
        path: the path.
        what: names it in errors.
        end: True if its end may be a link of root's, too.

    Returns:
        Whether its end is one.
    """
    linked = False
    for part in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):
            status = part.lstat()
            if stat.S_ISLNK(status.st_mode):
                linked = linked or part == path
                if status.st_uid != 0 or (part == path and not end):
                    raise ConfigError(_symlink(part, what))
    return linked


@final
class _Mount:
    """The mount through which a file was opened.

    Args:
        kind: type of its file system.
        point: the path where it is.
        is_read_only: True if nothing on it can be changed through it.
    """

    __slots__ = ("is_apart_in_memory", "is_in_memory", "is_read_only", "point")

    def __init__(self, kind: str, point: str, *, is_read_only: bool) -> None:
        self.point = point
        self.is_read_only = is_read_only
        self.is_in_memory = kind in _IN_MEMORY
        self.is_apart_in_memory = self.is_in_memory and _OF_THE_MACHINE.fullmatch(point) is None
        """True if it is in memory, and none that is there for all programs of a machine."""


def mount_of(descriptor: int) -> _Mount | None:
    """Return the mount through which a file was opened; None where that cannot be known (other systems than Linux)."""
    try:
        opened = (_DESCRIPTORS / str(descriptor)).read_text()
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return None
    number = re.search(r"^mnt_id:\s*(\d+)$", opened, re.MULTILINE)
    for line in mounts.splitlines():
        # proc(5): 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        fields, _, source = line.partition(" - ")
        parts = fields.split(" ")
        if number is not None and parts[0] == number[1] and len(parts) > 5:
            point = _ESCAPED.sub(lambda digits: chr(int(digits[1], 8)), parts[4])
            # Of the file system or of this mount of it: either keeps this program from writing.
            read_only = bool(os.fstatvfs(descriptor).f_flag & os.ST_RDONLY)
            return _Mount(source.partition(" ")[0], point, is_read_only=read_only)
    return None


def _is_alone(mount: _Mount, path: Path, *, linked: bool) -> bool:
    """Return whether a file is a mount by itself, and not in a directory that is mounted."""
    return not linked and mount.point == os.path.realpath(path)


def _check_mounted(path: Path, status: os.stat_result, what: str, owners: tuple[int, int] | None) -> None:
    """Check a mounted secret: all that is left is who else could write to it elsewhere.

    Args:
        owners: users that it may belong to; None: any.
    """
    user = os.geteuid()
    if owners is not None and status.st_uid not in owners:
        raise ConfigError(
            f"{what} {path}: a mounted secret that belongs to user {status.st_uid}: mount it so that it belongs to "
            f"root or to user {user}"
        )
    if status.st_mode & _WRITABLE:
        raise ConfigError(
            f"{what} {path}: a mounted secret that others can write to (mode {stat.S_IMODE(status.st_mode):04o}): "
            "mount it with mode 0400, 0440 or 0444"
        )


def _check_private(
    path: Path, status: os.stat_result, what: str, mode: str, instead: str = "", *, mount: _Mount | None = None
) -> None:
    user = os.geteuid()
    quoted = shlex.quote(str(path))
    if status.st_uid == user and not status.st_mode & _OTHERS:
        return
    if mount is not None and mount.is_read_only:
        raise ConfigError(
            f"{what} {path}: of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}, on a read-only "
            "mount that may be there for others, too: mount the file by itself, mount it as a secret (of Kubernetes, "
            f"of a Docker service, by LoadCredential= of systemd), or copy it to a file of user {user} with mode 0400 "
            "before the program starts"
        )
    if mount is not None and mount.is_apart_in_memory:
        raise ConfigError(
            f"{what} {path}: of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}, in memory that "
            f"others write to: have it written for user {user} alone, with mode 0400 (Vault's injector: "
            f'annotations vault.hashicorp.com/agent-run-as-same-user: "true" and '
            f'vault.hashicorp.com/agent-inject-perms-{path.name}: "0400"; Vault\'s agent: user and perms in its '
            "template)"
        )
    if status.st_uid != user:
        belongs = f"{what} {path}: belongs to user {status.st_uid}, not to user {user}"
        if _anybody_writes(path.parent):
            raise ConfigError(
                f"{belongs}, and anybody could have put it there: do not take it over; "
                f"{instead or 'use another path'}, or have root remove it: rm -r {quoted}"
            )
        raise ConfigError(f"{belongs}: run as root: chown {user} {quoted}")
    raise ConfigError(
        f"{what} {path}: open to others (mode {stat.S_IMODE(status.st_mode):04o}): run: chmod {mode} {quoted}"
    )


def _anybody_writes(directory: Path) -> bool:
    try:
        return bool(directory.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _symlink(path: Path, what: str) -> str:
    return f"{what} {path}: is a symbolic link: give the real path, {os.path.realpath(path)}"


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
