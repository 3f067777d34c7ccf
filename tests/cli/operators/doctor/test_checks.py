"""The checks of ``iris doctor`` that need no network, each with what it looks at as an argument."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest

from iris.cli.operators.doctor.clock import ahead, clock_difference
from iris.cli.operators.doctor.directories import examine_home, examine_runtime
from iris.cli.operators.doctor.findings import split_remedy
from iris.cli.operators.doctor.firewall import examine_firewall
from iris.cli.operators.doctor.lan import examine_multicast
from iris.cli.operators.doctor.limits import examine_descriptors
from iris.cli.operators.doctor.listening import examine_listening
from iris.cli.operators.doctor.scraping import examine_metrics
from iris.cli.operators.doctor.seeds import resolve
from iris.cli.operators.doctor.unit import as_unit
from iris.cli.operators.doctor.versions import _BOUND, examine_packages, examine_python, examine_versions
from iris.kernel.errors import ConfigError
from iris.security.identity import CLOCK_TOLERANCE, NodeDelegation

ROOT = Path(__file__).resolve().parents[4]
USER = os.geteuid()
NOW = 1_800_000_000.0
DAY = 86_400


def delegation(*, started: float, node: str = "ab" * 16) -> NodeDelegation:
    return NodeDelegation(
        cluster="databases",
        node=node,
        static_key=bytes(32),
        signing_key=bytes(32),
        not_before=int(started) - CLOCK_TOLERANCE,
        not_after=int(started) + DAY,
        signed=b"",
    )


@pytest.mark.parametrize(
    ("started", "code"),
    [
        (NOW - 3600, None),
        (NOW + 20, None),
        (NOW + 200, "clock-peer"),
        (NOW + 400, "clock-behind"),
        (NOW - DAY, "clock-ahead"),
    ],
)
def test_a_delegation_shows_by_how_much_clocks_differ_at_least(started: float, code: str | None) -> None:
    found = clock_difference("tcp://there:7000", delegation(started=started), NOW)
    assert (found.code if found else None) == code


def test_that_a_sealed_delegation_has_ended_says_nothing_of_the_clock() -> None:
    assert clock_difference("tcp://there:7000", delegation(started=NOW - 40 * DAY, node="ab" * 8), NOW) is None


def test_a_clock_that_is_ahead_has_a_bound() -> None:
    found = ahead("tcp://there:7000", delegation(started=NOW - 7200), NOW)
    assert (found.code, "by 2.0 hours at most" in found.cause) == ("clock-ahead", True)


@pytest.mark.parametrize(
    ("soft", "hard", "nodes", "level"),
    [(1024, 4096, 100, "ok"), (1024, 4096, 300, "warning"), (1024, 4096, 500, "problem"), (64, 64, 1, "problem")],
)
def test_the_limit_on_files_is_compared_with_the_nodes(soft: int, hard: int, nodes: int, level: str) -> None:
    found = examine_descriptors(soft, hard, nodes)
    assert found.level == level
    assert not found.remedy or found.remedy.startswith("as root:"), "4096 is less than what is advised"


def test_where_the_hard_limit_permits_it_nobody_has_to_be_root() -> None:
    assert examine_descriptors(1024, 1_048_576, 500).remedy == "ulimit -n 65536"


def test_python_that_is_too_old_is_a_problem() -> None:
    assert examine_python((3, 10, 9), "/usr").code == "python-old"
    assert examine_python((3, 11, 0), "/usr").code == "python-ok"
    assert examine_python((4, 0, 0), "/usr").code == "python-ok"


def test_packages_are_compared_with_the_bounds_that_iris_has() -> None:
    required = ["trio>=0.30", "pynng<0.10,>=0.9", "rich>=13.7", "msgpack>=1.1", "zeroconf>=0.154"]
    versions = {"trio": "0.29.1", "pynng": "0.9.0", "rich": "14.0.0", "msgpack": "1.1"}
    missing, unfit = examine_packages(required, versions.get)
    assert (missing.code, missing.cause) == ("packages-missing", "not installed: zeroconf")
    assert (unfit.code, unfit.cause) == ("packages-unfit", "trio 0.29.1, >=0.30 is needed")
    (too_new,) = examine_packages(["pynng<0.10,>=0.9"], {"pynng": "0.10.0"}.get)
    assert too_new.code == "packages-unfit"


def test_every_bound_that_iris_has_is_of_a_form_that_doctor_reads() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = [
        bound for one in project["dependencies"] for bound in one.lstrip("abcdefghijklmnopqrstuvwxyz-_").split(",")
    ]
    assert [bound for bound in bounds if not _BOUND.match(bound.strip())] == []


def test_members_with_another_version_are_counted() -> None:
    assert examine_versions("1.0", {}) is None
    same = examine_versions("1.0", {"a": "1.0", "b": "1.0"})
    assert same is not None
    assert same.code == "versions-ok"
    differ = examine_versions("1.0", {"a": "1.0", "b": "0.9", "c": "0.9", "d": ""})
    assert differ is not None
    assert (differ.code, "1 with none that they tell, 2 with 0.9 of 4 members" in differ.cause) == (
        "versions-differ",
        True,
    )


def rules(*entries: dict[str, object]) -> str:
    return json.dumps({"nftables": [{"metainfo": {"json_schema_version": 1}}, *entries]})


def chain(**fields: str) -> dict[str, object]:
    return {
        "chain": {"family": "inet", "table": "filter", "name": "input", "hook": "input", "policy": "accept", **fields}
    }


DROP: dict[str, object] = {
    "rule": {"family": "inet", "table": "filter", "chain": "input", "expr": [{"counter": {}}, {"drop": None}]}
}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "firewall-unseen"),
        ("no json", "firewall-unseen"),
        ('{"nftables": 3}', "firewall-unseen"),
        ('{"nftables": [{"chain": {"hook": "input"}}]}', "firewall-unseen"),
        (rules(), "firewall-ok"),
        (rules(chain()), "firewall-ok"),
        (rules(chain(policy="drop")), "firewall-drops"),
        (rules(chain(), DROP), "firewall-drops"),
        (rules(chain(hook="output", policy="drop"), DROP), "firewall-ok"),
    ],
)
def test_rules_of_a_firewall_are_read_as_far_as_they_can_be(text: str | None, code: str) -> None:
    assert examine_firewall(text, (7000,)).code == code


def test_the_command_for_a_firewall_names_chain_and_ports() -> None:
    text = rules(chain(policy="drop"))
    assert examine_firewall(text, (7000,)).remedy == "nft insert rule inet filter input tcp dport 7000 accept"
    many = examine_firewall(text, (7000, 7080)).remedy
    assert many == "nft insert rule inet filter input tcp dport { 7000, 7080 } accept"
    assert examine_firewall(text, ()).remedy == "nft list chain inet filter input"


def test_a_home_is_private_writable_and_a_directory(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert examine_home(home / "deeper", USER).code == "home-ok"
    home.mkdir(mode=0o700)
    assert examine_home(home, USER).code == "home-ok"
    home.chmod(0o750)
    assert examine_home(home, USER).remedy == f"chmod 700 {home}"
    home.chmod(0o700)
    assert examine_home(home, USER + 1).remedy == f"chown {USER + 1} {home}"
    (tmp_path / "file").write_text("")
    assert examine_home(tmp_path / "file" / "home", USER).code == "home-unwritable"
    (tmp_path / "link").symlink_to(home)
    assert examine_home(tmp_path / "link", USER).code == "home-private"


@pytest.fixture
def short_path() -> Generator[Path]:
    """A directory whose path leaves room for that of a socket."""
    path = Path(tempfile.mkdtemp(prefix="iris-"))
    yield path
    shutil.rmtree(path)


def test_sockets_at_which_nobody_listens_are_stale(short_path: Path) -> None:
    directory = short_path / "iris" / "f0"
    directory.mkdir(parents=True, mode=0o700)
    directory.parent.chmod(0o700)
    environment = {"XDG_RUNTIME_DIR": str(short_path)}
    with socket.socket(socket.AF_UNIX) as alive, socket.socket(socket.AF_UNIX) as dead:
        alive.bind(str(directory / "alive"))
        alive.listen()
        dead.bind(str(directory / "dead"))
        (stale,) = examine_runtime("f0", environment, USER)
    assert stale.code == "runtime-stale"
    assert stale.remedy == f"rm -f {directory}/dead" + "{,.node}"
    directory.chmod(0o755)
    (private,) = examine_runtime("f0", environment, USER)
    assert (private.code, private.remedy) == ("runtime-private", f"chmod 700 {directory}")
    short_path.chmod(0o777)
    unfit, *_ = examine_runtime("f0", environment, USER)
    assert (unfit.code, unfit.remedy) == ("runtime-unfit", f"chmod 700 {short_path}")


@pytest.mark.parametrize("url", ["udp://127.0.0.1:1", "tcp://127.0.0.1", "ws://127.0.0.1:1/elsewhere", "tcp://a:99999"])
async def test_an_address_that_is_none_is_named(url: str) -> None:
    assert (await examine_listening(url)).code == "listen-malformed"


async def test_ports_that_cannot_be_listened_at_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert (await examine_listening(url)).code == "listen-taken"
    assert (await examine_listening(url)).code == "listen-ok"
    assert (await examine_listening("tcp://*:0")).code == "listen-ok"
    assert (await examine_listening("tcp://[::1]:0")).code in ("listen-ok", "listen-absent")  # a machine without IPv6
    assert (await examine_listening("tcp://192.0.2.1:0")).code == "listen-absent"
    assert (await examine_listening("ipc:///nowhere/at/all")).code == "listen-forbidden"


async def test_a_seed_that_is_no_address_or_needs_no_name_is_known_at_once() -> None:
    assert [finding.code for finding in (await resolve("nonsense"))[1:] if finding] == ["seed-malformed"]
    assert await resolve("tcp://127.0.0.1:7000") == (("tcp://127.0.0.1:7000",), None)
    assert await resolve("ipc:///tmp/x") == (("ipc:///tmp/x",), None)


async def test_a_node_of_loopback_is_alone() -> None:
    assert (await examine_multicast([], "")).code == "lan-alone"


def test_the_command_in_an_error_is_told_from_its_cause() -> None:
    assert split_remedy("credential x: open to others: run: chmod 600 x", "") == (
        "credential x: open to others",
        "chmod 600 x",
    )
    assert split_remedy("x: belongs to user 1: run as root: chown 0 x", "") == ("x: belongs to user 1", "chown 0 x")
    assert split_remedy("nothing to do", "ls") == ("nothing to do", "ls")


async def test_metrics_are_served_at_an_address_of_this_machine_that_no_other_program_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = await examine_metrics("127.0.0.1", port, "prices")
    assert (taken.code, taken.level) == ("metrics-taken", "problem")
    assert taken.cause == (
        f"another program listens at 127.0.0.1:{port}: each service of a machine needs a port of its own for metrics"
    )
    assert (await examine_metrics("127.0.0.1", port, "prices")).code == "metrics-ok"
    assert (await examine_metrics("192.0.2.1", 9464, "prices")).code == "metrics-absent"


UNIT = {
    "User": "iris-prices",
    "DynamicUser": True,
    "PrivateNetwork": False,
    "SupplementaryGroups": [],
    "LimitNOFILE": 65536,
    "UMask": 0o77,
    "StateDirectory": ["iris-prices"],
    "ReadWritePaths": ["/srv/my data", "-/srv/more"],
    "RuntimeDirectory": ["iris-prices"],
    "Environment": [
        "IRIS_CREDENTIAL=/run/credentials/iris@prices.service/credential",
        "XDG_RUNTIME_DIR=/run/iris-prices",
        'GREETING=100 % "well"',
    ],
    "EnvironmentFiles": [["/etc/iris/prices.env", True], ["/etc/iris/all.env", False]],
    "LoadCredential": [["credential", "/etc/iris/prices.json"]],
}


def as_started(path: str, *arguments: str) -> list[str]:
    started = [[path, [path, *arguments], False, 0, 0, 0, 0, 0, 0, 0]]
    return as_unit("iris@prices.service", UNIT | {"ExecStart": started}, ["-q"])


def test_a_unit_is_examined_with_its_settings_and_directories_but_for_those_that_end_with_a_service() -> None:
    command = as_started("/opt/iris/bin/iris", "run", "prices:service", "$IRIS_ARGUMENTS")
    own = f"iris-doctor-{os.getpid()}"
    assert [one.removeprefix("--property=") for one in command if one.startswith("--property=")] == [
        *(
            "User=iris-prices",
            "DynamicUser=yes",
            "LimitNOFILE=65536",
            'StateDirectory="iris-prices"',
            "PrivateNetwork=no",
            'ReadWritePaths="/srv/my data" "-/srv/more"',
        ),
        *("UMask=0077", "EnvironmentFile=-/etc/iris/prices.env", "EnvironmentFile=/etc/iris/all.env"),
        *("LoadCredential=credential:/etc/iris/prices.json", f"RuntimeDirectory={own}"),
        f'Environment="IRIS_CREDENTIAL=/run/credentials/{own}.service/credential"',
        f'Environment="XDG_RUNTIME_DIR=/run/{own}"',
        r'Environment="GREETING=100 % \"well\""',
    ]
    assert command[-5:] == ["doctor", "-q", "run", "prices:service", "$IRIS_ARGUMENTS"]


def test_a_unit_of_a_program_of_its_own_is_examined_by_the_command_beside_it() -> None:
    assert as_started("/opt/shop/bin/python", "shop.py")[-3:] == ["/opt/shop/bin/iris", "doctor", "-q"]
    with pytest.raises(ConfigError, match="starts no program"):
        as_unit("a.target", {}, [])
