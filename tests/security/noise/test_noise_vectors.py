"""The Noise core against public test vectors, which are kept elsewhere (see docs/explanation/measured/security.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from iris.security.noise.handshake_state import CipherState, HandshakeState, KeyPair, KnownKeys
from tests.support.noise_patterns import read_protocol_name

VECTORS = Path(
    os.environ.get("IRIS_NOISE_VECTORS") or Path(__file__).resolve().parents[3] / ".." / "shared" / "vectors"
)

# file: (vectors in it over 25519 and in the current form of names)
FILES = {"cacophony.json": 472, "snow.json": 408, "snow-multipsk.json": 104, "noise-c-basic.json": 120}


def vectors_of(name: str) -> list[dict[str, Any]]:
    if not VECTORS.is_dir():
        if os.environ.get("IRIS_NOISE_VECTORS"):
            pytest.fail(f"IRIS_NOISE_VECTORS names {VECTORS}, where there is no directory")
        pytest.skip(
            f"no Noise vectors in {VECTORS}: set IRIS_NOISE_VECTORS to their directory; the tests against "
            "noiseprotocol cover every suite meanwhile"
        )
    content = cast("dict[str, Any] | list[dict[str, Any]]", json.loads((VECTORS / name).read_text()))
    vectors: list[dict[str, Any]] = content["vectors"] if isinstance(content, dict) else content
    # noise-c has older vectors, called NoisePSK_..., of a revision that treated pre-shared keys differently
    return [v for v in vectors if name_of(v).startswith("Noise_") and name_of(v).split("_")[2] == "25519"]


def name_of(vector: dict[str, Any]) -> str:
    name: str = vector.get("protocol_name") or vector["name"]
    return name


def side(vector: dict[str, Any], role: str) -> HandshakeState:
    def given(field: str) -> bytes | None:
        text = vector.get(f"{role}_{field}")
        return bytes.fromhex(text) if text else None

    static = given("static")
    modifiers = name_of(vector).split("_")[1].partition("psk")[2]
    positions = [int(position) for position in modifiers.split("+psk")] if modifiers else []
    return HandshakeState(
        read_protocol_name(name_of(vector)),
        initiator=role == "init",
        entropy=lambda _: given("ephemeral") or b"",
        prologue=given("prologue") or b"",
        keys=KnownKeys(
            s=KeyPair(static) if static else None,
            rs=given("remote_static"),
            psks=dict(zip(positions, map(bytes.fromhex, vector.get(f"{role}_psks", [])), strict=True)),
        ),
    )


def run(vector: dict[str, Any]) -> None:
    """Carry both sides through all messages of a vector; every ciphertext must be the published one."""
    initiator, responder = side(vector, "init"), side(vector, "resp")
    messages = [(bytes.fromhex(m["payload"]), bytes.fromhex(m["ciphertext"])) for m in vector["messages"]]
    turn = 0
    while not initiator.finished:
        payload, ciphertext = messages[turn]
        writer, reader = (initiator, responder) if turn % 2 == 0 else (responder, initiator)
        assert writer.write_message(payload) == ciphertext
        assert reader.read_message(ciphertext) == payload
        turn += 1
    assert responder.finished
    assert initiator.get_handshake_hash() == responder.get_handshake_hash()
    if vector.get("handshake_hash"):
        assert initiator.get_handshake_hash().hex() == vector["handshake_hash"]
    ends: dict[bool, tuple[CipherState, CipherState]] = {True: initiator.split(), False: responder.split()}
    one_way = turn == 1
    for number, (payload, ciphertext) in enumerate(messages[turn:], start=turn):
        from_initiator = one_way or number % 2 == 0
        assert ends[from_initiator][0].encrypt_with_ad(b"", payload) == ciphertext
        assert ends[not from_initiator][1].decrypt_with_ad(b"", ciphertext) == payload


@pytest.mark.parametrize("file", FILES)
def test_every_published_vector_is_reproduced_byte_by_byte(file: str) -> None:
    vectors = vectors_of(file)
    for vector in vectors:
        try:
            run(vector)
        except AssertionError as error:
            raise AssertionError(f"{name_of(vector)}: {error}") from error
    assert len(vectors) == FILES[file]


def test_a_directory_that_is_named_and_not_there_is_no_reason_to_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setenv("IRIS_NOISE_VECTORS", str(missing))
    monkeypatch.setitem(globals(), "VECTORS", missing)
    with pytest.raises(pytest.fail.Exception, match="missing"):
        vectors_of("snow.json")
    monkeypatch.delenv("IRIS_NOISE_VECTORS")
    with pytest.raises(pytest.skip.Exception, match="no Noise vectors"):
        vectors_of("snow.json")
