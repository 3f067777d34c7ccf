"""A standalone Spark cluster on this machine: a master and workers, each a process."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from iris.spark_bridge.session.java import find_java
from tests.support.processes import Child

LIGHT: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For Java machines that live for minutes: optimizing costs more than it brings."""


@final
class SparkCluster:
    """A running cluster.

    Attributes:
        url: what ``master()`` of a session builder takes.
        marker: a Java option that only executors of this cluster's applications have, see ``settings``.
    """

    def __init__(self, url: str, marker: str) -> None:
        self.url = url
        self.marker = marker

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a session with small executors that ``executors`` finds."""
        return {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": f"{LIGHT} {self.marker}",
            "spark.driver.extraJavaOptions": LIGHT,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }

    def executors(self) -> list[int]:
        """Return the executors that are running now."""
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                arguments = path.read_bytes().split(b"\0")
                if self.marker.encode() in arguments and arguments[0].endswith(b"java"):
                    found.append(int(path.parent.name))
        return sorted(found)


@contextlib.contextmanager
def open_cluster(directory: Path, *, workers: int = 2) -> Iterator[SparkCluster]:
    """Run a cluster until the block ends.  Its workers may still be starting when the block begins: Spark waits.

    Without workers there is no cluster: the driver does all by itself.
    """
    if not workers:
        yield SparkCluster("local[2]", "")
        return
    import pyspark

    home = Path(pyspark.__file__).parent
    java = find_java()
    environment = {
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",
    }
    # What spark-class would start, after a Java machine of its own has found out how.
    program = (
        *(str(java / "bin" / "java"), "-cp", f"{home / 'jars'}/*", "-Xmx256m", *LIGHT.split()),
        # An application whose executors are killed on purpose is not given up.
        "-Dspark.deploy.maxExecutorRetries=-1",
    )
    common = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        master = Child(
            (*program, "org.apache.spark.deploy.master.Master", *common),
            ready="Starting Spark master at spark://",
            log=directory / "master.txt",
            environment=environment,
        )
        stack.callback(master.end)
        found = re.search(r"spark://\S+", master.start())
        assert found is not None
        for number in range(workers):
            place = directory / f"worker-{number}"
            command = (
                *(*program, "org.apache.spark.deploy.worker.Worker", *common, "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(place), found.group()),
            )
            worker = Child(
                command,
                ready="Successfully registered with master",
                log=directory / f"worker-{number}.txt",
                environment=environment,
            )
            stack.callback(worker.end)
            worker.launch()
        yield SparkCluster(found.group(), f"-Diris.run={os.getpid()}-{directory.name}")
