"""Shipments to workers that have no Iris: a folder as ``pip install --target`` makes it, and its archive."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("trio", "pyarrow", "lmdb", "zlib-ng")
"""Besides what Iris needs by itself."""


def _with_requirements(names: Iterable[str], found: set[str]) -> set[str]:
    for name in names:
        if name in found:
            continue
        try:
            requirements = distribution(name).requires or ()
        except PackageNotFoundError:
            continue
        found.add(name)
        plain = [text for text in requirements if "extra ==" not in text]
        _with_requirements((re.split(r"[ ;<>=!~\[(]", text, maxsplit=1)[0] for text in plain), found)
    return found


def make_folder(folder: Path) -> Path:
    """Copy Iris, and what it needs on workers, from this environment into a new folder."""
    for name in sorted(_with_requirements((*NEEDED, "iris-mesh"), set()) - {"iris-mesh"}):
        for file in distribution(name).files or ():
            source = Path(str(file.locate()))
            if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder / file)
    shutil.copytree(ROOT / "iris", folder / "iris", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def make_archive(folder: Path) -> Path:
    """Pack a folder as ``--archives`` takes it."""
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        for entry in sorted(folder.iterdir()):
            archive.add(entry, entry.name)
    return path
