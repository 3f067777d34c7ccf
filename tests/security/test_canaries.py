"""The watch over the whole test run would see a secret if there was one."""

from __future__ import annotations

import base64
import logging

import pytest

from iris.security.noise import KeyPair
from iris.security.secret import Secret
from tests.support.canaries import Canaries, CanaryWatch
from tests.support.realms import seeded_entropy

SECRET = seeded_entropy(99)(32)


@pytest.mark.parametrize(
    "text",
    [
        SECRET.hex(),
        SECRET.hex().upper(),
        f"key={SECRET.hex()[:40]}...",
        f"ff{SECRET.hex()}ff",
        base64.b64encode(SECRET).decode(),
        base64.urlsafe_b64encode(SECRET).decode(),
        repr(SECRET),
        repr({"key": (b"before" + SECRET + b"after",)}),
        repr(bytearray(SECRET)),
        SECRET.decode("latin-1"),
    ],
    ids=range(10),
)
def test_a_secret_is_found_in_every_form(text: str) -> None:
    canaries = Canaries()
    canaries.add(SECRET)
    assert canaries.find(f"some words {text} and some more") is not None
    assert canaries.find("some words and some more " + "0123456789abcdef" * 9) is None


def test_keys_that_tests_make_up_are_no_canaries() -> None:
    canaries = Canaries()
    for made_up in (bytes(32), b"S" * 32, b"12" * 16, b"short"):
        canaries.add(made_up)
    assert len(canaries) == 0


def test_the_watch_sees_what_is_logged_about_keys_made_while_it_runs() -> None:
    watch = CanaryWatch()
    watch.pytest_sessionstart()
    try:
        keys = KeyPair(seeded_entropy(98)(32))
        secret = Secret(SECRET)
        log = logging.getLogger("iris.test_canaries")
        log.debug("made %r and %r", keys, secret)
        watch._search()
        assert watch.seen == []
        assert len(watch.canaries) == 2
        with_secret = logging.LogRecord("iris", logging.DEBUG, "", 0, "%s", (keys.private_bytes().hex(),), None)
        watch.emit(with_secret)
        watch._search()
        assert watch.seen == ["iris"]
    finally:
        for undo in reversed(watch._undo):
            undo()
