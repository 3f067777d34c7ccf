"""What telemetry costs: the rate of requests between two processes with it, and without, in turns.

    python -m benchmarks.telemetry --rounds 5 --seconds 2

Each mode has a member and a caller of its own, all up at the same time; only the one whose turn it is is at work.  A
ratio is the median of those of the pairs: the mode's over that of "off" in the same round.  Beside the rate stands the
processor time of a request, at both ends together, which tells more where other programs are at work.

- off: as nodes are by default.
- metrics: /metrics is served at both ends and scraped each second; the log is written as JSON.
- all: the same, and OpenTelemetry's SDK at both ends; one request in a hundred is made within a span that is sampled,
  the others in none.
- unsampled: as all, but each request is made within a span that is not sampled.
- sampled: as all, but each is made within one that is.  The SDK takes most of this.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from typing import Any

import trio

import iris
from iris.node.telemetry.logs import JsonFormatter, LimitedHandler

MODES = ("off", "metrics", "all", "unsampled", "sampled")
CONCURRENCY = 64
Around = Callable[[], AbstractContextManager[object]]


def set_up(mode: str) -> Around:
    """Set this process up; return what each request is made within."""
    if mode != "off":
        handler = LimitedHandler()
        handler.setFormatter(JsonFormatter())
        logging.getLogger("iris").addHandler(handler)
    if mode in ("off", "metrics"):
        return nullcontext
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    class Nowhere(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:  # noqa: ARG002 -- they are dropped
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)
    tracer = provider.get_tracer("bench")
    if mode == "unsampled":
        span = NonRecordingSpan(SpanContext(5, 7, is_remote=False, trace_flags=TraceFlags(0)))
        return lambda: trace.use_span(span)
    if mode == "sampled":
        return lambda: tracer.start_as_current_span("bench")
    turns = itertools.count()
    return lambda: tracer.start_as_current_span("bench") if next(turns) % 100 == 0 else nullcontext()


async def open_end(stack: AsyncExitStack, name: str, mode: str, *, member: bool) -> iris.Node:
    """Open a node, with its metrics scraped each second if the mode says so."""
    node = await stack.enter_async_context(iris.open_node(name))
    if mode != "off":
        metrics = await stack.enter_async_context(iris.metrics.serve(node, port=0, member=member))
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)

        async def scrape() -> None:
            while True:
                await trio.to_thread.run_sync(lambda: urllib.request.urlopen(f"{metrics.url}/metrics").read())
                await trio.sleep(1)

        nursery.start_soon(scrape)
    return node


async def serve(mode: str) -> None:
    service = iris.Service(f"bench-{mode}")

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    @service.request("cpu")
    async def cpu(_: iris.Request) -> object:
        return time.process_time()

    async with AsyncExitStack() as stack:
        node = await open_end(stack, service.name, mode, member=True)
        async with node.join(service.name, service):
            await trio.sleep_forever()


async def ask(mode: str, around: Around) -> None:
    """For each line that comes, ask for so many seconds and print how many requests were answered in one."""
    async with AsyncExitStack() as stack:
        node = await open_end(stack, "bench-caller", mode, member=False)
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
        pairs = list(zip(rates[mode], rates["off"], strict=True))
        per_second, cost = (statistics.median(one[place] for one in rates[mode]) for place in (0, 1))
        faster, dearer = (statistics.median(one[place] / off[place] for one, off in pairs) for place in (0, 1))
        print(f"{mode:10} {per_second:7,.0f} requests/s, ratio {faster:.3f}; {cost:6.1f} us each, ratio {dearer:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--serve", choices=MODES)
    parser.add_argument("--ask", choices=MODES)
    arguments = parser.parse_args()
    if arguments.serve:
        set_up(arguments.serve)
        trio.run(serve, arguments.serve)
    elif arguments.ask:
        trio.run(ask, arguments.ask, set_up(arguments.ask))
    else:
        compare(["off", *(mode for mode in arguments.modes if mode != "off")], arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
