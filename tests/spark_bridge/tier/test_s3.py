"""The tier by the S3 protocol, against moto's server in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest
import trio

from iris.kernel.errors import ConfigError
from iris.spark_bridge.errors import LogDamaged, TierUnreachable
from iris.spark_bridge.tier.storage import Storage
from tests.support.arrivals import fill, numbered, stored
from tests.support.ports import free_port
from tests.support.tiers import SECOND, local_segments, open_tiered

MISSING = [name for name in ("moto", "flask") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install -e .[test])"),
    pytest.mark.xdist_group("s3"),
]

SERVER = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of an S3 server on this machine with an empty bucket."""
    chosen = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "not a secret")
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(chosen)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            trio.run(wait_answer, chosen)
            urllib.request.urlopen(
                urllib.request.Request(f"http://127.0.0.1:{chosen}/bucket", method="PUT"), timeout=30
            ).close()
            yield chosen
        finally:
            server.kill()
            server.wait()


async def wait_answer(port: int) -> None:
    with trio.fail_after(60):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.05)
            else:
                await stream.aclose()
                return


def url(port: int, place: str) -> str:
    return f"s3://{place}?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"


async def test_a_log_goes_to_a_bucket_and_is_read_from_there(port: int, tmp_path: Path) -> None:
    place = url(port, "bucket/one")
    with open_tiered(tmp_path / "log", place) as log:
        events = fill(log.store, 30)
        await log.move_all()
        assert local_segments(tmp_path / "log") == 0
        assert stored(log.store) == events
        storage = Storage(place)
        (state,) = log.store.shards()
        folder = f"bridge/shard={state.id}"
        names = storage.names(folder)
        assert names == [found.name for found in log.store.tiering.objects(0)]
        assert len(storage.names(f"{folder}/_manifest")) == 2, "the last one, and the one before"
        log.store.retainer.trim(0, log.store.tiering.objects(0)[0].end)
        await log.move()
        assert storage.names(folder) == names[1:]
    with open_tiered(tmp_path / "log", place, writer=1) as log:
        log.store.appender.append({0: numbered(1, 10)}, now=SECOND)
        await log.move_all()
        assert stored(log.store)[-11:] == [events[-1], *(b"%d" % number for number in range(1, 11))]


async def test_objects_that_are_cut_off_or_missing_are_named(port: int, tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", url(port, "bucket/two")) as log:
        fill(log.store, 30)
        await log.move_all()
        (state,) = log.store.shards()
        first = log.store.tiering.objects(0)[0]
        path = f"two/bridge/shard={state.id}/{first.name}"
        file_system, bucket = pafs.FileSystem.from_uri(url(port, "bucket"))
        with file_system.open_input_file(f"{bucket}/{path}") as file:
            data = file.read()
        with file_system.open_output_stream(f"{bucket}/{path}") as stream:
            stream.write(data[:-100])
        with pytest.raises(LogDamaged, match=f"has {len(data) - 100} bytes, and had {len(data)}"):
            stored(log.store)
        file_system.delete_file(f"{bucket}/{path}")
        with pytest.raises(LogDamaged, match="is missing"):
            stored(log.store)


async def test_a_bucket_that_is_not_there_is_unreachable(port: int, tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", url(port, "nobody/three")) as log:
        events = fill(log.store, 30)
        with pytest.raises(TierUnreachable, match=r"s3://nobody/three.* does not answer, or refuses"):
            await log.move()
        log.leave()
        assert stored(log.store) == events


def test_an_option_that_pyarrow_does_not_know_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="is no URL: Unexpected query parameter"):
        Storage("s3://bucket/x?colour=red").open()


@pytest.mark.long
async def test_a_server_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    """Several seconds, in which AWS's client tries again."""
    with open_tiered(tmp_path / "log", url(free_port(), "bucket/four")) as log:
        events = fill(log.store, 30)
        with pytest.raises(TierUnreachable, match="does not answer, or refuses"):
            await log.move()
        log.leave()
        assert stored(log.store) == events
