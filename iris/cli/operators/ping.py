"""``iris ping``: round trip times to a node or to every member of a cluster."""

from __future__ import annotations

import statistics
from typing import Final

import click
import trio

import iris
from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.operators.top import seconds
from iris.cli.terminal import POSITIVE, Lines, Whole, open_lines, output_option, wait_option
from iris.kernel.errors import IrisError
from iris.kernel.names import NodeId, check_address, split_address
from iris.node.operators import ask_node
from iris.node.report import PING

_NODE_PREFIX: Final = 4


@click.command()
@click.argument("target", metavar="CLUSTER|NODE")
@click.option("--count", type=Whole(1), default=4, show_default=True, metavar="N", help="Rounds.")
@click.option("--interval", type=POSITIVE, default=1.0, show_default=True, metavar="SECONDS", help="Between rounds.")
@click.option("--timeout", type=POSITIVE, default=2.0, show_default=True, metavar="SECONDS", help="For each answer.")
@output_option
@wait_option
@connected
def ping(
    connection: NodeOptions, target: str, count: int, interval: float, timeout: float, output: str, wait: float
) -> int:
    """Print round trip times to every member of CLUSTER, or to one NODE: its id, or how that begins (4 digits or more).

    The exit status is 1 if an answer is missing. Needs the same right as 'iris top'.
    """
    if "/" in target:
        alias = split_address(check_address(target)).realm
        raise click.UsageError(
            f"'iris ping' asks nodes of this site, and realm {alias!r} is another one: 'iris trace {target}' shows "
            "the way there"
        )

    async def ask() -> int:
        async with connection.open() as node:
            targets = await _targets(node, target, wait)
            times: dict[NodeId, list[float]] = {member: [] for member in targets}
            async with open_lines() as lines:
                if output == "table":
                    await lines.write("node\tround\tround trip")
                for number in range(count):
                    if number:
                        await trio.sleep(interval)
                    async with trio.open_nursery() as nursery:
                        for member in targets:
                            nursery.start_soon(_round, node, member, number + 1, timeout, times, lines, output)
                for member, taken in times.items():
                    await _summary(member, taken, count, lines, output)
        return 0 if all(len(taken) == count for taken in times.values()) else 1

    return run_until_done(ask)


async def _targets(node: iris.Node, target: str, wait: float) -> list[NodeId]:
    known = [other.node for other in node.nodes()]
    if len(target) >= _NODE_PREFIX and set(target) <= set("0123456789abcdef"):
        found = [member for member in known if member.startswith(target)]
        if len(found) == 1:
            return found
        if found:
            raise click.ClickException(f"{len(found)} nodes have an id that begins with {target}: give more of it")
    check_address(target)
    if wait:
        await node.wait_for(target, timeout=wait)
    members = [member.node for member in node.members(target) if member.node in known]
    if not members:
        raise click.ClickException(f"nobody serves {target} at this site")
    return members


async def _round(
    node: iris.Node,
    member: NodeId,
    number: int,
    timeout: float,
    times: dict[NodeId, list[float]],
    lines: Lines,
    output: str,
) -> None:
    began = trio.current_time()
    try:
        await ask_node(node, member, PING, timeout)
    except IrisError as error:
        if output == "json":
            await lines.write_object({"node": member, "round": number, "round_trip": None, "error": str(error)})
        else:
            await lines.write(f"{member}\t{number}\tno answer: {error}")
        return
    taken = trio.current_time() - began
    times[member].append(taken)
    if output == "json":
        await lines.write_object({"node": member, "round": number, "round_trip": taken})
    else:
        await lines.write(f"{member}\t{number}\t{seconds(taken)}")


async def _summary(member: NodeId, taken: list[float], count: int, lines: Lines, output: str) -> None:
    least, mean, most = (min(taken), statistics.fmean(taken), max(taken)) if taken else (None, None, None)
    if output == "json":
        await lines.write_object(
            {"node": member, "sent": count, "answered": len(taken), "min": least, "mean": mean, "max": most}
        )
    else:
        await lines.write(
            f"{member}\t{len(taken)}/{count} answered\tmin {seconds(least)}, mean {seconds(mean)}, max {seconds(most)}"
        )
