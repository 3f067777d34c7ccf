"""``iris nodes``, ``iris clusters``, ``iris describe``: nodes and clusters that are here, and what a cluster serves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
import trio
from msgspec import structs

import iris
from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.operators.top import seconds
from iris.cli.printable import printable_line
from iris.cli.terminal import (
    Lines,
    open_lines,
    output_option,
    wait_option,
    wide_output_option,
    write_line,
    write_object,
    write_table,
)
from iris.kernel.names import check_address, check_name
from iris.patterns.service import DESCRIBE

_UNKNOWN: Final = "the member describes itself in a way that this version does not know"


@click.command()
@click.argument("clusters", metavar="[CLUSTER]...", nargs=-1)
@click.option("--watch", is_flag=True, help="Go on with what changes, until Ctrl-C.")
@wide_output_option
@connected
def nodes(connection: NodeOptions, clusters: tuple[str, ...], watch: bool, output: str) -> int:
    """Show the members of each CLUSTER; without one those of all clusters, and nodes that serve none.

    The exit status is 1 if a CLUSTER has no members.
    """
    for name in clusters:
        check_name(name, "cluster") if watch else check_address(name)

    async def show() -> int:
        async with connection.open() as node:
            names = clusters or node.clusters()
            if watch:
                await _follow(node, names, output)
                return 0
            _show(node, names, () if clusters else _idle(node), output)
            empty = [name for name in clusters if not node.members(name)]
        if empty:
            raise click.ClickException(f"nobody serves {', '.join(empty)}")
        return 0

    return run_until_done(show, endless=watch)


@click.command()
@output_option
@connected
def clusters(connection: NodeOptions, output: str) -> int:
    """Show every cluster: how many members it has, how many of them are suspected or leaving, and their sites.

    Clusters that other sites export are among them.
    """

    async def show() -> int:
        async with connection.open() as node:
            known = {name: node.members(name) for name in node.clusters()}
        rows: list[tuple[str, ...]] = []
        for name, members in known.items():
            counts = {
                "members": len(members),
                "suspected": sum(member.status == "suspected" for member in members),
                "draining": sum(member.status == "draining" for member in members),
            }
            sites = sorted({member.site for member in members})
            if output == "json":
                write_object({"cluster": name, **counts, "sites": sites})
            else:
                rows.append((name, *map(str, counts.values()), " ".join(site or "-" for site in sites)))
        if output == "table":
            write_table(("cluster", "members", "suspected", "draining", "sites"), rows)
        return 0

    return run_until_done(show)


@click.command()
@click.argument("cluster")
@click.option("--asyncapi", "as_asyncapi", is_flag=True, help="Print the AsyncAPI document of the operations.")
@output_option
@wait_option
@connected
def describe(connection: NodeOptions, cluster: str, as_asyncapi: bool, output: str, wait: float) -> int:
    """Show what the members of CLUSTER serve: the operations, with what they take and return, and tunnels.

    One member says so of itself.
    """

    async def ask() -> int:
        async with connection.open() as node:
            served = await node.request(
                cluster, None, operation=DESCRIBE, wait=wait, options=iris.RequestOptions(idempotent=True)
            )
        if as_asyncapi:
            write_object(_asyncapi(served))
        elif output == "json":
            write_object(served)
        else:
            for line in _described(served):
                write_line(line)
        return 0

    return run_until_done(ask)


def _asyncapi(served: dict[str, Any]) -> Any:
    try:
        return served["asyncapi"]
    except (KeyError, TypeError):
        raise click.ClickException(_UNKNOWN) from None


def _described(served: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that people read.  A member's own report may hold anything."""
    try:
        for name, operation in served["operations"].items():
            yield printable_line(f"{name or '(no operation)'}{operation['signature']}")
            if operation["doc"]:
                yield printable_line(f"    {operation['doc']}")
            if "payload" in operation:  # members of older versions do not say it
                yield printable_line(f"    Payload: {operation['payload']}")
        for name in served["tunnels"]:
            yield printable_line(f"tunnel {name or '(no operation)'}")
        if served["broadcasts"]:
            yield "broadcasts"
        for name, fields in served["types"].items():
            yield printable_line(f"{name}: {', '.join(f'{field}: {kind}' for field, kind in fields.items())}")
    except (KeyError, TypeError, AttributeError):
        raise click.ClickException(_UNKNOWN) from None


def _idle(node: iris.Node) -> list[tuple[None, iris.NodeInfo]]:
    return [(None, other) for other in node.nodes() if not other.clusters]


_Known = iris.Member | iris.NodeInfo


def _show(node: iris.Node, names: Sequence[str], idle: Sequence[tuple[None, iris.NodeInfo]], output: str) -> None:
    members: list[tuple[str | None, _Known]] = [
        *((name, member) for name in names for member in node.members(name)),
        *idle,
    ]
    if output == "json":
        for name, member in members:
            fields = structs.asdict(member)
            fields.pop("clusters", None)
            write_object({"cluster": name, **fields})
    elif members:
        wide = output == "wide"
        write_table(_columns(wide), (_cells(name, member, wide) for name, member in members))


def _columns(wide: bool) -> tuple[str, ...]:
    return ("cluster", "node", "site", "status", *(("speaks for", "queue delay") if wide else ()), "addresses")


def _cells(name: str | None, member: _Known, wide: bool) -> tuple[str, ...]:
    delay = member.queue_delay if isinstance(member, iris.Member) else None
    more = (member.speaks_for, seconds(delay)) if wide else ()
    return (name or "-", member.node, member.site or "-", member.status, *more, "\n".join(member.addresses))


async def _follow(node: iris.Node, names: Sequence[str], output: str) -> None:
    wide = output == "wide"

    async def follow(name: str, lines: Lines) -> None:
        async with node.watch(name) as changes:
            async for change in changes:
                if output == "json":
                    await lines.write_object({"change": change.kind, "cluster": name, **structs.asdict(change.member)})
                else:
                    cells = change.kind, *_cells(name, change.member, wide)
                    await lines.write("\t".join(cells).replace("\n", " "))

    async with open_lines() as lines, trio.open_nursery() as nursery:
        if output != "json":
            await lines.write("\t".join(("change", *_columns(wide))))
        for name in names:
            nursery.start_soon(follow, name, lines)
