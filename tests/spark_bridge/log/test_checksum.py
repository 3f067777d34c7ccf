"""Checksums: whichever library makes them, they are those of the logs that exist."""

from __future__ import annotations

import zlib
from random import Random

from iris.spark_bridge.log.chunk import crc32


def test_the_sums_are_those_of_zlib() -> None:
    chance = Random(3)
    for size in (0, 1, 63, 64, 65, 1000, 100_000):
        data = chance.randbytes(size)
        assert crc32(data) == zlib.crc32(data)
        assert crc32(memoryview(data), 12345) == zlib.crc32(data, 12345)
