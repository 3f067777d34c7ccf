"""Real Kafka brokers of a test's own, on loopback.

Maven fetches the brokers' jars once for each user of a machine.  Each broker is a controller, too, so three of them go
on when one is killed.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

import pytest
from confluent_kafka import KafkaException, Message
from confluent_kafka import admin as administration
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.maven import fetch_jars
from tests.support.ports import free_port
from tests.support.processes import freeze

VERSION: Final = "4.1.1"
INSTALL: Final = "Kafka's brokers are not to be had: apt install maven default-jre-headless"

_CLASSES: Any = administration  # which does not say that these are for others

_READY: Final = 240.0
"""Seconds that a broker may take to start: this much only where others use the machine, too."""

_JAVA: Final = ("java", "-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Small and quick to start: a broker of a test lives for seconds."""


def find_jars() -> Path | None:
    """Return the folder of the brokers' jars; None: they are not to be had, or there is no Java."""
    if shutil.which("java") is None:
        return None
    return fetch_jars(f"kafka-{VERSION}", [f"org.apache.kafka:kafka_2.13:{VERSION}"])


@final
class KafkaCluster:
    """Brokers 1 to ``brokers``, each of which can be killed, stopped, frozen and started again.

    Args:
        jars: folder of their jars.
        directory: where they have their logs.
        brokers: how many.
    """

    def __init__(self, jars: Path, directory: Path, brokers: int) -> None:
        self._jars = jars
        self._directory = directory
        self._ports = {number: free_port() for number in range(1, brokers + 1)}
        self._controllers = {number: free_port() for number in self._ports}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._cluster = "iris-kafka-of-tests-00"  # 22 characters, as those that Kafka makes

    @property
    def brokers(self) -> Sequence[int]:
        """Numbers of all brokers, whether they run or not."""
        return tuple(self._ports)

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, as clients take them."""
        return ",".join(map(self._address, self._ports))

    @property
    def running(self) -> Sequence[int]:
        """Numbers of the brokers whose processes run."""
        return tuple(number for number, process in self._processes.items() if process.poll() is None)

    def _address(self, number: int) -> str:
        return f"127.0.0.1:{self._ports[number]}"

    def admin(self) -> AdminClient:
        """Return a new client for administration."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500})

    def start(self, *numbers: int) -> None:
        """Start brokers, none being all; return when each has its part in the cluster."""
        for number in numbers or self._ports:
            self._launch(number)
        for number in numbers or self._ports:
            self._wait_ready(number)

    def _launch(self, number: int) -> None:
        folder = self.directory(number)
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "data"
        if not data.exists():
            data.mkdir()
            # What kafka-storage.sh writes; another start of Java takes a second.
            meta = f"version=1\ncluster.id={self._cluster}\nnode.id={number}\n"
            (data / "meta.properties").write_text(meta)
        properties = folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings(number, data).items()))
        with (folder / "out").open("ab") as out:
            self._processes[number] = subprocess.Popen(
                [*_JAVA, "-cp", f"{self._jars}/*", "kafka.Kafka", str(properties)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def _settings(self, number: int, data: Path) -> dict[str, object]:
        copies = min(3, len(self._ports))
        return {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": ",".join(f"{one}@127.0.0.1:{at}" for one, at in self._controllers.items()),
            "listeners": f"PLAINTEXT://{self._address(number)},CONTROLLER://127.0.0.1:{self._controllers[number]}",
            "advertised.listeners": f"PLAINTEXT://{self._address(number)}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": data,
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": min(2, copies),
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": min(2, copies),
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "num.network.threads": 1,
            "num.io.threads": 2,
            "background.threads": 1,
            "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
            "log.cleaner.backoff.ms": 200,
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 3000,
            "controller.quorum.election.timeout.ms": 500,
            "controller.quorum.fetch.timeout.ms": 1000,
            "controlled.shutdown.enable": "true",
        }

    def _wait_ready(self, number: int) -> None:
        client = AdminClient(
            {"bootstrap.servers": self._address(number), "log_level": 0, "reconnect.backoff.max.ms": 200}
        )
        end = time.monotonic() + _READY
        while time.monotonic() < end:
            if self._processes[number].poll() is not None:
                break
            try:
                if number in client.list_topics(timeout=1.0).brokers:
                    return
            except KafkaException:
                continue  # it has waited for a second
        out = (self.directory(number) / "out").read_text(errors="replace")
        raise AssertionError(f"broker {number} does not start: {out[-3000:]}")

    def kill(self, number: int) -> None:
        """End a broker without a chance to say goodbye."""
        self._end(number, signal.SIGKILL)

    def stop(self, number: int) -> None:
        """End a broker in order."""
        self._end(number, signal.SIGTERM)

    def freeze(self, number: int) -> None:
        """Let a broker do nothing until ``thaw``; its connections stay."""
        freeze(self._processes[number])

    def thaw(self, number: int) -> None:
        """Let a frozen broker go on."""
        self._processes[number].send_signal(signal.SIGCONT)

    def directory(self, number: int) -> Path:
        """Return where a broker has all that it keeps."""
        return self._directory / str(number)

    def _end(self, number: int, how: signal.Signals) -> None:
        process = self._processes.pop(number)
        process.send_signal(how)
        process.wait()

    def close(self) -> None:
        """Kill all."""
        for number in [*self._processes]:
            self.kill(number)

    def wait_in_sync(self, topic: str) -> None:
        """Wait until all brokers are in-sync replicas of each partition of a topic."""
        admin = self.admin()
        end = time.monotonic() + _READY
        while time.monotonic() < end:
            with contextlib.suppress(KafkaException):
                partitions = admin.list_topics(topic, timeout=5).topics[topic].partitions.values()
                if partitions and all(len(one.isrs) == len(self._ports) for one in partitions):
                    return
            time.sleep(0.1)
        raise AssertionError(f"a broker is out of step with topic {topic!r}")

    def create_topic(self, name: str, partitions: int = 1, **settings: object) -> None:
        """Make a topic of as many copies as there are brokers, up to three.

        Args:
            name: name of the topic.
            partitions: how many it has.
            settings: of the topic, with ``_`` where Kafka has a dot: ``min_insync_replicas=2``.
        """
        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        topic = NewTopic(name, partitions, min(3, len(self._ports)), config=config)
        admin: Any = self.admin()  # with it goes what it is asked
        admin.create_topics([topic], operation_timeout=30)[name].result(60)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all that is in it; return when no broker that answers knows it."""
        admin: Any = self.admin()
        admin.delete_topics([name], operation_timeout=30)[name].result(60)
        while name in admin.list_topics(timeout=10).topics:
            time.sleep(0.05)

    def configure_topic(self, name: str, **settings: object) -> None:
        """Set these of a topic, likewise."""
        entries = [
            _CLASSES.ConfigEntry(
                key.replace("_", "."), str(value), incremental_operation=_CLASSES.AlterConfigOpType.SET
            )
            for key, value in settings.items()
        ]
        resource = _CLASSES.ConfigResource(_CLASSES.ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        admin: Any = self.admin()
        admin.incremental_alter_configs([resource])[resource].result(60)


@contextmanager
def open_kafka(brokers: int = 1) -> Iterator[KafkaCluster]:
    """Run brokers in the block; skip the test, and say what to install, where that is not possible."""
    jars = find_jars()
    if jars is None:
        pytest.skip(INSTALL)
    directory = Path(tempfile.mkdtemp(prefix="iris-kafka-"))
    cluster = KafkaCluster(jars, directory, brokers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(directory, ignore_errors=True)


def headers_of(message: Message) -> dict[str, bytes]:
    """Return the headers of a record; none of them may be null."""
    pairs: Any = message.headers() or ()
    return {str(name): bytes(text) for name, text in pairs}
