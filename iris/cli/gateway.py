"""``iris gateway``: carry what nodes of this site and of others say to each other."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
from pathlib import Path
from typing import Final

import click
import trio

from iris.cli.connection import Interruption, NodeOptions, metrics_option, run_until_interrupted
from iris.cli.terminal import POSITIVE, note
from iris.cluster.address_rules import check_listening
from iris.cluster.addresses import is_loopback
from iris.cluster.seed_urls import check_seed
from iris.federation.gateway import Gateway, GatewayStatistics, open_gateway
from iris.federation.policy import Policy
from iris.federation.realm_names import split_peer
from iris.kernel.names import check_name
from iris.kernel.tasks import run_in_thread
from iris.kernel.transport import check_url

MIB = 1024 * 1024
GATEWAY = "iris.gateway"
"""The cluster that a gateway of the local realm speaks for."""

_NOTHING_YET: Final = GatewayStatistics(
    received=0,
    carried=0,
    carried_bytes=0,
    refused={},
    waiting_bytes=0,
    rejected={},
    unreached={},
    sites=(),
    neighbours={},
    sent=0,
    sent_bytes=0,
    not_advertised=0,
)
"""First report of a gateway, before it is up: it shows whether the file can be written."""


@click.command()
@click.option("--site", required=True, metavar="NAME", help="The site that this gateway belongs to.")
@click.option(
    "--listen",
    multiple=True,
    metavar="URL",
    help="Where gateways of other sites reach this one, ws://HOST:PORT/PATH or tcp://HOST:PORT; may be repeated. "
    "Without it this one only dials out.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="URL",
    help="A gateway of another site; may be repeated. One of another realm is REALM/URL, with what the realm is called "
    "here ('iris keys trust').",
)
@click.option("--export", "exports", multiple=True, metavar="PATTERN", help="Clusters that other sites may use (none).")
@click.option(
    "--import", "imports", multiple=True, metavar="PATTERN", help="Clusters of other sites that are let in (all)."
)
@click.option("--export-topic", "export_topics", multiple=True, metavar="PATTERN", help="Events that may leave (none).")
@click.option("--import-topic", "import_topics", multiple=True, metavar="PATTERN", help="Events that are let in (all).")
@click.option("--no-transit", is_flag=True, help="Other sites do not reach each other through this one.")
@click.option("--rate", type=POSITIVE, metavar="MIB", help="MiB/s that one other gateway may send here.")
@click.option(
    "--status",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the counters there each second.",
)
@metrics_option
@click.option(
    "--credential",
    type=click.Path(path_type=Path),
    envvar="IRIS_CREDENTIAL",
    metavar="FILE",
    help="Credential of a realm, with the right to be a gateway; without one, the local realm of this user.",
)
@click.option(
    "--seeds",
    multiple=True,
    envvar="IRIS_SEEDS",
    metavar="URL",
    help="A node of this site to join through; may be repeated (in IRIS_SEEDS divided by blanks).",
)
@click.option("--near", multiple=True, metavar="URL", help="Where nodes of this site reach this one; may be repeated.")
@click.option(
    "--dial-networks",
    multiple=True,
    metavar="CIDR",
    help="Connect to IP addresses in this network only, no matter who names them; may be repeated.",
)
def gateway(
    site: str,
    listen: tuple[str, ...],
    peers: tuple[str, ...],
    exports: tuple[str, ...],
    imports: tuple[str, ...],
    export_topics: tuple[str, ...],
    import_topics: tuple[str, ...],
    no_transit: bool,
    rate: float | None,
    status: Path | None,
    metrics: tuple[str, int] | None,
    credential: Path | None,
    seeds: tuple[str, ...],
    near: tuple[str, ...],
    dial_networks: tuple[str, ...],
) -> int:
    """Link this site to others, until Ctrl-C: carry what their nodes say to each other and cannot read it.

    PATTERNs are those of topics: * stands for one token, a last > for the rest. Options with patterns may be repeated.
    """
    check_name(site, "site")
    for url in (*listen, *near):
        check_listening(check_url(url))
    for url in (split_peer(peer)[1] for peer in peers):
        check_url(url)
    for seed in seeds:
        check_seed(seed)
    if not listen and not peers:
        raise click.UsageError("a gateway reaches others by --listen, --peer or both: give one of them")
    outside = [url for url in listen if not is_loopback(url)]
    if credential is None and outside:
        raise click.UsageError(f"the local realm is for this machine only and cannot listen at {outside[0]}")
    policy = Policy(
        exports=exports,
        imports=imports or Policy.imports_everything(),
        export_topics=export_topics,
        import_topics=import_topics or Policy.imports_everything(),
        transit=not no_transit,
    )
    if status is not None:
        try:
            _write_status(status, _NOTHING_YET)
        except OSError as error:
            raise click.UsageError(f"cannot write {status}: {error.strerror}") from None
    connection = NodeOptions(
        credential=credential, seeds=seeds, listen=near, site=site, dial_networks=dial_networks, metrics=metrics
    )

    async def carry(interruption: Interruption) -> None:
        async with (
            connection.open(GATEWAY, member=True) as node,
            open_gateway(
                node, listen=listen, peers=peers, policy=policy, rate=None if rate is None else rate * MIB
            ) as opened,
            trio.open_nursery() as nursery,
        ):
            place = f"at {', '.join(opened.addresses)}" if opened.addresses else "that only dials out"
            note(f"{node.id} is a gateway of site {site} {place}")
            if status is not None:
                nursery.start_soon(_keep_status, opened, status)
            await interruption.wait()
            nursery.cancel_scope.cancel()
        counters = opened.statistics()
        refused = sum(counters.refused.values())
        note(f"{counters.carried} frames carried, {counters.carried_bytes} bytes, {refused} frames refused")

    return run_until_interrupted(carry)


async def _keep_status(opened: Gateway, file: Path) -> None:
    """Have the counters in a file.  A disk that is full for a while stops nothing but the counters."""
    failing = False
    while True:
        try:
            await run_in_thread(_write_status, file, opened.statistics())
            failing = False
        except OSError as error:
            if not failing:
                note(f"cannot write {file}: {error.strerror}; the gateway goes on")
            failing = True
        await trio.sleep(1)


def _write_status(file: Path, counters: GatewayStatistics) -> None:
    """Write the counters; the file is whole at any time, and as it was if this fails."""
    status = {field.name: getattr(counters, field.name) for field in dataclasses.fields(counters)}
    status |= {name: dict(status[name]) for name in ("refused", "rejected", "unreached", "neighbours")}
    draft = file.with_name(f".{file.name[:64]}.{secrets.token_hex(8)}")
    try:
        # Readable by all, as counters are, and written by this user only, whatever the umask.
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w") as written:
            written.write(json.dumps(status))
        draft.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
