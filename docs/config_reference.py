"""docs/reference/config.md: rules, and what comes from the fields of ``iris.Config`` and the docstrings under them."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import Final

from iris.kernel.config import Config

SOURCE: Final = Path(__file__).resolve().parents[1] / "iris" / "kernel" / "config.py"
INTRODUCTION: Final = """\
# Limits

<!-- index: circuit breaker -->

Every limit and time that a program may change is a field of `iris.Config`, which you give to the node. A value that
cannot work is
refused when you make it:

```python
mine = iris.Config(max_payload=4 * 1024 * 1024, drain_timeout=20.0)
async with iris.open_node("shop", config=mine): ...
try:
    iris.Config(max_payload=64 * 1024 * 1024)
except iris.ConfigError as error:
    print(error)
```

```output
config: max_payload is above 16 MiB: send larger things through a tunnel
```

A limit holds for what arrives as well as for what is sent.

## Limits of a service

Set them with `node.join(cluster, service, limits=iris.Limits(...))`, or in `Config` for [all services](#services).

| limit | beyond it |
|---|---|
| `concurrency` | requests wait |
| `queue`, `queue_bytes` | `Overloaded` at once: for the newest request of the cluster of which most waits, if that \
is more than the coming one's cluster would have, else for the coming one. The clusters of another realm count as one \
|
| time in the queue, `queue_delay_target` | `Overloaded` for new requests that would wait longer, low priority first, \
once the queue has not been empty for three times as long. A burst is served to its end |
| `rate`, `rate_bytes` | requests a second at this member, and bytes of their payloads: `Overloaded` with the time |
| `adaptive=True` | fewer handlers run at the same time when that makes them faster |

## Attempts, repeats and circuits

| mechanism | rule |
|---|---|
| attempts | at most 4 for a request, hedged or not, each at another member; an idempotent one begins anew after a \
pause |
| repeats | after a refusal, and once four members were tried: 10 % of the requests to the cluster, 10 a second, 100 \
at once. After a loss: always, and counted |
| circuits | a member that leaves 5 requests in a row unanswered is not asked for 1 s, then tried with one; 2, 4, ... \
30 s if that fails. If all are silent, all are asked |
| hedges | 5 % of the requests that ask for it |
| choice | the better of two drawn at random: [how](../explanation/reliability.md#choosing-a-member) |

## What a node does not take

A node refuses payloads and headers above `max_payload` and `max_headers`, and a payload that cannot be decoded:
broken msgpack, text that is not UTF-8, an extension, a key that is not a text. No handler or loop gets either, and
the sender keeps its link. Both are counted in `node.statistics().refusals`, and logged the first time for each node
and kind of message.

| what | above the receiver's limits | cannot be decoded |
|---|---|---|
| request | `PayloadTooLarge`, which names the node and its limit | `RemoteError("bad_request")` |
| reply | `RemoteError("reply_too_large")` | `RemoteError("reply_malformed")` |
| survey | for a member's question or answer: in `answers.errors`, as above | the same |
| broadcast | `broadcasts_refused` there, `refused_because["refused by the member"]` at the sender | the same |
| event, last value | not delivered; `missed` of the next one counts it, and `publishing.refused` at the publisher. \
`publish_confirmed` ends in `RequestTimeout` | the same, and `malformed` of the subscription |
| tunnel | headers: `PayloadTooLarge`; messages: at the sender, against the smaller limit of the two ends | `receive` \
raises `TunnelBroken`, and the tunnel ends at both ends |

Every node takes a frame of 1 MiB and 32 KiB. A `max_payload` or `batch_bytes` above 1 MiB has to hold for all
nodes: a larger frame ends the connection to a node that has less.

## Fields

Written by `make docs` from `iris/kernel/config.py`; do not edit. Defaults are in bold.
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
            parts.append(f"### {section.capitalize()}\n")
        name = field.target.id
        default = getattr(defaults, name)
        kind = unit(name)
        shown = value(default) if kind == "bytes" else f"{default:,}" if isinstance(default, int) else f"{default:g}"
        what = {"bytes": f"{shown}" if "iB" in shown else f"{shown} bytes", "count": shown}.get(kind, f"{shown} {kind}")
        reason = " ".join(str(doc.value.value).split()).replace("``", "`")
        parts.append(f"#### {name}\n\n**{what}**. {reason}\n")
    return "\n".join(parts)
