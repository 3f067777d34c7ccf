"""Children of a fork keep none of what their parent has locked, whether that goes on, ends, or dies."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.kernel.transport import listener
from iris.node.open import open_parts
from iris.security.files.private_files import locked
from iris.spark_bridge.errors import StoreBusy
from iris.spark_bridge.log import open_store
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network
from tests.support.forks import bare_fork, forked


def test_the_log_of_a_bridge_is_free_when_it_has_ended_beside_a_child(tmp_path: Path) -> None:
    store = open_store(tmp_path / "log", shards=(0,), entropy=os.urandom)
    with forked():
        with pytest.raises(StoreBusy):
            open_store(tmp_path / "log", shards=(0,), entropy=os.urandom)
        store.close()
        open_store(tmp_path / "log", shards=(0,), entropy=os.urandom).close()


ABANDONED = """
import os, pathlib, sys
from iris.spark_bridge.log import open_store
store = open_store(pathlib.Path(sys.argv[1]), shards=(0,), entropy=os.urandom)
child = os.fork()
if not child:
    os.read(0, 1)
    os._exit(0)
os.write(1, b"%d" % child)
os.kill(os.getpid(), 9)
"""


@pytest.mark.long
def test_the_log_of_a_bridge_that_was_killed_is_free_beside_a_child_that_lives(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ABANDONED, str(tmp_path / "log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        child = int(os.read(parent.stdout.fileno(), 16))
        parent.wait()
        os.kill(child, 0)  # it lives
        open_store(tmp_path / "log", shards=(0,), entropy=os.urandom).close()
        parent.stdin.close()


HELD: dict[str, Callable[[Path], Any]] = {
    "file": lambda path: locked(path / "lock", "lock", 0.2),
    "directory": partial(listener._locked, shared=False),
}


@pytest.mark.parametrize("kind", HELD)
def test_a_lock_of_milliseconds_is_free_again_though_a_child_was_made_meanwhile(tmp_path: Path, kind: str) -> None:
    """Another thread than that which forks has it."""
    inside, over = threading.Event(), threading.Event()

    def hold() -> None:
        with HELD[kind](tmp_path):
            inside.set()
            over.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    with forked():
        over.set()
        thread.join()
        with HELD[kind](tmp_path):
            pass


def test_a_child_that_ends_the_block_of_its_parent_closes_no_file_of_its_own(tmp_path: Path) -> None:
    """And the parent still has the lock."""
    mine: list[int] = []
    read, write = os.pipe()
    with locked(tmp_path / "lock", "lock"):
        child = bare_fork()
        if child:
            os.waitpid(child, 0)
            assert os.read(read, 1) == b"\1"
            with pytest.raises(iris.ConfigError, match="has held this lock"), locked(tmp_path / "lock", "lock", 0.1):
                pass
        else:
            mine = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
    if not child:
        os.write(write, bytes([all(map(is_open, mine))]))
        os._exit(0)
    for one in (read, write):
        os.close(one)


def is_open(descriptor: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_GETFD)
    except OSError:
        return False
    return True


@pytest.mark.long
async def test_a_bridge_and_its_node_are_opened_again_beside_a_child(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("bridge") as node:  # noqa: SIM117
        async with trio.open_nursery():
            children = forked()
            async with open_bridge(node, topics=["jobs"], directory=tmp_path / "log"):
                children.__enter__()
                await node.publish_confirmed("jobs", 1)
            try:
                async with open_bridge(node, topics=["jobs"], directory=tmp_path / "log"):
                    await node.publish_confirmed("jobs", 2)
            finally:
                children.__exit__(None, None, None)


@pytest.mark.long
async def test_a_node_at_an_address_and_a_socket_is_opened_again_beside_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    urls = ["tcp://127.0.0.1:0", f"ipc://{tmp_path}/sock"]
    children = forked()
    async with open_parts("one", listen=urls) as (one, one_parts):
        urls[0] = next(url for url in one_parts.mesh.listening if url.startswith("tcp"))
        children.__enter__()
    try:
        began = time.monotonic()
        async with iris.open_node("one", listen=urls) as one, one.subscribe("a") as events:  # noqa: SIM117
            async with iris.open_node("two") as two:
                await two.publish("a", 1)
                with trio.fail_after(5):
                    assert (await anext(events)).payload == 1
        assert time.monotonic() - began < 10
    finally:
        children.__exit__(None, None, None)
