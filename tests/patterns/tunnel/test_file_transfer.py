"""Files through a tunnel."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
import trio

from iris.kernel.config import Config
from iris.kernel.errors import PayloadTooLarge, TunnelBroken
from iris.patterns.tunnel.file_transfer import FileSummary
from tests.support.tunnels import open_pair

SMALL = Config(tunnel_window=65536, tunnel_chunk=4096, max_payload=30_000)


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


@pytest.mark.parametrize("size", [0, 1, 30_000, 2_000_001])
async def test_a_file_arrives_whole_and_both_ends_agree_on_its_hash(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(data)
    target.write_bytes(b"the old one")
    progress: list[tuple[int, int]] = []
    summaries: list[FileSummary] = []
    async with open_pair(SMALL) as (near, far), trio.open_nursery() as nursery:

        async def send() -> None:
            await near.send("before")
            summaries.append(await near.send_file(source, lambda done, total: progress.append((done, total))))
            await near.send("after")

        nursery.start_soon(send)
        assert await far.receive() == "before"
        summaries.append(await far.receive_file(str(target), lambda done, total: progress.append((done, total))))
        assert await far.receive() == "after"
    assert target.read_bytes() == data
    assert names(tmp_path) == ["source", "target"]
    expected = FileSummary(size=size, sha256=hashlib.sha256(data).hexdigest())
    assert summaries == [expected, expected]
    assert all(total == size for _, total in progress)
    assert [done for done, _ in progress].count(size) == (2 if size else 0)


async def test_a_file_that_changes_on_the_way_is_noticed_and_does_not_appear(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"the old one")
    async with open_pair(SMALL) as (near, far):
        await near.send(["file", 4])
        await near.send(b"daha")
        await near.send(["sha256", hashlib.sha256(b"data").hexdigest(), 4])
        with pytest.raises(TunnelBroken, match="not the one that was sent"):
            await far.receive_file(target)
        with pytest.raises(TunnelBroken, match="not the one that was sent"):
            await near.receive()
    assert target.read_bytes() == b"the old one"
    assert names(tmp_path) == ["target"]


@pytest.mark.parametrize("message", [b"data", ["file"], ["file", -1], ["file", "4"], None])
async def test_something_else_than_a_file_is_refused(tmp_path: Path, message: object) -> None:
    async with open_pair(SMALL) as (near, far):
        await near.send(message)
        with pytest.raises(TunnelBroken, match="else than a file"):
            await far.receive_file(tmp_path / "target")
    assert names(tmp_path) == []


async def test_a_sender_that_stops_in_the_middle_leaves_no_file(tmp_path: Path) -> None:
    async with open_pair(SMALL) as (near, far):
        await near.send(["file", 100_000])
        await near.send(bytes(1000))
        await near.send_eof()
        with pytest.raises(TunnelBroken, match="in the middle of a file"):
            await far.receive_file(tmp_path / "target")
    assert names(tmp_path) == []


async def test_cancelling_the_receiver_leaves_no_file(tmp_path: Path) -> None:
    async with open_pair(SMALL) as (near, far):
        await near.send(["file", 100_000])
        await near.send(bytes(1000))
        scope = trio.CancelScope()

        def cancel(done: int, _: int) -> None:
            assert done == 1000
            scope.cancel()

        with scope:
            await far.receive_file(tmp_path / "target", cancel)
        assert scope.cancelled_caught
    assert names(tmp_path) == []


@pytest.mark.parametrize("announced", [2000, 10])
async def test_a_file_over_the_receivers_limit_ends_the_tunnel_with_the_reason(tmp_path: Path, announced: int) -> None:
    async with open_pair(SMALL) as (near, far):
        await near.send(["file", announced])
        await near.send(bytes(2000))
        with pytest.raises(PayloadTooLarge, match="the receiver takes 1000"):
            await far.receive_file(tmp_path / "target", max_bytes=1000)
        with pytest.raises(TunnelBroken, match="the receiver takes 1000"):
            await near.receive()
    assert names(tmp_path) == []


async def test_the_tunnel_ends_with_the_reason_also_if_what_has_come_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(f"cannot remove {path.name}")

    async with open_pair(SMALL) as (near, far):
        await near.send(["file", 10])
        await near.send(bytes(2000))
        monkeypatch.setattr(Path, "unlink", refuse)
        with pytest.raises(OSError, match="cannot remove"):
            await far.receive_file(tmp_path / "target", max_bytes=1000)
        with pytest.raises(TunnelBroken, match="the receiver takes 1000"):
            await near.receive()


async def test_an_error_of_ones_own_progress_is_not_the_peers(tmp_path: Path) -> None:
    def refuse(done: int, total: int) -> None:
        raise PayloadTooLarge("mine")

    async with open_pair(SMALL) as (near, far):
        await near.send(["file", 4])
        await near.send(b"data")
        with pytest.raises(PayloadTooLarge, match="mine"):
            await far.receive_file(tmp_path / "target", refuse)
        await near.send("after")
        assert await far.receive() == "after"


async def test_a_file_that_cannot_be_read_sends_nothing(tmp_path: Path) -> None:
    async with open_pair(SMALL) as (near, _):
        with pytest.raises(FileNotFoundError):
            await near.send_file(tmp_path / "missing")
        assert near.statistics().messages_sent == 0


async def test_a_file_that_cannot_be_written_is_the_receivers_error(tmp_path: Path) -> None:
    async with open_pair(SMALL) as (near, far):
        await near.send(["file", 0])
        with pytest.raises(FileNotFoundError):
            await far.receive_file(tmp_path / "missing" / "target")
