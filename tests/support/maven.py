"""Jars that Maven fetches once for each user of a machine, into a folder that the tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>iris.tests</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def fetch_jars(name: str, artifacts: Sequence[str], *, alone: bool = False) -> Path | None:
    """Return a folder of jars, which are fetched where they are not there yet; None: they are not to be had.

    Args:
        name: name of the folder; another one for other artifacts.
        artifacts: each as ``GROUP:NAME:VERSION``.
        alone: True for these alone, without what they depend on.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "iris-tests"
    folder = cache / name
    if folder.is_dir():
        return folder
    if shutil.which("mvn") is None:
        return None
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as part:
        (Path(part) / "pom.xml").write_text(_POM.format("".join(_dependency(one, alone) for one in artifacts)))
        copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"]
        if subprocess.run(copy, cwd=part, capture_output=True, check=False).returncode:
            return None
        try:
            (Path(part) / "jars").rename(folder)
        except OSError:  # another process was faster
            return folder if folder.is_dir() else None
    return folder


def _dependency(artifact: str, alone: bool) -> str:
    group, name, version = artifact.split(":")
    named = f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
    return f"<dependency>{named}{_ALONE if alone else ''}</dependency>"
