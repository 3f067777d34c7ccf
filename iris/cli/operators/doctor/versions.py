"""Versions: of Python, of the packages that Iris needs, and of Iris at the other members."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Final

from iris.cli.operators.doctor.findings import Diagnosis, ok, problem, warning

_OLDEST: Final = (3, 11)
_REQUIREMENT: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*(?P<bounds>[^;\[]*?)\s*(;.*)?\Z")
_BOUND: Final = re.compile(r"(>=|<)\s*(\d+(?:\.\d+)*)\Z")
"""The bounds that pyproject.toml uses; a test compares."""


def examine_python(version: tuple[int, ...], prefix: str) -> Diagnosis:
    """Compare the version of Python with the oldest that Iris runs on."""
    text = ".".join(map(str, version[:3]))
    if version[:2] < _OLDEST:
        needed = ".".join(map(str, _OLDEST))
        return problem("python-old", f"Python {text}: {needed} or newer is needed", f"python{needed} -m venv .venv")
    return ok("python-ok", f"Python {text} at {prefix}")


def installed(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements() -> list[str]:
    """Return what Iris needs besides its extras; nothing where it runs from a checkout that is not installed."""
    try:
        return [one for one in metadata.requires("iris-mesh") or [] if "extra ==" not in one]
    except metadata.PackageNotFoundError:
        return []


def examine_packages(required: Iterable[str], version_of: Callable[[str], str | None]) -> list[Diagnosis]:
    """Compare the packages that are installed with the bounds that Iris has for them."""
    missing: list[str] = []
    unfit: dict[str, str] = {}
    count = 0
    for requirement in required:
        parts = _REQUIREMENT.match(requirement)
        if parts is None:
            continue
        count += 1
        name, bounds = parts["name"], parts["bounds"]
        found = version_of(name)
        if found is None:
            missing.append(name)
        elif not all(_satisfies(found, bound) for bound in bounds.split(",") if bound.strip()):
            unfit[name] = f"{name} {found}, {bounds} is needed"
    install = f"{sys.executable} -m pip install --upgrade iris-mesh"
    result: list[Diagnosis] = []
    if missing:
        result.append(problem("packages-missing", f"not installed: {', '.join(missing)}", install))
    if unfit:
        result.append(problem("packages-unfit", "; ".join(unfit.values()), install))
    return result or [ok("packages-ok", f"iris-mesh {version_of('iris-mesh')} and the {count} packages that it needs")]


def _satisfies(version: str, bound: str) -> bool:
    parts = _BOUND.match(bound.strip())
    if parts is None:
        return True
    found, limit = _numbers(version), _numbers(parts[2])
    return found >= limit if parts[1] == ">=" else found < limit


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in leading[0].split(".")] if leading else [0]
    while numbers and numbers[-1] == 0:  # 9 is 9.0
        numbers.pop()
    return tuple(numbers)


def examine_versions(own: str | None, members: Mapping[str, str]) -> Diagnosis | None:
    """Compare the version of Iris here with those that members say they run; None if none has said so.

    Args:
        own: the version here.
        members: node id to version.
    """
    if not members:
        return None
    others = Counter(version for version in members.values() if version != own)
    if not others:
        return ok("versions-ok", f"all {len(members)} members that say what they run have {own}")
    shown = ", ".join(f"{count} with {version or 'none that they tell'}" for version, count in sorted(others.items()))
    cause = f"Iris {own} here, and {shown} of {len(members)} members"
    return warning("versions-differ", cause, f"there: python -m pip install iris-mesh=={own}")
