"""Build backend: setuptools, whose wheels and sdists come out the same, bit by bit, wherever the same source is built.

Setuptools writes the date of each file, its owner and what a umask has left of its mode into what it builds.  Here all
files have one date, no owner, and the modes 0644 or 0755.  ``SOURCE_DATE_EPOCH`` names another date.

An sdist is what git has of the tree, with the links at its root, and ``PKG-INFO``.  In a tree without git, such as an
unpacked sdist, it is what is there.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, Final

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, Any] | None

DATE: Final = int(os.environ.get("SOURCE_DATE_EPOCH", "1580601600"))
"""The date of every file: 2020-02-02, after the first that a zip archive can have."""

MADE: Final = ("build", "dist", "htmlcov", "spark-warehouse", "metastore_db", "PKG-INFO")
"""Names at the root, besides those that begin with a dot, that are made of the source."""


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build the wheel; see PEP 517."""
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    file = Path(wheel_directory, name)
    written = io.BytesIO()
    with zipfile.ZipFile(file) as wheel, zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as uniform:
        for former in wheel.infolist():
            entry = zipfile.ZipInfo(former.filename, time.gmtime(DATE)[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix: the upper half of the attributes is a mode
            entry.external_attr = (stat.S_IFREG | _mode(former.external_attr >> 16)) << 16
            uniform.writestr(entry, wheel.read(former))
    file.write_bytes(written.getvalue())
    return name


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build the sdist; see PEP 517."""
    with tempfile.TemporaryDirectory() as directory:
        metadata = Path(directory, build_meta.prepare_metadata_for_build_wheel(directory, config_settings))
        described = (metadata / "METADATA").read_bytes()
        name = metadata.stem
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(source_files(Path())):
            _add(archive, f"{name}/{path}", path)
        entry = _entry(f"{name}/PKG-INFO")
        entry.size = len(described)
        archive.addfile(entry, io.BytesIO(described))
    with (
        Path(sdist_directory, f"{name}.tar.gz").open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=DATE) as compressed,
    ):
        compressed.write(written.getvalue())
    return f"{name}.tar.gz"


def source_files(root: Path) -> list[Path]:
    """Return the files and links of the source, relative to its root."""
    if (root / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True)
        tracked = (Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name)
        return [path for path in tracked if os.path.lexists(root / path)]
    found: list[Path] = []
    for directory, folders, files in os.walk(root):
        here = Path(directory).relative_to(root)
        if here == Path():
            folders[:] = [name for name in folders if _is_source(name)]
            files = [name for name in files if _is_source(name)]  # noqa: PLW2901 -- the same, without what is made
        folders[:] = [name for name in folders if name != "__pycache__"]
        links = [name for name in folders if (root / here / name).is_symlink()]
        found += [here / name for name in (*files, *links)]
    return found


def _is_source(name: str) -> bool:
    made = name in MADE or name.endswith(".egg-info")
    return not made and (not name.startswith(".") or name in (".ci", ".gitignore"))


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    entry = _entry(name)
    if path.is_symlink():
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
        archive.addfile(entry)
        return
    entry.mode, entry.size = _mode(path.stat().st_mode), path.stat().st_size
    with path.open("rb") as file:
        archive.addfile(entry, file)


def _entry(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mtime, entry.mode = DATE, 0o644
    return entry


def _mode(mode: int) -> int:
    return 0o755 if mode & stat.S_IXUSR else 0o644
