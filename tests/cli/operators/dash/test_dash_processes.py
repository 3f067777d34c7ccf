"""``iris dash`` as a process: what it shows, what it lets be done, and who tries to do more."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from iris.cli.operators.dash.feed import MAX_PAGES
from tests.support.command import PATIENCE, Terminal, interrupt, open_terminal
from tests.support.dash import Dash, open_dash
from tests.support.door_process import serving
from tests.support.ports import free_port
from tests.support.store_realm import open_store_realm, share_of_core


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """Return a terminal in whose realm the cluster ``greeters`` has a member."""
    with open_terminal() as opened, serving(opened):
        yield opened


def _memory(process: subprocess.Popen[bytes]) -> int:
    (line,) = [line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) * 1024


def test_views_are_what_top_shows(terminal: Terminal) -> None:
    for _ in range(5):
        assert terminal.run("request", "greeters", "you").returncode == 0
    with open_dash(terminal) as dash, dash.follow() as stream:
        about = stream.read("history")
        assert about["allowed"] == []
        shown = stream.read()["view"]
        done = terminal.run("top", "--once", "-o", "json")
        top = json.loads(done.stdout)
    assert shown["clusters"] == top["clusters"]
    (member,) = (node for node in shown["nodes"] if node["speaks_for"] == "greeters")
    (same,) = (node for node in top["nodes"] if node["speaks_for"] == "greeters")
    moving = {"uptime", "seconds", "bytes_sent", "links", "waiting"}
    assert {key: member[key] for key in member if key not in moving} == {
        key: same[key] for key in same if key not in moving
    }
    assert set(shown) == set(top)
    assert member["clusters"][0]["served"] == 5


def test_a_killed_member_is_gone_within_two_seconds_with_the_reason(terminal: Terminal) -> None:
    with open_dash(terminal) as dash, dash.follow() as stream:
        with terminal.started("run", "door_service:greeters", announces="greeters") as second:
            stream.wait_for(lambda view: bool(view["clusters"]) and view["clusters"][0]["members"] == 2)
            interrupt(second, signal.SIGKILL)
            killed = time.monotonic()
            view = stream.wait_for(lambda view: bool(view["gone"]), timeout=2.0)
            assert time.monotonic() - killed < 2.0
        (gone,) = [gone for gone in view["gone"] if gone["process"] == second.pid]
        assert (gone["speaks_for"], gone["clusters"], gone["reason"]) == ("greeters", ["greeters"], "refused")
        assert view["clusters"][0]["members"] == 1


def test_a_member_that_hangs_is_silent_and_delays_nobody(terminal: Terminal) -> None:
    with (
        open_dash(terminal) as dash,
        dash.follow() as stream,
        terminal.started("run", "door_service:greeters", announces="greeters") as second,
    ):
        stream.wait_for(lambda view: bool(view["clusters"]) and view["clusters"][0]["members"] == 2)
        second.send_signal(signal.SIGSTOP)
        try:
            view = stream.wait_for(lambda view: bool(view["silent"]), timeout=3.0)
        finally:
            second.send_signal(signal.SIGCONT)
        (silent,) = view["silent"]
        assert (silent["process"], silent["speaks_for"]) == (second.pid, "greeters")
        assert view["clusters"][0]["members"] == 1


def test_strangers_other_names_and_other_pages_get_nothing(terminal: Terminal) -> None:
    with open_dash(terminal, "--allow", "drain") as dash:
        assert dash.ask("/")[0] == 200
        assert dash.ask("/", Authorization="")[0] == 200  # the page itself is for everybody
        assert dash.ask("/views", Authorization="")[0] == 401
        assert dash.ask("/views", Authorization=f"Bearer {'x' * 43}")[0] == 401
        assert dash.ask("/views", Authorization="", Cookie=f"iris_dash_{dash.port}={dash.token}")[0] == 401
        assert dash.ask("/views", Origin="http://127.0.0.1:1")[0] == 403
        assert dash.ask("/", Host="rebound.example")[0] == 421
        assert dash.ask("/", Host=f"localhost:{dash.port}")[0] == 200
        for origin in ("http://evil.example", "null", f"http://localhost:{dash.port}"):
            assert dash.ask("/drain", b"{}", Origin=origin)[0] == 403
        assert dash.ask("/drain", b"{}", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
        for wrong in (b"", b"{}", b"[" * 4000, b'{"node": 1, "cluster": "a", "draining": true}', b"\xff"):
            assert dash.ask("/drain", wrong)[0] == 400
        assert dash.ask("/drain", b" " * 5000)[0] == 413
        unknown = json.dumps({"node": "0" * 32, "cluster": "greeters", "draining": True}).encode()
        status, told = dash.ask("/drain", unknown)
        assert status == 502
        assert told.count("\n") == 1
        assert dash.ask("/revoke", b"")[0] == 404
        for path in ("/drain", "/nothing", "/../../etc/passwd", "/dash.py"):
            assert dash.ask(path)[0] in (404, 405)


def test_a_page_that_may_nothing_changes_nothing(terminal: Terminal) -> None:
    with open_dash(terminal) as dash:
        assert dash.ask("/drain", b"{}")[0] == 404
        assert dash.ask("/revoke", b"{}")[0] == 404


def test_200_pages_are_served_and_one_too_many_is_told(terminal: Terminal) -> None:
    with open_dash(terminal) as dash, contextlib.ExitStack() as stack:
        pages = [stack.enter_context(dash.follow()) for _ in range(200)]
        assert {page.status for page in pages} == {200}
        began = time.monotonic()
        points = {tuple(page.read()["point"]["t"] for _ in range(3)) for page in pages}
        assert time.monotonic() - began < 20
        assert len({one for several in points for one in several}) < 20  # they share surveys
        more = [stack.enter_context(dash.follow()) for _ in range(MAX_PAGES - 200 + 1)]
        assert [page.status for page in more].count(503) == 1
        for page in pages:
            page.close()
        late = stack.enter_context(dash.follow())
        while late.status == 503:  # that the others were closed comes to the page after this one has asked
            late = stack.enter_context(dash.follow())
        late.read()


def test_a_page_that_does_not_read_slows_nobody_and_does_not_delay_the_end(terminal: Terminal) -> None:
    with open_dash(terminal) as dash, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(dash.follow(receive_buffer=2048)) for _ in range(20)]
        with dash.follow() as page:
            page.read()
            before = _memory(dash.process)
            times: list[float] = []
            for _ in range(8):
                page.read()
                times.append(time.monotonic())
        assert max(later - earlier for earlier, later in pairwise(times)) < 3.0
        assert _memory(dash.process) - before < 32 << 20
        began = time.monotonic()
        assert interrupt(dash.process, signal.SIGTERM) == 0
        assert time.monotonic() - began < 8
        assert len(slow) == 20


def test_half_a_request_is_dropped(terminal: Terminal) -> None:
    with open_dash(terminal) as dash, socket.create_connection(("127.0.0.1", dash.port), timeout=PATIENCE) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-a: ")
        assert dash.ask("/")[0] == 200
        assert stranger.recv(1024) == b""


def test_a_drained_member_takes_no_new_work_until_it_works_again(terminal: Terminal) -> None:
    with (
        terminal.started("run", "door_service:greeters", announces="greeters") as second,
        open_dash(terminal, "--allow", "drain") as dash,
        dash.follow() as stream,
    ):
        view = stream.wait_for(lambda view: bool(view["clusters"]) and view["clusters"][0]["members"] == 2)
        (member,) = (node for node in view["nodes"] if node["process"] == second.pid)

        def order(draining: bool) -> None:
            told = json.dumps({"node": member["node"], "cluster": "greeters", "draining": draining}).encode()
            assert dash.ask("/drain", told) == (204, "")
            stream.wait_for(
                lambda view: any(
                    one["draining"] is draining
                    for node in view["nodes"]
                    for one in node["clusters"]
                    if node["node"] == member["node"]
                )
            )

        order(True)
        for _ in range(4):
            assert terminal.run("request", "greeters", "you").returncode == 0
        view = stream.read()["view"]
        (drained,) = (node for node in view["nodes"] if node["process"] == second.pid)
        assert [one["served"] for one in drained["clusters"]] == [0]
        order(False)


def test_a_revocation_list_is_put_in_force_and_the_realm_key_stays_away(terminal: Terminal) -> None:
    for arguments in (
        ("realm", "realm.key"),
        ("cluster", "realm.key", "greeters", "--out", "greeters.iris"),
        ("cluster", "realm.key", "operators", "--out", "operators.iris", "--serve", "iris.nodes"),
    ):
        assert terminal.run("keys", *arguments).returncode == 0
    seed = f"tcp://127.0.0.1:{free_port()}"
    member = ("run", "door_service:greeters", "--credential", "greeters.iris", "--listen", seed)
    options = ("--credential", "operators.iris", "--seeds", seed, "--near", "tcp://127.0.0.1:0", "--allow", "revoke")
    with (
        terminal.started(*member, announces="serves") as running,
        open_dash(terminal, *options) as dash,
        dash.follow() as stream,
    ):
        stream.wait_for(lambda view: bool(view["clusters"]))
        assert dash.ask("/revoke", b"no list")[0] == 400
        assert dash.ask("/revoke", b"x" * 300_000)[0] == 413
        assert stream.read()["revocations"] == 0
        revoked = ("revoke", "realm.key", "--cluster", "greeters", "--out", "revoked")
        assert terminal.run("keys", *revoked).returncode == 0
        status, told = dash.ask("/revoke", (terminal.directory / "revoked").read_bytes())
        assert (status, json.loads(told)) == (200, {"newer": True, "number": 1})
        view = stream.wait_for(lambda view: bool(view["gone"]))
        assert (view["gone"][0]["process"], view["gone"][0]["reason"]) == (running.pid, "expelled")
        assert stream.read()["revocations"] == 1
        assert json.loads(dash.ask("/revoke", (terminal.directory / "revoked").read_bytes())[1])["newer"] is False


def test_the_page_goes_on_with_a_token_from_a_file_when_it_is_restarted(terminal: Terminal) -> None:
    file = terminal.directory / "token"
    file.write_text("a" * 40 + "\n")
    file.chmod(0o600)
    dash: Dash
    with open_dash(terminal, "--token-file", str(file)) as dash:
        assert "a" * 40 not in dash.address
        where = f"127.0.0.1:{dash.port}"
        assert dash.ask("/nothing", Authorization=f"Bearer {'a' * 40}")[0] == 404
        interrupt(dash.process)
    with open_dash(terminal, "--token-file", str(file), "--listen", where) as dash:
        assert dash.ask("/nothing", Authorization=f"Bearer {'a' * 40}")[0] == 404


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (("--listen", "nowhere"), 2, "write HOST:PORT"),
        (("--listen", "127.0.0.1:70000"), 2, "write HOST:PORT"),
        (("--listen", "0.0.0.0:0"), 2, "--plaintext if a proxy"),
        (("--certificate", "missing.pem"), 2, "belong together"),
        (("--certificate", "missing.pem", "--private-key", "missing.pem"), 2, "No such file"),
        (("--allow", "everything"), 2, "everything"),
        (("--token-file", "missing"), 2, "missing"),
        (("--token-file", "short"), 2, "openssl rand -hex 32"),
        (("--token-file", "open"), 2, "chmod"),
        (("--credential", "store.iris"), 1, "--serve iris.nodes'"),
        (("--credential", "looks.iris", "--allow", "drain"), 1, "--serve iris.nodes --serve iris.nodes.drain'"),
    ],
)
def test_what_cannot_be_is_one_clear_error(
    options: tuple[str, ...], status: int, told: str, wrong_options: Terminal
) -> None:
    done = wrong_options.run("dash", "--listen", "127.0.0.1:0", *options)
    said = done.stderr.decode()
    assert done.returncode == status, said
    assert told in said
    assert said.count("\n") == 1


@pytest.fixture(scope="module")
def wrong_options() -> Iterator[Terminal]:
    """Return a terminal with what wrong options name."""
    with open_terminal() as opened:
        for name, text, mode in (("short", "x" * 31, 0o600), ("open", "x" * 40, 0o666)):
            (opened.directory / name).write_text(text)
            (opened.directory / name).chmod(mode)
        for arguments in (
            ("realm", "realm.key"),
            ("cluster", "realm.key", "store", "--out", "store.iris"),
            ("cluster", "realm.key", "looks", "--out", "looks.iris", "--serve", "iris.nodes"),
        ):
            assert opened.run("keys", *arguments).returncode == 0
        yield opened


def test_a_place_that_is_taken_is_one_clear_error(wrong_options: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = wrong_options.run("dash", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"in use" in done.stderr


def test_nobody_to_see_is_told(wrong_options: Terminal) -> None:
    with open_dash(wrong_options) as dash, dash.follow() as stream:
        assert stream.read()["trouble"] == "no other node was found"


@pytest.mark.long
def test_a_page_costs_each_node_at_most_a_fifth_of_a_percent_of_a_core() -> None:
    seconds, without, watched = 8.0, 0.0, 0.0
    with open_terminal() as opened, open_store_realm(opened, 20, 5) as started:
        pids = [process.pid for several in started.values() for process in several]
        for _ in range(3):
            without += share_of_core(pids, seconds)
            with open_dash(opened) as dash, dash.follow() as stream:
                stream.read()  # it is up, and has begun to watch
                watched += share_of_core(pids, seconds)
        cost = (watched - without) / 3
        sys.stdout.write(f"without {without / 3:.4%}, watched {watched / 3:.4%}: {cost:.4%} of a core for each node\n")
        assert cost <= 0.002
