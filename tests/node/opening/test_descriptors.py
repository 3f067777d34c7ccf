"""File descriptors: what a link takes, and the warning before there are none left."""

from __future__ import annotations

import logging
from collections import deque

import pytest
import trio

import iris
from iris.node.descriptors import DESCRIPTORS_PER_LINK, DescriptorWatch, open_descriptors
from tests.support.command import open_terminal
from tests.support.machines import APP


class Links:
    """A mesh of which links are counted only."""

    def __init__(self) -> None:
        self.peers: dict[int, None] = {}
        self.watch: DescriptorWatch | None = None

    def link(self) -> None:
        assert self.watch is not None
        self.peers[len(self.peers)] = None
        self.watch.peer_connected(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [64, 1024, 20_000])
def test_the_warning_comes_once_and_in_time_and_counting_is_rare(limit: int, caplog: pytest.LogCaptureFixture) -> None:
    links, counts = Links(), deque[int]()

    def count() -> tuple[int, int]:
        counts.append(20 + DESCRIPTORS_PER_LINK * len(links.peers))
        return counts[-1], limit

    links.watch = DescriptorWatch(links, count)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "iris"):
        while 20 + DESCRIPTORS_PER_LINK * len(links.peers) < 0.75 * limit:
            links.link()
        assert caplog.records == []
        assert len(counts) < 120
        while 20 + DESCRIPTORS_PER_LINK * len(links.peers) < 0.85 * limit:
            links.link()
        assert len(caplog.records) == 1, "with 15 % left, it has been warned once"
        for _ in range(10):
            links.link()
        assert len(caplog.records) == 1
    assert f"of the {limit} files" in caplog.messages[0]
    assert "ulimit -n" in caplog.messages[0]


async def test_a_link_takes_two_descriptors() -> None:
    with open_terminal() as terminal:
        (terminal.directory / "app.py").write_text(APP)
        keys = [("realm", "realm"), ("cluster", "realm", "databases", "--out", "credential")]
        for arguments in keys:
            assert terminal.run("keys", *arguments).returncode == 0
        credential = terminal.directory / "credential"
        serve = ("run", "app:databases", "--credential", "credential", "--listen", "tcp://127.0.0.1:0")
        async with iris.open_node(credential=credential, listen=["tcp://127.0.0.1:0"], lan=False) as node:
            seeds = ("--seeds", *(url for url in node.addresses if url.startswith("tcp:")))
            before, _ = open_descriptors()
            with (
                terminal.started(*serve, *seeds, announces="serves"),
                terminal.started(*serve, *seeds, announces="serves"),
            ):
                with trio.fail_after(30):
                    await node.wait_for("databases", members=2)
                links = len(node.statistics().links)
                ours = 2 * 3  # two pipes from each of the processes, and one that reports its end
                assert (links, open_descriptors()[0] - before - ours) == (2, 2 * DESCRIPTORS_PER_LINK)


async def test_a_real_process_warns_before_its_files_run_out() -> None:
    """The limit of this very process is lowered: one link of real sockets crosses it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    messages: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    kept = Kept(logging.WARNING)
    with open_terminal() as terminal:
        (terminal.directory / "app.py").write_text(APP)
        for arguments in [("realm", "realm"), ("cluster", "realm", "databases", "--out", "credential")]:
            assert terminal.run("keys", *arguments).returncode == 0
        credential = terminal.directory / "credential"
        async with iris.open_node(credential=credential, listen=["tcp://127.0.0.1:0"], lan=False) as node:
            logging.getLogger("iris").addHandler(kept)
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (int((open_descriptors()[0] + 3) / 0.8), hard))
                serve = ("run", "app:databases", "--credential", "credential", "--listen", "tcp://127.0.0.1:0")
                seeds = ("--seeds", *(url for url in node.addresses if url.startswith("tcp:")))
                with terminal.started(*serve, *seeds, announces="serves"), trio.fail_after(30):
                    await node.wait_for("databases")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                logging.getLogger("iris").removeHandler(kept)
    assert any("that this process may open are open" in message for message in messages), messages
