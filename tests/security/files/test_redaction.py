"""No secret shows in a repr, a text, an exception or a traceback with all its local values.

A canary is a secret whose 32 bytes the test knows; it is looked for raw, in hexadecimal, in base64, and as Python
writes bytes down.
"""

from __future__ import annotations

import base64
import copy
import logging
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs

from iris.kernel.errors import IrisError
from iris.security.authority.issuing import create_realm, issue_cluster
from iris.security.channel.handshake import Initiator, Responder
from iris.security.files.container import Container
from iris.security.files.credential_file import decode_credential, encode_credential, load_credential, save_credential
from iris.security.identity.credential import Credential, SealedKeys, seal_credential
from iris.security.identity.signing import SigningKey
from iris.security.noise.handshake_state import KeyPair
from iris.security.secret import Secret
from tests.support.damage import damaged
from tests.support.realms import WALL, seeded_entropy
from tests.support.sessions import finish


def forms(secret: bytes) -> list[str]:
    """Return the texts that would give ``secret`` away, in part."""
    return [
        secret.hex()[:24],
        secret.hex().upper()[:24],
        base64.b64encode(secret).decode()[:20],
        base64.urlsafe_b64encode(secret).decode()[:20],
        repr(bytes(secret))[2:34],
        bytes(secret).decode("latin-1")[:16],
    ]


class Canaries:
    """Every secret that was handed out."""

    def __init__(self) -> None:
        self._random = seeded_entropy(31)
        self.secrets: list[bytes] = []

    def entropy(self, size: int) -> bytes:
        made = self._random(size)
        if size >= 32:
            self.secrets.append(made)
        return made

    def seen_in(self, text: str) -> list[str]:
        return [form for secret in self.secrets for form in forms(secret) if form in text]


def things(canaries: Canaries) -> dict[str, object]:
    """Return everything of this layer that holds a secret."""
    realm, portable = issue_cluster(create_realm(canaries.entropy), "orders", entropy=canaries.entropy, wall_now=WALL)
    _, other = issue_cluster(realm, "billing", entropy=canaries.entropy, wall_now=WALL)
    sealed = seal_credential(portable, entropy=canaries.entropy, not_before=WALL, not_after=WALL + 1000)
    identity, peer = (credential.new_identity(canaries.entropy, WALL) for credential in (sealed, other))
    initiator = Initiator(identity, index=1, hello=b"", entropy=canaries.entropy, wall_now=WALL)
    responder = Responder(peer, index=2, entropy=canaries.entropy)
    dialled, _ = finish(
        Initiator(identity, index=3, hello=b"", entropy=canaries.entropy, wall_now=WALL),
        Responder(peer, index=4, entropy=canaries.entropy),
    )
    for key in (dialled.session._seal_key, dialled.session._open_key):
        assert key is not None
        canaries.secrets.append(bytes(key))
    assert isinstance(sealed.keys, SealedKeys)
    return {
        "realm": realm,
        "portable credential": portable,
        "sealed credential": sealed,
        "sealed keys": sealed.keys,
        "identity": identity,
        "initiator": initiator,
        "responder": responder,
        "noise": initiator._noise,
        "established": dialled,
        "session": dialled.session,
        "session keys": [dialled.session._seal_key, dialled.session._open_key],
        "gate secrets": [realm.gate_secrets, portable.gate_secrets, identity.gate_secrets],
        "private keys": [sealed.keys.static.private_bytes(), sealed.keys.signing.private_bytes()],
        "container": Container(encode_credential(portable), "credential"),
    }


def test_the_canaries_would_be_seen() -> None:
    canaries = Canaries()
    secret = canaries.entropy(32)
    for text in (secret.hex(), base64.b64encode(secret).decode(), repr(secret), f"{secret!r}", secret.hex().upper()):
        assert canaries.seen_in(f"before {text} after")
    assert len(canaries.seen_in("nothing")) == 0


SHOWN: list[Callable[[object], str]] = [
    repr,
    str,
    lambda thing: f"{thing}",
    lambda thing: logging.LogRecord("iris", 0, "", 0, "%s", (thing,), None).getMessage(),
]


@pytest.mark.parametrize("show", SHOWN)
def test_nothing_that_holds_secrets_shows_them(show: Callable[[object], str]) -> None:
    canaries = Canaries()
    for name, thing in things(canaries).items():
        assert canaries.seen_in(show(thing)) == [], name
    assert len(canaries.secrets) >= 15


def test_the_attributes_of_live_objects_show_no_secrets_either() -> None:
    """What a debugger, an error reporter or pytest -l prints of the locals of a frame."""
    canaries = Canaries()
    seen: set[int] = set()
    held = things(canaries)
    del held["container"]  # is the text of a file for as long as the file is read
    waiting: list[object] = list(held.values())
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        own = type(thing).__module__.startswith("iris.")
        if own or isinstance(thing, list | tuple | dict):
            assert canaries.seen_in(f"{thing}") == []
        if isinstance(thing, list | tuple):
            waiting += cast("list[object]", thing)
        elif isinstance(thing, dict):
            waiting += cast("dict[object, object]", thing).values()
        elif own:
            names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
            waiting += [getattr(thing, name) for name in names if name != "__weakref__" and hasattr(thing, name)]
    assert len(seen) > 50


def failures(canaries: Canaries, directory: Path) -> list[Callable[[], object]]:
    """Return calls that fail with secrets at hand."""
    held = things(canaries)
    portable = held["portable credential"]
    assert isinstance(portable, Credential)
    path = directory / "orders.iris"
    save_credential(path, portable, entropy=canaries.entropy, passphrase="correct horse")
    loose = directory / "loose.iris"
    save_credential(loose, portable, entropy=canaries.entropy)
    loose.chmod(0o644)
    content = encode_credential(portable)
    responder, initiator = held["responder"], held["initiator"]
    assert isinstance(responder, Responder)
    assert isinstance(initiator, Initiator)
    junk = damaged(initiator.frame, random.Random(5))
    return [
        lambda: load_credential(path),
        lambda: load_credential(path, passphrase="wrong"),
        lambda: load_credential(loose),
        lambda: decode_credential(content.replace(b'"seeds": []', b'"seeds": 5')),
        lambda: decode_credential(content[:-5]),
        lambda: decode_credential(content.replace(b"orders", b"order\\q")),
        lambda: decode_credential(content.replace(b'"kind": "portable"', b'"kind": "odd"')),
        lambda: structs.replace(portable, gate_secrets=(portable.gate_secrets[0][:31],)),
        lambda: structs.replace(portable, keys=SigningKey(canaries.entropy(32))),
        lambda: responder.receive_first_untrusted(junk),
        lambda: initiator.receive_untrusted(junk, now=0.0, wall_now=WALL),
        lambda: KeyPair(canaries.entropy(33)),
        lambda: copy.deepcopy(portable),
    ]


def test_no_exception_or_log_shows_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    canaries = Canaries()
    caplog.set_level(logging.DEBUG)
    for call in failures(canaries, tmp_path):
        with pytest.raises((IrisError, TypeError, ValueError)) as caught:
            call()
        logging.getLogger("iris").debug("failed", exc_info=caught.value)
        text = "".join(traceback.format_exception(caught.value))
        assert "correct horse" not in text
        assert canaries.seen_in(text) == []
    assert canaries.seen_in(caplog.text) == []


def test_a_secret_is_bytes_that_say_only_how_many_they_are() -> None:
    secret = Secret(b"S" * 32)
    assert secret == b"S" * 32
    assert repr(secret) == str(secret) == f"{secret}" == f"{secret!r:>1}" == "<secret of 32 bytes>"
    assert repr([secret]) == "[<secret of 32 bytes>]"
    assert secret.hex() == "53" * 32
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            duplicate(secret)
