"""``iris keys token`` and ``iris keys withdraw``: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iris.cli.main import MISUSED, run_command
from iris.doors import Problem, load_tokens
from iris.doors.clients import Clients

Captured = pytest.CaptureFixture[str]
NOW = 1_000_000.0


def test_a_token_is_printed_once_and_its_rights_are_written(capsys: Captured) -> None:
    rights = ["--call", "quotes", "--call", "shop.*", "--publish", "orders.>", "--days", "30"]
    assert run_command(["keys", "token", "tokens", "web", *rights]) == 0
    said = capsys.readouterr()
    secret = said.out.strip()
    assert secret not in said.err
    assert "tokens has a token for client web, valid until 2" in said.err
    written = Path("tokens")
    assert secret not in written.read_text()
    assert written.stat().st_mode & 0o777 == 0o600
    token = load_tokens(written)["web"]
    assert (token.call, token.publish, token.subscribe) == (("quotes", "shop.*"), ("orders.>",), ())
    assert Clients(written, lambda: NOW).admit(secret).name == "web"


def test_who_is_withdrawn_is_unknown(capsys: Captured) -> None:
    assert run_command(["keys", "token", "tokens", "web"]) == 0
    secret = capsys.readouterr().out.strip()
    assert run_command(["keys", "withdraw", "tokens", "web"]) == 0
    assert "has no client web any more" in capsys.readouterr().err
    with pytest.raises(Problem):
        Clients(Path("tokens"), lambda: NOW).admit(secret)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["token", "tokens", "a b"], MISUSED, "client name"),
        (["token", "tokens", "web", "--call", "a..b"], MISUSED, "a..b"),
        (["token", "tokens", "web", "--days", "0"], MISUSED, "0"),
        (["token", "tokens", "web", "--days", "nan"], MISUSED, "nan"),
        (["withdraw", "tokens", "site"], MISUSED, "it has other"),
        (["withdraw", "nowhere", "site"], MISUSED, "nowhere"),
    ],
)
def test_what_is_wrong_is_one_error_and_the_file_as_it_was(
    capsys: Captured, arguments: list[str], status: int, told: str
) -> None:
    assert run_command(["keys", "token", "tokens", "other"]) == 0
    before = Path("tokens").read_text()
    capsys.readouterr()
    assert run_command(["keys", *arguments]) == status
    said = capsys.readouterr()
    assert told in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert Path("tokens").read_text() == before


def test_a_file_of_something_else_is_not_overwritten(capsys: Captured) -> None:
    Path("tokens").write_text(json.dumps({"format": "something else", "tokens": {}}))
    Path("tokens").chmod(0o600)
    assert run_command(["keys", "token", "tokens", "web"]) == MISUSED
    assert "something else" in capsys.readouterr().err
    assert "something else" in Path("tokens").read_text()
