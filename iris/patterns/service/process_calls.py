"""Calls to processes: what crosses between a member and the processes in which it has handlers called.

A payload crosses as the bytes that came, a reply as the bytes that go: the member decodes neither, and both are checked
by what checks the wire.  Everything else is a struct of plain values.  Nothing is pickled in either direction: bytes of
a peer would be within the pickle's reach, and an exception that cannot be unpickled would end the process.

A process is asked one call at a time, and answers with one message.
"""

from __future__ import annotations

import struct
import threading
from typing import Final, final

from msgspec import Struct, msgpack

from iris.patterns.bridge_protocol import OutboxEvent

LENGTH: Final = struct.Struct("!I")
"""Length of a message, before it."""
NUMBER: Final = struct.Struct("!Q")
"""Number of a call that is to end, as it is told beside the calls."""

IS_CHILD: Final = threading.Event()
"""Set in a process of handlers, from before it imports them."""

MAX_TRACEBACK: Final = 16_384
"""Characters of a traceback that cross, half at its beginning and half at its end."""


@final
class HandlerPlace(Struct, array_like=True, frozen=True):
    """Place at which a process finds a handler.

    Attributes:
        module: module that it imports.
        name: qualified name in it.
        operation: True for a method of a class of operations; see ``signature_of``.
    """

    module: str
    name: str
    operation: bool

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@final
class Setup(Struct, array_like=True, frozen=True):
    """First message to a process.

    Attributes:
        main: what ``multiprocessing.spawn.prepare`` takes to import the program's ``__main__`` under another name;
            empty if no handler is in it.  By ``to_bytes``, like ``argv``.
        argv: the program's ``sys.argv``.
        handlers: handlers that it imports, before it is asked.
        max_payload: limit of a reply.
    """

    main: dict[str, bytes]
    argv: list[bytes]
    handlers: list[HandlerPlace]
    max_payload: int


@final
class Call(Struct, array_like=True, frozen=True):
    """A request for a handler; see ``iris.Request``.

    Attributes:
        number: number of the call in this process, from 1.
        handler: which of ``Setup.handlers``.
        data, packed: the payload, as ``split_payload`` returns it.
        remaining: seconds until the deadline.
    """

    number: int
    handler: int
    data: bytes
    packed: bool
    caller: str
    node: str
    headers: dict[str, str]
    remaining: float
    cluster: str
    operation: str | None
    idempotency_key: str | None
    attempt: int
    undoes: str | None


@final
class Ready(Struct, array_like=True, frozen=True, tag="ready"):
    """The handlers are imported."""


@final
class NotReady(Struct, array_like=True, frozen=True, tag="not ready"):
    """The handlers cannot be imported: why, with the traceback."""

    text: str


@final
class Returned(Struct, array_like=True, frozen=True, tag="returned"):
    """Reply of a handler, as it travels, and the events of its outbox."""

    number: int
    data: bytes
    packed: bool
    events: list[OutboxEvent]


@final
class Raised(Struct, array_like=True, frozen=True, tag="raised"):
    """Error that a handler has raised.

    Attributes:
        name: name of the type.
        code, text: what its caller may know; see ``described``.
        refused: True for a ``RemoteError``: an answer, and no failure.
        received: see ``RemoteError.received``.
        file, line: where it was raised.
    """

    number: int
    name: str
    code: str
    text: str
    refused: bool
    received: bool
    traceback: str
    file: str
    line: int


@final
class Malformed(Struct, array_like=True, frozen=True, tag="malformed"):
    """The payload cannot be decoded; the handler did not run."""

    number: int
    text: str


@final
class Cancelled(Struct, array_like=True, frozen=True, tag="cancelled"):
    """The handler has ended, because it was told to."""

    number: int


Answer = Returned | Raised | Malformed | Cancelled
Message = Ready | NotReady | Answer

decode_setup: Final = msgpack.Decoder(Setup).decode
decode_call: Final = msgpack.Decoder(Call).decode
decode_message: Final = msgpack.Decoder(Message).decode
_encode: Final = msgpack.Encoder().encode


def to_bytes(text: str) -> bytes:
    """Return a path or an argument as it crosses: the system's need not be UTF-8, and have surrogates in Python."""
    return text.encode(errors="surrogatepass")


def from_bytes(data: bytes) -> str:
    """Return what ``to_bytes`` was given."""
    return data.decode(errors="surrogatepass")


def framed(message: Setup | Call | Message) -> bytes:
    """Return a message as it crosses, with its length."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body


@final
class RaisedInProcess(Exception):
    """An error that a handler has raised in its process.

    Attributes:
        name: name of its type.
        code, text: what its caller may know.
        traceback: traceback of the process, as text.
        place: file and line where it was raised.
    """

    def __init__(self, raised: Raised) -> None:
        super().__init__(raised.text)
        self.name: Final = raised.name
        self.code: Final = raised.code
        self.text: Final = raised.text
        self.traceback: Final = raised.traceback
        self.place: Final = raised.file, raised.line


PROCESS_DIED: Final = "process_died"
"""Code of the error when the process in which a handler ran has ended."""


class ProcessDied(Exception):
    """The process in which a handler ran has ended by itself.  How far the handler had come is not known."""


def error_name(error: BaseException) -> str:
    """Return the name of an error's type, as its handler raised it."""
    return error.name if isinstance(error, RaisedInProcess) else type(error).__name__
