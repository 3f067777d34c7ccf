"""``iris keys bundle``, ``trust``, ``distrust`` and ``realms``: two owners, on real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iris.cli.main import FAILED, MISUSED, run_command
from iris.cli.terminal import VARIABLE
from iris.security.files.credential_file import load_credential
from iris.security.files.realm_files import load_realm
from iris.security.identity.realm_bundle import read_bundle_untrusted

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _two_owners(_own_directory: None, capsys: Captured) -> None:
    """Ours in ours.key, with the credential shop.iris; theirs in acme.key, with store.iris and acme.bundle."""
    for realm, cluster in (("ours.key", "shop"), ("acme.key", "store")):
        run("keys", "realm", realm)
        run("keys", "cluster", realm, cluster, "--out", f"{cluster}.iris")
    run(
        "keys",
        "bundle",
        "acme.key",
        "--name",
        "acme",
        "--export",
        "store",
        "--export",
        "logs.>",
        "--export-topic",
        "orders.>",
        "--out",
        "acme.bundle",
    )
    capsys.readouterr()


def run(*arguments: str) -> None:
    assert run_command(list(arguments)) == 0


def test_two_owners_exchange_bundles_and_credentials_get_it(capsys: Captured) -> None:
    fingerprint = load_realm(Path("acme.key")).fingerprint
    run("keys", "trust", "ours.key", "acme.bundle", "--as", "partner", "--import", "store", "--allow", "airport")
    said = capsys.readouterr().err
    assert f"realm {fingerprint} is 'partner' here" in said
    assert "have its owner confirm the fingerprint" in said
    assert "it exports store, logs.>; used here: store" in said
    assert "topics that may be heard: orders.>; used here: >" in said
    assert "it may reach nothing of ours.key yet" in said
    assert "iris keys refresh ours.key" in said
    assert load_credential("shop.iris").trusted == ()
    run("keys", "refresh", "ours.key", "shop.iris")
    (trusted,) = load_credential("shop.iris").trusted
    assert (trusted.realm.alias, trusted.realm.imports, trusted.realm.callers) == ("partner", ("store",), ("airport",))
    assert trusted.realm.exports == ()
    capsys.readouterr()
    run("keys", "show", "shop.iris")
    assert "realms       partner" in capsys.readouterr().out
    run("keys", "bundle", "ours.key", "--name", "ours", "--export", "shop", "--out", "ours.bundle")
    assert "iris keys refresh ours.key" in capsys.readouterr().err
    run("keys", "refresh", "ours.key", "shop.iris")
    (trusted,) = load_credential("shop.iris").trusted
    assert trusted.realm.exports == ("shop",)
    run("keys", "trust", "acme.key", "ours.bundle")
    assert "it may reach nothing" not in capsys.readouterr().err
    run("keys", "refresh", "acme.key", "store.iris")
    (theirs,) = load_credential("store.iris").trusted
    assert theirs.pair_secret == trusted.pair_secret


def test_realms_are_shown_and_distrusted(capsys: Captured) -> None:
    run("keys", "realms", "ours.key")
    assert capsys.readouterr().out == ""
    run("keys", "trust", "ours.key", "acme.bundle")
    run("keys", "refresh", "ours.key", "shop.iris")
    capsys.readouterr()
    run("keys", "realms", "ours.key")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"acme: realm {load_realm(Path('acme.key')).fingerprint}, bundle 1, until 2")
    assert lines[1:] == [
        "  exports    store, logs.>",
        "  used here  >",
        "  topics     orders.>",
        "  heard here >",
        "  may call   nothing",
    ]
    run("keys", "realms", "ours.key", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["alias"], shown["serial"], shown["exports"]) == ("acme", 1, ["store", "logs.>"])
    assert (shown["topics"], shown["imported_topics"]) == (["orders.>"], [">"])
    run("keys", "trust", "ours.key", "acme.bundle", "--import-topic", "orders.new")
    assert load_realm(Path("ours.key")).trusted[0].realm.import_topics == ("orders.new",)
    capsys.readouterr()
    run("keys", "distrust", "ours.key", "acme")
    assert "realm 'acme' is trusted no more" in capsys.readouterr().err
    run("keys", "refresh", "ours.key", "shop.iris")
    assert load_credential("shop.iris").trusted == ()
    assert run_command(["keys", "distrust", "ours.key", "acme"]) == MISUSED
    assert "no realm 'acme' is trusted; those that are: none" in capsys.readouterr().err


def test_a_bundle_is_one_that_can_be_sent(capsys: Captured) -> None:
    bundle = read_bundle_untrusted(Path("acme.bundle").read_bytes())
    root = load_realm(Path("acme.key"))
    assert (bundle.realm, bundle.serial, bundle.name) == (root.key.public, 1, "acme")
    run("keys", "bundle", "acme.key", "--name", "acme", "--days", "2", "--out", "next.bundle")
    newer = read_bundle_untrusted(Path("next.bundle").read_bytes())
    assert (newer.serial, newer.exports) == (2, ())
    assert 2 * 86400 <= newer.not_after - newer.not_before < 2 * 86400 + 400
    assert "next.bundle is bundle 2 of realm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("keys", "trust", "acme.key", "acme.bundle"), "of this very realm"),
        (("keys", "trust", "ours.key", "ours.key"), "bundle ours.key: "),
        (("keys", "trust", "ours.key", "none.bundle"), "cannot be read"),
        (("keys", "trust", "ours.key", "acme.bundle", "--as", "a/b"), "cannot be the name of a realm"),
        (("keys", "trust", "ours.key", "acme.bundle", "--import", "a..b"), "not a pattern"),
        (("keys", "bundle", "acme.key", "--name", "a b", "--out", "x"), "not a realm name"),
        (("keys", "bundle", "acme.key", "--name", "acme", "--export", ">.a", "--out", "x"), "not a pattern"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    arguments: tuple[str, ...], complaint: str, capsys: Captured
) -> None:
    before = Path("ours.key").read_bytes(), Path("acme.key").read_bytes()
    assert run_command(list(arguments)) in (MISUSED, FAILED)
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert (Path("ours.key").read_bytes(), Path("acme.key").read_bytes()) == before
    assert not Path("x").exists()


def test_an_older_bundle_is_refused_and_says_which_counts(capsys: Captured) -> None:
    run("keys", "bundle", "acme.key", "--name", "acme", "--out", "next.bundle")
    run("keys", "trust", "ours.key", "next.bundle")
    capsys.readouterr()
    assert run_command(["keys", "trust", "ours.key", "acme.bundle"]) == MISUSED
    assert "its serial is 1, and 2 was taken before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--allow", "b/p2"), "'b/p2' is no pattern of clusters of realm 'acme'"),
        (("--allow", "p2@eu"), "'p2@eu' is no pattern of clusters of realm 'acme'"),
        (("--import", "acme/store"), "'acme/store' is no pattern of clusters of realm 'acme'"),
        (("--import", "nope"), "'nope' is nothing that realm 'acme' exports: of its clusters that is store, logs.>"),
        (("--import", "store", "--import", "*.x.y"), None),
        (("--import", "store.*"), "'store.*' is nothing that realm 'acme' exports"),
        (
            ("--import-topic", "stock.>"),
            "'stock.>' is nothing that realm 'acme' exports: of its topics that is orders.>",
        ),
        (("--import-topic", "*.new"), None),
    ],
)
def test_lists_that_can_never_match_are_refused(
    capsys: Captured, options: tuple[str, ...], complaint: str | None
) -> None:
    status = run_command(["keys", "trust", "ours.key", "acme.bundle", *options])
    said = capsys.readouterr().err
    assert (status, load_realm(Path("ours.key")).trusted == ()) == (
        (0, False) if complaint is None else (MISUSED, True)
    )
    assert (complaint or "is 'acme' here") in said


def test_a_bundle_that_exports_clusters_of_another_realm_is_not_made(capsys: Captured) -> None:
    made = run_command(["keys", "bundle", "acme.key", "--name", "acme", "--export", "x/store", "--out", "next.bundle"])
    assert (made, Path("next.bundle").exists()) == (MISUSED, False)
    assert "'x/store' is no pattern of clusters of this realm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("acme.key", "this is a realm file, with the secret key of a realm"),
        ("store.iris", "this is a credential file, and may hold secrets: send it to nobody"),
        ("wrapped.iris", "this is a credential file"),
        ("tls.pem", "this is a key or certificate in PEM"),
    ],
)
def test_another_file_in_place_of_a_bundle_is_called_what_it_is(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, file: str, what: str
) -> None:
    Path("tls.pem").write_text("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2Vw\n-----END PRIVATE KEY-----\n")
    monkeypatch.setenv(VARIABLE, "open sesame")
    run("keys", "cluster", "acme.key", "other", "--out", "wrapped.iris", "--passphrase")
    capsys.readouterr()
    assert run_command(["keys", "trust", "ours.key", file]) == MISUSED
    said = capsys.readouterr().err
    assert said.startswith(f"iris: bundle {file}: {what}")
    assert "'iris keys bundle'" in said
