"""docs/reference/config.md, from the fields of ``iris.Config`` and the docstrings under them."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import Final

from iris.kernel.config import Config

SOURCE: Final = Path(__file__).resolve().parents[1] / "iris" / "kernel" / "config.py"
INTRODUCTION: Final = """\
# Config

Written by `make docs` from `iris/kernel/config.py`; do not edit.

Every limit and time that a program may change is a field of `iris.Config`. You give it to the node:

```python
mine = iris.Config(max_payload=4 * 1024 * 1024, drain_timeout=20.0)
async with iris.open_node("shop", config=mine): ...
```

Defaults are in bold. Sizes are bytes, times are seconds. A value that cannot work is a `ConfigError` that names the
field. A limit holds for what arrives as well as for what is sent.
"""
_SECTION: Final = re.compile(r"^ +# -- ([\w/ ]+?) -+$")
_UNITS: Final = (
    (("_timeout", "_interval", "_patience", "_lifetime", "_rejected", "_grace", "_retention", "_settling", "_retry",
      "_keepalive", "_silence", "_idle", "_target"), "s"),
    (("_bytes", "_window", "_chunk", "max_payload", "max_headers", "_bytes_per_owner"), "bytes"),
    (("_rate",), "per second"),
    (("_multiplier",), "times"),
)  # fmt: skip


def unit(name: str) -> str:
    """Return the unit of a field: what its name says."""
    return next((unit for ends, unit in _UNITS if name.endswith(ends)), "count")


def value(number: float) -> str:
    """Return a default as people write it."""
    for size, name in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if isinstance(number, int) and number >= size and number % size == 0:
            return f"{number // size} {name}"
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def config_reference() -> str:
    """Return the page."""
    text = SOURCE.read_text()
    lines = text.splitlines()
    (body,) = (node.body for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == "Config")
    defaults = Config()
    parts = [INTRODUCTION]
    section = ""
    for field, doc in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        assert isinstance(doc, ast.Expr), f"Config.{field.target.id} has no docstring"
        assert isinstance(doc.value, ast.Constant)
        heading = next(m[1] for line in reversed(lines[: field.lineno]) if (m := _SECTION.match(line)))
        if heading != section:
            section = heading
            parts.append(f"## {section.capitalize()}\n")
        name = field.target.id
        default = getattr(defaults, name)
        kind = unit(name)
        shown = value(default) if kind == "bytes" else f"{default:,}" if isinstance(default, int) else f"{default:g}"
        what = {"bytes": f"{shown}" if "iB" in shown else f"{shown} bytes", "count": shown}.get(kind, f"{shown} {kind}")
        reason = " ".join(str(doc.value.value).split()).replace("``", "`")
        parts.append(f"### {name}\n\n**{what}**. {reason}\n")
    return "\n".join(parts)
