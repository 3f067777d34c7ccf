"""OpenAPI: calls of plain HTTP at the door, as a document that tools for interfaces read.

It is made of the tables by which the door itself reads.  Source: OpenAPI 3.1.0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from iris.doors.http.answering import MSGPACK
from iris.doors.http.schemas import ANSWER, END, EVENT, GAP, NAME, PROBLEM, Schema, object_of, option_schema
from iris.doors.options import BROADCAST, PUBLISH, PUT, QUEUE, REQUEST, SURVEY, Readers
from iris.doors.problems import NODE_CODES
from iris.kernel.topic_syntax import MAX_TOPIC, PATTERN_FORM, TOPIC_FORM
from iris.patterns.bridge_protocol import GROUP

_DOOR_CODES: Final[Mapping[int, Collection[str]]] = {
    400: ("malformed", "bad_group"),
    401: ("no_token", "wrong_token", "ended"),
    403: ("not_allowed",),
    408: ("too_slow",),
    413: ("too_large",),
    429: (
        "too_fast", "too_many_calls", "too_many_streams", "too_many_subscriptions", "too_many_shapes",
        "too_many_groups", "too_many_bytes", "too_many_connections", "too_much_retained",
    ),
    503: ("too_many_connections", "no_bridge"),
}  # fmt: skip
"""Codes of the door itself, by status; those of nodes come from ``problems``."""

_MEANINGS: Final[Mapping[int, str]] = {
    400: "The request, or its payload, cannot be read.",
    401: "Show a token; this one is unknown, withdrawn or expired.",
    403: "The token, or the door's own credential, does not permit it.",
    404: "Nobody serves it.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    422: "The idempotency key stands for another payload.",
    429: "The client has as much going on as it may.",
    502: "The member has failed, with a code of its own, or is lost.",
    503: "It was not done: ask again later.",
    504: "No reply in time.",
}


def _ecma(form: str) -> str:
    """Return a form as all tools read it: no text of HTTP has halves of surrogate pairs, and some refuse the class."""
    return form.replace(r"\Z", "$").replace(r"\ud800-\udfff", "")


_ADDRESS: Final[Schema] = {"type": "string", "pattern": f"^({NAME}/)?{NAME}(@{NAME})?$"}
_TOPIC: Final[Schema] = {"type": "string", "pattern": _ecma(TOPIC_FORM), "maxLength": MAX_TOPIC}
_PATTERN: Final[Schema] = {"type": "string", "pattern": _ecma(PATTERN_FORM), "maxLength": MAX_TOPIC}
_QUEUE: Final[Schema] = {
    "type": "string",
    "pattern": r"^(?!.*/)(?!(.*\.)?[+#](\.|$))" + _TOPIC["pattern"][1:],
    "maxLength": MAX_TOPIC - len(GROUP),
}
_GROUP: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"}
_KEY: Final[Schema] = {"type": "string", "pattern": r'^"([ !#-\[\]-~]|\\["\\])+"$'}

_ANY: Final[Schema] = {
    "application/json": {"schema": {}},
    MSGPACK: {"schema": {}},
    "application/octet-stream": {"schema": {}},
}
_BODY: Final = {
    "description": "The payload, by its type: a value, a text, or bytes for any other type.",
    "content": {**_ANY, "text/plain": {"schema": {"type": "string"}}},
}
_DONE: Final = {"204": {"description": "It is done."}}
_REPLY: Final = {"200": {"description": "The reply.", "content": _ANY}}
_LINES: Final = "Lines of JSON, as they come: an Answer each; the last one is an End, or holds a problem as `error`."
_EVENTS: Final = "Server-sent events: an Event without a name, `gap` with a Gap, `end` with a Problem."

_STRANGER: Final = (400, 401, 403, 429, 503)
_CALL: Final = (*_STRANGER, 404, 408, 413, 502, 504)


def document() -> Schema:
    """Return the OpenAPI document of the door, as a map that JSON can hold."""
    key = {"name": "Idempotency-Key", "in": "header", "schema": _KEY, "description": "The request is done once."}
    topics = {"name": "topic", "in": "query", "required": True, "schema": {
        "type": "array", "minItems": 1, "items": _PATTERN,
    }}  # fmt: skip
    group = {"name": "group", "in": "query", "schema": _GROUP}
    last = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}
    queue = {"application/json": {"schema": object_of({"queue": {"type": "string"}}, "queue") | {
        "additionalProperties": {"type": "integer"},
    }}}  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "The HTTP door of Iris",
            "version": "1",
            "description": (
                "Headers Iris-Header-NAME go to members. A slash in a name is written %2F. An option that is not here, "
                "or stands twice, is refused. WebSockets are in /asyncapi.json."
            ),
        },
        "security": [{"token": []}],
        "paths": {
            "/request/{cluster}": _post("request", "Ask one member.", _ADDRESS, REQUEST, _REPLY, (*_CALL, 422), key),
            "/survey/{cluster}": _post(
                "survey", "Ask all members.", _ADDRESS, SURVEY, _stream("application/x-ndjson", _LINES), _CALL
            ),
            "/broadcast/{cluster}": _post("broadcast", "Tell all members.", _ADDRESS, BROADCAST, _DONE, _CALL),
            "/publish/{topic}": _post("publish", "Publish an event.", _TOPIC, PUBLISH, _DONE, _CALL),
            "/subscribe": {"get": _operation(
                "subscribe", "Follow topics.", [topics, group, last], _stream("text/event-stream", _EVENTS), _STRANGER
            )},
            "/put/{queue}": _post("put", "Put a job into a queue.", _QUEUE, PUT, _DONE, _CALL),
            "/queue/{queue}": {
                "parameters": [_path("queue", _QUEUE)],
                "get": _operation(
                    "queue", "Count the jobs of a queue.", _query(QUEUE),
                    {"200": {"description": "Jobs by their state.", "content": queue}}, _CALL,
                ),
            },
            **{f"/{name}": {"get": {
                "operationId": name, "summary": "Needs no token.", "security": [],
                "responses": {"200": {"description": "It.", "content": {kind: {"schema": {}}}}, **_problems([503])},
            }} for name, kind in (
                ("iris.js", "text/javascript"), ("iris.d.ts", "application/typescript"),
                ("asyncapi.json", "application/json"), ("openapi.json", "application/json"),
            )},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": PROBLEM, "Answer": ANSWER, "End": END, "Event": EVENT, "Gap": GAP},
            "responses": {str(status): _problem(status) for status in _MEANINGS},
        },
    }  # fmt: skip


def codes_of(status: int) -> list[str]:
    """Return the codes of problems with this status in answers to plain HTTP."""
    return sorted({*_DOOR_CODES.get(status, ()), *NODE_CODES.get(status, ())})


def _problem(status: int) -> Schema:
    code: Schema = {"type": "string"}
    code |= {"examples": codes_of(status)} if status == 502 else {"enum": codes_of(status)}
    schema = object_of({**PROBLEM["properties"], "status": {"const": status}, "code": code}, *PROBLEM["required"])
    again = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds, if they are known."}}
    return {
        "description": _MEANINGS[status],
        **({"headers": again} if status in (429, 503) else {}),
        "content": {"application/problem+json": {"schema": schema}},
    }


def _problems(statuses: Collection[int]) -> Schema:
    return {str(one): {"$ref": f"#/components/responses/{one}"} for one in sorted(statuses)}


def _stream(media_type: str, description: str) -> Schema:
    return {"200": {"description": description, "content": {media_type: {"schema": {}}}}}


def _path(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query(options: Readers) -> list[Schema]:
    return [{"name": name, "in": "query", "schema": option_schema(name, read)} for name, read in options.items()]


def _operation(
    name: str,
    summary: str,
    parameters: list[Schema],
    answers: Schema,
    problems: Collection[int],
) -> Schema:
    responses = {**answers, **_problems(problems)}
    return {"operationId": name, "summary": summary, "parameters": parameters, "responses": responses}


def _post(
    name: str,
    summary: str,
    whom: Schema,
    options: Readers,
    answers: Schema,
    problems: Collection[int],
    *more: Schema,
) -> Schema:
    what = {"publish": "topic", "put": "queue"}.get(name, "cluster")
    operation = _operation(name, summary, [*_query(options), *more], answers, problems)
    return {"parameters": [_path(what, whom)], "post": {**operation, "requestBody": _BODY}}
