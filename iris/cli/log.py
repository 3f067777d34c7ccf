"""``iris log``: read a bridge's log by hand, into a file, a spreadsheet, or another program."""

from __future__ import annotations

import csv
import datetime
import io
import json
import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, final

import click

from iris.cli.bridge_log import named, needing_bridge, open_client, patient
from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.terminal import open_lines

_AGE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_COLUMNS: Final = ("shard", "offset", "timestamp", "topic", "key", "headers", "value", "value_base64")

if TYPE_CHECKING:
    _MomentType = click.ParamType[datetime.datetime]
else:
    _MomentType = click.ParamType  # before click 8.4 it takes no type


@final
class Moment(_MomentType):
    """Moment in the past: how long ago it was, or its date."""

    name = "when"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime.datetime:
        """Return the moment; one without a time zone is UTC."""
        text = str(value)
        age = _AGE.fullmatch(text)
        try:
            if age is not None:
                ago = datetime.timedelta(seconds=float(age[1]) * _SECONDS[age[2]])
                return datetime.datetime.now(datetime.UTC) - ago
            moment = datetime.datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            raise click.BadParameter(
                f"{text!r} is neither an age such as 90s, 15m, 1h or 7d, nor a date such as 2026-11-29T06:00",
                ctx=ctx,
                param=param,
            ) from None
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


@click.group()
def log() -> None:
    """Read the log of a bridge by hand."""


@log.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--since", type=Moment(), metavar="WHEN", help="Begin so long ago, as 1h, or at a date, in UTC if it has no zone."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("json", "csv")),
    default="json",
    show_default=True,
    help="An object a line, or CSV.",
)
@named
@patient
@connected
def read(
    connection: NodeOptions,
    topics: tuple[str, ...],
    since: datetime.datetime | None,
    output: str,
    name: str,
    timeout: float,
) -> int:
    """Print the events that the log holds now on topics that match a TOPIC, shard by shard.

    In a TOPIC, * stands for one word and > for all that follow. No group is needed, and no place is kept. A value that
    is no text stands as JSON, and bytes that are no text in base64 under value_base64.
    """
    begin = None if since is None else int(since.timestamp() * 1000)

    async def show() -> None:
        with needing_bridge():
            from iris.spark_bridge.admin import read_events
        async with (
            open_client(connection, name, timeout) as client,
            open_lines() as lines,
            aclosing(read_events(client, topics=topics, since=begin)) as events,
        ):
            if output == "csv":
                await lines.write(",".join(_COLUMNS))
            async for event in events:
                if output == "csv":
                    await lines.write(_as_csv(event))
                else:
                    await lines.write_object(event)

    return run_until_done(show)


def _as_csv(event: Mapping[str, object]) -> str:
    row = io.StringIO()
    # What ends lines is what it puts quotes around: with another one a text of two lines would be two rows.
    csv.writer(row, lineterminator="\r\n").writerow([_cell(event.get(column)) for column in _COLUMNS])
    return row.getvalue().removesuffix("\r\n")


def _cell(value: object) -> object:
    return value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))
