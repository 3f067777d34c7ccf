"""The page in a real browser: its numbers, its report of a killed member, what it does, and what it does not run."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from iris.cli.operators import dash as dash_of_files
from tests.support.airport_realm import MEMBERS, Airport, open_airport
from tests.support.browser import Page, in_browser, open_page
from tests.support.command import PATIENCE, Terminal, interrupt, open_terminal
from tests.support.dash import open_dash
from tests.support.door_process import serving

pytestmark = [in_browser, pytest.mark.xdist_group("dash")]  # one browser for all

ROWS: Final = """
    return Object.fromEntries([...document.querySelectorAll('#%s tbody tr')].map((row) => [row.dataset.key,
      Object.fromEntries([...row.children].map((cell) => [cell.dataset.label, cell.dataset.value === undefined
        ? cell.textContent : Number(cell.dataset.value)]))]));
"""

NOTHING: Final = "\N{EN DASH}"

LIVE: Final = "document.getElementById('state').textContent === 'live'"


@pytest.fixture
def airport() -> Iterator[Airport]:
    """Return an airport of real processes, with callers, two sites and a bridge."""
    with open_terminal() as terminal, open_airport(terminal, few=True) as opened:
        yield opened


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """Return a terminal in whose realm the cluster ``greeters`` has a member."""
    with open_terminal() as opened, serving(opened):
        yield opened


def _rows(page: Page, table: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = page.run(ROWS % table)
    return found


def _top(terminal: Terminal, *options: str) -> dict[str, Any]:
    done = terminal.run("top", "--once", "-o", "json", *options)
    assert done.returncode == 0, done.stderr
    view: dict[str, Any] = json.loads(done.stdout)
    return view


def _has_text(selector: str, text: str) -> str:
    return f"(document.querySelector({json.dumps(selector)})?.textContent ?? '').includes({json.dumps(text)})"


def _check_same(top: dict[str, Any], page: Page) -> None:
    """Assert that a page shows what ``iris top`` has printed."""
    shown, nodes = _rows(page, "clusters"), _rows(page, "nodes")
    for cluster in top["clusters"]:
        row = shown[cluster["cluster"]]
        assert (row["members"], row["rate /s"], row["p50"], row["p99"]) == (cluster["members"], 0, NOTHING, NOTHING)
        for name, field in (("running", "running"), ("queue", "queued"), ("failed", "failed")):
            assert row[name] == cluster[field]
        assert (row["refused"], row["expired"]) == (cluster["refused"], cluster["expired"])
    for node in top["nodes"]:
        if node["speaks_for"] != "iris.dash":
            row = nodes[node["node"]]
            assert row["status"] == node["status"]
            assert row["lost"] == sum(node["lost"].values())
            assert row["host"] == f"{node['host']} · {node['process']}"
    # Dash's own, too, of which top may have heard later; a node that has left shows none.
    lost = sum(int(row["lost"]) for row in nodes.values() if row["lost"] != NOTHING)
    assert page.run("return document.querySelector('[data-tile=lost] .value').textContent") == f"{lost:,}"


def test_the_numbers_are_those_of_top_while_requests_go_on_and_when_they_have_ended(airport: Airport) -> None:
    terminal = airport.terminal
    with open_dash(terminal, "--site", "airport") as dash, open_page("about:blank") as page:
        page.watch_problems()
        page.open(dash.address)
        page.wait_for(LIVE)
        assert page.run("return location.href") == f"{dash.url}/"
        assert page.run("return document.cookie") == ""
        assert dash.token not in page.run("return location.href + document.documentElement.outerHTML")
        every, ends = {*MEMBERS, "bridge"}, time.monotonic() + PATIENCE
        while True:  # on a busy machine a member's first answer comes late
            top = _top(terminal, "--site", "airport", "--interval", "3")
            shown = _rows(page, "clusters")
            if set(shown) == {cluster["cluster"] for cluster in top["clusters"]} == every or time.monotonic() > ends:
                break
        assert set(shown) == every
        assert {cluster["cluster"] for cluster in top["clusters"]} == every
        for cluster in top["clusters"]:
            assert shown[cluster["cluster"]]["members"] == cluster["members"]
        assert page.run("return document.querySelectorAll('#map .cable').length") == 1
        page.wait_for("document.querySelectorAll('#map .call').length === 5")  # the last call may still be on its way
        assert "harbour" in page.run("return document.getElementById('map').textContent")
        assert any(row["for"] == "readers delays" and row["behind"] > 0 for row in _rows(page, "carriers").values())

        for caller in ("boards", "planes"):  # and now that nothing moves, each number is the same
            for process in airport.processes[caller]:
                process.send_signal(signal.SIGUSR1)
        page.wait_for(
            "[...document.querySelectorAll('#clusters td[data-label=\"rate /s\"]')].every((cell) => "
            "cell.dataset.value === '0')"
        )
        for attempt in range(5, -1, -1):  # what was on its way is counted a moment later
            try:
                _check_same(_top(terminal, "--site", "airport"), page)
            except AssertionError:
                if not attempt:
                    raise
            else:
                break
        assert page.problems == []


def test_a_killed_member_shows_within_two_seconds(terminal: Terminal) -> None:
    with open_dash(terminal) as dash, open_page(dash.address) as page:
        with terminal.started("run", "door_service:greeters", announces="greeters") as second:
            page.wait_for("document.querySelector('#clusters td[data-label=members]')?.dataset.value === '2'")
            interrupt(second, signal.SIGKILL)
            killed = time.monotonic()
            page.wait_for(_has_text("#alerts .bad", "was lost: nobody listens there any more"), 2.0)
            assert time.monotonic() - killed < 2.0
            page.wait_for("document.querySelector('#clusters td[data-label=members]').dataset.value === '1'", 1.0)
        (row,) = (row for row in _rows(page, "nodes").values() if row["host"].endswith(f" {second.pid}"))
        assert row["status"].startswith("lost ")
        assert page.run("return document.title").startswith("(!) ")
        with terminal.started("run", "door_service:greeters", announces="greeters") as third:
            page.wait_for("document.querySelector('#clusters td[data-label=members]').dataset.value === '2'")
            interrupt(third, signal.SIGTERM)
            page.wait_for(_has_text("#nodes td.status.left", "left "))


def test_a_page_whose_dash_is_restarted_or_gone_says_so(terminal: Terminal) -> None:
    """Each ``wait_for`` asserts that the page comes to say it."""
    with open_dash(terminal) as dash, open_page(dash.address) as page:
        page.wait_for(LIVE)
        where = f"127.0.0.1:{dash.port}"
        interrupt(dash.process, signal.SIGKILL)
        page.wait_for(_has_text("#state", "does not answer"), 10)
        with open_dash(terminal, "--listen", where):
            page.wait_for(_has_text("#state", "was restarted: open the address"), 30)
    file = terminal.directory / "token"
    file.write_text("b" * 40)
    file.chmod(0o600)
    options = ("--listen", where, "--token-file", str(file))
    with open_page("about:blank") as page:
        with open_dash(terminal, *options):
            page.open(f"http://{where}/#token={'b' * 40}")
            page.wait_for(LIVE)
        page.wait_for(_has_text("#state", "does not answer"), 10)
        with open_dash(terminal, *options) as again:
            page.wait_for(LIVE)
            again.process.send_signal(signal.SIGSTOP)
            page.wait_for(_has_text("#state", "no news for "), 10)
            again.process.send_signal(signal.SIGCONT)
            page.wait_for(LIVE)


def test_another_server_at_the_same_address_gets_no_token(terminal: Terminal) -> None:
    """Cookies know no ports: with one, the first thing that a neighbour's server is sent would be the token."""
    heads: list[bytes] = []

    def answer(listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            with accepted:
                heads.append(accepted.recv(65_536))
                accepted.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as neighbour, open_dash(terminal, "--allow", "drain") as dash:
        thread = threading.Thread(target=answer, args=(neighbour,), daemon=True)
        thread.start()
        where = f"http://127.0.0.1:{neighbour.getsockname()[1]}/"
        with open_page(dash.address) as page:
            page.wait_for(LIVE)
            page.open(where)
            assert page.run("return JSON.stringify([{...sessionStorage}, document.cookie, document.referrer])") == (
                '[{},"",""]'
            )
            for path in ("views", "drain"):
                method = "POST" if path == "drain" else "GET"
                asked = f"fetch('{dash.url}/{path}', {{ method: '{method}', credentials: 'include' }})"
                assert page.run(f"return {asked}.then(() => 'read', () => 'refused')") == "refused"
            page.open(dash.url)  # the tab has kept it
            page.wait_for(LIVE)
        with open_page(dash.url) as other:
            other.wait_for(_has_text("#state", "open the address"))
        neighbour.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert heads
    assert not [head for head in heads if dash.token.encode() in head or b"cookie" in head.lower()]


def test_a_realm_that_is_not_seen_is_told() -> None:
    """Each ``wait_for`` asserts that the page comes to say it."""
    with open_terminal() as terminal, open_dash(terminal) as dash, open_page(dash.address) as page:
        page.wait_for(_has_text("#alerts .bad", "The realm is not seen: no other node was found"))
        page.wait_for(LIVE)


def test_nothing_is_said_of_what_was_not_seen() -> None:
    """Neither before the first view, nor in a chart for the time in which nobody looked."""
    points = [
        {"t": at, "clusters": {"greeters": [rate, None, None, 0]}} for at, rate in ((0, 5), (1, 6), (20, 7), (21, 8))
    ]
    about = {"realm": "0" * 32, "node": "1" * 32, "site": "", "allowed": [], "points": points[:-1]}
    view: dict[str, object] = {
        "nodes": [],
        "clusters": [],
        "gone": [],
        "silent": [],
        "doubted": {},
        "remote_clusters": {},
    }
    news = {"view": view, "point": points[-1], "trouble": None, "revocations": 0}
    seen, over = threading.Event(), threading.Event()

    class Canned(SimpleHTTPRequestHandler):
        """The files of the page, and a feed that waits between what it knows and what it sees."""

        def do_GET(self) -> None:
            if self.path != "/views":
                return super().do_GET()
            self.send_response(200)
            self.end_headers()
            for kind, data, waits in (("history", about, seen), ("view", news, over)):
                self.wfile.write(f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode())
                waits.wait(PATIENCE)  # until the test goes on
            return None

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- as its base calls it
            pass

    folder = str(Path(dash_of_files.__file__ or "").parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Canned, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with open_page(f"http://127.0.0.1:{server.server_port}/dash.html") as page:
                page.watch_problems()
                page.wait_for("document.getElementById('about').textContent.startsWith('realm 0000')")
                empty = "return document.querySelectorAll('.empty:not([hidden])').length"
                assert page.run(empty) == 0
                seen.set()
                page.wait_for(LIVE)
                assert page.run(empty) == 5
                filled = page.run("return document.querySelector('#rates .area').getAttribute('d')")
                assert filled.count("M") == filled.count("Z") == 2
                assert page.problems == []
        finally:
            seen.set()
            over.set()
            server.shutdown()


def test_a_member_is_drained_and_called_back_by_hand(terminal: Terminal) -> None:
    with open_dash(terminal, "--allow", "drain") as dash, open_page(dash.address) as page:
        page.watch_problems()
        for verb, status in (("Drain", "draining"), ("Work again", "alive")):
            page.wait_for(_has_text("#nodes td.actions button", verb))
            page.run("document.querySelector('#nodes td.actions button').click()")
            page.run("document.querySelector('#ask button[value=go]').click()")
            page.wait_for(_has_text("#ask .answer.good", "new work"))
            page.run("document.querySelector('#ask button[value=close]').click()")
            page.wait_for(_has_text("#nodes td.status", status))
        assert page.problems == []


def test_a_list_that_is_of_another_realm_is_refused_in_the_page(terminal: Terminal) -> None:
    for arguments in (
        ("realm", "realm.key"),
        ("cluster", "realm.key", "store", "--out", "store.iris"),
        ("revoke", "realm.key", "--cluster", "store", "--out", "revoked"),
    ):
        assert terminal.run("keys", *arguments).returncode == 0
    with open_dash(terminal, "--allow", "revoke") as dash, open_page(dash.address) as page:
        page.wait_for(_has_text("#nodes td.actions button", "Revoke"))
        page.run("document.querySelector('#nodes td.actions button').click()")
        page.wait_for(_has_text("#ask code", "iris keys revoke REALM --node "))
        page.run("document.querySelector('#ask button[value=go]').click()")
        page.wait_for(_has_text("#ask .answer", "choose the list first"))
        page.choose_file("#ask input", terminal.directory / "revoked")
        page.run("document.querySelector('#ask button[value=go]').click()")
        page.wait_for(_has_text("#ask .answer", "revocation list"))
        assert "good" not in page.run("return document.querySelector('#ask .answer').className")


MARKUP: Final = "<img src=x onerror=alert(1)><script>alert(2)</script>"

LIAR: Final = """
import sys, trio, iris
from iris.node.report import report_of
from iris.patterns.service import Role
from msgspec import to_builtins

MARKUP = sys.argv[1]
service = iris.Service("iris.nodes")

async def main():
    async with iris.open_node("liar", operators=False) as node:
        told = to_builtins(report_of(node.statistics(), 1.0))
        cluster = dict(cluster="liar", received=1, served=1, failed=0, expired=0, cancelled=0, refused=0, running=0,
                       queued=0, queue_delay=0.0, draining=False)
        latency = dict(served=False, cluster=MARKUP, operation=MARKUP, total=1.0, edges=[1.0], counts=[1])
        gateway = dict(sites=[MARKUP], neighbours={MARKUP: MARKUP}, carried=1, carried_bytes=1, refused=0)
        bridge = dict(stored=1, waiting=1, missed=1, unstored=1, lags={MARKUP: 1})
        told.update(clusters=[cluster, {**cluster, "cluster": MARKUP}], host=MARKUP, version=MARKUP,
                    lost={MARKUP: 3}, refused={MARKUP: 2},
                    latencies=[latency], gateway=gateway, bridge=bridge)

        @service.request("report")
        def report(_):
            told["asked"] += 1
            return told

        serving = node._serving.serve("iris.nodes", Role(service, iris.Limits()))
        async with serving, node.join("liar", iris.Service("liar")):
            await trio.sleep_forever()

trio.run(main)
"""


def test_markup_in_names_and_reasons_is_text(terminal: Terminal) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", LIAR, MARKUP],
            cwd=terminal.directory,
            env=terminal.environment,
            stderr=subprocess.PIPE,
        ) as liar,
        open_dash(terminal, "--allow", "drain", "--allow", "revoke") as dash,
        open_page("about:blank") as page,
    ):
        try:
            page.watch_problems()
            page.open(dash.address)
            page.wait_for(_has_text("#alerts", MARKUP))  # it is no member of what it reports
            for place in ("#nodes", "#losses", "#carriers", "#map"):
                page.wait_for(_has_text(place, "<img src=x"))
            page.run("document.querySelector('#nodes td.actions button').click()")
            assert page.run("return document.querySelectorAll('img').length") == 1  # its own
            assert page.run("return document.querySelectorAll('script').length") == 1
            assert page.problems == []
            blocked = "try { document.body.innerHTML = '<p>'; return 'ran' } catch (error) { return error.name }"
            assert page.run(blocked) == "TypeError"
        finally:
            liar.kill()


LIGHTNESS: Final = """
    const colour = getComputedStyle(document.documentElement).backgroundColor.match(/[\\d.]+/g).map(Number);
    return colour[0] + colour[1] + colour[2];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_scheme_of_the_system_until_one_is_chosen(scheme: str, terminal: Terminal) -> None:
    with open_dash(terminal) as dash, open_page(dash.address) as page:
        page.look_as(390, 844, scheme=scheme, phone=True)
        page.wait_for(LIVE)
        assert (page.run(LIGHTNESS) > 380) == (scheme == "light")
        assert page.run("return document.documentElement.scrollWidth") <= 390
        for _ in range(1 if scheme == "light" else 2):  # auto, dark, light
            page.run("document.getElementById('theme').click()")
        assert (page.run(LIGHTNESS) > 380) == (scheme == "dark")


def test_pictures_of_the_documents_are_small() -> None:
    for name in ("dash_light.png", "dash_dark.png", "dash_phone.png"):
        picture = Path(__file__).resolve().parents[4] / "docs" / "howto" / "operate" / name
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 150_000
