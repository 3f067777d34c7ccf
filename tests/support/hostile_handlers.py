"""Handlers that do in their processes what no handler should."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import iris


def look(request: iris.Request) -> list[object]:
    return [os.getpid(), request.payload]


def exit_with_a_thread(_: iris.Request) -> NoReturn:
    threading.Thread(target=time.sleep, args=(300,)).start()
    sys.exit(1)


def exit_behind_the_answer(file: str) -> int:
    """Have the process end as soon as it has answered."""
    path = Path(file)

    def end() -> None:
        while not path.exists():
            time.sleep(0.001)
        time.sleep(0.05)
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    return os.getpid()


def leave_the_group(file: str) -> None:
    """Go on for ever, in the process group of the member."""
    os.setpgid(0, os.getpgid(os.getppid()))
    Path(file).write_text(str(os.getpid()))
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(300)


def ignore_interrupts(_: iris.Request) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def wait(file: str) -> None:
    path = Path(file)
    try:
        path.with_suffix(".began").touch()  # it may be told to end right behind this
        time.sleep(60)
    finally:
        path.write_text(str(os.getpid()))


def fail_in_a_file_that_is_no_text(_: iris.Request) -> None:
    exec(compile("raise ValueError('no')", "/tmp/\udcff.py", "exec"))


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def fail_by(how: str) -> object:
    match how:
        case "huge":
            raise ValueError("x" * 50_000_000)
        case "unspeakable":
            raise Unspeakable
        case "unpicklable":
            raise ValueError(threading.Lock(), lambda: None)
        case "surrogates":
            raise ValueError("\ud800\udcff")
        case "name":
            raise type("N" * 2000, (Exception,), {})("named")
        case "chain":
            error = ValueError("0")
            for number in range(100):
                following = ValueError(str(number))
                following.__cause__ = error
                error = following
            raise error
        case "group":
            raise ExceptionGroup("several", [ValueError("a"), OSError("b")])
        case "exit":
            raise GeneratorExit
        case "function":
            return fail_by
        case "itself":
            endless: list[object] = []
            endless.append(endless)
            return endless
        case "large":
            return bytes(2**21)
        case _:
            raise AssertionError(how)


def fork_and_answer_twice(_: iris.Request) -> int:
    return os.fork()


def close_all(_: iris.Request) -> None:
    os.closerange(3, 256)


def write_to_all(_: iris.Request) -> None:
    for number in range(3, 64):
        try:
            os.write(number, b"\xff" * 64)
        except OSError:
            continue


def make_hostile() -> iris.Service:
    hostile = iris.Service("hostile")
    for handler in (
        look, exit_with_a_thread, exit_behind_the_answer, leave_the_group, ignore_interrupts, wait,
        fail_in_a_file_that_is_no_text, fail_by, fork_and_answer_twice, close_all, write_to_all,
    ):  # fmt: skip
        hostile.request(handler.__name__, process=True)(handler)
    return hostile
