"""Signatures: what a handler takes and returns, as its parameters and annotations say.

A handler takes one of four things: the ``Request`` itself; one typed value, which the payload is converted to; several
typed values by name, for which the payload is a map; or nothing, and then the payload is empty.  The second and third
may have one more parameter for the ``Request``.  What it needs beside that (see ``iris.patterns.service.dependencies``)
is no part of what callers see.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, final

from msgspec import Struct, structs

from iris.kernel.errors import ConfigError, RemoteError
from iris.kernel.shapes import is_map
from iris.kernel.tasks import interruptible
from iris.patterns.messages import OwnNode, Request
from iris.patterns.payloads import Converter, Mismatch, converter, lacks
from iris.patterns.service.dependencies import Need, need_of, node_shown_by
from iris.patterns.service.outside import RequestHandler

BAD_REQUEST: Final = "bad_request"
"""Code of the error when a payload is not what the handler declares; the handler did not run."""

EMPTY: Final = inspect.Parameter.empty
"""Stand-in for a missing annotation or default; ``inspect.Signature.empty`` is the same."""
_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@final
class Argument(Struct, frozen=True):
    """One typed value that a handler takes.

    Attributes:
        type: type as it is annotated.
        default: default of the parameter; ``EMPTY`` if the value is required.
        by_keyword: True if it is given by its name only.
    """

    name: str
    type: object
    default: object
    by_keyword: bool = False

    @property
    def is_required(self) -> bool:
        """True if callers have to give it."""
        return self.default is EMPTY

    def __str__(self) -> str:
        """Return it as it is written in Python, without what a default may hold that is nobody's business."""
        shown = self.default if self.default is None or type(self.default) in (bool, int, float) else "..."
        return f"{self.name}: {type_name(self.type)}" + ("" if self.is_required else f" = {shown}")


@final
class Signature(Struct, frozen=True):
    """Parameters and reply of a handler.

    Attributes:
        arguments: values that the payload is converted to: one, several by name, or none if the handler takes the
            request itself.
        request: parameter that gets the request; None if none does.
        returns: annotation of the reply; ``EMPTY`` if there is none.
        by_name: True if the payload is a map of the arguments, and not the only one.
        in_order: True if the handler is called with the value, and then the request, by their places.
        is_empty: True if the handler has no parameter at all, but for what it needs.
        needs: parameters that are no caller's to give, and what each is to get.
        optional: those of them that have a default.
        shows: class of ``request.node`` that the annotation of the request names.  None if it names none.
    """

    arguments: tuple[Argument, ...]
    request: str | None
    returns: Any
    by_name: bool = False
    in_order: bool = True
    is_empty: bool = False
    needs: Mapping[str, Need] = {}
    optional: frozenset[str] = frozenset()
    shows: type[OwnNode] | None = None

    def __str__(self) -> str:
        """Return it as it is written in Python."""
        returns = "" if self.returns is EMPTY else f" -> {type_name(self.returns)}"
        return f"({', '.join(map(str, self.arguments)) or ('' if self.is_empty else 'payload')}){returns}"

    @property
    def payload_shape(self) -> str:
        """Payload that a caller without the class sends, in words."""
        if self.is_empty:
            return "none"
        if not self.arguments:
            return "any value"
        (first, *_) = self.arguments
        names = [one.name for one in self.arguments] if self.by_name else _fields(first.type, given=True)
        return f"a map of {', '.join(names)}" if names else type_name(first.type)

    @property
    def reply(self) -> object:
        """Type that a caller's reply is converted to; None if it is unknown."""
        return None if self.returns in (EMPTY, Any, object) else self.returns or type(None)

    def payload(self, handler: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Return the payload of a caller with these arguments; raise TypeError, as a call does, if they do not fit."""
        parameters = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY if one.by_keyword else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=one.default,
            )
            for one in self.arguments or (() if self.is_empty else (Argument("payload", Any, EMPTY),))
        ]
        try:
            given = inspect.Signature(parameters).bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{handler}{self}: {error}") from None
        return given if self.by_name else next(iter(given.values()), None)

    def adapted(self, handler: Callable[..., object]) -> RequestHandler:
        """Return the function that calls the handler; raise ConfigError if a payload cannot make one of its types."""
        if self.is_empty:
            return partial(_with_nothing, handler)
        if not self.arguments:
            return handler if self.in_order or self.request is None else partial(_with_request, handler, self.request)
        converters: dict[str, Converter] = {}
        for one in self.arguments:
            try:
                converters[one.name] = converter(one.type)
            except ConfigError as error:
                raise ConfigError(f"{handler_name(handler)}: {one.name}: {error}") from None
        if self.in_order and not self.by_name:
            (convert,) = converters.values()
            return partial(_with_value, handler, convert, self.request is not None)
        required = frozenset(one.name for one in self.arguments if one.is_required)
        only = None if self.by_name else self.arguments[0].name
        return partial(_with_names, handler, converters, required, self.request, only)


def python_signature(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a function as Python reads it, whether its annotations can be evaluated or not.

    Python 3.14 evaluates them only here, and a name that is imported for type checkers alone is not there.  Annotations
    are their text then, as they are with ``from __future__ import annotations``.

    Raises:
        TypeError: it is no function, or a method that takes no self.
        ValueError: it is a builtin without a signature.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        text = inspect.signature(function, annotation_format=Format.STRING)
        try:
            return inspect.signature(function)
        except Exception:  # noqa: BLE001 -- whatever evaluating an annotation raises
            return text
    return inspect.signature(function)


def signature_of(handler: Callable[..., object], *, operation: bool = False) -> Signature:
    """Read the signature of a handler.

    Args:
        handler: a function, a bound method, or what can be called like one.
        operation: True for a method of a class of operations, which callers see with the same signature: a parameter of
            any type is a value, and one value that may be left out is given by its name.

    Raises:
        ConfigError: it can be none of a handler's, or a type cannot be resolved.
    """
    try:
        found = python_signature(handler)
    except (TypeError, ValueError):
        if inspect.ismethod(handler):
            text = f"{handler_name(handler)} is a method and takes no self: give it that parameter"
            raise ConfigError(text) from None
        return Signature((), None, EMPTY)  # a builtin: it has to take the request
    returns = _resolved(handler, found.return_annotation, EMPTY)
    needs, optional = needs_of(handler, found)
    if any(found.parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY for name in needs):
        raise ConfigError(f"{handler_name(handler)}: what is given by its name cannot be positional-only")
    return structs.replace(_of_callers(handler, found, returns, needs, operation), needs=needs, optional=optional)


def needs_of(
    handler: Callable[..., object], found: inspect.Signature | None = None
) -> tuple[dict[str, Need], frozenset[str]]:
    """Return the parameters of a handler that are no caller's to give and what each is to get, and who has a default.

    Args:
        handler: a function, or what can be called like one.
        found: its signature; None to look here.  Of what has none, nothing is needed.
    """
    if found is None:
        try:
            found = python_signature(handler)
        except (TypeError, ValueError):
            return {}, frozenset()
    needs: dict[str, Need] = {}
    for one in found.parameters.values():
        if one.annotation is not EMPTY and one.kind in (*_BY_POSITION, one.KEYWORD_ONLY):
            need = need_of(_resolved(handler, one.annotation, EMPTY))
            if need is not None:
                (needs[one.name],) = need
    return needs, frozenset(name for name in needs if found.parameters[name].default is not EMPTY)


def _of_callers(
    handler: Callable[..., object],
    found: inspect.Signature,
    returns: object,
    needs: Mapping[str, Need],
    operation: bool,
) -> Signature:
    """Read the part of a signature that callers see."""
    every = [one for one in found.parameters.values() if one.kind in (*_BY_POSITION, one.KEYWORD_ONLY)]
    parameters = [one for one in every if one.name not in needs]
    if not parameters:
        if any(one.kind is one.VAR_POSITIONAL for one in found.parameters.values()):
            return Signature((), None, returns)
        return Signature((), None, returns, is_empty=True)
    first, *others = parameters
    types = {first.name: _resolved(handler, first.annotation)}
    for one in parameters if operation else ():
        if one.annotation is EMPTY and one.default is EMPTY:
            raise ConfigError(
                f"{handler_name(handler)}: {one.name} has no type: annotate it, with iris.Request if it is the request"
            )
    unannotated = (EMPTY, Request) if operation else (EMPTY, Request, Any, object)
    alone = first.kind in _BY_POSITION and all(one.default is not EMPTY for one in others)
    if alone and (types[first.name] in unannotated or _is_typed_request(types[first.name])):
        shows, leads = node_shown_by(types[first.name]), first is every[0]
        return Signature((), None if leads else first.name, returns, in_order=leads, shows=shows)
    for one in others:
        types[one.name] = _resolved(handler, one.annotation)
    requests = [name for name, kind in types.items() if _is_request(kind)]
    untyped = [one.name for one in parameters if types[one.name] is EMPTY and one.default is EMPTY]
    if not requests and untyped == [parameters[-1].name] and len(parameters) > 1:
        requests = untyped
    elif untyped:
        raise ConfigError(f"{handler_name(handler)}: {untyped[0]} is not the only parameter and needs a type")
    arguments = tuple(
        Argument(one.name, types[one.name], one.default, one.kind is one.KEYWORD_ONLY)
        for one in parameters
        if types[one.name] is not EMPTY and one.name not in requests
    )
    if not arguments and any(one.kind is one.VAR_POSITIONAL for one in found.parameters.values()):
        return Signature((), None, returns)
    if len(requests) > 1 or not arguments:
        raise ConfigError(f"{handler_name(handler)}: one parameter gets the request, by its place or beside values")
    (value, *more) = arguments
    by_name = bool(more) or (value.by_keyword or (operation and not value.is_required))
    taken = [one.name for one in every if one.kind in _BY_POSITION][: 1 + len(requests)]
    in_order = taken == [value.name, *requests]
    if (by_name or not in_order) and any(one.kind is one.POSITIONAL_ONLY for one in parameters):
        raise ConfigError(f"{handler_name(handler)}: what is given by its name cannot be positional-only")
    shows = node_shown_by(types[requests[0]]) if requests else None
    return Signature(arguments, requests[0] if requests else None, returns, by_name, in_order, shows=shows)


def _is_request(annotation: object) -> bool:
    kinds = (annotation, *typing.get_args(annotation))
    return any(kind is Request or _is_typed_request(kind) for kind in kinds)


def _is_typed_request(annotation: object) -> bool:
    """Return whether it is a ``Request`` whose kind of node is named, as ``iris.aio.Request`` is."""
    return typing.get_origin(annotation) is Request


def handler_name(handler: Callable[..., object]) -> str:
    """Return the name of a handler in errors."""
    original = original_of(handler)
    while isinstance(original, partial):  # what it needs is bound to it
        original = original.func
    return f"handler {getattr(original, '__qualname__', repr(original))}"


def original_of(handler: Callable[..., object]) -> Callable[..., object]:
    """Return what a handler was made of by ``Signature.adapted``; itself if it was not."""
    made: Any = handler
    original: Callable[..., object] = made.args[0] if getattr(made, "func", None) in _ADAPTERS else made
    return original


def type_name(annotation: object) -> str:
    """Return a type as it is written in Python, without the modules that it is from."""
    try:
        return _type_name(annotation).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 -- an annotation may be any object, and has its own say
        return "?"


def _type_name(annotation: object) -> str:
    if annotation is None or annotation is type(None):
        return "None"
    arguments = typing.get_args(annotation)
    if isinstance(annotation, type) and not arguments:
        return annotation.__name__
    text = inspect.formatannotation(annotation)
    for one in arguments:
        if isinstance(one, type):
            text = text.replace(inspect.formatannotation(one), type_name(one))
    return text.removeprefix("typing.")


def fields_of(annotation: Any, found: dict[str, dict[str, str]]) -> None:
    """Put the classes that a type is made of into ``found``, by name.

    A dataclass or model has its fields and their types, an enumeration its members and their values, as Python writes
    them.
    """
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum) and annotation.__name__ not in found:
        found[annotation.__name__] = {
            one.name: repr(one.value) for one in annotation if isinstance(one.value, str | int | float)
        }
    fields = _fields(annotation) if isinstance(annotation, type) and annotation.__name__ not in found else {}
    if fields:
        hints = hints_of(annotation)
        named = found[annotation.__name__] = {}
        for field, attribute in fields.items():
            named[field] = type_name(hints.get(attribute, Any))
            fields_of(hints.get(attribute, Any), found)
    for one in typing.get_args(annotation):
        fields_of(one, found)


def _fields(annotation: Any, *, given: bool = False) -> dict[str, str]:
    """Return the fields of a dataclass or model, or those that are given: their names in a payload and in the class."""
    if dataclasses.is_dataclass(annotation):
        return {field.name: field.name for field in dataclasses.fields(annotation) if field.init or not given}
    if attributes := getattr(annotation, "__struct_fields__", ()):
        return dict(zip(annotation.__struct_encode_fields__, attributes, strict=True))
    of_model: Mapping[str, Any] = getattr(annotation, "model_fields", {})
    return {field.alias or name: name for name, field in of_model.items()}


def hints_of(annotation: object) -> dict[str, object]:
    """Return the types of a class's fields; none if one of them cannot be resolved."""
    try:
        return typing.get_type_hints(annotation)
    except Exception:  # noqa: BLE001 -- whatever evaluating an annotation raises
        return {}


@interruptible
def _with_value(handler: Callable[..., object], convert: Converter, with_request: bool, request: Request) -> object:
    value = _converted(convert, request.payload)
    return handler(value, request) if with_request else handler(value)


@interruptible
def _with_request(handler: Callable[..., object], name: str, request: Request) -> object:
    return handler(**{name: request})


@interruptible
def _with_nothing(handler: Callable[..., object], request: Request) -> object:
    payload = request.payload
    if payload is not None and (payload or not isinstance(payload, bytes | str | dict)):
        raise RemoteError(BAD_REQUEST, "payload: the operation takes nothing; send none")
    return handler()


@interruptible
def _with_names(
    handler: Callable[..., object],
    converters: Mapping[str, Converter],
    required: frozenset[str],
    request_name: str | None,
    only: str | None,
    request: Request,
) -> object:
    if only is not None:
        named = {only: request.payload}
    elif is_map(request.payload):
        named = request.payload
    else:
        kind = type(request.payload).__name__
        raise RemoteError(BAD_REQUEST, f"payload: expected a map of {', '.join(converters)}, got {kind}")
    if lacking := lacks(required, converters, named):
        raise RemoteError(BAD_REQUEST, f"payload: {lacking}")
    values: dict[str, object] = {}
    for name, convert in converters.items():
        if name in named:  # others are of a newer version of the caller
            values[name] = _converted(convert, named[name], "" if only else f".{name}")
    if request_name is not None:
        values[request_name] = request
    return handler(**values)


_ADAPTERS: Final = (_with_nothing, _with_request, _with_value, _with_names)


def _converted(convert: Converter, value: object, step: str = "") -> object:
    try:
        return convert(value)
    except Mismatch as error:
        raise RemoteError(BAD_REQUEST, str(error.within(step))) from None
    except RecursionError:
        raise RemoteError(BAD_REQUEST, "payload: nested too deeply for this program") from None


def _resolved(handler: Callable[..., object], annotation: object, otherwise: object = None) -> object:
    function: object = inspect.unwrap(getattr(handler, "func", handler))
    function = getattr(function, "__func__", function)
    names = getattr(function, "__globals__", None) or getattr(type(handler).__call__, "__globals__", {})
    try:
        while isinstance(annotation, str):
            annotation = eval(annotation, names)  # noqa: S307 -- the program's own text, as Python evaluates it
    except Exception:  # noqa: BLE001 -- whatever evaluating an annotation raises
        if str(annotation).rpartition(".")[2] == "Request":
            return Request  # imported for type checkers only
        if otherwise is not None:
            return otherwise
        raise ConfigError(
            f"{handler_name(handler)}: the type {annotation} cannot be resolved: define it at the top of a module"
        ) from None
    return annotation
