"""Handlers that tests have called in processes, which import this module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import iris


@dataclass
class Query:
    item: str
    count: int = 1


class Quotes(iris.Service, cluster="quotes"):
    @iris.operation(process=True)
    @staticmethod
    def price(query: Query) -> int:
        return 3 * query.count

    @iris.operation(process=True)
    @classmethod
    def who(cls, name: str, request: iris.Request) -> list[str | int]:
        return [cls.__name__, name, request.sender.cluster, os.getpid()]


def look(request: iris.Request) -> object:
    return {
        "payload": request.payload,
        "pid": os.getpid(),
        "headers": dict(request.headers),
        "operation": request.operation,
        "left": request.deadline - time.monotonic(),
    }


def price(query: Query) -> dict[str, object]:
    return {"item": query.item, "price": 3 * query.count}


def say(text: str) -> None:
    print(text)  # noqa: T201 -- what becomes of it is tested


def fail(text: str) -> None:
    raise ValueError(text)


def refuse(text: str) -> None:
    raise iris.RemoteError("no_such_item", text)


def publish(request: iris.Request) -> list[object]:
    """Put an event into the outbox, and one that is refused."""
    assert request.outbox is not None
    request.outbox.publish("orders.made", {"id": request.payload}, key="k", headers={"a": "b"})
    try:
        request.outbox.publish("orders.#", b"")
    except iris.ConfigError as error:
        return [request.idempotency_key, request.attempt, str(error)]
    return []


def meet(names: list[str]) -> int:
    """Come to a meeting of two: each leaves a file, and waits for the other's."""
    own, other = names
    Path(own).touch()
    while not Path(other).exists():
        time.sleep(0.001)
    return os.getpid()


def wait(file: str) -> None:
    """Wait until told to end, and say so."""
    path = Path(file)
    try:
        path.with_suffix(".began").touch()  # it may be told to end right behind this
        time.sleep(60)
    finally:
        path.write_text(str(os.getpid()))


def spin(file: str) -> None:
    """Hold the interpreter in C code, with a program started before; also when told to end before it does."""
    with suppress(KeyboardInterrupt):
        child = subprocess.Popen(["sleep", "300"])
        Path(file).write_text(f"{os.getpid()} {child.pid}")
        deque(repeat(0), maxlen=0)
    deque(repeat(0), maxlen=0)


def end(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    os.kill(os.getpid(), signal.Signals[how])


def make_work() -> iris.Service:
    work = iris.Service("work")
    for handler in (look, price, say, fail, refuse, meet, wait, spin, end):
        work.request(handler.__name__, process=True)(handler)
    return work
