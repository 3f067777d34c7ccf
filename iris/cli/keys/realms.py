"""``iris keys bundle``, ``trust``, ``distrust`` and ``realms``: realms of other owners."""

from __future__ import annotations

import os
from pathlib import Path

import click

from iris.cli.keys.show import date, wall_clock
from iris.cli.terminal import (
    Finite,
    asks_passphrase,
    load_wrapped,
    note,
    output_option,
    read_passphrase,
    write_line,
    write_object,
)
from iris.security.authority import DAY, RealmRoot, distrust_realm, issue_realm_bundle, trust_realm
from iris.security.files import load_bundle, load_realm, prepared_bundle, save_realm

FILE = click.Path(path_type=Path, dir_okay=False)
DAYS = Finite(0.0001, 36_525)


@click.command()
@click.argument("realm_file", type=FILE, metavar="REALM")
@click.option(
    "--name", required=True, metavar="NAME", help="What the realm calls itself; others may call it otherwise."
)
@click.option(
    "--export", "exports", multiple=True, metavar="PATTERN", help="Clusters that other realms may reach (none)."
)
@click.option(
    "--export-topic",
    "topics",
    multiple=True,
    metavar="PATTERN",
    help="Topics that other realms may subscribe to (none).",
)
@click.option("--days", type=DAYS, default=365.0, show_default=True, help="Validity.")
@click.option("--out", required=True, type=FILE, metavar="FILE", help="The file to write.")
@asks_passphrase
def bundle(
    realm_file: Path, name: str, exports: tuple[str, ...], topics: tuple[str, ...], days: float, out: Path, asks: bool
) -> None:
    """Write the bundle by which owners of other realms get to know REALM. It holds no secret.

    It says what nodes of other realms may reach, in place of all that was said before. Then refresh the credentials of
    REALM, and send FILE to the other owners.
    """
    root, passphrase = load_wrapped(load_realm, realm_file, read_passphrase(asks))
    root, issued = issue_realm_bundle(
        root, name, exports=exports, topics=topics, wall_now=wall_clock(), lifetime=days * DAY
    )
    with prepared_bundle(out, issued):
        _keep(realm_file, root, passphrase)
    note(f"{out} is bundle {issued.serial} of realm {issued.fingerprint}, valid until {date(issued.not_after)}")
    if root.trusted:
        _refresh(realm_file)


@click.command()
@click.argument("realm_file", type=FILE, metavar="REALM")
@click.argument("bundle_file", type=FILE, metavar="BUNDLE")
@click.option("--as", "alias", metavar="NAME", help="What the other realm is called here (as it calls itself).")
@click.option(
    "--import", "imports", multiple=True, metavar="PATTERN", help="Clusters of it to be used here (all it exports)."
)
@click.option(
    "--import-topic", "topics", multiple=True, metavar="PATTERN", help="Topics of it to be heard (all it exports)."
)
@click.option(
    "--allow",
    "callers",
    multiple=True,
    metavar="PATTERN",
    help="Clusters of it whose nodes may use services here that do not say who may (none).",
)
@asks_passphrase
def trust(
    realm_file: Path,
    bundle_file: Path,
    alias: str | None,
    imports: tuple[str, ...],
    topics: tuple[str, ...],
    callers: tuple[str, ...],
    asks: bool,
) -> None:
    """Have nodes of REALM speak with those of the realm that BUNDLE is of; or take a newer bundle of it.

    Compare the fingerprint with what its owner says: the sender of the file may have made it. The other owner has
    to trust the bundle of REALM in the same way. Lists that are not given stay as they are.
    """
    taken = load_bundle(bundle_file)
    root, passphrase = load_wrapped(load_realm, realm_file, read_passphrase(asks))
    root = trust_realm(
        root,
        taken,
        wall_now=wall_clock(),
        alias=alias,
        imports=imports or None,
        callers=callers or None,
        import_topics=topics or None,
    )
    _keep(realm_file, root, passphrase)
    known = next(known.realm for known in root.trusted if known.realm.id == taken.fingerprint)
    note(f"realm {known.id} is {known.alias!r} here, until {date(known.ends)}: have its owner confirm the fingerprint")
    note(f"it exports {', '.join(taken.exports) or 'nothing'}; used here: {', '.join(known.imports)}")
    note(f"topics that may be heard: {', '.join(taken.topics) or 'none'}; used here: {', '.join(known.import_topics)}")
    if not root.bundle_serial:
        note(
            f"it may reach nothing of {realm_file} yet: 'iris keys bundle' says what, and makes the file for its owner"
        )
    _refresh(realm_file)


@click.command()
@click.argument("realm_file", type=FILE, metavar="REALM")
@click.argument("alias", metavar="NAME")
@asks_passphrase
def distrust(realm_file: Path, alias: str, asks: bool) -> None:
    """Have nodes of REALM no longer speak with those of the realm that is called NAME here."""
    root, passphrase = load_wrapped(load_realm, realm_file, read_passphrase(asks))
    _keep(realm_file, distrust_realm(root, alias), passphrase)
    note(f"realm {alias!r} is trusted no more")
    _refresh(realm_file)


@click.command()
@click.argument("realm_file", type=FILE, metavar="REALM")
@output_option
@asks_passphrase
def realms(realm_file: Path, output: str, asks: bool) -> None:
    """Show the realms that REALM trusts."""
    root, _ = load_wrapped(load_realm, realm_file, read_passphrase(asks))
    for trusted in root.trusted:
        realm = trusted.realm
        if output == "json":
            write_object(
                {
                    "alias": realm.alias,
                    "realm": realm.id,
                    "serial": realm.bundle.serial,
                    "expires": realm.ends,
                    "exports": realm.bundle.exports,
                    "imports": realm.imports,
                    "topics": realm.bundle.topics,
                    "imported_topics": realm.import_topics,
                    "allowed": realm.callers,
                }
            )
        else:
            write_line(f"{realm.alias}: realm {realm.id}, bundle {realm.bundle.serial}, until {date(realm.ends)}")
            for what, patterns in (
                ("exports", realm.bundle.exports),
                ("used here", realm.imports),
                ("topics", realm.bundle.topics),
                ("heard here", realm.import_topics),
                ("may call", realm.callers),
            ):
                write_line(f"  {what:<10} {', '.join(patterns) or 'nothing'}")


def _refresh(realm_file: Path) -> None:
    note(f"now refresh the credentials of this realm: iris keys refresh {realm_file} CREDENTIAL...")


def _keep(file: Path, root: RealmRoot, passphrase: str | None) -> None:
    """Save a realm before what comes from it is handed out."""
    save_realm(file, root, entropy=os.urandom, passphrase=passphrase, replace=True)
