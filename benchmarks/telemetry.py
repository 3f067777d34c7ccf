"""What telemetry costs: the processor time of requests between two processes with it, and without, in turns.

    python -m benchmarks.telemetry --rounds 20 --seconds 0.5

Each mode has a member and a caller of its own, all up at the same time; only the one whose turn it is is at work.  A
ratio is the median of those of the pairs: the mode's over that of another one in the same round.  The processor time is
that of both ends together; the rate tells less where other programs are at work.

- off: as nodes are by default.
- metrics: /metrics is served at both ends and scraped each second; the log is written as JSON.
- program: the program makes each request within a span, by OpenTelemetry's SDK with the sampler that is usual in
  production: parent-based, one trace in a hundred.  Iris does not join: the SDK is imported when the nodes are open.
- all: as metrics and program together, and Iris joins: spans at both ends, or the headers of a trace that is not
  sampled.  What Iris adds is the ratio to "program".
- program-sampled, sampled: as program and all, but every trace is sampled.  The first is what a span costs by the SDK
  alone, the second has two more.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

import trio

import iris
from iris.node.telemetry.logs import JsonFormatter, LimitedHandler

MODES = ("off", "metrics", "program", "all", "program-sampled", "sampled")
JOINED = {"all": "program", "sampled": "program-sampled"}
"""Modes in which Iris joins the traces of the program, and those in which it does not."""

CONCURRENCY = 64
SAMPLED = 0.01
Around = Callable[[], AbstractContextManager[object]]


def write_log() -> None:
    """Write the log as JSON."""
    handler = LimitedHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger("iris").addHandler(handler)


def trace(mode: str) -> Around:
    """Set OpenTelemetry's SDK up in this process; return what each request is made within."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    class Nowhere(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:  # noqa: ARG002 -- they are dropped
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(1 if mode.endswith("sampled") else SAMPLED)))
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)
    tracer = provider.get_tracer("bench")
    return lambda: tracer.start_as_current_span("bench")


@asynccontextmanager
async def open_end(name: str, mode: str, *, member: bool) -> AsyncIterator[tuple[iris.Node, Around]]:
    """Open a node with what the mode says; yield it, and what each request is made within."""
    around: Around = nullcontext
    measured = mode == "metrics" or mode in JOINED
    if measured:
        write_log()
    if mode in JOINED:
        around = trace(mode)
    async with iris.open_node(name) as node, AsyncExitStack() as stack:
        if mode in JOINED.values():
            around = trace(mode)
        if measured:
            metrics = await stack.enter_async_context(iris.metrics.serve(node, port=0, member=member))
            nursery = await stack.enter_async_context(trio.open_nursery())
            stack.callback(nursery.cancel_scope.cancel)

            async def scrape() -> None:
                while True:
                    await trio.to_thread.run_sync(lambda: urllib.request.urlopen(f"{metrics.url}/metrics").read())
                    await trio.sleep(1)

            nursery.start_soon(scrape)
        yield node, around


async def serve(mode: str) -> None:
    service = iris.Service(f"bench-{mode}")

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    @service.request("cpu")
    async def cpu(_: iris.Request) -> object:
        return time.process_time()

    async with open_end(service.name, mode, member=True) as (node, _), node.join(service.name, service):
        await trio.sleep_forever()


async def ask(mode: str) -> None:
    """Read lines: for each, send requests for so many seconds and print how many requests were answered in one."""
    async with open_end("bench-caller", mode, member=False) as (node, around):
        await node.wait_for(f"bench-{mode}", timeout=60)
        print("ready", flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            print(await rate(node, f"bench-{mode}", float(line), around), flush=True)


async def rate(node: iris.Node, cluster: str, seconds: float, around: Around) -> str:
    """Return how many requests were answered in a second, and the processor time of each, in microseconds."""
    answered = 0

    async def one_after_the_other() -> None:
        nonlocal answered
        while trio.current_time() < ends:
            with around():
                await node.request(cluster, b"x" * 100)
            answered += 1

    spent = time.process_time() + await node.request(cluster, operation="cpu", reply=float)
    began = trio.current_time()
    ends = began + seconds
    async with trio.open_nursery() as nursery:
        for _ in range(CONCURRENCY):
            nursery.start_soon(one_after_the_other)
    took = trio.current_time() - began
    spent = time.process_time() + await node.request(cluster, operation="cpu", reply=float) - spent
    return f"{answered / took} {spent / answered * 1e6}"


def compare(modes: list[str], rounds: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="iris-") as home:
        environment = {**os.environ, "IRIS_HOME": f"{home}/home", "XDG_RUNTIME_DIR": home}
        command = [sys.executable, "-m", "benchmarks.telemetry"]
        members = [subprocess.Popen([*command, "--serve", mode], env=environment) for mode in modes]
        callers = {
            mode: subprocess.Popen(
                [*command, "--ask", mode], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for mode in modes
        }
        rates: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
        started: list[subprocess.Popen[Any]] = [*callers.values(), *members]
        try:
            for caller in callers.values():
                assert caller.stdout is not None
                assert caller.stdout.readline() == "ready\n"
            for turn in range(rounds + 1):  # the first is to warm up
                for mode in modes if turn % 2 else reversed(modes):
                    caller = callers[mode]
                    assert caller.stdin is not None
                    assert caller.stdout is not None
                    caller.stdin.write(f"{seconds}\n")
                    caller.stdin.flush()
                    per_second, cost = map(float, caller.stdout.readline().split())
                    if turn:
                        rates[mode].append((per_second, cost))
        finally:
            for process in started:
                process.terminate()
                process.wait()
    for mode in modes:
        per_second, cost = (statistics.median(one[place] for one in rates[mode]) for place in (0, 1))
        print(f"{mode:15} {per_second:7,.0f} requests/s, {cost:6.1f} us each", end="")
        for other in ("off", JOINED.get(mode, "off")):
            if other in modes and other != mode:
                pairs = list(zip(rates[mode], rates[other], strict=True))
                faster, dearer = (statistics.median(one[place] / two[place] for one, two in pairs) for place in (0, 1))
                print(f"; to {other}: rate {faster:.3f}, time {dearer:.3f}", end="")
            if mode not in JOINED:
                break
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--serve", choices=MODES)
    parser.add_argument("--ask", choices=MODES)
    arguments = parser.parse_args()
    if arguments.serve:
        trio.run(serve, arguments.serve)
    elif arguments.ask:
        trio.run(ask, arguments.ask)
    else:
        compare(["off", *(mode for mode in arguments.modes if mode != "off")], arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
