"""Tests that are async functions for asyncio: the plugin of trio would run them as trio's."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

AsyncTest = Callable[..., Coroutine[Any, Any, None]]


def plain_test(test: AsyncTest, run: Callable[..., None], *used: str, given: int = 0) -> Callable[..., None]:
    """Return a test that pytest calls with the fixtures of an async one.

    Args:
        test: the async function.
        run: runs it: called with the fixtures that it uses itself, and with ``test`` and the others bound.
        used: names of the fixtures that ``run`` uses.
        given: first parameters of ``test`` that ``run`` gives it.
    """
    parameters = [*inspect.signature(test).parameters.values()][given:]
    wanted = {parameter.name for parameter in parameters}

    @wraps(test)
    def plain(**fixtures: Any) -> None:
        own = [fixtures[name] for name in used]
        run(*own, partial(test, **{name: fixtures[name] for name in wanted}))

    more = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in used if name not in wanted]
    plain.__signature__ = inspect.Signature([*more, *parameters])  # type: ignore[attr-defined]
    del plain.__wrapped__  # pytest would look through it, and see a coroutine
    return plain


def on_asyncio(runner: str | None = None) -> Callable[[AsyncTest], Callable[..., None]]:
    """Run a test by asyncio, or by a fixture that is given a coroutine."""

    def by_asyncio(work: AsyncTest) -> None:
        asyncio.run(work())

    def by_fixture(run: Callable[[Coroutine[Any, Any, None]], None], work: AsyncTest) -> None:
        run(work())

    def decorate(test: AsyncTest) -> Callable[..., None]:
        return plain_test(test, by_asyncio) if runner is None else plain_test(test, by_fixture, runner)

    return decorate


def in_realm(test: AsyncTest) -> Callable[..., None]:
    """Run a test by asyncio in a local realm of its own."""
    return plain_test(test, run_in_realm, "tmp_path", "monkeypatch")


def run_in_realm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Run a program of asyncio in a local realm of its own."""
    for name, below in (("IRIS_HOME", "home"), ("XDG_RUNTIME_DIR", "run")):
        (tmp_path / below).mkdir(mode=0o700, exist_ok=True)
        monkeypatch.setenv(name, str(tmp_path / below))

    async def main() -> None:
        async with asyncio.timeout(120):
            await work()

    asyncio.run(main())
