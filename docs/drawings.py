"""The figures of docs/concepts, as SVG."""

from __future__ import annotations

from pathlib import Path


def drawings() -> dict[Path, str]:
    return {}
