"""What the processes of the demo say to the airport."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from iris.demo.control import Progress, Report, ReportError, parse_report, report_news, report_result


def lines(capsys: pytest.CaptureFixture[str]) -> list[Report]:
    return [parse_report(line.encode()) for line in capsys.readouterr().out.splitlines()]


def test_what_is_written_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    report_news("ready")
    report_result(carriers={"AA": {"flights": 3, "mean_delay": 1.1}})
    assert lines(capsys) == [
        Report("news", "ready"),
        Report("result", {"carriers": {"AA": {"flights": 3, "mean_delay": 1.1}}}),
    ]


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = Progress()
    for _ in range(1000):
        progress.advance()
    assert lines(capsys) == [Report("progress", 1)]
    now += 0.2
    progress.advance(10)
    progress.reach(5000)
    assert lines(capsys) == [Report("progress", 1010)]
    assert progress.done == 5000


@pytest.mark.parametrize(
    "line",
    [b"", b"hello", b"[]", b"{}", b'{"progress":"1"}', b'{"news":1}', b'{"result":[]}', b"\xff", b'{"progress":1.5}'],
)
def test_anything_else_is_no_report(line: bytes) -> None:
    with pytest.raises(ReportError, match="not a report"):
        parse_report(line)


@pytest.mark.parametrize(
    "program",
    [
        """
        import trio
        from iris.demo.control import receive_orders, report_result
        async def main():
            report_result(orders=[order async for order in receive_orders()])
        trio.run(main)
        """,
        """
        from iris.demo.control import report_result, wait_orders
        report_result(orders=list(wait_orders()))
        """,
    ],
    ids=["trio", "blocking"],
)
def test_orders_are_lines_and_end_with_the_airport(program: str) -> None:
    indented = "if True:\n" + program
    done = subprocess.run([sys.executable, "-c", indented], input=b"ask\nkilled\n", capture_output=True, check=True)
    result: Any = parse_report(done.stdout).value
    assert result == {"orders": ["ask", "killed"]}
