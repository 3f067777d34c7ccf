"""``iris keys``: realms, credentials, rotation and revocation, for the owner of a realm."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from iris.cli.keys.realms import bundle, distrust, realms, trust
from iris.cli.keys.show import check, date, show, wall_clock
from iris.cli.keys.tokens import token, withdraw
from iris.cli.terminal import Finite, Whole, asks_passphrase, is_plain, load_wrapped, note, read_passphrase
from iris.cluster.seed_urls import check_seed
from iris.security.authority import RealmRoot
from iris.security.authority import issuing as keyring
from iris.security.files import (
    load_credential,
    load_realm,
    prepared_credential,
    prepared_revocations,
    save_credential,
    save_realm,
)
from iris.security.identity import Patterns, Rights

Verb = TypeVar("Verb", bound=Callable[..., object])

DAYS = Finite(0.0001, 36_525)
"""Nine seconds to a hundred years: what is shorter has ended before it is handed out, and dates have four digits."""

SEALED_DAYS: Final = Finite(0.0001, 366)
"""A year at most: who receives a delegation for much longer refuses it."""

_NO_TOPICS: Final = ("", "none", "nothing")
"""Words of people for no topic, where a pattern is wanted."""

FILE = click.Path(path_type=Path, dir_okay=False)


def output_file_option(verb: Verb) -> Verb:
    """Give ``verb`` the option ``--out``: a file that must not be there yet."""
    return click.option("--out", required=True, type=FILE, metavar="FILE", help="The file to write.")(verb)


@click.group()
def keys() -> None:
    """Make and manage the keys of a realm.

    A realm file holds the key that everything else comes from: keep it offline. Files are private to their owner (mode
    0600), or mounted as secrets, and refused otherwise. With --passphrase a file is encrypted; IRIS_PASSPHRASE answers
    for the prompt. IRIS_PASSPHRASE alone opens files and encrypts a new realm, but no new credential.
    """


@keys.command()
@click.argument("file", type=FILE)
@asks_passphrase
def realm(file: Path, asks: bool) -> None:
    """Create a realm and write its key to FILE."""
    root = keyring.create_realm(os.urandom)
    save_realm(file, root, entropy=os.urandom, passphrase=read_passphrase(asks, twice=True))
    note(f"created realm {root.fingerprint}: keep {file} offline")


@keys.command()
@click.argument("realm_file", type=FILE, metavar="REALM")
@click.argument("name")
@output_file_option
@click.option("--days", type=DAYS, default=365.0, show_default=True, help="Validity.")
@click.option("--seeds", multiple=True, metavar="URL", help="A node to join through; may be repeated.")
@click.option("--serve", "serves", multiple=True, metavar="PATTERN", help="Clusters it may join besides its own.")
@click.option("--publish", "publishes", multiple=True, metavar="PATTERN", help="Topics it may publish (all).")
@click.option("--no-publish", is_flag=True, help="It may publish no topic.")
@click.option("--subscribe", "subscribes", multiple=True, metavar="PATTERN", help="Topics it may subscribe to (all).")
@click.option("--no-subscribe", is_flag=True, help="It may subscribe to no topic.")
@click.option("--gateway", is_flag=True, help="It may carry the sessions of other sites.")
@asks_passphrase
def cluster(
    realm_file: Path,
    name: str,
    out: Path,
    days: float,
    seeds: tuple[str, ...],
    serves: tuple[str, ...],
    publishes: tuple[str, ...],
    no_publish: bool,
    subscribes: tuple[str, ...],
    no_subscribe: bool,
    gateway: bool,
    asks: bool,
) -> None:
    """Certify the cluster NAME in REALM and write its credential.

    For a cluster that has one already this makes the next generation; both are accepted until the old one is revoked.
    """
    check_absent(out)
    for seed in seeds:
        check_seed(seed)
    rights = Rights(
        serves=serves,
        publishes=_topics("publish", publishes, none=no_publish),
        subscribes=_topics("subscribe", subscribes, none=no_subscribe),
        gateway=gateway,
    )
    given = read_passphrase(asks, twice=asks and is_plain(load_realm, realm_file))
    root, passphrase = load_wrapped(load_realm, realm_file, given)
    root, credential = keyring.issue_cluster(
        root,
        name,
        entropy=os.urandom,
        wall_now=wall_clock(),
        rights=rights,
        lifetime=days * keyring.DAY,
        seeds=seeds,
    )
    with prepared_credential(out, credential, passphrase=given if asks else None):
        keep(realm_file, root, passphrase)
    generation, end = credential.certificate.generation, date(credential.expires)
    note(f"{out} is the credential of cluster {name}, generation {generation}, valid until {end}")


def _topics(option: str, patterns: tuple[str, ...], *, none: bool) -> Patterns:
    """Return the topics that a certificate names: () for none, and None for all."""
    if none and patterns:
        raise click.UsageError(f"--no-{option} and --{option} contradict each other: give one of them")
    for pattern in patterns:
        if pattern in _NO_TOPICS:
            raise click.UsageError(
                f"--{option} {pattern} would permit the topic {pattern!r}: for no topic at all give --no-{option}"
            )
    return () if none else patterns or None


@keys.command()
@click.argument("file", type=FILE, metavar="CREDENTIAL")
@output_file_option
@click.option("--days", type=SEALED_DAYS, default=30.0, show_default=True, help="Validity.")
@click.option("--previous", type=FILE, metavar="FILE", help="The sealed credential to renew: its node keys stay.")
@asks_passphrase
def seal(file: Path, out: Path, days: float, previous: Path | None, asks: bool) -> None:
    """Make a sealed credential of CREDENTIAL: for one machine and a time, without the key of the cluster."""
    check_absent(out)
    passphrase = read_passphrase(asks, twice=asks and is_plain(load_credential, file))
    credential, _ = load_wrapped(load_credential, file, passphrase)
    now = wall_clock()
    sealed = keyring.seal_credential(
        credential,
        entropy=os.urandom,
        not_before=now,
        not_after=now + days * keyring.DAY,
        previous=None if previous is None else load_wrapped(load_credential, previous, passphrase)[0],
    )
    save_credential(out, sealed, passphrase=passphrase if asks else None)
    note(f"{out} is a sealed credential of cluster {sealed.name}, valid until {date(sealed.expires)}")
    if sealed.expires < int(now + days * keyring.DAY):
        note(f"that is sooner than was asked for: {file} itself is valid no longer")


@keys.command()
@click.argument("realm_file", type=FILE, metavar="REALM")
@click.argument("files", type=FILE, metavar="CREDENTIAL...", nargs=-1, required=True)
@asks_passphrase
def refresh(realm_file: Path, files: tuple[Path, ...], asks: bool) -> None:
    """Renew each CREDENTIAL in its place: validity, and the realm's gate secrets and trusted realms of today.

    Nodes take a refreshed file without a restart.
    """
    given = read_passphrase(asks)
    root, _ = load_wrapped(load_realm, realm_file, given)
    for file in files:
        credential, passphrase = load_wrapped(load_credential, file, given)
        refreshed = keyring.refresh_credential(root, credential, wall_now=wall_clock())
        save_credential(file, refreshed, passphrase=passphrase, replace=True)
        note(f"refreshed {file}")


@keys.command()
@click.argument("realm_file", type=FILE, metavar="REALM")
@click.argument("step", type=click.Choice(["add", "use", "drop"]))
@asks_passphrase
def rotate(realm_file: Path, step: str, asks: bool) -> None:
    """Take one STEP of changing the gate secret, so that no request fails.

    add: nodes accept the new one as well; use: they use it; drop: they no longer accept the old one. After each step
    refresh every credential, and wait until all nodes have taken theirs.
    """
    root, passphrase = load_wrapped(load_realm, realm_file, read_passphrase(asks))
    match step:
        case "add":
            root = keyring.add_gate_secret(root, os.urandom)
        case "use":
            root = keyring.use_new_gate_secret(root)
        case _:
            root = keyring.drop_old_gate_secret(root)
    keep(realm_file, root, passphrase)
    note(f"now refresh every credential of realm {root.fingerprint}: iris keys refresh {realm_file} CREDENTIAL...")
    following = {"add": "use", "use": "drop"}.get(step)
    if following is None:
        note("that is the last step: with it nodes no longer accept the old gate secret")
    else:
        note(f"the old gate secret is still accepted; the next step: iris keys rotate {realm_file} {following}")


@keys.command()
@click.argument("realm_file", type=FILE, metavar="REALM")
@click.option("--cluster", "name", metavar="NAME", help="Revoke the credentials of this cluster.")
@click.option("--below", type=Whole(1), metavar="N", help="Only those of a lower generation than N.")
@click.option("--node", metavar="ID", help="Revoke this node, or the sealed credential with this half of an id.")
@click.option("--out", required=True, type=FILE, metavar="FILE", help="Where to write the revocation list.")
@asks_passphrase
def revoke(realm_file: Path, name: str | None, below: int | None, node: str | None, out: Path, asks: bool) -> None:
    """Expel a cluster's stolen credentials, or a node, and write the revocation list.

    The list is complete and replaces all before it. Copy it to $IRIS_HOME/revocations/FINGERPRINT of one node, which
    tells all others.
    """
    root, passphrase = load_wrapped(load_realm, realm_file, read_passphrase(asks))
    if name is not None and node is None:
        root, issued = keyring.revoke_cluster(root, name, wall_now=wall_clock(), below=below)
    elif node is not None and name is None and below is None:
        root, issued = keyring.revoke_node(root, node, wall_now=wall_clock())
        if len(node) > 16:  # a whole id, and not the half of one that a sealed credential has
            note("with a portable credential it can come back as another node: revoke that with --cluster and --below")
    else:
        raise click.UsageError("say whom to revoke: --cluster NAME, perhaps with --below N, or --node ID")
    with prepared_revocations(out, issued):
        keep(realm_file, root, passphrase)
    note(f"{out} is revocation list {issued.number}: copy it to $IRIS_HOME/revocations/{root.fingerprint} of one node")


for verb in (show, check, bundle, trust, distrust, realms, token, withdraw):
    keys.add_command(verb)


def check_absent(file: Path) -> None:
    """Refuse to write over a file before anything has changed."""
    if file.exists() or file.is_symlink():
        raise click.UsageError(f"{file} exists: nothing was changed")


def keep(file: Path, root: RealmRoot, passphrase: str | None) -> None:
    """Save a realm before what comes from it is handed out."""
    save_realm(file, root, entropy=os.urandom, passphrase=passphrase, replace=True)
