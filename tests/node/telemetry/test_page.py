"""The pages on telemetry and the dashboard, compared with the code; the programs of the how-to run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from docs.tables import metrics_table
from iris.node.telemetry.families import FAMILIES
from iris.node.telemetry.logs import FIELDS
from tests.support.command import open_terminal
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "docs" / "reference" / "telemetry.md"
HOW_TO = ROOT / "docs" / "howto" / "operate" / "observe.md"
DASHBOARD = ROOT / "deploy" / "grafana" / "iris.json"


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the first table under a heading."""
    section = REFERENCE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


def test_the_name_of_a_metric_tells_its_kind_as_the_page_says() -> None:
    assert "ends with `_total` is a counter, with `_duration_seconds` a histogram" in REFERENCE.read_text()
    for name, family in FAMILIES.items():
        histogram = name.endswith("_duration_seconds")
        assert family.kind == ("counter" if name.endswith("_total") else "histogram" if histogram else "gauge"), name


def test_the_site_has_the_table_of_metrics_where_the_page_has_its_mark() -> None:
    assert REFERENCE.read_text().count("\n<!-- metrics -->\n") == 1
    table = metrics_table().splitlines()
    assert len(table) == len(FAMILIES) + 2
    assert "| `iris_link_messages_total` | `outcome` | Messages given to links, by what became of them. |" in table


def test_the_table_of_fields_is_that_of_the_code() -> None:
    assert {name.strip("`") for name, _ in rows("Logs")} == set(FIELDS)


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, family in FAMILIES.items():
        assert name.startswith("iris_")
        assert name.endswith("_total") == (family.kind == "counter"), name
        assert family.kind != "histogram" or name.endswith("_seconds")
        assert family.help.endswith(".")
        assert not {"le", "instance", "job", "peer"} & set(family.labels)


def expressions() -> list[str]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_the_dashboard_names_only_metrics_and_labels_that_exist() -> None:
    series = set(FAMILIES) | {
        f"{name}_{suffix}"
        for name, family in FAMILIES.items()
        if family.kind == "histogram"
        for suffix in ("bucket", "sum", "count")
    }
    text = DASHBOARD.read_text()
    named = set(re.findall(r"\biris_\w+", text))
    assert len(named) > 20
    assert named - series == set()
    assert set(re.findall(r"\bprocess_\w+", text)) == {"process_cpu_seconds_total"}
    for expression in expressions():
        (name,) = set(re.findall(r"\b((?:iris|process)_\w+)", expression))
        family = FAMILIES.get(re.sub(r"_bucket$", "", name))
        labels = {"instance", "le"} | set(() if family is None else family.labels)
        used = set(re.findall(r"(\w+)=~?\"", expression))
        for group in re.findall(r" by \(([^)]*)\)", expression):
            used |= {label.strip() for label in group.split(",")}
        assert used <= labels, expression


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus")
def test_prometheus_can_read_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def program(heading: str) -> str:
    """Return the first program of a section that runs for ever, with a free port in the place of 9464."""
    section = HOW_TO.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(code)


def test_the_program_of_the_page_serves_its_metrics() -> None:
    port = free_port()
    code = program("Serve metrics").replace("9464", str(port))
    with (
        open_terminal() as terminal,
        subprocess.Popen(
            [sys.executable, "-u", "-c", code], env=terminal.environment, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as page:
                assert page.read() == b"ready\n"
        finally:
            process.kill()


def test_the_handler_of_the_page_writes_json() -> None:
    code = program("Write the log as JSON")
    code += 'logging.getLogger("iris").warning("%s", "hello", extra={"cluster": "store"})\n'
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    told = json.loads(done.stderr)
    assert (told["message"], told["cluster"], told["level"]) == ("hello", "store", "warning")
