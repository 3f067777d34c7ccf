"""Terminal and standard streams of the verbs: output, input, passphrases, progress bars, number options.

- Output goes to a pipe as it is, and to a terminal without control sequences.  A write can block for as long as the
  reader of a pipe likes, and a node whose event loop is blocked is declared dead.  So verbs with continuous output
  give their lines to a thread.
- Standard input is read in a thread: a read blocks for as long as a person thinks.
- The passphrase of a wrapped file is typed or taken from the environment, never from the command line: every user of
  the machine sees a command line.
- Progress bars appear on standard error, and only on a terminal.
- Number options may have a fraction.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, final

import click
import trio

from iris.cli.payload import TOO_DEEP, as_text
from iris.cli.printable import printable, printable_line, write_note
from iris.kernel.errors import ConfigError
from iris.kernel.numerals import MAX_WHOLE, read_float, read_whole

LINES = 1024
"""Lines that may wait for a slow reader before the verb waits for it, too."""


def write_payload(payload: object) -> None:
    """Write one payload, the whole result of a verb: bytes as they are, so that they can be piped."""
    if isinstance(payload, bytes) and not sys.stdout.isatty():
        sys.stdout.buffer.write(payload)
        sys.stdout.buffer.flush()
    else:
        click.echo(_shown(as_text(payload)))


def write_line(line: str) -> None:
    """Write one line of a verb whose lines are messages."""
    click.echo(printable_line(line) if sys.stdout.isatty() else line)


def write_object(fields: Mapping[str, object]) -> None:
    """Write one JSON object on a line of its own."""
    click.echo(_as_json(fields))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write rows under the names of their columns: aligned on a terminal, with tabs between them on a pipe.

    A cell may have several lines.
    """
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            click.echo("\t".join(cell.replace("\n", " ") for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*(Text("\n".join(map(printable_line, cell.split("\n")))) for cell in row))
    Console(markup=False, emoji=False).print(table)  # [fd00::1] is an address and no style


def note(text: str) -> None:
    """Write a note for people, outside of the output, in one line."""
    write_note(text)


@final
class Lines:
    """Standard output for a verb that goes on and on.  ``open_lines`` makes it."""

    def __init__(self, sender: trio.MemorySendChannel[bytes]) -> None:
        self._sender = sender
        self._terminal = sys.stdout.isatty()

    async def write(self, line: str) -> None:
        """Write ``line``; waits while 1,024 lines wait for the reader of a pipe."""
        line = printable_line(line) if self._terminal else line
        await self._sender.send(line.encode() + b"\n")

    async def write_object(self, fields: Mapping[str, object]) -> None:
        """Write one JSON object on a line of its own."""
        await self.write(_as_json(fields))


@contextlib.asynccontextmanager
async def open_lines() -> AsyncGenerator[Lines]:
    """Open standard output for lines; what was written is out when the block ends, unless it was cancelled.

    Raises:
        BrokenPipeError: the reader has gone.
    """
    sender, receiver = trio.open_memory_channel[bytes](LINES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write_out, receiver)
        async with sender:
            yield Lines(sender)


def write_chunk(data: bytes) -> None:
    """Write bytes of a stream; on a terminal as the text that they stand for.  May block, so call it on a thread."""
    _write_and_flush(_shown(data.decode(errors="backslashreplace")).encode() if sys.stdout.isatty() else data)


def _shown(text: str) -> str:
    return printable(text) if sys.stdout.isatty() else text


def _as_json(fields: Mapping[str, object]) -> str:
    try:
        return json.dumps(fields, separators=(",", ":"), default=as_text)
    except RecursionError:
        return json.dumps({**fields, "payload": TOO_DEEP}, separators=(",", ":"), default=as_text)


async def _write_out(receiver: trio.MemoryReceiveChannel[bytes]) -> None:
    async for line in receiver:
        lines = [line]
        with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                lines.append(receiver.receive_nowait())
        await trio.to_thread.run_sync(_write_and_flush, b"".join(lines), abandon_on_cancel=True)


def _write_and_flush(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


VARIABLE = "IRIS_PASSPHRASE"

P = ParamSpec("P")
R = TypeVar("R")
Verb = TypeVar("Verb", bound=Callable[..., object])
Content = TypeVar("Content", covariant=True)


class FileReader(Protocol[Content]):
    """Reads a file that may be wrapped."""

    def __call__(self, path: Path, *, passphrase: str | None = None) -> Content: ...


def asks_passphrase(verb: Verb) -> Verb:
    """Give ``verb`` the flag ``--passphrase`` as its argument ``asks``, for ``read_passphrase``."""
    return click.option("--passphrase", "asks", is_flag=True, help=f"Ask for the passphrase (or set {VARIABLE}).")(verb)


def passphrase_of_environment() -> str | None:
    """Return the passphrase that the environment holds; None if it holds none."""
    return os.environ.get(VARIABLE) or None


def read_passphrase(asks: bool, *, twice: bool = False) -> str | None:
    """Return the passphrase of the environment or, if the user ``asks`` for it, the one that is typed; None if none."""
    found = passphrase_of_environment()
    if found is None and asks:
        typed: str = click.prompt("passphrase", hide_input=True, err=True, confirmation_prompt=twice)
        return typed
    return found


def load_wrapped(load: FileReader[Content], path: Path, passphrase: str | None) -> tuple[Content, str | None]:
    """Read a file, and return it with the passphrase that it is wrapped with; None if it is not.

    So a file that is written again is protected as it was, whatever the environment holds.

    Raises:
        ConfigError: it cannot be read, or not with this passphrase.
    """
    try:
        return load(path), None
    except ConfigError:
        if passphrase is None:
            raise
        return load(path, passphrase=passphrase), passphrase


def is_plain(load: FileReader[object], path: Path) -> bool:
    """Return whether a file opens without a passphrase: then one that is typed is new, and proved by no file."""
    try:
        load(path)
    except ConfigError:
        return False
    return True


CHUNK = 64 * 1024


def input_size() -> int | None:
    """Return how many bytes standard input holds, if it is a file."""
    status = os.fstat(sys.stdin.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


async def read_chunks() -> AsyncGenerator[bytes]:
    """Yield standard input as it comes, in pieces of up to 64 KiB.  What cancellation interrupts may be lost."""
    descriptor = sys.stdin.fileno()
    while chunk := await trio.to_thread.run_sync(os.read, descriptor, CHUNK, abandon_on_cancel=True):
        yield chunk


async def read_lines() -> AsyncGenerator[bytes]:
    """Yield each line of standard input without its newline."""
    rest = b""
    async with contextlib.aclosing(read_chunks()) as chunks:
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line
    if rest:
        yield rest


@contextlib.contextmanager
def counting(
    what: str, *, total: int | None = None, unit_bytes: bool = False, beside_output: bool = False
) -> Generator[Callable[[int], None]]:
    """Show how many of ``what`` are done, in a block whose value adds to the number.

    Silent where nobody looks, and where the bar would be drawn over what people type or, ``beside_output``, read.
    """
    if not sys.stderr.isatty() or sys.stdin.isatty() or (beside_output and sys.stdout.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    figures = (DownloadColumn(), TransferSpeedColumn()) if unit_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *figures, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda number: progress.advance(bar, number)


@final
class Finite(click.FloatRange):
    """A float in a range that is a number: nan passes every comparison of a range, and nobody waits for infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number that ``value`` stands for."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(read_float(value) if isinstance(value, str) else number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


@final
class Whole(click.IntRange):
    """A whole number in a range, in decimal digits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number that ``value`` stands for."""
        number: int = super().convert(value, param, ctx)
        if isinstance(value, str) and read_whole(value, -MAX_WHOLE) is None:
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return number


POSITIVE = Finite(0, min_open=True)
"""A number above 0."""


def output_option(verb: Callable[P, R]) -> Callable[P, R]:
    """Give ``verb`` the option ``-o``, as its argument ``output``: ``table`` or ``json``; ``--json`` is ``-o json``."""
    return _with_output(verb, ("table", "json"), "For people, or a JSON object for each line.")


def wide_output_option(verb: Callable[P, R]) -> Callable[P, R]:
    """Give ``verb`` the option ``-o`` as ``output_option`` does; ``output`` may also be ``wide``."""
    help_text = "For people, with more columns, or a JSON object for each line."
    return _with_output(verb, ("table", "wide", "json"), help_text)


def _with_output(verb: Callable[P, R], choices: Sequence[str], help_text: str) -> Callable[P, R]:
    @click.option("-o", "--output", type=click.Choice(choices), default=choices[0], show_default=True, help=help_text)
    @click.option("--json", "as_json", is_flag=True, hidden=True)
    @functools.wraps(verb)
    def with_output(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.pop("as_json"):
            kwargs["output"] = "json"
        return verb(*args, **kwargs)

    return with_output


def wait_option(verb: Verb) -> Verb:
    """Give ``verb`` the option ``--wait``."""
    option = click.option(
        "--wait",
        type=Finite(0),
        default=0.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for a first member of CLUSTER.",
    )
    return option(verb)
