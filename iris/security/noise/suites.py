"""Cipher suites: the two of them, and the choice of one for this machine.

AES-GCM where the processor has AES instructions: 9 GB/s for 64 KiB frames where they exist, against 3.5 GB/s of
ChaCha20-Poly1305; without them AES is slower and its timing leaks.  The initiator chooses and its first frame says
which; every responder speaks both.
"""

from __future__ import annotations

import enum
import functools
from pathlib import Path
from typing import final

from iris.security.noise.handshake_state import NoiseProtocol

_CPU_FEATURES = Path("/proc/cpuinfo")


@final
class Suite(enum.IntEnum):
    """A cipher suite; the value is its number on the wire."""

    AESGCM = 1
    CHACHAPOLY = 2

    @property
    def cipher(self) -> str:
        """The cipher as Noise names it."""
        return "AESGCM" if self is Suite.AESGCM else "ChaChaPoly"

    @property
    def protocol(self) -> NoiseProtocol:
        """The whole protocol: pattern XX (section 7.5) with two pre-shared keys (section 9.4)."""
        return NoiseProtocol(
            name=f"Noise_XXpsk0+psk2_25519_{self.cipher}_SHA256".encode(),
            initiator_pre_message="",
            responder_pre_message="",
            messages=(("psk0", "e"), ("e", "ee", "s", "es", "psk2"), ("s", "se")),
            psk_mode=True,
            cipher=self.cipher,
            hash_name="SHA256",
        )


def choose_suite(cpuinfo: str | None) -> Suite:
    """Choose by the text of ``/proc/cpuinfo``.

    Without that file (not Linux) the machine is taken for one with AES instructions, as every x86-64 since 2010
    and every 64-bit Apple processor is.
    """
    if cpuinfo is None:
        return Suite.AESGCM
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            return Suite.AESGCM if "aes" in value.split() else Suite.CHACHAPOLY
    return Suite.CHACHAPOLY


@functools.cache
def preferred_suite() -> Suite:
    """Return the faster suite of this machine; reads ``/proc/cpuinfo`` once."""
    try:
        cpuinfo = _CPU_FEATURES.read_text(encoding="ascii", errors="replace")
    except OSError:
        cpuinfo = None
    return choose_suite(cpuinfo)
