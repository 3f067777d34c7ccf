"""Shims: directories with one program in ``bin``, a script that starts the real program in another way."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from iris.kernel.errors import ConfigError
from iris.security.files import make_directories


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return where the user's shims are."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "iris"


def make_shim(cache: Path, program: str, script: str) -> Path:
    """Return a directory whose ``bin/<program>`` is the script; one for each text, kept in the cache directory.

    Several processes may do this at once: the shim is made aside and moved into its place in one step.

    Raises:
        ConfigError: the cache directory cannot be written, or others can change what is in it.
    """
    shim = cache / f"{program}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        make_directories(cache)
        _check_own(cache)
        if _is_made(shim, program, script):
            return shim
        aside = Path(tempfile.mkdtemp(prefix=f"{program}-", dir=cache))
        try:
            (aside / "bin").mkdir(mode=0o755)
            (aside / "bin" / program).write_text(script)
            (aside / "bin" / program).chmod(0o755)
            aside.rename(shim)
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
            if not _is_made(shim, program, script):  # unless another process was faster
                raise
    except OSError as error:
        raise ConfigError(f"cannot write to the cache directory {cache}: {error.strerror}") from None
    return shim


def _check_own(cache: Path) -> None:
    """Check that no other user can change the programs that are started from there."""
    status = cache.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()) or mode & 0o022:
        raise ConfigError(
            f"cache directory {cache}: others can change the programs in it (of user {status.st_uid}, mode "
            f"{mode:04o}): set XDG_CACHE_HOME to a directory of this user with mode 0700"
        )


def _is_made(shim: Path, program: str, script: str) -> bool:
    path = shim / "bin" / program
    return os.access(path, os.X_OK) and path.read_text() == script
