"""The verbs of the ``iris`` command in this process, beside a cluster on a network in memory: seen from both sides."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import final

import pytest
import trio

import iris
import iris.testing
from iris.cli.connection import NodeOptions
from iris.cli.main import run_command
from iris.kernel.tasks.background import open_background

Company = Callable[[iris.Node], Awaitable[None]]
"""Work of a member while the verb runs."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a verb: its exit status, and its output."""

    status: int
    out: bytes
    err: str

    @property
    def complaint(self) -> str:
        """The one line on standard error of a verb that failed."""
        assert self.status != 0, self
        assert self.out == b"", self
        assert self.err.startswith("iris: "), self
        assert self.err.endswith("\n"), self
        assert self.err.count("\n") == 1, self
        return self.err.removeprefix("iris: ").removesuffix("\n")


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line that was written, on standard error."""
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("iris: ")
    assert said.err.count("\n") == 1, said.err
    return said.err.removeprefix("iris: ")


@final
class Desk:
    """A desk on which verbs are run, each on a network of its own.

    Attributes:
        service: service of the members; without one, no cluster has members.
        members: how many there are.
        company: what the first member does meanwhile.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes], directory: Path) -> None:
        self.service: iris.Service | None = None
        self.members = 1
        self.company: Company | None = None
        self._monkeypatch = monkeypatch
        self._capture = capture
        self._input = directory / "input"

        def open_here(
            connection: NodeOptions, name: str | None = None, *, member: bool = False
        ) -> AbstractAsyncContextManager[iris.Node]:
            return self._open(name)

        monkeypatch.setattr(NodeOptions, "open", open_here)

    def run(self, *arguments: str, given: bytes = b"") -> Done:
        """Run ``iris`` with ``arguments``, and with ``given`` as its standard input."""
        self._input.write_bytes(given)
        with io.TextIOWrapper(self._input.open("rb")) as stream, self._monkeypatch.context() as patch:
            patch.setattr("sys.stdin", stream)
            status = run_command(arguments)
        said = self._capture.readouterr()
        return Done(status=status, out=said.out, err=said.err.decode())

    @asynccontextmanager
    async def _open(self, name: str | None) -> AsyncGenerator[iris.Node]:
        async with iris.testing.open_network() as network, AsyncExitStack() as stack:
            others: list[iris.Node] = []
            for _ in range(self.members):
                other = await stack.enter_async_context(network.open_node("company"))
                if self.service is not None:
                    await stack.enter_async_context(other.join(self.service.name, self.service))
                others.append(other)
            node = await stack.enter_async_context(network.open_node(name or "local"))
            if self.service is not None:
                await node.wait_for(self.service.name, self.members)
            async with open_background() as nursery:
                if self.company is not None:
                    nursery.start_soon(self.company, others[0])
                yield node


async def publish_when_heard(
    node: iris.Node, topic: str, *payloads: object, headers: dict[str, str] | None = None
) -> None:
    """Publish an event as soon as somebody has subscribed to its topic, and then the others."""
    for payload in payloads:
        while True:
            before = node.statistics().without_subscriber
            await node.publish(topic, payload, headers=headers)
            if node.statistics().without_subscriber == before:
                break
            await trio.sleep(0.001)
