"""``iris dash``: the realm in a browser."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import click
import trio

import iris
from iris.cli.connection import (
    Interruption,
    NodeOptions,
    connected_in_site,
    listen_at,
    run_until_interrupted,
    tls_of,
    url_of,
)
from iris.cli.terminal import note
from iris.node.statistics import DRAIN, NODES
from iris.security.files import read_private

FILE: Final = click.Path(path_type=Path, dir_okay=False)

NAME: Final = "iris.dash"
"""The cluster that a page of the local realm speaks for."""

MIN_TOKEN: Final = 32
"""Characters of a token from a file."""


@click.command()
@click.option(
    "--listen", "place", default="127.0.0.1:7780", show_default=True, metavar="HOST:PORT", help="Where browsers come."
)
@click.option("--token-file", type=FILE, metavar="FILE", help="The token that browsers show; without it a new one.")
@click.option("--allow", "allowed", type=click.Choice(["drain", "revoke"]), multiple=True, help="What pages may do.")
@click.option("--name", "names", multiple=True, metavar="NAME", help="What browsers call this machine; repeated.")
@click.option("--certificate", type=FILE, metavar="FILE", help="The certificate chain of this server, for TLS.")
@click.option("--private-key", type=FILE, metavar="FILE", help="Its key.")
@click.option("--plaintext", is_flag=True, help="No TLS, though others than this machine can come: a proxy has it.")
@connected_in_site
def dash(
    connection: NodeOptions,
    place: str,
    token_file: Path | None,
    allowed: tuple[str, ...],
    names: tuple[str, ...],
    certificate: Path | None,
    private_key: Path | None,
    plaintext: bool,
) -> int:
    """Show the realm on a page, live, until Ctrl-C: what 'iris top' shows, with charts and a graph.

    Open the address that is printed: it holds a token. The page changes nothing unless --allow says so: drain has a
    member take no new work and work again; revoke puts a list in force that 'iris keys revoke' has written.

    Needs a credential with the right to serve iris.nodes, and iris.nodes.drain for --allow drain; or the local realm.
    """
    try:
        from iris.cli.operators.dash.app import FILES, make_app
        from iris.cli.operators.dash.feed import Feed
        from iris.cli.operators.dash.guard import Guard
        from iris.cli.operators.dash.server import open_server
    except ModuleNotFoundError as error:
        raise click.ClickException(f"the page needs {error.name}: pip install 'iris-mesh[dash]'") from None
    tls = tls_of(certificate, private_key)
    token = secrets.token_urlsafe(32) if token_file is None else _read_token(token_file)
    listening = listen_at(place, secured=plaintext or tls is not None)

    async def serve(interruption: Interruption) -> None:
        async with connection.open(NAME) as node:
            _check_rights(node, drains="drain" in allowed)
            feed = Feed(node)
            guard = Guard(
                make_app(node, feed, set(allowed)),
                token=token,
                names=names,
                public=FILES,
            )
            async with trio.open_nursery() as nursery, open_server(guard, listening, tls):
                nursery.start_soon(feed.run)
                url = url_of("http" if tls is None else "https", listening)
                note(f"open {url}/#token={token if token_file is None else f'... with the token of {token_file}'}")
                await interruption.wait()
                nursery.cancel_scope.cancel()

    with listening:
        return run_until_interrupted(serve)


def _read_token(file: Path) -> str:
    token = read_private(file, "token", mounted=True).decode("ascii", "replace").strip()
    if len(token) < MIN_TOKEN or not all(one.isalnum() or one in "-_" for one in token):
        raise click.UsageError(
            f"--token-file {file}: a token is {MIN_TOKEN} characters or more, of letters, digits, - and _: "
            f"openssl rand -hex 32 > {file}"
        )
    return token


def _check_rights(node: iris.Node, *, drains: bool) -> None:
    """Refuse to begin with what the realm will refuse."""
    rights = node._parts.mesh.identity.certificate.rights
    wanted = [NODES, DRAIN] if drains else [NODES]
    missing = [f"--serve {name}" for name in wanted if not rights.may_serve(name)]
    if missing:
        needed = " ".join(f"--serve {name}" for name in wanted)
        raise click.ClickException(
            f"the credential of {node.name!r} lacks {' and '.join(missing)}: have one issued by "
            f"'iris keys cluster REALM NAME {needed}'"
        )
