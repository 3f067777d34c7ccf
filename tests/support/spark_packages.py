"""Packages of Spark that its Python distribution lacks: the one place that says which versions tests run with.

Maven fetches them, once for each user of a machine.  That of Avro is known by its hash.  That of Protobuf is not
everywhere to be had: tests of it run where Maven finds it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.support.maven import fetch_jars

AVRO: Final = ("spark-avro_2.13", "4.2.0", "4c186cedc03cbe4ee356a94b32232b347ef48611c3209400b3a77e4fe4abff4f")
"""The newest there; it runs with Spark 4.3."""
PROTOBUF: Final = ("spark-protobuf_2.13", "4.2.0")
KAFKA: Final = (
    *(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.2.0",
    ),
    *("org.apache.kafka:kafka-clients:4.1.1", "org.apache.commons:commons-pool2:2.12.1"),
)
"""Spark's Kafka source and what it needs: the newest there, too."""


def kafka_source() -> list[Path]:
    """Return the files of Spark's Kafka source; none, if it is not to be had."""
    folder = fetch_jars("spark-kafka-4.2.0", KAFKA, alone=True)
    return [] if folder is None else sorted(folder.glob("*.jar"))


def spark_packages() -> list[Path]:
    """Return the files of the packages that are on this machine, or can be fetched."""
    name, version = PROTOBUF
    local = Path.home() / ".m2/repository/org/apache/spark" / name / version / f"{name}-{version}.jar"
    return [file for file in (_fetched(*AVRO), local) if file is not None and file.exists()]


def _fetched(name: str, version: str, sha256: str) -> Path | None:
    folder = Path(tempfile.gettempdir()) / f"iris-tests-{os.getuid()}"
    file = folder / f"{name}-{version}.jar"
    if not file.exists():
        if shutil.which("mvn") is None:
            return None
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as part:
            copy = f"-Dartifact=org.apache.spark:{name}:{version}", f"-DoutputDirectory={part}"
            done = subprocess.run(["mvn", "-q", "-B", "dependency:copy", *copy], capture_output=True, check=False)
            if done.returncode:
                return None
            (Path(part) / file.name).rename(file)
    if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        raise AssertionError(f"{file} is not what was pinned")
    return file
