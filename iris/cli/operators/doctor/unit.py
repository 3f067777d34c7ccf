"""A unit of systemd: the examination runs as the unit does, with its user, environment, credential and limits.

systemd makes these surroundings itself: ``systemd-run`` starts ``iris doctor`` as a transient service, with each
property of the unit that says what its program has and may see.  So a unit that does not start can be examined, too,
and what an administrator has changed by ``systemctl edit`` counts.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from iris.kernel.errors import ConfigError
from iris.kernel.shapes import is_list, is_map

_SAME: Final = (
    *("User", "Group", "DynamicUser", "SupplementaryGroups", "LimitNOFILE", "WorkingDirectory"),
    *("StateDirectory", "PrivateTmp", "PrivateNetwork", "ProtectSystem", "ProtectHome"),
    *("ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths"),
)
"""Properties that a program notices when it looks at its set-up: who it is, and what it sees and may write."""

_MODES: Final = ("UMask", "StateDirectoryMode", "RuntimeDirectoryMode")
_CREDENTIALS: Final = "/run/credentials"
_PATIENCE: Final = 20.0
"""Seconds that systemd has to answer."""

_STATUSES: Final = {
    200: "WorkingDirectory=",
    203: "ExecStart=",
    216: "Group=",
    217: "User=",
    226: "namespace (paths that are not there)",
    233: "RuntimeDirectory=",
    238: "StateDirectory=",
    243: "credentials",
}
"""Exit statuses of systemd itself; systemd.exec(5) lists them."""

_MANAGER: Final = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")

Properties = Mapping[str, object]


async def examine_unit(name: str, options: Sequence[str]) -> int:
    """Run ``iris doctor`` as a unit does its program; it writes what it finds.  Return its exit status.

    Args:
        name: the unit, such as ``iris@prices``.
        options: options of ``iris doctor`` itself.

    Raises:
        ConfigError: there is no such unit or no systemd, or this user is not root.
    """
    unit = name if "." in name else f"{name}.service"
    if os.geteuid() != 0:
        raise ConfigError(f"only root has what the unit {unit} has: run: sudo iris doctor --unit {shlex.quote(name)}")
    path = str(await _answer(*_MANAGER, "LoadUnit", "s", unit))
    state = await _properties(path, "Unit")
    if state.get("LoadState") != "loaded":
        raise ConfigError(f"there is no unit {unit}: run: systemctl list-unit-files 'iris*'")
    properties = await _properties(path, "Service")
    _check_credentials(unit, properties)
    status = (await trio.run_process(as_unit(unit, properties, options), check=False)).returncode
    if status in _STATUSES:
        raise ConfigError(
            f"systemd cannot start a program with what the unit {unit} has, for its {_STATUSES[status]}: run: "
            f"systemctl status {shlex.quote(unit)}"
        )
    return status


def _check_credentials(unit: str, properties: Properties) -> None:
    for credential in _items(properties.get("LoadCredential")):
        file = Path(str(_items(credential)[1]))
        if file.is_absolute() and not file.exists():
            mend = f"iris keys cluster REALM_FILE CLUSTER --out {shlex.quote(str(file))}"
            raise ConfigError(f"the credential {file} that the unit {unit} loads is not there: run: {mend}")


def as_unit(unit: str, properties: Properties, options: Sequence[str]) -> list[str]:
    """Return the command that starts the examination with what a unit has.

    Args:
        unit: its name, with the suffix.
        properties: those of its service.
        options: options of ``iris doctor``.

    Raises:
        ConfigError: it starts no program.
    """
    own = f"iris-doctor-{os.getpid()}"
    settings = [*_settings(properties), f"RuntimeDirectory={own}"]
    # systemd removes a runtime directory when the service ends: the examination has one of its own.
    moved = {f"/run/{directory}": f"/run/{own}" for directory in _texts(properties.get("RuntimeDirectory"))}
    moved[f"{_CREDENTIALS}/{unit}"] = f"{_CREDENTIALS}/{own}.service"
    for variable in _texts(properties.get("Environment")):
        name, _, value = variable.partition("=")
        place = next((place for place in moved if value == place or value.startswith(f"{place}/")), "")
        settings.append(f"Environment={_one_word(f'{name}={moved.get(place, place)}{value.removeprefix(place)}')}")
    started = [_items(one)[:2] for one in _items(properties.get("ExecStart"))]
    if not started:
        raise ConfigError(f"the unit {unit} starts no program: give one with ExecStart=")
    program = Path(str(started[-1][0]))
    # A program of its own has its settings from the environment alone.
    arguments = _texts(started[-1][1])[1:] if program.name == "iris" else ()
    command = [str(program.with_name("iris")), "doctor", *options, *arguments]
    run = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--unit={own}.service"]
    return [*run, *(f"--property={setting}" for setting in settings), *command]


def _settings(properties: Properties) -> Iterator[str]:
    for name in _SAME:
        value = properties.get(name)
        if isinstance(value, bool):
            yield f"{name}={'yes' if value else 'no'}"
        elif is_list(value) and value:
            yield f"{name}={' '.join(map(_one_word, _texts(value)))}"
        elif value:
            yield f"{name}={value}"
    for name in _MODES:
        if isinstance(mode := properties.get(name), int):
            yield f"{name}={mode:04o}"
    for file in _items(properties.get("EnvironmentFiles")):
        path, may_be_absent = _items(file)
        yield f"EnvironmentFile={'-' if may_be_absent else ''}{path}"
    for name in ("LoadCredential", "LoadCredentialEncrypted"):
        for credential in _items(properties.get(name)):
            yield f"{name}={':'.join(map(str, _items(credential)))}"


def _one_word(text: str) -> str:
    """Return a text as ``systemd-run`` reads one word of a list, a variable or a path.  It leaves ``%`` as it is."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _items(value: object) -> list[object]:
    return list(value) if is_list(value) else []


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, _items(value)))


async def _properties(path: str, kind: str) -> Properties:
    interface = f"org.freedesktop.systemd1.{kind}"
    found = await _answer("org.freedesktop.systemd1", path, "org.freedesktop.DBus.Properties", "GetAll", "s", interface)
    return {name: one["data"] for name, one in found.items() if is_map(one)} if is_map(found) else {}


async def _answer(*arguments: str) -> object:
    """Call a method of systemd, and return the first of its results."""
    command = ["busctl", "--system", "--json=short", "call", *arguments]
    try:
        with trio.fail_after(_PATIENCE):
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    except FileNotFoundError:
        raise ConfigError("there is no busctl, so no systemd: run 'iris doctor' with the options of the node") from None
    except trio.TooSlowError:
        raise ConfigError(f"systemd has not answered within {_PATIENCE:g} s: run: systemctl status") from None
    if done.returncode:
        raise ConfigError(f"{done.stderr.decode(errors='replace').strip()}: run: systemctl status")
    return json.loads(done.stdout)["data"][0]
