"""AsyncAPI: what a service takes and returns, as a document that tools for interfaces read.

Sources: AsyncAPI 3.0.0; JSON Schema 2020-12.  A request goes to the channel of its operation, whose address is
``CLUSTER/OPERATION``, and the reply comes on the channel of replies.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, Literal

from iris.patterns.service.signatures import EMPTY, Signature, hints_of

_SCHEMAS: Final = "#/components/schemas/"
_SIMPLE: Final[dict[object, dict[str, object]]] = {
    None: {"type": "null"},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: {"type": "string", "format": "binary"},
}


class Schemas(dict[str, Any]):
    """The schemas of a document by their names, of which each class has one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[type, str] = {}

    def name(self, kind: type) -> str:
        """Return the name of a class: the one it has, or the whole of it if another class has that one."""
        if kind not in self._names:
            short, whole = kind.__name__, f"{kind.__module__}.{kind.__qualname__}".replace(".<locals>", "")
            self._names[kind] = short if short not in self else whole
        return self._names[kind]


def document(cluster: str, described: Mapping[str, tuple[Signature, str]]) -> dict[str, Any]:
    """Return the AsyncAPI document of a cluster, as a map that JSON can hold.

    Args:
        cluster: its name, which is the title.
        described: for each operation, "" for the one without a name, its signature and what it is for.
    """
    schemas = Schemas()
    channels: dict[str, object] = {}
    operations: dict[str, object] = {}
    for name, (signature, doc) in described.items():
        place = name or "request"
        address = f"{cluster}/{name}" if name else cluster
        payload, returns = _taken(signature, schemas), schema(signature.returns, schemas)
        channels[place] = {"address": address, "messages": {"request": {"payload": payload}}}
        channels[f"{place}.reply"] = {"address": None, "messages": {"reply": {"payload": returns}}}
        operations[place] = {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{place}"},
            **({"summary": doc} if doc else {}),
            "reply": {"channel": {"$ref": f"#/channels/{place}.reply"}},
        }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": cluster, "version": "1.0.0"},
        "defaultContentType": "application/vnd.msgpack",
        "channels": channels,
        "operations": operations,
        "components": {"schemas": dict(schemas)},
    }


def _taken(signature: Signature, schemas: Schemas) -> dict[str, object]:
    if signature.is_empty:
        return {"type": "null"}
    if not signature.by_name:
        return schema(signature.arguments[0].type, schemas) if signature.arguments else {}
    return _object(
        {one.name: schema(one.type, schemas) for one in signature.arguments},
        [one.name for one in signature.arguments if one.is_required],
    )


def _object(properties: dict[str, object], required: list[str]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": required}


def schema(annotation: object, schemas: Schemas) -> dict[str, Any]:
    """Return the JSON Schema of a type that payloads are converted to; classes of fields are put into ``schemas``."""
    if annotation is Any or annotation is object or annotation is EMPTY:
        return {}
    if isinstance(annotation, collections.abc.Hashable) and annotation in _SIMPLE:
        return dict(_SIMPLE[annotation])
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return schema(arguments[0], schemas)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema(one, schemas) for one in arguments]}
    if origin is Literal:
        return {"enum": list(filter(_is_json, arguments))}
    if isinstance(annotation, typing.NewType):
        return schema(annotation.__supertype__, schemas)
    container = origin or annotation
    if container is tuple and arguments and arguments[-1] is not Ellipsis:
        return {
            "type": "array", "prefixItems": [schema(one, schemas) for one in arguments],
            "minItems": len(arguments), "maxItems": len(arguments),
        }  # fmt: skip
    if container in (list, set, frozenset, tuple, collections.abc.Sequence):
        return {"type": "array", **({"items": schema(arguments[0], schemas)} if arguments else {})}
    if container in (dict, collections.abc.Mapping):
        return {"type": "object", **({"additionalProperties": schema(arguments[1], schemas)} if arguments else {})}
    return _of_class(annotation, schemas)


def _of_class(kind: object, schemas: Schemas) -> dict[str, object]:
    if not inspect.isclass(kind):
        return {}
    if issubclass(kind, enum.Enum):
        return {"enum": [one.value for one in kind if _is_json(one.value)]}
    name = schemas.name(kind)
    if name in schemas:
        return {"$ref": _SCHEMAS + name}
    schemas[name] = {}  # before its fields, which may be of its own type
    if dataclasses.is_dataclass(kind):
        hints, missing = hints_of(kind), dataclasses.MISSING
        fields = [field for field in dataclasses.fields(kind) if field.init]
        required = [one.name for one in fields if one.default is missing and one.default_factory is missing]
        schemas[name] = _object({field.name: schema(hints.get(field.name, Any), schemas) for field in fields}, required)
    elif hasattr(kind, "model_json_schema"):
        model: Any = kind
        made: dict[str, Any] = model.model_json_schema(ref_template=_SCHEMAS + "{model}")
        schemas.update(made.pop("$defs", {}))
        schemas[name] = made
    elif (msgspec := sys.modules.get("msgspec")) is None or not issubclass(kind, msgspec.Struct):
        del schemas[name]  # what a handler returns may be of any class
        return {}
    else:
        _, components = msgspec.json.schema_components((kind,), ref_template=_SCHEMAS + "{name}")
        schemas.update(components)
    return {"$ref": _SCHEMAS + name}


def _is_json(value: object) -> bool:
    """Return whether JSON can hold one of several allowed values."""
    if isinstance(value, str):
        return value.encode(errors="ignore").decode() == value
    return value is None or isinstance(value, int | float)
