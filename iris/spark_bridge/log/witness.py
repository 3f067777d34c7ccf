"""Witness of the index: a guard of LMDB's meta pages, which are verified before they are believed.

LMDB chooses the newest of two *meta pages*, which name the roots of all tables, and trusts it.  A flipped bit there can
make an older state look like the newest, and events that were acknowledged would be gone without a trace.  So after
every commit the number and the checksum of the meta page are written into a file beside the index, and compared when
the log is opened.

The file is not synchronized: that would cost as much as the commit.  After the death of the process it is exact.  After
that of the machine it may be older than the index, which is then believed as far as its two pages fit together.

Layout of a meta page (lmdb.h, mdb.c of LMDB 0.9): 16 bytes of page header; magic, version, address, map size; two
tables; the last page; the transaction's number.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, final

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.chunk import crc32

_META_AT: Final = 16
_META: Final = struct.Struct("=IIQQ48s48sQQ")
_MAGIC: Final = 0xBEEFC0DE
_RECORD: Final = struct.Struct(">QIII")
"""Number of the last transaction, checksums of its meta page and of the other one, checksum of this record."""


@final
class IndexWitness:
    """Guard of the meta pages: keeps number and checksum of the last state of an index.

    Args:
        directory: directory of the LMDB environment.
        page_size: page size of the environment.

    Raises:
        LogDamaged: the index is not in the state that was written last.
    """

    def __init__(self, directory: Path, page_size: int) -> None:
        self._data = os.open(directory / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)
        self._page_size = page_size
        try:
            self._file = os.open(directory / "witness", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except BaseException:
            os.close(self._data)
            raise
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _read_pages(self) -> dict[int, int]:
        """Return the checksums of the meta pages, all but that number, by the number of their transaction."""
        pages: dict[int, int] = {}
        for number in (0, 1):
            page = os.pread(self._data, _META.size, number * self._page_size + _META_AT)
            if len(page) < _META.size:
                raise LogDamaged("the index is cut off")
            magic, *_, transaction = _META.unpack(page)
            if magic != _MAGIC or (transaction > 1 and transaction % 2 != number):
                raise LogDamaged("the index is damaged: one of its first two pages is not what was written")
            pages[transaction] = crc32(page[:-8])
        return pages

    def _check(self) -> None:
        pages = self._read_pages()
        newest = max(pages)
        if newest - min(pages) > 1:
            raise LogDamaged("the index is damaged: its first two pages do not fit together")
        record = os.pread(self._file, _RECORD.size, 0)
        if len(record) < _RECORD.size:
            return
        transaction, checksum, other, own = _RECORD.unpack(record)
        if crc32(record[:-4]) != own:
            return  # torn by the death of the machine
        if transaction > newest:
            raise LogDamaged("the index is older than it was: it is damaged, or was put back from a copy")
        # A state that is newer than the last one known is not the one before under another number.
        if pages.get(transaction, checksum) != checksum or (transaction < newest and pages[newest] == other):
            raise LogDamaged("the index is damaged: one of its first two pages is not what was written")

    def note(self) -> None:
        """Write down the state of the index as it is now."""
        pages = self._read_pages()
        newest = max(pages)
        record = _RECORD.pack(newest, pages[newest], pages[min(pages)], 0)[:-4]
        os.pwrite(self._file, record + crc32(record).to_bytes(4), 0)

    def close(self) -> None:
        """Close the files."""
        os.close(self._data)
        os.close(self._file)
