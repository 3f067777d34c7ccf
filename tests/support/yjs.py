"""Yjs for a page, as ES modules that a test serves itself: packed by npm, out of its cache if it has them."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

PACKAGES = ("yjs@13", "lib0@0.2")

PAGE = """<!doctype html>
<title>Document</title>
<script type="importmap">{imports}</script>
"""


def lay_out(folder: Path) -> None:
    """Put a page into a folder in which ``import("yjs")`` works; skip the test where the packages cannot be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, which has Yjs: apt install npm")
    packed = subprocess.run(
        [npm, "pack", "--prefer-offline", "--silent", *PACKAGES],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if packed.returncode:
        pytest.skip(f"npm has no Yjs, neither in its cache nor from its registry: {packed.stderr.strip()[-200:]}")
    imports = {"yjs": "/yjs/package/dist/yjs.mjs"}
    for archive in folder.glob("*.tgz"):
        name = archive.name.split("-")[0]
        with tarfile.open(archive) as packet:
            packet.extractall(folder / name, filter="data")
    for module in (folder / "lib0" / "package").glob("*.js"):
        imports[f"lib0/{module.stem}"] = f"/lib0/package/{module.name}"
    (folder / "index.html").write_text(PAGE.format(imports=json.dumps({"imports": imports})))
