"""Options of calls: texts that clients write behind a name, read by one rule at all doors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import iris
from iris.doors.problems import Problem
from iris.kernel.numerals import MAX_WHOLE, read_float, read_whole

LONGEST: Final = 50.0
"""Seconds that the timeout and the wait of one call may be together.  A REQ of nng that has no answer asks again after
60, if its program does not say otherwise (NNG_OPT_REQ_RESENDTIME), and many a proxy of HTTP gives up then: by that time
the call is over."""

Options = dict[str, Any]
"""Options of one call by their names, as their readers have made them: arguments of the method that does it."""

Readers = Mapping[str, Callable[[str], object]]
"""Reader of the text of each option, by name; it raises ``ValueError`` or ``KeyError`` if it cannot read it."""


def number(text: str) -> float:
    """Read a number."""
    value = read_float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def whole(text: str) -> int:
    """Read a whole number."""
    value = read_whole(text, -MAX_WHOLE)
    if value is None:
        raise ValueError(text)
    return value


def flag(text: str) -> bool:
    """Read true or false."""
    return {"true": True, "false": False}[text]


REQUEST: Final[Readers] = {
    "operation": str, "timeout": number, "wait": number, "key": str, "idempotent": flag, "hedge": number,
    "priority": str, "prefer_site": str,
}  # fmt: skip
SURVEY: Final[Readers] = {
    "operation": str, "timeout": number, "wait": number, "count": whole, "quiet": number, "priority": str,
}  # fmt: skip
BROADCAST: Final[Readers] = {"wait": number}
PUBLISH: Final[Readers] = {"confirm": flag, "timeout": number, "key": str, "retain": flag}
PUSH: Final[Readers] = {"key": str, "retain": flag}
TUNNEL: Final[Readers] = {"operation": str, "timeout": number, "wait": number, "key": str, "prefer_site": str}
SERVE: Final[Readers] = {"capacity": whole, "keep": number}
PUT: Final[Readers] = {"key": str, "delay": number, "expires": number, "priority": whole, "timeout": number}
TAKE: Final[Readers] = {
    "limit": whole, "lease": number, "attempts": whole, "backoff": number, "dead": str, "wait": number,
}  # fmt: skip
READ: Final[Readers] = {"group": str, "start": str, "until": str, "replay": flag, "limit": whole, "wait": number}
LEASE: Final[Readers] = {"ttl": number, "timeout": number, "wait": number}
QUEUE: Final[Readers] = {"timeout": number}

TIMEOUT: Final = 5.0
"""Seconds that a request, a confirmation and the opening of a tunnel have if their client does not say."""

_KINDS: Final[Mapping[Callable[[str], object], str]] = {
    number: "a number",
    whole: "a whole number",
    flag: "true or false",
}


def read_options(pairs: Iterable[tuple[str, str]], known: Readers, timeout: float = TIMEOUT) -> Options:
    """Return options by their names.

    Args:
        pairs: names and texts.
        known: the options that there are.
        timeout: seconds, if the client does not say and there is such an option.

    Raises:
        Problem: one is unknown, stands twice or cannot be read, or the call would take too long.
    """
    options: Options = {}
    for name, text in pairs:
        if name not in known or name in options:
            names = ", ".join(known)
            raise Problem(400, "malformed", f"{name!r:.60} is no option here, or stands twice; there are {names}")
        try:
            options[name] = known[name](text)
        except (ValueError, KeyError):
            wanted = _KINDS.get(known[name], "something else")
            raise Problem(400, "malformed", f"option {name}: expected {wanted}, got {text!r:.60}") from None
    if "timeout" in known:
        options.setdefault("timeout", timeout)
    limit, wait = options.get("timeout", TIMEOUT), options.get("wait", 0.0)
    if not limit > 0 or wait < 0 or math.fsum((options.get("timeout", 0.0), wait)) > LONGEST:
        detail = f"timeout is above 0, wait is not negative, and they are {LONGEST:g} s together at most"
        raise Problem(400, "malformed", detail)
    return options


def request_of(options: Mapping[str, Any], idempotency_key: str | None = None) -> dict[str, Any]:
    """Return the options of a request as arguments of ``Node.request``; raise ConfigError if one is out of range."""
    own = {name: value for name, value in options.items() if name in iris.RequestOptions.__struct_fields__}
    rest = {name: value for name, value in options.items() if name not in own}
    return {**rest, "options": iris.RequestOptions(**own, idempotency_key=idempotency_key)}
