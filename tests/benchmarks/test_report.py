"""Report of a benchmark run."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from pathlib import Path
from time import sleep

import pytest

import benchmarks.report
from benchmarks.bench import DOCUMENT
from benchmarks.report import Absence, Report, Run
from benchmarks.system import Roles, System
from benchmarks.system import Task as AnyTask
from benchmarks.systems import all_systems
from benchmarks.table import HEAD, TAIL, write_table
from benchmarks.trial import TrialError, added
from benchmarks.worker import Task
from iris.bench.cases import CASES, P50, RATE, REQUESTS, Case
from iris.bench.workload import MARK_SIZE, TIMER, Ages, end_mark, percentiles, send_paced, stamp_at

CASE = Case(name="request", title="request", kind="request", size=1, figures=(REQUESTS, P50))


def system(name: str, *, encrypted: bool = False, lacks: tuple[str, ...] = ()) -> System:
    def role(_task: AnyTask) -> None: ...

    roles = Roles(sink=role, source=role)
    return System(name=name, package="trio", encrypted=encrypted, lacks=lacks, module="trio", roles={"request": roles})


def report() -> Report:
    ours, peer = system("iris", encrypted=True), system("peer", lacks=("encryption", "retries"))
    run = Run(date="2026-01-01", seconds=1.0, rounds=3, load=0.25)
    result = Report(run=run, cases=[CASE], systems=[ours, peer], others={"request": [0.0, 0.06]})
    for rate, p50 in ((200, 10), (400, 20), (300, 30)):
        result.add(CASE, ours, {"rate": rate, "p50": p50, "p99": 99, "processor-source": 2.5, "processor-sinks": p50})
        result.add(CASE, peer, {"rate": rate / 2, "p50": p50 * 4})
    result.absent.append(Absence(system="other", case=None, reason="it is not installed"))
    return result


def test_the_json_holds_median_least_greatest_and_every_round(tmp_path: Path) -> None:
    report().save(tmp_path / "sub" / "report.json")
    saved = json.loads((tmp_path / "sub" / "report.json").read_text())
    assert saved["schema"] == 1
    assert saved["results"][0] == {
        "case": "request/rate",
        "system": "iris",
        "unit": "req/s",
        "better": "higher",
        "median": 300,
        "min": 200,
        "max": 400,
        "rounds": [200, 400, 300],
    }
    assert saved["absent"] == [{"system": "other", "case": None, "reason": "it is not installed"}]
    assert saved["machine"]["cores"] >= 1


def test_ratios_are_iris_divided_by_the_peer() -> None:
    ratios = {(entry["case"], entry["peer"]): entry["ratio"] for entry in report().as_json()["ratios"]}
    assert ratios == {("request/rate", "peer"): 2.0, ("request/p50", "peer"): 0.25}


def test_a_peer_that_got_nothing_through_spoils_no_report(tmp_path: Path) -> None:
    silent = report()
    nothing = system("silent")
    silent.systems = [*silent.systems, nothing]
    silent.add(CASE, nothing, {"rate": 0.0, "p50": 1})
    silent.save(tmp_path / "report.json")
    assert [entry for entry in silent.as_json()["ratios"] if entry["peer"] == "silent"] == [
        {"case": "request/p50", "peer": "silent", "unit": "us", "better": "lower", "ratio": 20.0}
    ]
    write_table(silent, tmp_path / "table.md")
    assert "| silent | 0 |  |  |" in (tmp_path / "table.md").read_text()


def test_the_json_has_the_keys_that_its_module_describes_and_no_others(tmp_path: Path) -> None:
    full = report()
    full.add(CASE, full.systems[1], {"rate": 1, "p50": 1, "lost": 3, "processor-source": 1, "processor-sinks": 2})
    full.save(tmp_path / "report.json")
    saved = json.loads((tmp_path / "report.json").read_text())
    described = dict(re.findall(r"^    (\w+) +(.*)$", benchmarks.report.__doc__ or "", re.MULTILINE))
    assert list(saved) == list(described)
    for key, text in described.items():
        entries = saved[key] if text.startswith("[{") else [saved[key]]
        assert entries, key
        names = re.findall(r"(?:^|, )(\w+)", text.partition("{")[2].partition("}")[0])
        for entry in entries:
            assert set(entry if key != "schema" else ()) == set(names), key


def test_the_table_ranks_the_best_first_and_tells_what_is_missing(tmp_path: Path) -> None:
    write_table(report(), tmp_path / "table.md")
    lines = (tmp_path / "table.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(("| **iris**", "| peer"))]
    assert rows == [
        "| peer | encryption, retries |",
        "| **iris** | 300 (200 - 400) |  | 2.5 + 20 |",
        "| peer | 150 (100 - 200) | 2.00 |  |",
        "| **iris** | 20 (10 - 30) |  |",
        "| peer | 80 (40 - 120) | 0.25 |",
    ]
    assert "- other: it is not installed" in lines


def test_the_page_says_when_it_was_measured_and_what_others_took_of_the_processors(tmp_path: Path) -> None:
    write_table(report(), tmp_path / "table.md")
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert [line.partition(";")[0] for line in lines if line.startswith("Measured on")] == [
        "Measured on 2026-01-01, 3 rounds of 1 s, at a load of 0.2 before"
    ]
    assert "Others took 3 %, at most 6 %." in lines


def test_machine_versions_and_what_no_case_has_stand_on_the_page_once(tmp_path: Path) -> None:
    write_table(report(), tmp_path / "table.md")
    text = (tmp_path / "table.md").read_text()
    common = text[: text.index("<!-- case: ")]
    for said in ("cores, ", "; iris ", "; peer ", "- other: it is not installed\n"):
        assert (common.count(said), text.count(said)) == (1, 1)


def test_a_case_that_was_measured_with_another_version_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = CASES[:2]
    page = tmp_path / "table.md"
    both = Report(run=report().run, cases=[first, second], systems=[system("iris")])
    for case in both.cases:
        both.add(case, system("iris"), {"rate": 1.0})
    write_table(both, page)
    before = page.read_text()

    def older(_: System) -> str:
        return "0.0.1"

    monkeypatch.setattr(System, "version", older)
    later = Report(run=report().run, cases=[second], systems=[system("iris")])
    later.add(second, system("iris"), {"rate": 2.0})
    write_table(later, page)
    lines = [line for line in page.read_text().splitlines() if line.startswith("Others took")]
    assert [line.partition(". ")[2] for line in lines] == ["", "iris 0.0.1."]
    assert page.read_text().partition("<!-- case: ")[0] == before.partition("<!-- case: ")[0]


def test_a_case_of_one_system_has_one_table(tmp_path: Path) -> None:
    alone = Report(run=report().run, cases=[CASE], systems=[system("iris")])
    alone.add(CASE, system("iris"), {"rate": 3, "p50": 2})
    write_table(alone, tmp_path / "table.md")
    lines = (tmp_path / "table.md").read_text().splitlines()
    rows = lines[lines.index("| figure | iris |") + 2 :][:2]
    assert rows == [
        f"| {figure.name} | {value} {figure.unit} |" for figure, value in zip(CASE.figures, (3, 2), strict=True)
    ]


def test_the_page_says_first_that_a_machine_was_busy(tmp_path: Path) -> None:
    busy = report()
    busy.run, busy.others = dataclasses.replace(busy.run, busy=True), {"request": [0.5]}
    write_table(busy, tmp_path / "table.md")
    assert "**On a busy machine**: other programs took 50 % of the processors." in (tmp_path / "table.md").read_text()


def test_a_case_that_is_measured_anew_leaves_the_others_of_the_page(tmp_path: Path) -> None:
    first, second = CASES[:2]
    page = tmp_path / "table.md"
    for case, rate in ((second, 2.0), (first, 1.0), (second, 3.0)):
        result = Report(run=report().run, cases=[case], systems=[system("iris")])
        result.add(case, system("iris"), {"rate": rate})
        write_table(result, page)
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [first.title, second.title, "The JSON"]
    assert [line for line in text.splitlines() if line.startswith("| **iris**")] == [
        "| **iris** | 1 |",
        "| **iris** | 3 |",
    ]
    assert text.startswith(HEAD)
    assert text.endswith(TAIL)


def test_the_page_of_the_site_has_the_text_of_the_program() -> None:
    text = DOCUMENT.read_text()
    assert text.startswith(HEAD)
    assert text.endswith(TAIL)


def test_rows_are_divided_by_iris_of_each_event_loop(tmp_path: Path) -> None:
    both = report()
    asyncio = system("iris.aio")
    both.systems = [*both.systems, asyncio]
    both.add(CASE, asyncio, {"rate": 75, "p50": 40})
    write_table(both, tmp_path / "table.md")
    rows = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| ")]
    assert rows[rows.index("| system | req/s | iris / | iris.aio / | processor |") + 1 :][:3] == [
        "| **iris** | 300 (200 - 400) |  | 0.25 | 2.5 + 20 |",
        "| peer | 150 (100 - 200) | 2.00 | 0.50 |  |",
        "| **iris.aio** | 75 | 4.00 |  |  |",
    ]


def test_what_a_peer_lacks_is_in_the_words_that_the_page_explains() -> None:
    words = set(re.findall(r"^  - \*(\w+(?: \w+)?)\*(?:, of requests)?:", HEAD, re.MULTILINE))
    assert words == {word for one in all_systems() for word in one.lacks}
    assert all(("encryption" in one.lacks) != one.encrypted for one in all_systems())


def test_lost_messages_are_told(tmp_path: Path) -> None:
    lossy = report()
    lossy.add(CASE, lossy.systems[1], {"rate": 1, "p50": 1, "lost": 3})
    lossy.add(CASE, lossy.systems[1], {"rate": 1, "p50": 1, "lost": 4})
    assert lossy.as_json()["lost"] == [{"case": "request", "system": "peer", "messages": 7}]
    write_table(lossy, tmp_path / "table.md")
    assert "peer lost 7 messages in all rounds together." in (tmp_path / "table.md").read_text()
    assert report().as_json()["lost"] == []


def test_a_case_that_was_not_measured_has_no_section(tmp_path: Path) -> None:
    empty = Report(run=report().run, cases=[CASE], systems=[system("iris")])
    write_table(empty, tmp_path / "table.md")
    assert "## request" not in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (range(1, 1001), {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999, "p99.99": 1000, "p99.999": 1000}),
        ([7], {"p50": 7, "p90": 7, "p99": 7, "p99.9": 7, "p99.99": 7, "p99.999": 7}),
        ([3, 1, 2], {"p50": 2, "p90": 3, "p99": 3, "p99.9": 3, "p99.99": 3, "p99.999": 3}),
    ],
)
def test_percentiles_are_values_that_occurred(values: list[float], expected: dict[str, float]) -> None:
    assert percentiles(values) == expected


def test_ages_are_taken_from_the_time_that_the_message_was_due(capsys: pytest.CaptureFixture[str]) -> None:
    ages = Ages()
    for _ in range(10):
        ages.note(stamp_at(0, 16))
    task = Task(case=CASE, seconds=1, broker="", addresses=())
    ages.finish(task, end_mark(12))
    said = json.loads(capsys.readouterr().out)["figures"]
    assert said["lost"] == 2
    assert said["p50"] > 1e6, "a message that was due at boot is old"


async def test_what_holds_up_its_source_makes_the_messages_older() -> None:
    """A timer that is late by more than timers are was kept waiting by the system under test, in the same thread."""
    case = Case(name="paced", title="paced", kind="paced", size=16, pace=1000, figures=(P50,))
    stamps: list[int] = []
    stalls = iter([0.02])

    async def send(payload: bytes) -> None:
        if len(payload) != MARK_SIZE:
            stamps.append(struct.unpack_from("<Q", payload)[0])

    async def wait(seconds: float) -> None:
        sleep(seconds + next(stalls, 0.0))  # noqa: ASYNC251 - the thread is held up

    await send_paced(Task(case=case, seconds=0.01, broker="", addresses=()), send, wait)
    late = [stamp - stamps[0] - number * 1_000_000 for number, stamp in enumerate(stamps)]
    assert len(stamps) == 200
    assert max(late[:20]) - min(late[:20]) <= TIMER, "held up for 20 ms, of which its timer is to blame for little"


def test_pieces_that_are_counted_as_messages_spoil_a_trial() -> None:
    assert added([{"rate": 1.0, "lost": 2.0}, {"rate": 2.0, "lost": 0.0}]) == {"rate": 3.0, "lost": 2.0}
    with pytest.raises(TrialError, match="more messages were counted"):
        added([{"rate": 1.0, "lost": 2.0}, {"rate": 9.0, "lost": -1.0}])


def test_the_stamp_fits_the_smallest_payload_of_any_case() -> None:
    assert struct.calcsize("<Q") < min(case.size for case in CASES)


def test_cases_and_systems_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    names = [one.name for one in all_systems()]
    assert len(set(names)) == len(names)
    assert {name for one in all_systems() for name in one.without} <= {case.name for case in CASES}


def test_a_system_that_is_not_installed_says_what_to_install() -> None:
    absent = System(name="x", package="no-such", encrypted=False, module="no_such_module", roles={})
    assert "no-such" in absent.absence()
    without_broker = System(
        name="x", package="trio", encrypted=False, module="trio", program="no-such-server", roles={}
    )
    assert "apt install no-such-server" in without_broker.absence()


def test_a_broker_that_is_too_old_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "some-server"
    program.write_text("#!/bin/sh\necho some-server: v2.9.10\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    some = System(
        name="x",
        package="trio",
        encrypted=False,
        module="trio",
        program="some-server",
        oldest="2.14",
        install="pip install some-server",
        roles={},
    )
    assert some.absence() == "some-server 2.9.10 is older than 2.14 (pip install some-server)"
    assert some.server() == "some-server 2.9.10"
    assert dataclasses.replace(some, oldest="2.9").absence() == ""


def test_the_page_names_every_server_that_a_peer_needs() -> None:
    servers = {one.program for one in all_systems() if one.program}
    assert servers == {"nats-server", "redis-server"}
    assert all(f"`{server}`" in HEAD for server in servers)


def test_quick_measures_a_rate_and_a_round_trip() -> None:
    quick = {figure for case in CASES if case.quick for figure in case.figures}
    assert {RATE, REQUESTS, P50} <= quick
