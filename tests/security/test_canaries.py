"""The watch over the whole test run would see a secret if there was one."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import final

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

import iris
from iris.kernel.errors import IrisError
from iris.security.files import container
from iris.security.noise.handshake_state import CIPHERS, HandshakeState, KeyPair, next_key
from iris.security.secret import Secret
from tests.support.canaries import Canaries
from tests.support.canary_watch import CanaryWatch
from tests.support.command import open_terminal
from tests.support.realms import WALL, TestRealm, seeded_entropy
from tests.support.sessions import held_by, start

SECRET = seeded_entropy(99)(32)

SHOWN = seeded_entropy(93)(32)
"""Known to the watches that the tests make, and not to the one over this run, which would find it."""


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
    watch.start()
    yield watch
    watch.stop()


def test_the_watch_sees_what_is_logged_about_keys_made_while_it_runs(watch: CanaryWatch) -> None:
    keys = KeyPair(seeded_entropy(98)(32))
    secret = Secret(SECRET)
    log = logging.getLogger("iris.test_canaries")
    log.debug("made %r and %r", keys, secret)
    watch.search()
    assert watch.seen == []
    assert len(watch.canaries) == 2
    with_secret = logging.LogRecord("iris", logging.DEBUG, "", 0, "%s", (keys.private_bytes().hex(),), None)
    watch.emit(with_secret)
    watch.search()
    assert watch.seen == ["before the first test, logged by iris"]


def test_every_secret_of_a_handshake_and_of_its_session_is_a_canary(watch: CanaryWatch) -> None:
    realm = TestRealm(95)
    initiator, responder = start(realm.identity("orders"), realm.identity("billing"))
    (decapsulation_key,) = held_by(initiator, MLKEM768PrivateKey)
    seed = decapsulation_key.private_bytes_raw()
    responder.receive_first_untrusted(initiator.frame)
    (state,) = held_by(initiator, HandshakeState)
    assert state.e is not None
    secrets = [seed, state.ss.ck, state.e.private_bytes(), realm.gate]
    response = responder.respond(b"", wall_now=WALL)
    (other,) = held_by(responder, HandshakeState)
    assert other.e is not None
    secrets += [other.ss.ck, state.e.dh(other.e.public)]
    established = initiator.receive_untrusted(response, now=0.0, wall_now=WALL)
    keys = held_by(established.session, Secret)
    assert len(keys) == 2
    secrets += keys
    secrets.append(next_key(CIPHERS["AESGCM"], secrets[-1]))
    for number, secret in enumerate(secrets):
        assert watch.canaries.find(bytes(memoryview(secret)).hex()) is not None, number


def test_passphrases_and_the_keys_made_of_them_are_canaries(watch: CanaryWatch) -> None:
    wrapped = container.wrap(b"{}", "credential", "a horse with nine lives", seeded_entropy(94))
    assert watch.canaries.find(wrapped.decode()) is None
    assert watch.canaries.find("a horse with nine lives") is not None
    assert len(watch.canaries) == 2


def seen(watch: CanaryWatch) -> int:
    """Return in how many texts a secret was seen since the last look."""
    watch.search()
    count = len(watch.seen)
    watch.seen.clear()
    return count


@final
class Odd(Exception):
    """Shows what it holds nowhere but in an attribute."""

    def __init__(self, held: object) -> None:
        super().__init__("odd")
        self.held = held


def shown(error: BaseException) -> BaseException:
    return error


def caused(cause: BaseException) -> BaseException:
    error = ValueError("harmless")
    error.__cause__ = cause
    return error


def following(context: BaseException) -> BaseException:
    error = ValueError("harmless")
    error.__context__ = context
    context.__context__ = error  # a ring ends, too
    return error


HOLDING: dict[str, Callable[[str], Exception]] = {
    "text": lambda text: ValueError(text),
    "arguments": lambda text: ValueError("key", {"is": [text.encode()]}),
    "key": lambda text: KeyError(text),
    "attribute": lambda text: Odd([text]),
}


@pytest.mark.parametrize("wrapped", [shown, caused, following])
@pytest.mark.parametrize("make", HOLDING.values(), ids=HOLDING)
def test_a_secret_in_an_exception_that_a_test_expects_is_seen(
    watch: CanaryWatch, make: Callable[[str], Exception], wrapped: Callable[[BaseException], BaseException]
) -> None:
    watch.canaries.add(SHOWN)
    with pytest.raises(Exception):  # noqa: B017, PT011 -- any
        raise wrapped(make("nothing"))
    assert seen(watch) == 0
    with pytest.raises(Exception):  # noqa: B017, PT011
        raise wrapped(make(SHOWN.hex()))
    assert seen(watch) > 0


def test_a_secret_in_a_part_of_a_group_or_in_a_note_is_seen(watch: CanaryWatch) -> None:
    watch.canaries.add(SHOWN)
    with pytest.RaisesGroup(ValueError, KeyError):
        raise ExceptionGroup("two", [ValueError("nothing"), KeyError(SHOWN)])
    assert seen(watch) > 0
    noted = ValueError("nothing")
    noted.add_note(f"the key is {SHOWN.hex()}")
    with pytest.raises(ValueError, match="nothing"):
        raise noted
    assert seen(watch) > 0


def test_a_secret_in_an_error_of_iris_is_seen_whoever_catches_it(watch: CanaryWatch) -> None:
    watch.canaries.add(SHOWN)
    for error in (iris.ConfigError, iris.Overloaded):
        with contextlib.suppress(iris.IrisError):
            raise error("a harmless one")
        assert seen(watch) == 0
        with contextlib.suppress(iris.IrisError):
            raise error(f"not a key: {SHOWN!r}")
        assert seen(watch) > 0


def test_a_secret_in_what_a_test_reads_of_its_own_output_is_seen(
    watch: CanaryWatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch.canaries.add(SHOWN)
    sys.stdout.write(SHOWN.hex())
    assert capsys.readouterr().out == SHOWN.hex()
    assert seen(watch) == 1


TALKATIVE = """
import sys
from iris.security.noise.handshake_state import KeyPair
print(KeyPair(bytes(range(100, 132))).private_bytes().hex(), file=getattr(sys, sys.argv[1]))
"""


def run_to_its_end(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=True)


def run_as_text(command: list[str]) -> None:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert len(list(process.stdout)) == 1


def run_in_trio(command: list[str]) -> None:
    trio.run(partial(trio.run_process, command, capture_stdout=True, capture_stderr=True))


@pytest.mark.parametrize("run", [run_to_its_end, run_as_text, run_in_trio])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_secret_that_a_process_makes_and_says_is_seen(
    watch: CanaryWatch, run: Callable[[list[str]], None], stream: str
) -> None:
    run([sys.executable, "-c", "print('nothing')"])
    assert (seen(watch), len(watch.canaries)) == (0, 0)
    run([sys.executable, "-c", TALKATIVE, stream])
    assert seen(watch) > 0
    assert len(watch.canaries) == 1


def test_the_secrets_that_the_command_makes_are_canaries(watch: CanaryWatch) -> None:
    with open_terminal() as terminal:
        assert terminal.run("keys", "realm", "acme.realm").returncode == 0
        assert seen(watch) == 0, "the command showed a secret"
        assert watch.canaries.find((terminal.directory / "acme.realm").read_text()) is not None
        terminal.environment["IRIS_PASSPHRASE"] = "two dozen blue doors"
        terminal.run("keys", "cluster", "acme.realm", "orders", "--out", "orders.iris", "--passphrase")
        assert seen(watch) == 0
        wrapped = (terminal.directory / "orders.iris").read_text()
        assert watch.canaries.find(wrapped) is None, "it is wrapped"
        assert '"log_n":17' in wrapped.replace(" ", ""), "the tests themselves wrap for less"
        assert watch.canaries.find("two dozen blue doors") is not None


def test_when_the_watch_ends_everything_is_as_before() -> None:
    def state() -> list[object]:
        return [
            pytest.RaisesExc.__exit__,
            IrisError.__init__,
            vars(pytest.CaptureFixture)["readouterr"],
            subprocess.Popen.__init__,
            vars(subprocess.Popen)["communicate"],
            trio.lowlevel.FdStream.receive_some,
            Secret.__new__,
            KeyPair.__init__,
            container._derive,
            dict(os.environ),
        ]

    before = state()
    watch = CanaryWatch()
    watch.start()
    file = watch.file
    assert file is not None
    assert file.exists()
    assert all(now != then for now, then in zip(state(), before, strict=True))
    watch.stop()
    assert state() == before
    assert not file.parent.exists()
