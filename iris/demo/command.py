"""``iris demo``: an airport on real data."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack

import click

from iris.cli.connection import run_until_done
from iris.cli.terminal import Whole, note, write_object
from iris.demo.data import FLIGHTS, airline_names, check_installed
from iris.demo.processes import ProcessFailed


@click.command()
@click.option(
    "--rows",
    type=Whole(1, FLIGHTS),
    default=FLIGHTS,
    metavar="N",
    help=f"Only the first N flights of {FLIGHTS:,}.",
)
@click.option(
    "--kafka",
    metavar="BOOTSTRAP",
    help="Have these brokers keep the bridge's events, in a topic that is gone behind it; Spark reads from them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def demo(rows: int, kafka: str | None, as_json: bool) -> int:
    """See every pattern at work: an airport with the flights of New York City in 2013.

    One of a dozen processes is killed. The page whose address is printed shows it, live; at the end Spark's numbers
    stand beside those of pandas. The exit status is 1 if anything differs.
    """
    check_installed()
    from rich.console import Console

    from iris.demo.airport import run_airport
    from iris.demo.checks import check_outcome
    from iris.demo.display import as_fields, open_console, open_stages, print_report
    from iris.demo.kafka import open_topic
    from iris.demo.page import DemoPage, next_commands, open_page

    names = airline_names()

    async def run() -> int:
        async with AsyncExitStack() as stack:
            topic = None if kafka is None else await stack.enter_async_context(open_topic(kafka))
            stages = stack.enter_context(open_stages(Console(stderr=True)))
            page = None
            if not as_json:
                page = DemoPage(stages, rows, names)
                note(f"watch it at {await stack.enter_async_context(open_page(page))}")
            outcome = await run_airport(rows, stages, topic, page)
            checks = check_outcome(outcome)
            if page is not None:
                await page.finish(outcome, checks)
        if as_json:
            write_object(as_fields(outcome, checks, names))
        else:
            print_report(open_console(), outcome, checks, names, next_commands())
        return 0 if all(check.ok for check in checks) else 1

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        # A closed terminal ends the demo in order, too: its processes lead sessions of their own and would go on.
        signal.signal(signal.SIGHUP, _terminate)
    try:
        return run_until_done(run)
    except* ProcessFailed as failures:
        _show_logs(failures)
        raise


def _terminate(_number: int, _frame: object) -> None:
    signal.raise_signal(signal.SIGTERM)


def _show_logs(failures: BaseExceptionGroup[ProcessFailed]) -> None:
    """Print what the failed processes wrote last: the line that the command ends with says only which they are."""
    for failure in failures.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            _show_logs(failure)
        elif failure.tail:
            click.echo(failure.tail, err=True)
