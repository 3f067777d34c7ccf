"""Every pattern of Noise as data, and the parsing of protocol names: sections 7, 8, 9 and 18.1.

Iris runs ``XXpsk0+psk2``.  The public test vectors use the others: a core that passes 1,104 of them is one whose single
pattern can be believed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from iris.security.noise.handshake_state import NoiseProtocol

# Section 7: pre-message of the initiator, pre-message of the responder, messages (the first is the initiator's).
PATTERNS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    # 7.4, one-way
    "N": ("", "s", ("e es",)),
    "K": ("s", "s", ("e es ss",)),
    "X": ("", "s", ("e es s ss",)),
    # 7.5, interactive
    "NN": ("", "", ("e", "e ee")),
    "NK": ("", "s", ("e es", "e ee")),
    "NX": ("", "", ("e", "e ee s es")),
    "XN": ("", "", ("e", "e ee", "s se")),
    "XK": ("", "s", ("e es", "e ee", "s se")),
    "XX": ("", "", ("e", "e ee s es", "s se")),
    "KN": ("s", "", ("e", "e ee se")),
    "KK": ("s", "s", ("e es ss", "e ee se")),
    "KX": ("s", "", ("e", "e ee se s es")),
    "IN": ("", "", ("e s", "e ee se")),
    "IK": ("", "s", ("e es s ss", "e ee se")),
    "IX": ("", "", ("e s", "e ee se s es")),
    # 18.1, deferred
    "NK1": ("", "s", ("e", "e ee es")),
    "NX1": ("", "", ("e", "e ee s", "es")),
    "X1N": ("", "", ("e", "e ee", "s", "se")),
    "X1K": ("", "s", ("e es", "e ee", "s", "se")),
    "XK1": ("", "s", ("e", "e ee es", "s se")),
    "X1K1": ("", "s", ("e", "e ee es", "s", "se")),
    "X1X": ("", "", ("e", "e ee s es", "s", "se")),
    "XX1": ("", "", ("e", "e ee s", "es s se")),
    "X1X1": ("", "", ("e", "e ee s", "es s", "se")),
    "K1N": ("s", "", ("e", "e ee", "se")),
    "K1K": ("s", "s", ("e es", "e ee", "se")),
    "KK1": ("s", "s", ("e", "e ee se es")),
    "K1K1": ("s", "s", ("e", "e ee es", "se")),
    "K1X": ("s", "", ("e", "e ee s es", "se")),
    "KX1": ("s", "", ("e", "e ee se s", "es")),
    "K1X1": ("s", "", ("e", "e ee s", "se es")),
    "I1N": ("", "", ("e s", "e ee", "se")),
    "I1K": ("", "s", ("e es s", "e ee", "se")),
    "IK1": ("", "s", ("e s", "e ee se es")),
    "I1K1": ("", "s", ("e s", "e ee es", "se")),
    "I1X": ("", "", ("e s", "e ee s es", "se")),
    "IX1": ("", "", ("e s", "e ee se s", "es")),
    "I1X1": ("", "", ("e s", "e ee s", "se es")),
}


@functools.lru_cache(maxsize=1024)
def read_protocol_name(protocol_name: str) -> NoiseProtocol:
    """Take apart a name like ``Noise_XXpsk0+psk2_25519_AESGCM_SHA256``.

    Raises:
        ValueError: it is not one, or not over 25519.
    """
    noise, name, dh, cipher, hash_name = protocol_name.split("_")
    pattern, separator, modifiers = name.partition("psk")
    if (noise, dh) != ("Noise", "25519") or pattern not in PATTERNS:
        raise ValueError(f"{protocol_name!r} is not a Noise protocol over 25519")
    initiator_pre_message, responder_pre_message, texts = PATTERNS[pattern]
    messages: list[list[str]] = [list(text.split()) for text in texts]
    for modifier in modifiers.split("+psk") if separator else ():
        # Section 9.4: psk0 opens the first message, pskN ends the Nth
        position = int(modifier)
        if position == 0:
            messages[0].insert(0, "psk0")
        else:
            messages[position - 1].append(f"psk{position}")
    return NoiseProtocol(
        name=protocol_name.encode(),
        initiator_pre_message=initiator_pre_message,
        responder_pre_message=responder_pre_message,
        messages=tuple(map(tuple, messages)),
        psk_mode=bool(separator),
        cipher=cipher,
        hash_name=hash_name,
    )
