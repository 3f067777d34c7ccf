"""Processor time of measured processes and of others."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import bench
from benchmarks.broker import find_program
from benchmarks.load import Others, processor_time
from benchmarks.report import Report

BURN = """
import time
while time.process_time() < {seconds}: pass
print("done", flush=True)
input()
"""


def test_the_processor_time_of_another_process_is_read() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BURN.format(seconds=0.2)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        used = processor_time(process.pid)
        process.kill()
    if used is None:
        pytest.skip("the processor time of others is read on Linux only")
    assert 0.2 <= used < 1.0
    assert processor_time(process.pid) is None


def test_what_this_process_and_its_children_take_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(0.0, 10.0, 1.0), (2.0, 13.0, 2.5), (4.0, 13.0, 2.6)])

    def look(_: Others) -> tuple[float, float, float]:
        return next(looks)

    monkeypatch.setattr(Others, "_look", look)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    others = Others()
    assert others.share() == pytest.approx(1.5 / 4)
    assert others.share() == 0.0


def test_the_times_of_the_machine_go_on() -> None:
    others = Others()
    time.sleep(0.05)
    assert 0.0 <= others.share() <= 1.5


def test_a_busy_machine_is_not_measured_unless_one_insists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "others_now", lambda: 0.3)
    measured: list[object] = []
    monkeypatch.setattr(bench, "_measure", measured.append)
    page = str(tmp_path / "page.md")
    refused = CliRunner().invoke(bench.main, ["--quick", "--document", page])
    assert refused.exit_code == 1
    assert "other programs take 30% of the processors: with more than 10%" in refused.output
    assert "--busy" in refused.output
    assert measured == []
    assert CliRunner().invoke(bench.main, ["--quick", "--busy", "--document", page]).exit_code == 0
    assert len(measured) == 1


def test_a_case_during_which_the_machine_became_busy_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(report: Report) -> None:
        iris, *_ = report.systems
        for case, share in (("publish-100", 0.4), ("request-1", 0.05)):
            (one,) = (each for each in report.cases if each.name == case)
            report.add(one, iris, dict.fromkeys(("rate", "p50", "p90", "p99", "p99.9"), 1.0))
            report.others[case] = [share]

    monkeypatch.setattr(bench, "others_now", lambda: 0.0)
    monkeypatch.setattr(bench, "_measure", measure)
    page = tmp_path / "page.md"
    command = ["--case", "publish-100", "--case", "request-1", "--document", str(page)]
    refused = CliRunner().invoke(bench.main, command)
    assert refused.exit_code == 1
    assert "other programs used the processors during publish-100:" in refused.output
    assert "<!-- case: request-1 -->" in page.read_text()
    assert "<!-- case: publish-100 -->" not in page.read_text()
    assert CliRunner().invoke(bench.main, [*command, "--busy"]).exit_code == 0
    assert "<!-- case: publish-100 -->" in page.read_text()
    assert "**On a busy machine**: other programs took 40 %" in page.read_text()


def test_programs_are_found_beside_the_interpreter_before_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("beside", "path"):
        (tmp_path / folder).mkdir()
        program = tmp_path / folder / "some-server"
        program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_program("some-server") == str(tmp_path / "path" / "some-server")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))
    assert find_program("some-server") == str(tmp_path / "beside" / "some-server")
    assert find_program("no-such-server") is None
