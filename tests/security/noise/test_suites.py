from __future__ import annotations

from pathlib import Path

import pytest

from iris.security.noise import suites as suite
from iris.security.noise.suites import Suite, choose_suite, preferred_suite


@pytest.mark.parametrize(
    ("cpuinfo", "chosen"),
    [
        ("flags\t\t: fpu vme aes avx\n", Suite.AESGCM),
        ("flags\t\t: fpu vme vaes avx\n", Suite.CHACHAPOLY),
        ("Features\t: fp asimd aes pmull\n", Suite.AESGCM),
        ("Features\t: fp asimd\n", Suite.CHACHAPOLY),
        ("model name : aes aes\n", Suite.CHACHAPOLY),
        ("", Suite.CHACHAPOLY),
        (None, Suite.AESGCM),
    ],
)
def test_aes_is_chosen_where_the_processor_has_instructions_for_it(cpuinfo: str | None, chosen: Suite) -> None:
    assert choose_suite(cpuinfo) is chosen


def test_a_machine_that_does_not_tell_is_taken_for_one_with_aes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "_CPU_FEATURES", tmp_path / "missing")
    preferred_suite.cache_clear()
    assert preferred_suite() is Suite.AESGCM
    preferred_suite.cache_clear()


def test_protocol_names_are_those_of_the_protocol_document() -> None:
    assert [s.protocol.name for s in Suite] == [
        b"Noise_XXpsk0+psk2_25519_AESGCM_SHA256",
        b"Noise_XXpsk0+psk2_25519_ChaChaPoly_SHA256",
    ]
