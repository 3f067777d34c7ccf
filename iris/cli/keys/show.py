"""``iris keys show`` and ``check``: what a credential says, and what is wrong with it.  No secret is printed."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path

import click
from msgspec import to_builtins

from iris.cli.terminal import asks_passphrase, load_wrapped, output_option, read_passphrase, write_line, write_object
from iris.cluster.seed_urls import check_seed
from iris.kernel.errors import ConfigError
from iris.security.authority import CredentialSummary, check_credential, summarize
from iris.security.files import load_credential, load_revocations


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="CREDENTIAL")
@output_option
@asks_passphrase
def show(file: Path, output: str, asks: bool) -> None:
    """Show what CREDENTIAL says."""
    summary = summarize(load_wrapped(load_credential, file, read_passphrase(asks))[0])
    if output == "json":
        write_object(to_builtins(summary))
    else:
        for name, value in _described(summary):
            write_line(f"{name:<12} {value}")


@click.command()
@click.argument("files", type=click.Path(path_type=Path), metavar="CREDENTIAL...", nargs=-1, required=True)
@click.option("--revocations", type=click.Path(path_type=Path), metavar="FILE", help="The realm's revocation list.")
@asks_passphrase
def check(files: tuple[Path, ...], revocations: Path | None, asks: bool) -> int:
    """Say what is wrong with each CREDENTIAL, or soon will be. The exit status is 1 if anything is."""
    passphrase = read_passphrase(asks)
    findings = [(file, finding) for file in files for finding in _findings(file, revocations, passphrase)]
    for file, finding in findings:
        write_line(f"{file}: {finding}")
    return 1 if findings else 0


def _findings(file: Path, revocations: Path | None, passphrase: str | None) -> tuple[str, ...]:
    try:
        credential, _ = load_wrapped(load_credential, file, passphrase)
    except ConfigError as error:
        return (str(error),)
    known = None
    if revocations is not None:
        known = load_revocations(revocations, credential.realm)
        if known is None:
            raise click.UsageError(f"there is no revocation list {revocations}")
    now = wall_clock()
    faults = check_credential(credential, wall_now=now, revocations=known)
    return (*(fault.text for fault in faults), *_no_addresses(credential.seeds))


def _no_addresses(seeds: tuple[str, ...]) -> Iterator[str]:
    for seed in seeds:
        try:
            check_seed(seed)
        except ConfigError as error:
            yield f"seed {error}"


def _described(summary: CredentialSummary) -> list[tuple[str, str]]:
    rights = summary.rights
    rows = [
        ("cluster", summary.cluster),
        ("realm", summary.realm),
        ("kind", "sealed: for one machine" if summary.sealed else "portable: holds the key of the cluster"),
        ("generation", str(summary.generation)),
        ("valid from", date(summary.not_before)),
        ("valid until", date(summary.expires)),
        ("serves", ", ".join((summary.cluster, *rights.serves))),
        ("publishes", _topics(rights.publishes)),
        ("subscribes", _topics(rights.subscribes)),
        ("gateway", "yes" if rights.gateway else "no"),
        ("realms", ", ".join(summary.realms) or "its own only"),
        ("seeds", ", ".join(summary.seeds) or "none"),
    ]
    return [*rows, ("node", f"{summary.node}...")] if summary.node else rows


def _topics(patterns: tuple[str, ...] | None) -> str:
    return "any topic" if patterns is None else ", ".join(patterns) or "no topic"


def wall_clock() -> float:
    """Return the date: certificates, bundles and tokens are valid by it."""
    return time.time()  # noqa: TID251


def date(seconds: int) -> str:
    """Return seconds since 1970 as people read them; certificates may last longer than there are dates."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "after the year 9999"
