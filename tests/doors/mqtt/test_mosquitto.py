"""The door for MQTT with clients that others have written: those of Mosquitto, by both versions, and by TLS."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from iris.doors.mqtt import writing
from iris.testing import inspect
from tests.doors.mqtt.place import Place, Raw, connect_3, publish_3, storing, subscribe_3
from tests.support.bridges import BridgeProcess
from tests.support.door_certificate import make_certificate
from tests.support.doors import Run, with_door
from tests.support.ports import free_port

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None or shutil.which("mosquitto_sub") is None,
    reason="the clients of Mosquitto are not installed: apt install mosquitto-clients",
)

BROKER = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin")

VERSIONS = pytest.mark.parametrize("version", ["311", "5"])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the certificate of this machine's loopback, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def start(place: Place, program: str, *options: str, token: str | None = None) -> asyncio.subprocess.Process:
    """Start a client with a token."""
    host, port = "localhost" if "--cafile" in options else place.address[0], str(place.address[1])
    return await asyncio.create_subprocess_exec(
        *(program, "-h", host, "-p", port, "-u", "any", "-P", token or place.token, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    """Return the status of a client, what it has said, and what it has complained of."""
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def say(place: Place, *options: str, token: str | None = None) -> tuple[int | None, str, str]:
    return await ended(await start(place, "mosquitto_pub", *options, token=token))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return what the door has answered to SUBSCRIBE: clients that write to a pipe say so when they end."""
    answered: list[bytes] = []

    def suback(*told: Any) -> bytes:
        answered.append(made := written(*told))
        return made

    written = writing.suback
    monkeypatch.setattr(writing, "suback", suback)
    return answered


async def following(place: Place, answers: list[bytes], *options: str) -> asyncio.subprocess.Process:
    """Start a subscriber, and return when it is one."""
    answers.clear()
    process = await start(place, "mosquitto_sub", *options)
    await place.until(lambda: answers)
    return process


@VERSIONS
@with_door()
async def test_messages_become_events_and_events_messages(place: Place, version: str, answers: list[bytes]) -> None:
    async with place.member.subscribe("plants.>") as events:
        assert (await say(place, "-V", version, "-t", "plants/one/heat", "-m", "21"))[0] == 0
        event = await anext(events)
        assert (event.topic, event.payload) == ("plants.one.heat", b"21")
        assert dict(event.headers) == {"iris-client": "sensor"}
    process = await following(place, answers, "-V", version, "-t", "plants/#", "-v", "-C", "3")
    await place.member.publish("plants", b"all")
    await place.member.publish("plants.one", {"heat": 21})
    await place.member.publish("others", b"no")
    await say(place, "-V", version, "-t", "plants/one/heat", "-m", "22")
    status, lines, _ = await ended(process)
    assert status == 0
    assert set(lines.splitlines()) == {"plants all", 'plants/one {"heat":21}', "plants/one/heat 22"}


@VERSIONS
def test_it_is_the_same_by_tls(run: Run, version: str, certificate: Path, answers: list[bytes]) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    secured = ("-V", version, "--cafile", str(certificate))

    async def work(place: Place) -> None:
        process = await following(place, answers, *secured, "-t", "+/heat", "-C", "1")
        assert (await say(place, *secured, "-t", "one/heat", "-m", "x" * 100_000))[0] == 0
        _, lines, _ = await ended(process)
        assert lines.splitlines() == ["x" * 100_000]
        status, _, _ = await say(place, "-V", version, "-t", "a", "-m", "in plain text")
        assert status != 0

    run(work, tls=tls)


@VERSIONS
@with_door()
async def test_a_wrong_token_is_refused(place: Place, version: str) -> None:
    status, _, err = await say(place, "-V", version, "-t", "a", "-m", "x", token="iris_wrong")
    assert (status, "not authori" in err.lower()) == ((5, True) if version == "311" else (134, False))


@with_door()
async def test_a_bridge_has_on_disk_what_is_acknowledged(place: Place, tmp_path: Path) -> None:
    bridge = BridgeProcess(tmp_path / "data")
    try:
        await asyncio.to_thread(bridge.start)
        await place.node.wait_for("bridge", timeout=60)
        for version in ("311", "5"):
            lines = b"".join(b"%d\n" % number for number in range(100))
            process = await asyncio.create_subprocess_exec(
                *("mosquitto_pub", "-p", str(place.address[1]), "-u", "any", "-P", place.token, "-V", version),
                *("-q", "1", "-t", "a/b", "-l"),
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            _, err = await process.communicate(lines)
            assert (process.returncode, err) == (0, b"")
    finally:
        await asyncio.to_thread(bridge.kill)
    assert place.door.statistics().published == 200


@VERSIONS
def test_without_a_bridge_nothing_is_acknowledged(run: Run, version: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work(place: Place) -> None:
        status, _, err = await say(place, "-V", version, "-t", "a/b", "-m", "x", "-q", "1")
        if version == "311":
            assert (status, err) == (7, "Error: The connection was lost.\n")
        else:
            assert err.startswith("Warning: Publish 1 failed: Implementation specific error.")
        async with storing(place.member) as stored:
            assert (await say(place, "-V", version, "-t", "a/b", "-m", "x", "-q", "1"))[0::2] == (0, "")
        assert stored == [("a.b", b"x")]

    run(work)
    assert "there is no durable subscriber of 'a.b'" in caplog.text


@VERSIONS
@with_door()
async def test_retained_messages_and_wills(place: Place, version: str, answers: list[bytes]) -> None:
    await say(place, "-V", version, "-t", "kept", "-m", "old", "-r")
    status, lines, _ = await ended(
        await start(place, "mosquitto_sub", "-V", version, "-t", "#", "-C", "1", "-F", "%t %r %p")
    )
    assert (status, lines) == (0, "kept 1 old\n")
    await say(place, "-V", version, "-t", "kept", "-n", "-r")
    async with place.member.subscribe("wills") as events:
        process = await following(
            place, answers, "-V", version, "-t", "#", "--will-topic", "wills", "--will-payload", "gone"
        )
        process.kill()
        assert (await anext(events)).payload == b"gone"
        _, lines, _ = await ended(process)
        assert lines.splitlines() == []


@pytest.mark.skipif(BROKER is None, reason="Mosquitto is not installed: apt install mosquitto")
@with_door()
async def test_a_bridge_of_mosquitto_connects_and_carries_messages_both_ways(place: Place, tmp_path: Path) -> None:
    """By default it asks for a version of its own at first, falls back on 3.1.1, and says that it is there."""
    port = free_port()
    configuration = tmp_path / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nconnection door\n"
        f"address 127.0.0.1:{place.address[1]}\nremote_username any\nremote_password {place.token}\n"
        "restart_timeout 1\ntopic plants/# both 0\n"
    )
    broker = await asyncio.create_subprocess_exec(
        *(str(BROKER), "-c", str(configuration)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        async with place.member.subscribe("plants.>") as events:
            await place.until(lambda: inspect(place.node).subscriptions > 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            here = Raw(reader, writer)
            here.send(connect_3("", "here"))
            assert await here.frame() == b"\x20\x02\x00\x00"
            here.send(subscribe_3("plants/#", qos=0))
            assert (await here.frame())[0] == 0x90
            here.send(publish_3("plants/one", b"out"))
            assert ((event := await anext(events)).topic, event.payload) == ("plants.one", b"out")
            await place.member.publish("plants.two", b"in")
            while (told := await here.frame()) != publish_3("plants/two", b"in"):
                assert told == publish_3("plants/one", b"out")  # its own, once from each side
            writer.close()
    finally:
        broker.terminate()
        await broker.communicate()
