"""``iris keys token`` and ``iris keys withdraw``: who may use a door."""

from __future__ import annotations

from pathlib import Path

import click

from iris.cli.keys.show import date, wall_clock
from iris.cli.terminal import Finite, Whole, note
from iris.doors import tokens

_DAY = 86_400

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("file", type=FILE, metavar="TOKENS")
@click.argument("name")
@click.option("--call", multiple=True, metavar="PATTERN", help="Clusters it may ask, tell, survey and tunnel to.")
@click.option("--publish", multiple=True, metavar="PATTERN", help="Topics it may publish.")
@click.option("--subscribe", multiple=True, metavar="PATTERN", help="Topics it may subscribe to.")
@click.option("--serve", multiple=True, metavar="PATTERN", help="Beta: clusters it may serve.")
@click.option("--take", multiple=True, metavar="PATTERN", help="Queues whose jobs it may take; --publish puts some.")
@click.option("--read", multiple=True, metavar="[GROUP/]PATTERN", help="Topics of a bridge's log; in that group.")
@click.option("--lease", multiple=True, metavar="CLUSTER/PATTERN", help="Leases of that cluster that it may hold.")
@click.option("--rate", type=Finite(0.001, 1e12), metavar="N", help="Messages a second that it may send at a door.")
@click.option("--rate-bytes", type=Finite(0.001, 1e12), metavar="N", help="Bytes a second of their payloads.")
@click.option("--subscriptions", type=Whole(1, 4096), metavar="N", help="Subscriptions at a time (64).")
@click.option("--days", type=Finite(0.0001, 36_525), help="Validity; for ever if not given.")
def token(
    file: Path,
    name: str,
    call: tuple[str, ...],
    publish: tuple[str, ...],
    subscribe: tuple[str, ...],
    serve: tuple[str, ...],
    take: tuple[str, ...],
    read: tuple[str, ...],
    lease: tuple[str, ...],
    rate: float | None,
    rate_bytes: float | None,
    subscriptions: int | None,
    days: float | None,
) -> None:
    """Write the client NAME into TOKENS with a new token for a door, and print that token, this once.

    PATTERNs are those of topics: * stands for one token, a last > for the rest; options may be repeated. They are of
    the door's own realm, '>' too: for another one its name stands before them, as in 'acme/>'. A client may do nothing
    that is not said. One that has a token loses it. Doors take a changed file without a restart.
    """
    expires = None if days is None else wall_clock() + days * _DAY
    secret = tokens.grant(
        file,
        name,
        call=call,
        publish=publish,
        subscribe=subscribe,
        serve=serve,
        take=take,
        read=read,
        lease=lease,
        expires=expires,
        rate=rate,
        rate_bytes=rate_bytes,
        subscriptions=subscriptions,
    )
    click.echo(secret)
    until = "" if expires is None else f", valid until {date(int(expires))}"
    note(f"{file} has a token for client {name}{until}: it is shown here only")


@click.command()
@click.argument("file", type=FILE, metavar="TOKENS")
@click.argument("name")
def withdraw(file: Path, name: str) -> None:
    """Take the client NAME out of TOKENS: doors end what it has open."""
    tokens.withdraw(file, name)
    note(f"{file} has no client {name} any more")
