"""The watch over the whole test run would see a secret if there was one."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterator

import pytest

from iris.security import container
from iris.security.noise import CIPHERS, KeyPair, next_key
from iris.security.secret import Secret
from tests.support.canaries import Canaries, CanaryWatch
from tests.support.realms import WALL, TestRealm, seeded_entropy
from tests.support.sessions import start

SECRET = seeded_entropy(99)(32)


FORMS: list[Callable[[bytes], str]] = [
    lambda secret: secret.hex(),
    lambda secret: secret.hex().upper(),
    lambda secret: f"key={secret.hex()}...",
    lambda secret: f"f{secret.hex()}ff",
    lambda secret: base64.b64encode(secret).decode(),
    lambda secret: base64.urlsafe_b64encode(secret).decode(),
    lambda secret: base64.b64encode(b"1" + secret + b"23").decode(),
    lambda secret: base64.b64encode(b"12" + secret).decode(),
    repr,
    lambda secret: repr({"key": (b"before" + secret + b"after",)}),
    lambda secret: repr(bytearray(secret)),
    lambda secret: secret.decode("latin-1"),
]


@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
def test_a_secret_and_every_half_of_it_is_found_in_every_form(form: Callable[[bytes], str]) -> None:
    canaries = Canaries()
    canaries.add(SECRET)
    assert len(canaries) == 1
    for at in range(17):
        text = form(SECRET[at : at + 16])
        assert canaries.find(f"some words {text} and some more") is not None, at
    assert canaries.find(form(SECRET)) is not None
    assert canaries.find(form(seeded_entropy(97)(32))) is None
    assert canaries.find("some words and some more " + "0123456789abcdef" * 9) is None


def test_of_longer_secrets_every_part_is_found() -> None:
    """The seed of an ML-KEM key has 64 bytes."""
    seed = seeded_entropy(96)(64)
    canaries = Canaries()
    canaries.add(seed)
    for at in range(50):
        assert canaries.find(seed[at : at + 15].hex()) is not None


def test_passphrases_are_found_and_words_are_not() -> None:
    canaries = Canaries()
    canaries.add_passphrase("secret")
    canaries.add_passphrase("seven brave otters")
    assert canaries.find("this is a secret") is None
    assert canaries.find("wrong: seven brave otters!") is not None


def test_keys_that_tests_make_up_are_no_canaries() -> None:
    canaries = Canaries()
    for made_up in (bytes(32), b"S" * 32, b"12" * 16, b"short"):
        canaries.add(made_up)
    assert len(canaries) == 0


@pytest.fixture
def watch() -> Iterator[CanaryWatch]:
    watch = CanaryWatch()
    watch.pytest_sessionstart()
    yield watch
    for undo in reversed(watch._undo):
        undo()


def test_the_watch_sees_what_is_logged_about_keys_made_while_it_runs(watch: CanaryWatch) -> None:
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


def test_every_secret_of_a_handshake_and_of_its_session_is_a_canary(watch: CanaryWatch) -> None:
    realm = TestRealm(95)
    initiator, responder = start(realm.identity("orders"), realm.identity("billing"))
    seed = initiator._decapsulation_key.private_bytes_raw()
    responder.receive_first_untrusted(initiator.frame)
    state = initiator._noise
    assert state is not None
    assert state.e is not None
    secrets = [seed, state.ss.ck, state.e.private_bytes(), realm.gate]
    response = responder.respond(b"", wall_now=WALL)
    assert responder._noise is not None
    assert responder._noise.e is not None
    secrets += [responder._noise.ss.ck, state.e.dh(responder._noise.e.public)]
    established = initiator.receive_untrusted(response, now=0.0, wall_now=WALL)
    for key in (established.session._seal_key, established.session._open_key):
        assert key is not None
        secrets.append(key)
    secrets.append(next_key(CIPHERS["AESGCM"], secrets[-1]))
    for number, secret in enumerate(secrets):
        assert watch.canaries.find(bytes(memoryview(secret)).hex()) is not None, number


def test_passphrases_and_the_keys_made_of_them_are_canaries(watch: CanaryWatch) -> None:
    wrapped = container.wrap(b"{}", "credential", "a horse with nine lives", seeded_entropy(94))
    assert watch.canaries.find(wrapped.decode()) is None
    assert watch.canaries.find("a horse with nine lives") is not None
    assert len(watch.canaries) == 2
