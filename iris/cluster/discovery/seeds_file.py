"""Seeds in a file: a line for each address, read anew at each look.

A look costs one read of at most 64 KiB in a thread of its own kind, so nothing watches the file: rename, Kubernetes'
swap of ``..data`` and network file systems are all the same.  What its lines say is not repeated in errors: it may be
any file.
"""

from __future__ import annotations

import os
import re
import stat
from functools import partial
from pathlib import Path
from typing import Final

import trio

from iris.cluster.addresses import look_up_in_thread
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.transport import check_url

MAX_BYTES: Final = 64 * 1024
MAX_LINES: Final = 256
"""Addresses in one file."""

_WRITTEN: Final = 0.25
"""Seconds for which a file without a newline at its end has to stay as it is: it may be half written."""

_ADDRESS: Final = re.compile(
    r"(?:tcp|(ws))://(?:\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[\w.-]{1,253}):[1-9][0-9]{0,4}(?(1)(?:/\S*)?)\Z"
)
"""Nothing but an address: what passes is dialled, looked up and logged."""


async def ask_file(seed: str, path: str) -> tuple[str, ...]:
    """Return the addresses in a file, in its order.

    A line is ``HOST:PORT``, or a ``tcp`` or ``ws`` URL; blank lines and what stands behind ``#`` say nothing.

    Raises:
        NotSent: the file cannot be read, is being written, or has a line that is no address; the message says which.
    """
    text = await _read(seed, path)
    if text and not text.endswith("\n"):
        await trio.sleep(_WRITTEN)
        if await _read(seed, path) != text:
            raise NotSent(f"{seed}: the file is being written")
    return tuple(dict.fromkeys(parse_lines(seed, text)))


def parse_lines(seed: str, text: str) -> list[str]:
    """Return the URLs in the text of a file.

    Raises:
        NotSent: a line is no address, or there is none, or too many.
    """
    urls: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        url = entry if "://" in entry else f"tcp://{entry}"
        try:
            if _ADDRESS.match(url) is None or not url.isprintable():
                raise ConfigError("another form: use HOST:PORT")
            urls.append(check_url(url))
        except ConfigError:
            raise NotSent(f"{seed}: line {number} is no HOST:PORT") from None
    if not urls:
        raise NotSent(f"{seed}: the file has no address")
    if len(urls) > MAX_LINES:
        raise NotSent(f"{seed}: the file has {len(urls)} addresses, more than {MAX_LINES}")
    return urls


async def _read(seed: str, path: str) -> str:
    try:
        data = await look_up_in_thread(partial(_read_file, path), seed)
        if len(data) > MAX_BYTES:
            raise NotSent(f"{seed}: the file has more than {MAX_BYTES} bytes")
        return data.decode()
    except UnicodeDecodeError:
        raise NotSent(f"{seed}: the file is no text in UTF-8") from None
    except UnicodeEncodeError:
        raise NotSent(f"{seed}: the locale of this process has no such path: set PYTHONUTF8=1") from None
    except OSError as error:
        raise NotSent(f"{seed}: the file cannot be read: {error.strerror or error}") from None


def _read_file(path: str) -> bytes:
    # Looked at before it is opened: that lets go who waits to write to a pipe, and some devices do something.
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError("it is no regular file")
    # It may be a pipe by now: not as by open(), which would wait until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        data = bytearray()
        while len(data) <= MAX_BYTES and (chunk := os.read(descriptor, MAX_BYTES)):
            data += chunk
        return bytes(data)
    finally:
        os.close(descriptor)
