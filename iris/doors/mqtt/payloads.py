"""Payloads and headers of messages, as MQTT has them and as Iris does.

An event has no response topic, correlation data, content type or payload format of its own: they travel as headers, so
that clients which publish requests to topics find each other's replies, and members may answer as well.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from iris.doors.clients import Client
from iris.doors.mqtt.packets import Properties, Property, Publish
from iris.doors.problems import Problem
from iris.doors.values import from_json, packed, to_json

JSON: Final = "application/json"
"""The content type of values; a payload of any other one is bytes."""

_MESSAGEPACK: Final = "application/msgpack"

RESPONSE: Final = "mqtt-response-topic"
CORRELATION: Final = "mqtt-correlation-data"
KIND: Final = "mqtt-content-type"
FORMAT: Final = "mqtt-payload-format"
"""Headers of an event that stand for properties of MQTT 5; correlation data in Base64."""

OF_PAYLOADS: Final = frozenset({KIND, FORMAT})
OF_PROPERTIES: Final = frozenset({RESPONSE, CORRELATION, *OF_PAYLOADS})

_LONGEST: Final = 0xFFFF
"""Size limit of a text of MQTT, in bytes."""


def payload_of(packet: Publish) -> object:
    """Return the payload of a message; raise Problem if it is to be a value and is none."""
    if not _is_value(packet):
        return packet.payload
    try:
        return from_json(packet.payload)
    except Problem as problem:
        raise Problem(400, "bad_payload", problem.detail) from None


def _is_value(packet: Publish) -> bool:
    kind = packet.properties.get(Property.CONTENT_TYPE, "").partition(";")[0].strip().lower()
    return kind == JSON and bool(packet.payload)


def headers_of(packet: Publish, client: Client) -> dict[str, str]:
    """Return the headers of a message; raise Problem if one stands there twice."""
    pairs = packet.properties.get(Property.USER, ())
    if len(dict(pairs)) < len(pairs):
        raise Problem(400, "malformed", "a user property of one name twice: headers have each name once")
    return client.headers(pairs)


def property_headers(packet: Publish) -> dict[str, str]:
    """Return the headers that stand for properties of a message; raise Problem if they cannot be."""
    properties, headers = packet.properties, dict[str, str]()
    response = properties.get(Property.RESPONSE_TOPIC)
    if response is not None:
        if not is_response_topic(response):
            raise Problem(400, "malformed", "a response topic has no wildcards, and is not empty")
        headers[RESPONSE] = response
    if Property.CORRELATION_DATA in properties:
        headers[CORRELATION] = base64.b64encode(properties[Property.CORRELATION_DATA]).decode()
    return {**headers, **payload_headers(packet)}


def payload_headers(packet: Publish) -> dict[str, str]:
    """Return the headers that stand for what a message says of its payload."""
    properties, headers = packet.properties, dict[str, str]()
    if Property.CONTENT_TYPE in properties and not _is_value(packet):
        headers[KIND] = properties[Property.CONTENT_TYPE]
    if Property.PAYLOAD_FORMAT in properties:
        headers[FORMAT] = str(properties[Property.PAYLOAD_FORMAT])
    return headers


def header_properties(headers: Mapping[str, str]) -> Properties:
    """Return the properties that headers of an event stand for; what members have written and is none is left out."""
    properties: Properties = {}
    response = headers.get(RESPONSE, "")
    if is_response_topic(response) and _is_text(response):
        properties[Property.RESPONSE_TOPIC] = response
    properties.update(payload_properties(headers))
    if CORRELATION in headers:
        try:
            data = base64.b64decode(headers[CORRELATION], validate=True)
        except (binascii.Error, ValueError):
            return properties
        if len(data) <= _LONGEST:
            properties[Property.CORRELATION_DATA] = data
    return properties


def payload_properties(headers: Mapping[str, str]) -> Properties:
    """Return what headers say of a payload, as properties."""
    properties: Properties = {}
    if KIND in headers and _is_text(headers[KIND]):
        properties[Property.CONTENT_TYPE] = headers[KIND]
    if headers.get(FORMAT) in ("0", "1"):
        properties[Property.PAYLOAD_FORMAT] = int(headers[FORMAT])
    return properties


def _is_text(text: str) -> bool:
    return len(text.encode("utf-8", "replace")) <= _LONGEST


def is_response_topic(text: str) -> bool:
    """Return whether a reply can be published there."""
    return bool(text) and not {"+", "#"} & set(text)


def encoded(payload: object) -> tuple[bytes, str | None]:
    """Return a payload as a message has it, and its content type; None for bytes."""
    if isinstance(payload, bytes):
        return payload, None
    text = to_json(payload)
    return (packed(payload), _MESSAGEPACK) if text is None else (text, JSON)
