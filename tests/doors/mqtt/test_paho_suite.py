"""Eclipse Paho's suite of interoperability at the door.

    git clone https://github.com/eclipse/paho.mqtt.testing
    IRIS_PAHO_SUITE=paho.mqtt.testing/interoperability pytest tests/doors/mqtt/test_paho_suite.py

Its client obeys the door's Maximum QoS and says a token (tests/support/programs/paho_suite.py).  A test that is not for
this door is run, and has to fail.
"""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.doors.mqtt.place import Place, open_place, storing
from tests.support.doors import runner

FOLDER: Final = os.environ.get("IRIS_PAHO_SUITE")

PROGRAM: Final = Path(__file__).parents[2] / "support/programs/paho_suite.py"

pytestmark = pytest.mark.skipif(FOLDER is None, reason="IRIS_PAHO_SUITE names no folder with Eclipse Paho's suite")

WITHIN: Final = 45.0
"""Seconds that a test may take; the longest sleeps for 15."""

QOS: Final = "subscriptions are granted QoS 0"
SESSION: Final = "no session outlives its connection"
SENDER: Final = "the user property iris-client says who has published"
DOLLAR: Final = "topics that begin with $ are the door's own, and refused"
NO_LOCAL: Final = "there is no 'no local'"

EXCLUDED: Final = {
    "client_test": {
        "test_offline_message_queueing": SESSION,
        "test_overlapping_subscriptions": QOS,
        "test_redelivery_on_reconnect": SESSION,
        "test_dollar_topics": DOLLAR,
    },
    "client_test5": {
        "test_retained_message": f"{SENDER}; {QOS}",
        "test_will_message": SENDER,
        "test_offline_message_queueing": SESSION,
        "test_overlapping_subscriptions": QOS,
        "test_redelivery_on_reconnect": SESSION,
        "test_subscribe_failure": "its client does not know 0x87 of MQTT 5, not authorized",
        "test_dollar_topics": DOLLAR,
        "test_session_expiry": SESSION,
        "test_user_properties": f"{SENDER}; {QOS}",
        "test_payload_format": QOS,
        "test_publication_expiry": SESSION,
        "test_subscribe_options": NO_LOCAL,
        "test_subscribe_identifiers": "each subscription has a message of its own, which MQTT leaves to the server",
        "test_request_response": NO_LOCAL,
        "test_server_topic_alias": "there are no topic aliases",
        "test_maximum_packet_size": f"{SENDER}: 64 bytes are too few",
        "test_server_keep_alive": "it asks for the limit of Paho's broker, 60 s: this one is 600 s",
        "test_flow_control1": QOS,
        "test_flow_control2": "it asks for QoS 2: messages of QoS 1 are acknowledged meanwhile",
        "test_will_delay": f"{SESSION}, and so no will waits",
    },
}
"""Tests that are not for this door, and why."""


def names_of(module: str) -> list[str]:
    """Return the names of the tests of a module, one of which has its ``test`` at the end."""
    if FOLDER is None:
        return []
    body = ast.parse(Path(FOLDER, f"{module}.py").read_text()).body
    (case,) = [one for one in body if isinstance(one, ast.ClassDef) and one.name == "Test"]
    return [one.name for one in case.body if isinstance(one, ast.FunctionDef) and "test" in one.name]


CASES: Final = [(module, name) for module in EXCLUDED for name in names_of(module)]


def test_every_exclusion_is_a_test_of_the_suite() -> None:
    assert {(module, name) for module, names in EXCLUDED.items() for name in names} < set(CASES)


@pytest.mark.parametrize(("module", "name"), CASES)
def test_the_suite_of_paho(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, module: str, name: str
) -> None:
    reason = EXCLUDED[module].get(name)
    if reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    followed = "a" if name == "test_subscribe_failure" else ">"

    async def work(place: Place) -> None:
        async with storing(place.node):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(PROGRAM), str(FOLDER), module, name, str(place.address[1])),
                env={**os.environ, "TOKEN": place.token},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            try:
                output, _ = await asyncio.wait_for(process.communicate(), WITHIN)
            except TimeoutError:
                process.kill()
                await process.wait()
                raise
            assert process.returncode == 0, output.decode()

    run = runner(tmp_path, monkeypatch, open_place, within=2 * WITHIN)
    run(work, rights={"publish": (">",), "subscribe": (followed,)})
