"""What the site takes from the code: the verbs of the command, the metrics, the defaults of ``iris.Config``."""

from __future__ import annotations

from typing import Final

from docs.command_reference import command_reference
from iris.kernel.config import Config
from iris.node.telemetry.families import FAMILIES

_UNITS: Final = (
    (("_timeout", "_interval", "_patience", "_lifetime", "_rejected", "_grace", "_retention", "_settling", "_retry",
      "_keepalive", "_silence", "_idle", "_target"), "s"),
    (("_bytes", "_window", "_chunk", "max_payload", "max_headers", "_bytes_per_owner"), "bytes"),
    (("_rate",), "per second"),
    (("_multiplier",), "times"),
)  # fmt: skip


def expanded(text: str) -> str:
    """Return a page with what the code says in the place of the marks ``<!-- verbs -->`` and ``<!-- metrics -->``."""
    for mark, written in (("<!-- verbs -->", command_reference), ("<!-- metrics -->", metrics_table)):
        if f"\n{mark}\n" in text:
            text = text.replace(mark, written())
    return text


def metrics_table() -> str:
    """Return the table of docs/reference/telemetry.md."""
    rows = (
        f"| `{name}` | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for name, family in FAMILIES.items()
    )
    return "\n".join(["| metric | labels | meaning |", "|---|---|---|", *rows])


def field_value(name: str) -> str:
    """Return the default of a field of ``iris.Config`` with its unit, as its name says; "" if there is none."""
    number = getattr(Config(), name, None)
    if not isinstance(number, int | float):
        return ""
    unit = next((unit for ends, unit in _UNITS if name.endswith(ends)), "")
    if unit == "bytes":
        for size, prefix in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
            if number >= size and number % size == 0:
                return f"{number // size} {prefix}"
    return f"{number:,} {unit}".strip() if isinstance(number, int) else f"{number:g} {unit}".strip()
