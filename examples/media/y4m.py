"""Grey films in YUV4MPEG2, which ffplay and mpv show: read, write, and make them half as large.

Run it for a film to begin with: python y4m.py lobby.y4m
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO


def write_header(file: BinaryIO, width: int, height: int) -> None:
    file.write(b"YUV4MPEG2 W%d H%d F25:1 Cmono\n" % (width, height))


def write_frames(file: BinaryIO, frames: Iterable[bytes]) -> None:
    file.writelines(b"FRAME\n" + frame for frame in frames)


def read_size(file: BinaryIO) -> tuple[int, int]:
    """Read the first line, and return width and height."""
    kind, width, height, *_ = file.readline().decode().split()
    if kind != "YUV4MPEG2":
        raise ValueError("it is no film")
    return int(width[1:]), int(height[1:])


def read_groups(file: BinaryIO, size: int, most: int) -> Iterator[list[bytes]]:
    """Read frames of so many bytes, at most so many at a time."""
    group: list[bytes] = []
    while file.readline() == b"FRAME\n":
        group.append(file.read(size))
        if len(group) == most:
            yield group
            group = []
    if group:
        yield group


def halved(frame: bytes, width: int) -> bytes:
    """Make one grey pixel of each four."""
    lines = [frame[start : start + width] for start in range(0, len(frame), width)]
    return bytes(
        (one + two + three + four) // 4
        for upper, lower in zip(lines[::2], lines[1::2], strict=True)
        for one, two, three, four in zip(upper[::2], upper[1::2], lower[::2], lower[1::2], strict=True)
    )


if __name__ == "__main__":
    with Path(sys.argv[1]).open("wb") as film:
        write_header(film, 160, 120)
        write_frames(film, (bytes((x + y + 4 * n) % 256 for y in range(120) for x in range(160)) for n in range(100)))
