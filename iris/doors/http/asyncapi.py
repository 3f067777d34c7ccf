"""AsyncAPI: what the door takes and sends, as a document that tools for interfaces read.

It is made of the tables by which the door itself reads: options of calls, and messages of programs that serve.
Source: AsyncAPI 3.0.0.  "send" is what the door sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from iris.doors.http import messages, tunnels
from iris.doors.http.schemas import ANSWER, END, ENVELOPE, EVENT, GAP, PROBLEM, Schema, object_of, option_schema
from iris.doors.options import (
    BROADCAST,
    PUBLISH,
    REQUEST,
    SERVE,
    SURVEY,
    TUNNEL,
    Readers,
)

_BINARY: Final = "It may be binary: the map without a payload, a line feed, and the payload as bytes."


def document() -> Schema:
    """Return the AsyncAPI document of the door, as a map that JSON can hold."""
    channels: Schema = {
        "serve": _channel(
            "/serve/{cluster}", "A program serves a cluster: docs/reference/doors/serve.md.",
            {f"door.{name}": _message(name, kind) for name, kind in messages.SENT.items()}
            | {f"program.{name}": _message(name, kind) for name, kind in messages.TAKEN.items()},
            _socket(SERVE),
        ),
        "tunnel": _channel(
            "/tunnel/{cluster}", "A tunnel to a member: docs/reference/doors/http.md.",
            {
                "bytes": {"summary": "A binary message: a payload.", "contentType": "application/octet-stream"},
                "payload": _text("A payload, in an envelope.", object_of(ENVELOPE, "payload")),
                "credit": _text("So many payloads more may be sent.", object_of({"credit": _CREDIT}, "credit")),
                "eof": _text("No payload comes any more.", object_of({"eof": {"const": True}}, "eof")),
            },
            _socket(TUNNEL),
        ),
    }  # fmt: skip
    for name, what in (("request", "cluster"), ("survey", "cluster"), ("broadcast", "cluster"), ("publish", "topic")):
        sent: Schema = {
            "payload": {"summary": "A payload, by its content type JSON, text, MessagePack or bytes.", "payload": {}}
        }
        channels[name] = _channel(f"/{name}/{{{what}}}", _DONE[name], sent)
    channels["replies"] = _channel(
        None, "What is answered.",
        {
            "reply": {"summary": "The payload of a reply.", "payload": {}},
            "answer": _text("A line for each answer to a survey.", ANSWER),
            "end": _text("The last line of a survey.", END),
            "done": {"summary": "204: it is sent.", "payload": {"type": "null"}},
            "problem": {"contentType": "application/problem+json", "payload": PROBLEM},
        },
    )  # fmt: skip
    channels["subscribe"] = _channel(
        "/subscribe", "Events of topics, as server-sent events.",
        {
            "event": _text("An event.", EVENT),
            "gap": _text("So many events are missed; null: nobody knows.", GAP),
            "end": {"payload": PROBLEM},
        },
        {"http": {"method": "GET", "query": _query({"topic": str, "group": str}, "topic"), "bindingVersion": "0.3.0"}},
    )  # fmt: skip
    binding = channels["subscribe"].pop("bindings")
    operations = {
        "sendToProgram": _operation("send", "serve", [f"door.{name}" for name in messages.SENT]),
        "receiveOfProgram": _operation("receive", "serve", [f"program.{name}" for name in messages.TAKEN]),
        "sendByTunnel": _operation("send", "tunnel"),
        "receiveByTunnel": _operation("receive", "tunnel"),
        "request": _call("request", REQUEST, "reply"),
        "survey": _call("survey", SURVEY, "answer", "end"),
        "broadcast": _call("broadcast", BROADCAST, "done"),
        "publish": _call("publish", PUBLISH, "done"),
        "subscribe": {**_operation("send", "subscribe"), "bindings": binding},
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "The HTTP door of Iris",
            "version": messages.PROTOCOL.rpartition(".")[2],
            "description": "Programs without a node ask, serve, publish and follow. Ignore fields that are not here.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A page: protocol iris.token.TOKEN."}
            }
        },
    }  # fmt: skip


_CREDIT: Final = {"type": "integer", "minimum": 1, "maximum": tunnels.MAX_CREDIT}
_DONE: Final = {
    "request": "Ask one member.",
    "survey": "Ask all members.",
    "broadcast": "Tell all members.",
    "publish": "Publish an event.",
}


def _message(name: str, kind: messages.Kind) -> Schema:
    fields = {one: messages.SCHEMAS[one] for one in (*kind.fields, *kind.optional)}
    schema = object_of(
        {"type": {"const": name}, **fields, **(ENVELOPE if kind.has_payload else {})}, "type", *kind.fields
    )
    more = {"description": _BINARY} if kind.has_payload else {}
    return {"name": name, **_text(kind.summary, schema), **more}


def _text(summary: str, schema: Schema) -> Schema:
    return {"summary": summary, "payload": schema}


def _query(options: Readers, *required: str) -> Schema:
    return object_of({name: option_schema(name, read) for name, read in options.items()}, *required)


def _socket(options: Readers) -> Schema:
    return {"ws": {"method": "GET", "query": _query(options), "bindingVersion": "0.1.0"}}


def _channel(address: str | None, summary: str, sent: Schema, bindings: Schema | None = None) -> Schema:
    names = [part[1:-1] for part in (address or "").split("/") if part.startswith("{")]
    return {
        "address": address,
        "summary": summary,
        "messages": dict(sent),
        **({"parameters": {name: {} for name in names}} if names else {}),
        **({"bindings": dict(bindings)} if bindings else {}),
    }


def _operation(action: str, channel: str, names: Sequence[str] = ()) -> Schema:
    which = {"messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names]} if names else {}
    security = [{"$ref": "#/components/securitySchemes/token"}]
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "security": security, **which}


def _call(name: str, options: Readers, *answers: str) -> Schema:
    replies = [{"$ref": f"#/channels/replies/messages/{one}"} for one in (*answers, "problem")]
    return {
        **_operation("receive", name),
        "bindings": {"http": {"method": "POST", "query": _query(options), "bindingVersion": "0.3.0"}},
        "reply": {"channel": {"$ref": "#/channels/replies"}, "messages": replies},
    }
