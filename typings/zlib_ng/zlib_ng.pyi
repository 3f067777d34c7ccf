# What Iris uses of zlib-ng, which ships no types.

from typing_extensions import Buffer

def crc32(data: Buffer, value: int = 0, /) -> int: ...
