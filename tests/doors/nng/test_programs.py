"""The door for nng with programs that others have written: nngcat of Debian, and C on Debian's libnng."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import iris
import iris.aio
from docs.pages import blocks
from iris.doors import grant
from iris.doors.clients import Clients
from iris.doors.nng import open_nng_door
from iris.kernel.errors import ConfigError
from tests.doors.nng.certificates import Authority
from tests.doors.nng.place import NNGCAT, PUBLIC, Place
from tests.support.async_tests import run_in_realm
from tests.support.consoles import run_console
from tests.support.doors import NOW, Run

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/doors/ask.c"

HAS_C = shutil.which("gcc") is not None and Path("/usr/include/nng/nng.h").exists()
C = pytest.mark.skipif(not HAS_C, reason="no C compiler, or no nng for it: apt install gcc libnng-dev")


def friendly() -> iris.Service:
    """Return the service that the page and the program in C speak of."""
    service = iris.Service("greeters")

    @service.request
    async def greet(request: iris.Request) -> object:
        return f"hello {request.payload}"

    @service.request("square")
    async def square(number: int) -> int:
        return number * number

    return service


def with_friendly_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *commands: tuple[str, ...]) -> list[str]:
    """Run commands, each with the base of a door's addresses in ``DOOR``; return what they have said."""
    said: list[str] = []

    async def main() -> None:
        grant(tmp_path / "tokens", "tools", **PUBLIC)
        async with (
            iris.aio.open_node("greeters") as member,
            member.join("greeters", friendly()),
            iris.aio.open_node("door") as node,
        ):
            await node.wait_for("greeters")
            clients = Clients(tmp_path / "tokens", lambda: NOW)
            async with open_nng_door(node, clients, f"ipc://{tmp_path}/door", "tools"):
                for command in commands:
                    process = await asyncio.create_subprocess_exec(
                        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"DOOR": f"{tmp_path}/door"}
                    )
                    out, err = await process.communicate()
                    assert (process.returncode, err.decode()) == (0, "")
                    said.append(out.decode())

    run_in_realm(tmp_path, monkeypatch, main)
    return said


@NNGCAT
def test_the_terminals_of_the_page_show_what_it_says() -> None:
    run_console(blocks(ROOT / "docs" / "howto" / "doors" / "nng.md"))


@C
def test_the_program_in_c_asks_surveys_publishes_and_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = ("/usr/bin/gcc", "-Wall", "-Wextra", "-Werror", "-o", f"{tmp_path}/ask", str(EXAMPLE), "-lnng")
    subprocess.run(built, check=True, timeout=120)
    (said,) = with_friendly_door(tmp_path, monkeypatch, (f"{tmp_path}/ask", f"ipc://{tmp_path}/door"))
    assert re.fullmatch(
        r"request \[200 text\] hello world\n"
        r"refusal \[404 no_such_cluster\] no reachable member serves the cluster 'nobody'\n"
        r'survey \[200 json\] {"answers":\[{"member":"[0-9a-f]{32}","payload":"hello is anybody there\?"}\],'
        r'"ended_by":"all","expected":1,"missing":\[\],"errors":{}}\n'
        r'event \[orders.tea json id=[0-9a-f]{8}-1\] {"amount":3}\n',
        said,
    )


@NNGCAT
def test_nngcat_is_told_what_it_may_not_and_what_is_too_large(run: Run, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"greeters\n" + bytes(1001))

    async def work(place: Place) -> None:
        for options, text in (
            (("--data", "door"), "403 not_allowed\nclient tools may not call 'door'"),
            (("--file", str(tmp_path / "large")), "413 too_large\nthe payload has 1001 bytes, and may have 1000"),
        ):
            assert await place.nngcat("req", "--raw", *options) == (0, text, "")

    run(work, rights={"call": ("greeters",)}, max_payload=1000)


@NNGCAT
def test_only_certificates_of_the_clients_authority_open_a_door_by_tls(run: Run, tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    door = ours.issue("localhost")
    files: Any = {"certificate": door.certificate, "private_key": door.key, "client_ca": ours.certificate}

    async def ask(place: Place, *options: str) -> tuple[int | None, str]:
        url = place.door.addresses["req"].replace("127.0.0.1", "localhost")
        process = await asyncio.create_subprocess_exec(
            *("nngcat", "--req", "--dial", url, "--raw", "--data", "greeters text\nx", "--recv-timeout", "1", *options),
            *("--send-timeout", "1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, _ = await process.communicate()
        return process.returncode, out.decode()

    async def work(place: Place) -> None:
        good, bad = ours.issue("client"), others.issue("client")
        trust = ("--cacert", str(ours.certificate))
        shown = ("--cert", str(good.certificate), "--key", str(good.key))
        assert await ask(place, *trust, *shown) == (0, "200 text\nx")
        for options in (
            trust,
            (*trust, "--cert", str(bad.certificate), "--key", str(bad.key)),
            ("--insecure",),
            ("--cacert", str(others.certificate), *shown),
        ):
            status, said = await ask(place, *options)
            assert (status != 0, said) == (True, ""), options
        assert await ask(place, *trust, *shown) == (0, "200 text\nx")
        ports = [int(url.rpartition(":")[2]) for url in place.door.addresses.values()]
        assert len(set(ports)) == 4
        wrong: Any = {**files, "private_key": others.certificate}
        with pytest.raises(ConfigError, match="no TLS by certificate"):
            async with open_nng_door(
                place.node,
                place.clients,
                "tls+tcp://127.0.0.1:0",
                "tools",
                **wrong,
            ):
                pass

    run(work, url="tls+tcp://127.0.0.1:0", **files)
