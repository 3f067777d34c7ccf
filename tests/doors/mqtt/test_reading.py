"""Decoding of bytes: an independent library agrees, and only the declared error leaves the decoder."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import mqtt5
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iris.doors.mqtt.packets import (
    V3,
    V5,
    Connect,
    Disconnect,
    Filter,
    Parting,
    PingRequest,
    Property,
    Publish,
    Reason,
    Subscribe,
    Unsubscribe,
)  # fmt: skip
from iris.doors.mqtt.reading import OVERHEAD, decode, decode_connect, level_of, read_frame
from tests.doors.mqtt.place import connect_3, frame, publish_3, subscribe_3, text

MAX = 1000


def read(data: bytes) -> tuple[int, bytes]:
    """Read one packet from a connection that ends behind it."""

    async def main() -> tuple[int, bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await read_frame(reader, MAX)

    return asyncio.run(main())


def decoded(packet: Any, level: int = V5) -> Any:
    first, body = read(packet if isinstance(packet, bytes) else packet.write())
    return decode(first, body, level)


def test_connects_are_read_as_another_library_writes_them() -> None:
    will = mqtt5.Will(
        "a/b", payload=b"gone", qos=mqtt5.QoS.AT_LEAST_ONCE, retain=True, content_type="c", will_delay_interval=3,
        user_properties=[("k", "v")],
    )  # fmt: skip
    packet = mqtt5.ConnectPacket(
        "me", username="u", password=b"\xff", clean_start=True, will=will, keep_alive=7, receive_max=3,
        max_packet_size=99, request_problem_info=False, session_expiry_interval=5, user_properties=[("a", "b")],
    )  # fmt: skip
    _, body = read(packet.write())
    assert level_of(body) == V5
    found = decode_connect(body)
    assert (found.client_id, found.password, found.is_clean, found.keep_alive) == ("me", b"\xff", True, 7)
    assert found.properties == {
        Property.SESSION_EXPIRY: 5, Property.RECEIVE_MAXIMUM: 3, Property.MAXIMUM_SIZE: 99,
        Property.PROBLEM_INFORMATION: 0, Property.USER: [("a", "b")],
    }  # fmt: skip
    of_will = {Property.CONTENT_TYPE: "c", Property.WILL_DELAY: 3, Property.USER: [("k", "v")]}
    assert found.will == Publish(topic="a/b", payload=b"gone", qos=1, retain=True, properties=of_will)


def test_other_packets_are_read_as_another_library_writes_them() -> None:
    sent = mqtt5.PublishPacket(
        "a/ä", b"x", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=300, retain=True, duplicate=True, content_type="c",
        message_expiry_interval=4, user_properties=[("a", "b"), ("a", "c")], payload_format_indicator=1,
        response_topic="r", correlation_data=b"d",
    )  # fmt: skip
    of_sent = {
        Property.PAYLOAD_FORMAT: 1, Property.MESSAGE_EXPIRY: 4, Property.CONTENT_TYPE: "c",
        Property.RESPONSE_TOPIC: "r", Property.CORRELATION_DATA: b"d", Property.USER: [("a", "b"), ("a", "c")],
    }  # fmt: skip
    assert decoded(sent) == Publish(topic="a/ä", payload=b"x", qos=1, retain=True, packet_id=300, properties=of_sent)
    one = mqtt5.TopicFilter(
        "a/#", max_qos=mqtt5.QoS.AT_LEAST_ONCE, no_local=True, retain_handling=mqtt5.RetainHandling.SEND_NEVER
    )
    found = decoded(mqtt5.SubscribePacket(2, [one, mqtt5.TopicFilter("b")], subscription_id=70_000))
    filters = (
        Filter(text="a/#", qos=1, no_local=True, retain_handling=2),
        Filter(text="b", qos=2, no_local=False, retain_handling=0),
    )
    assert found == Subscribe(2, filters, {Property.SUBSCRIPTION_ID: 70_000})
    assert decoded(mqtt5.UnsubscribePacket(2, ["a", "b"])) == Unsubscribe(2, ("a", "b"))
    assert decoded(mqtt5.PingReqPacket()) == PingRequest()
    assert decoded(mqtt5.DisconnectPacket()) == Disconnect(wants_will=False)
    with_will = mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode(4), reason_str="x")
    assert decoded(with_will) == Disconnect(wants_will=True)


def test_packets_of_the_older_protocol_have_no_properties() -> None:
    _, body = read(connect_3("token", "me", will=text("a") + text(b"gone")))
    will = Publish(topic="a", payload=b"gone")
    assert decode_connect(body) == Connect(
        level=V3, client_id="me", password=b"token", is_clean=True, keep_alive=60, will=will, properties={}
    )
    assert decoded(publish_3("a", b"x", qos=1, packet_id=5), V3) == Publish(topic="a", payload=b"x", qos=1, packet_id=5)
    assert decoded(subscribe_3("a"), V3).filters == (Filter(text="a", qos=1, no_local=False, retain_handling=0),)
    assert decoded(b"\xe0\x00", V3) == Disconnect(wants_will=False)


MALFORMED = [
    (b"\x82\x02\x00\x01", V3, Reason.MALFORMED),  # no filter
    (subscribe_3("a", qos=3), V3, Reason.MALFORMED),
    (subscribe_3("a", qos=4), V3, Reason.MALFORMED),
    (frame(0x82, b"\x00\x00", text("a"), b"\x00"), V3, Reason.PROTOCOL_ERROR),
    (frame(0x80, b"\x00\x01", text("a"), b"\x00"), V3, Reason.PROTOCOL_ERROR),
    (frame(0x82, b"\x00\x01\x00", text("a"), b"\x30"), V5, Reason.MALFORMED),
    (frame(0x82, b"\x00\x01\x00", text("a"), b"\x40"), V5, Reason.MALFORMED),
    (frame(0xA2, b"\x00\x01"), V3, Reason.MALFORMED),
    (publish_3("a", qos=3), V3, Reason.MALFORMED),
    (publish_3("a", qos=1, packet_id=0), V3, Reason.PROTOCOL_ERROR),
    (frame(0x38, text("a")), V3, Reason.MALFORMED),  # repeated, of QoS 0
    (frame(0x30, b"\x00\x05a"), V3, Reason.MALFORMED),
    (frame(0x30, text(b"\xff")), V3, Reason.MALFORMED),
    (frame(0x30, text(b"\xed\xa0\x80")), V3, Reason.MALFORMED),
    (frame(0x30, text("a\0")), V3, Reason.MALFORMED),
    (frame(0x30, text("a"), b"\x03\x23\x00\x01"), V5, Reason.ALIAS_INVALID),
    (frame(0x30, text("a"), b"\x02\x01\x02"), V5, Reason.PROTOCOL_ERROR),
    (frame(0x30, text("a"), b"\x04\x01\x01\x01\x01"), V5, Reason.PROTOCOL_ERROR),
    (frame(0x30, text("a"), b"\x02\x0b\x01"), V5, Reason.PROTOCOL_ERROR),
    (frame(0x30, text("a"), b"\x02\x7f\x01"), V5, Reason.PROTOCOL_ERROR),
    (frame(0x30, text("a"), b"\xff\xff\xff\xff\x01"), V5, Reason.MALFORMED),
    (frame(0x30, text("a"), b"\x05\x01"), V5, Reason.MALFORMED),
    (frame(0xC0, b"\x00"), V3, Reason.MALFORMED),
    (frame(0xC1), V3, Reason.PROTOCOL_ERROR),
    (frame(0xE0, b"\x00"), V3, Reason.MALFORMED),
    (frame(0xF0), V5, Reason.PROTOCOL_ERROR),
    (frame(0x40, b"\x00\x01"), V5, Reason.PROTOCOL_ERROR),
    (connect_3("token"), V3, Reason.PROTOCOL_ERROR),
    (b"\x30\xff\xff\xff\xff\x01", V3, Reason.MALFORMED),
    (b"\x30\xff\xff\xff\x7f", V3, Reason.TOO_LARGE),
    (b"\x82\x81\x80\x04", V3, Reason.TOO_LARGE),
    (b"\x10\x81\x80\x08", V3, Reason.TOO_LARGE),
]


@pytest.mark.parametrize(("data", "level", "reason"), MALFORMED)
def test_what_is_malformed_has_its_reason(data: bytes, level: int, reason: Reason) -> None:
    with pytest.raises(Parting) as caught:
        decoded(data, level)
    assert caught.value.reason is reason


def test_properties_of_more_than_their_limit_are_refused() -> None:
    piece = b"\x26" + text("k") + text("v" * 60_000)
    body = text("a") + frame(0, piece * 2)[1:]
    with pytest.raises(Parting) as caught:
        decode(0x30, body, V5)
    assert caught.value.reason is Reason.TOO_LARGE
    assert len(body) > OVERHEAD


CONNECTS = [
    (b"HTTP/1.1", Reason.MALFORMED),
    (text("MQTX") + b"\x04\x02\x00\x00\x00\x00", Reason.MALFORMED),
    (text("MQTT") + b"\x04\x03\x00\x00\x00\x00", Reason.MALFORMED),  # a reserved flag
    (text("MQTT") + b"\x04\x1a\x00\x00\x00\x00", Reason.MALFORMED),  # QoS of no will
    (text("MQTT") + b"\x04\x22\x00\x00\x00\x00", Reason.MALFORMED),  # no will is retained
    (text("MQTT") + b"\x04\x1e\x00\x00\x00\x00", Reason.MALFORMED),  # a will of QoS 3
    (text("MQTT") + b"\x04\x42\x00\x00\x00\x00\x00\x00", Reason.MALFORMED),  # a password without a user name
    (text("MQTT") + b"\x04\x02\x00\x00\x00\x00\x00", Reason.MALFORMED),
    (text("MQTT") + b"\x05\x02\x00\x00\x03\x21\x00\x00\x00\x00", Reason.PROTOCOL_ERROR),
    (text("MQTT") + b"\x05\x02\x00\x00\x02\x17\x02\x00\x00", Reason.PROTOCOL_ERROR),
]


@pytest.mark.parametrize(("body", "reason"), CONNECTS)
def test_connects_that_are_malformed_have_their_reason(body: bytes, reason: Reason) -> None:
    def read_both() -> None:
        level_of(body)
        decode_connect(body)

    with pytest.raises(Parting) as caught:
        read_both()
    assert caught.value.reason is reason


def test_other_protocols_and_levels_are_known() -> None:
    assert level_of(text("MQIsdp") + b"\x03") == 3
    assert level_of(text("MQTT") + b"\x06") == 6


SEEDS = [
    mqtt5.ConnectPacket(
        "me", username="u", password=b"p", will=mqtt5.Will("a", payload=b"x", user_properties=[("a", "b")]),
        user_properties=[("a", "b")], max_packet_size=9,
    ).write(),
    connect_3("token", "me", will=text("a") + text(b"x")),
    mqtt5.PublishPacket(
        "a/b", b"x", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=3, content_type="c", user_properties=[("a", "b")]
    ).write(),
    publish_3("a/b", b"x", qos=1),
    mqtt5.SubscribePacket(3, [mqtt5.TopicFilter("a/#"), mqtt5.TopicFilter("b")], subscription_id=300).write(),
    subscribe_3("a", "b"),
    mqtt5.UnsubscribePacket(3, ["a", "b"], user_properties=[("a", "b")]).write(),
    mqtt5.DisconnectPacket(reason_str="x").write(),
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at, byte = draw(st.integers(0, max(0, len(data) - 1))), draw(st.integers(0, 255))
        match draw(st.integers(0, 2)):
            case 0:
                data[at : at + 1] = bytes((byte,))
            case 1:
                data.insert(at, byte)
            case _:
                del data[at : at + 1]
    if draw(st.booleans()) and len(data) > 1:
        data[1] = min(len(data) - 2, 127)
    return bytes(data)


@given(st.one_of(damaged(), st.binary(max_size=60)), st.sampled_from([V3, V5]))
@example(b"\x30\x00", V5)
def test_only_the_declared_errors_leave_the_decoder(data: bytes, level: int) -> None:
    """It fails by any other error."""
    try:
        first, body = read(data)
    except (Parting, asyncio.IncompleteReadError):
        return
    with contextlib.suppress(Parting):
        decode(first, body, level)
    with contextlib.suppress(Parting):
        if level_of(body) in (V3, V5):
            decode_connect(body)
