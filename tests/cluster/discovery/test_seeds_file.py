"""Seeds in a file, on a real file system."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

from iris.cluster.addresses import AT_ONE_SOURCE
from iris.cluster.discovery.seeds import resolve_seed
from iris.cluster.discovery.seeds_file import MAX_BYTES, MAX_LINES
from iris.kernel.errors import NotSent


def link(file: Path, target: str) -> None:
    file.symlink_to(target)


def write_noise(file: Path) -> None:
    file.write_bytes(b"\xff\n")


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "seeds"


async def seeds_in(file: Path) -> tuple[str, ...]:
    return await resolve_seed(f"file://{file}")


async def test_lines_are_addresses_and_what_follows_a_mark_says_nothing(file: Path) -> None:
    write(
        file,
        "# members\n\n10.0.0.1:7000  # first\r\ntcp://prices:7001\n[2001:db8::1]:7000\nws://a:1/x\n[fe80::1%eth0]:7000\n",
    )
    assert await seeds_in(file) == (
        "tcp://10.0.0.1:7000",
        "tcp://prices:7001",
        "tcp://[2001:db8::1]:7000",
        "ws://a:1/x",
        "tcp://[fe80::1%eth0]:7000",
    )


async def test_a_file_that_is_renamed_over_is_the_new_one(file: Path, tmp_path: Path) -> None:
    write(file, "10.0.0.1:7000\n")
    assert await seeds_in(file) == ("tcp://10.0.0.1:7000",)
    (tmp_path / "new").write_text("10.0.0.2:7000\n")
    (tmp_path / "new").rename(file)
    assert await seeds_in(file) == ("tcp://10.0.0.2:7000",)


async def test_a_volume_of_a_config_map_is_followed_when_its_data_is_swapped(file: Path, tmp_path: Path) -> None:
    for day in ("1", "2"):
        (tmp_path / f"..day-{day}").mkdir()
        (tmp_path / f"..day-{day}" / "seeds").write_text(f"10.0.0.{day}:7000")
    (tmp_path / "..data").symlink_to("..day-1")
    link(file, "..data/seeds")
    assert await seeds_in(file) == ("tcp://10.0.0.1:7000",)
    (tmp_path / "..data_tmp").symlink_to("..day-2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert await seeds_in(file) == ("tcp://10.0.0.2:7000",)


async def test_a_file_that_grows_while_it_is_read_is_not_taken(file: Path) -> None:
    write(file, "10.0.0.1:70")

    async def write_on() -> None:
        await trio.sleep(0.05)
        write(file, "10.0.0.1:7000\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_on)
        with pytest.raises(NotSent, match="the file is being written"):
            await seeds_in(file)
    assert await seeds_in(file) == ("tcp://10.0.0.1:7000",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file has no address"),
        ("# nobody\n", "the file has no address"),
        ("10.0.0.1:7000\n10.0.0.2:\n", "line 2 is no HOST:PORT"),
        ("root:x:0:0:root:/root:/bin/bash\n", "line 1 is no HOST:PORT"),
        ("10.0.0.1 7000\n", "line 1 is no HOST:PORT"),
        ("a b:7000\n", "line 1 is no HOST:PORT"),
        ("file:///etc/more\n", "line 1 is no HOST:PORT"),
        ("kubernetes://a/b\n", "line 1 is no HOST:PORT"),
        ("localhost:5432:db:root:12345\n", "line 1 is no HOST:PORT"),
        ("KEY=root:123\n", "line 1 is no HOST:PORT"),
        ("root@a:80\n", "line 1 is no HOST:PORT"),
        ("ws://root:root@a:80/x\n", "line 1 is no HOST:PORT"),
        ("a/root:7000\n", "line 1 is no HOST:PORT"),
        ("[::1:7000\n", "line 1 is no HOST:PORT"),
        ("*:7000\n", "line 1 is no HOST:PORT"),
        (":7000\n", "line 1 is no HOST:PORT"),
        ("10.0.0.1:0\n", "line 1 is no HOST:PORT"),
        ("10.0.0.1:65536\n", "line 1 is no HOST:PORT"),
        ("10.0.0.1:\u0667\n", "line 1 is no HOST:PORT"),
        ("tcp://a:1/x?y=root\n", "line 1 is no HOST:PORT"),
        ("".join(f"10.0.0.1:{port}\n" for port in range(1, MAX_LINES + 2)), f"more than {MAX_LINES}"),
        ("#" * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
    ],
)
async def test_a_file_that_says_something_else_is_refused_and_not_quoted(file: Path, text: str, reason: str) -> None:
    write(file, text)
    with pytest.raises(NotSent, match=reason) as refused:
        await seeds_in(file)
    assert "root" not in str(refused.value).replace(str(file), "")


async def test_what_is_no_file_with_text_is_refused_at_once(file: Path, tmp_path: Path) -> None:
    with pytest.raises(NotSent, match="cannot be read: No such file"):
        await seeds_in(file)
    with pytest.raises(NotSent, match="it is no regular file"):
        await seeds_in(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with trio.fail_after(3), pytest.raises(NotSent, match="it is no regular file"):
        await seeds_in(tmp_path / "pipe")
    write_noise(file)
    with pytest.raises(NotSent, match="no text in UTF-8"):
        await seeds_in(file)


async def test_who_waits_to_write_to_a_pipe_goes_on_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"for another one",))
    writer.start()
    for _ in range(100):
        with pytest.raises(NotSent, match="it is no regular file"):
            await seeds_in(pipe)
    with trio.fail_after(20):
        assert await trio.to_thread.run_sync(pipe.read_bytes, abandon_on_cancel=True) == b"for another one"
    writer.join()


async def test_a_file_that_hangs_holds_up_nobody_but_those_who_ask_for_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, "10.0.0.1:7000\n")
    write(tmp_path / "other", "10.0.0.2:7000\n")
    mounted, real, waiting = threading.Event(), os.open, list[str]()

    def open_(path: str, flags: int) -> int:
        if path == str(file):
            waiting.append(path)
            mounted.wait(20)
        return real(path, flags)

    monkeypatch.setattr("iris.cluster.discovery.seeds_file.os.open", open_)
    threads = trio.to_thread.current_default_thread_limiter()
    try:
        for _ in range(int(threads.total_tokens) + 1):
            with trio.move_on_after(0.01):
                await seeds_in(file)
        assert threads.borrowed_tokens == 0
        assert len(waiting) == AT_ONE_SOURCE
        assert await seeds_in(tmp_path / "other") == ("tcp://10.0.0.2:7000",)
        assert "tcp://127.0.0.1:7" in await resolve_seed("tcp://localhost:7")
    finally:
        mounted.set()
    with trio.fail_after(20):
        assert await seeds_in(file) == ("tcp://10.0.0.1:7000",), "once it is back"


_IN_ASCII = """
import sys, trio
from iris.cluster.discovery import resolve_seed
from iris.kernel.errors import NotSent
try:
    trio.run(resolve_seed, "file:///\\u6f22")
except NotSent as error:
    sys.exit(ascii(str(error)))
"""


def test_a_path_that_the_locale_does_not_have_is_a_failure_of_that_seed() -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", _IN_ASCII], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "the locale of this process has no such path" in ended.stderr
    assert "Traceback" not in ended.stderr
