"""Packages of Spark that its Python distribution lacks: the one place that says which versions tests run with.

That of Avro comes from Maven Central, and is known by its hash.  That of Protobuf is not everywhere to be had: tests of
it run where Maven has fetched it before.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

_CENTRAL: Final = "https://repo1.maven.org/maven2/org/apache/spark"
AVRO: Final = ("spark-avro_2.13", "4.2.0", "4c186cedc03cbe4ee356a94b32232b347ef48611c3209400b3a77e4fe4abff4f")
"""The newest there; it runs with Spark 4.3."""
PROTOBUF: Final = ("spark-protobuf_2.13", "4.2.0")


def spark_packages() -> list[Path]:
    """Return the files of the packages that are on this machine, or can be fetched."""
    name, version = PROTOBUF
    local = Path.home() / ".m2/repository/org/apache/spark" / name / version / f"{name}-{version}.jar"
    return [file for file in (_fetched(*AVRO), local) if file is not None and file.exists()]


def _fetched(name: str, version: str, sha256: str) -> Path | None:
    file = Path(tempfile.gettempdir()) / f"iris-tests-{os.getuid()}" / f"{name}-{version}.jar"
    if not file.exists():
        try:
            with urllib.request.urlopen(f"{_CENTRAL}/{name}/{version}/{file.name}", timeout=20) as answer:
                data = answer.read()
        except OSError:
            return None
        file.parent.mkdir(mode=0o700, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(data)
        part.rename(file)
    if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        raise AssertionError(f"{file} is not what was pinned")
    return file
