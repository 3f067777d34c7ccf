"""Disk: what programs write by the functions of ``os`` into the directory of their host.

Until it is synchronized, a write is lost in part when the machine fails: some of its sectors are on the disk and others
are as they were.  A full disk takes no write and no new room.  What is written by Python's ``open``, or by a library in
C as LMDB does, is not seen here: it is on the disk at once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from random import Random
from typing import IO, TYPE_CHECKING, Final, NamedTuple, final

from iris.testing.machine.scheduling import HOST

if TYPE_CHECKING:
    from _typeshed import StrOrBytesPath
    from typing_extensions import Buffer

_SECTOR: Final = 512

Replace = Callable[[object, str, object], None]
"""Puts a function in the place of another, for as long as the simulation runs."""


class _Write(NamedTuple):
    path: str
    position: int
    before: bytes
    data: bytes


@final
class SimulatedDisk:
    """The disks of all hosts.

    Args:
        directory: a directory whose files are on a simulated disk.
        random: decides what is torn.
        full: the hosts whose disk is full at the time.
    """

    def __init__(self, directory: Path, random: Random, full: Collection[str]) -> None:
        self._directory = f"{directory}{os.sep}"
        self._random = random
        self._full = full
        self._files: dict[int, str] = {}
        self._pending: dict[str, list[_Write]] = {}

    def install(self, replace: Replace) -> None:
        """Take the place of the functions of ``os`` that write."""
        real_open, real_close, real_pwritev, real_write = os.open, os.close, os.pwritev, os.write

        def open_file(path: StrOrBytesPath, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            descriptor = real_open(path, flags, mode, dir_fd=dir_fd)
            if dir_fd is None and not isinstance(path, int) and os.fsdecode(path).startswith(self._directory):
                self._files[descriptor] = os.fsdecode(path)
            return descriptor

        def close(descriptor: int) -> None:
            self._files.pop(descriptor, None)
            real_close(descriptor)

        def pwritev(descriptor: int, buffers: Sequence[Buffer], offset: int, flags: int = 0) -> int:
            if descriptor in self._files:
                self._note(descriptor, b"".join(buffers), offset)
            return real_pwritev(descriptor, buffers, offset, flags)

        def pwrite(descriptor: int, data: Buffer, offset: int) -> int:
            return pwritev(descriptor, [data], offset)

        def write(descriptor: int, data: Buffer) -> int:
            if descriptor in self._files:
                self._note(descriptor, bytes(data), os.lseek(descriptor, 0, os.SEEK_CUR))
            return real_write(descriptor, data)

        def synchronizing(real: Callable[[int], None]) -> Callable[[int | IO[bytes]], None]:
            def synchronize(file: int | IO[bytes]) -> None:
                descriptor: int = file if isinstance(file, int) else file.fileno()
                path = self._files.get(descriptor)
                for host, writes in self._pending.items():
                    self._pending[host] = [write for write in writes if write.path != path]
                real(descriptor)

            return synchronize

        replace(os, "open", open_file)
        replace(os, "close", close)
        replace(os, "pwritev", pwritev)
        replace(os, "pwrite", pwrite)
        replace(os, "write", write)
        replace(os, "fsync", synchronizing(os.fsync))
        replace(os, "fdatasync", synchronizing(os.fdatasync))
        real_allocate = getattr(os, "posix_fallocate", None)
        if real_allocate is not None:

            def allocate(descriptor: int, offset: int, size: int) -> None:
                if descriptor in self._files:
                    self._check_room()
                real_allocate(descriptor, offset, size)

            replace(os, "posix_fallocate", allocate)

    def lose(self, host: str) -> int:
        """Lose what a host has not synchronized, sector by sector as chance has it; return how many writes it was."""
        writes = self._pending.pop(host, [])
        for path, position, before, data in reversed(writes):
            kept = bytearray(before)
            for start in range(0, len(data), _SECTOR):
                if self._random.random() < 0.5:
                    kept[start : start + _SECTOR] = data[start : start + _SECTOR]
            if Path(path).exists():
                with Path(path).open("r+b") as file:
                    file.seek(position)
                    file.write(kept)
        return len(writes)

    def _check_room(self) -> None:
        if HOST.get() in self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _note(self, descriptor: int, data: bytes, position: int) -> None:
        self._check_room()
        before = os.pread(descriptor, len(data), position).ljust(len(data), b"\0")
        write = _Write(self._files[descriptor], position, before, data)
        self._pending.setdefault(HOST.get(), []).append(write)
