"""Payload conversion: between wire values (None, bool, numbers, str, bytes, list, dict) and declared types.

Converters are compiled once, when a handler is registered.  Their input comes from another program, so they check
everything and name the place of an error.  Dataclasses are converted here; fields that they do not have are ignored, so
that the other program may be of a newer version.  Models of msgspec and pydantic convert themselves, by their own rule
for such fields; they are recognised where the program has imported these packages.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import sys
import threading
import types
import typing
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard, final

from iris.kernel.errors import ConfigError, LocalProtocolError, RemoteError
from iris.kernel.shapes import is_list, is_map, is_tuple
from iris.kernel.tasks import interruptible
from iris.kernel.wire import MAX_DEPTH, Payload, encode_payload

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Converter = Callable[[object], Any]
"""Function that makes a declared type, which only its user knows, of a payload or a part of it; raises Mismatch."""

_NONE: Final = type(None)

_MOST_ERRORS: Final = 32
"""Errors of one payload that are named one by one: half a million of them would be 40 MB of text."""

_MOST_NAMES: Final = 4
"""Unknown fields, or values of an enumeration, that one error names; and of each field so many characters:"""
_MOST_LETTERS: Final = 64


_TEXTS: Final = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal)
_AS_TEXT: Final = (
    "dates, UUIDs and decimals travel as texts: declare them in a model of msgspec or pydantic, or send a str, such as "
    "that of isoformat()"
)


@final
class Mismatch(ValueError):
    """A payload that is not what was declared."""

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(f"payload{path}: {what}")
        self._what = what
        self.path = path
        """Place in the payload: ``.name`` and ``[index]`` for each level."""

    def within(self, step: str) -> Mismatch:
        """Return the same, seen from one level further up."""
        return Mismatch(self._what, step + self.path)


def converter(annotation: object) -> Converter:
    """Return the function that makes a value of the declared type; raise ConfigError if no payload makes one."""
    return partial(_whole, _converter(annotation, {}))


class _Tried(threading.local):
    """Outcomes of the choices of unions, in the conversion of one payload."""

    known: dict[tuple[int, int], Mismatch | tuple[object, int]] | None = None
    """Outcomes by choice and value: the error, or the value made and the number of fields ignored in it.

    Without it a value within a value within a value would be tried two times two times two times.
    """
    ignored: int = 0
    """Fields that were ignored so far: of the choices that fit, a union takes the one that ignores the fewest."""


_tried: Final = _Tried()


def _whole(convert: Converter, value: object) -> object:
    outer, _tried.known = _tried.known, {}
    ignored, _tried.ignored = _tried.ignored, 0
    try:
        return convert(value)
    finally:
        _tried.known, _tried.ignored = outer, ignored


_cached_converter: Final[Callable[[object], Converter]] = lru_cache(maxsize=256)(converter)


def reply_converter(annotation: object) -> Converter:
    """Return a converter from a cache: ``converter`` is too slow to be called for each request."""
    try:
        return _cached_converter(annotation)
    except TypeError:  # it has no hash, as a type would
        return converter(annotation)


def converted_reply(convert: Converter, reply: object, cluster: str) -> Any:
    """Convert a reply; raise RemoteError ``reply_malformed`` if it is not of the type that the caller declared."""
    try:
        return convert(reply)
    except Mismatch as error:
        text = str(error)
    except RecursionError:
        text = "nested too deeply for this program"
    malformed = RemoteError("reply_malformed", f"of cluster {cluster!r}: {text}")
    malformed.received = True
    raise malformed


def _converter(annotation: Any, known: dict[object, Converter]) -> Converter:
    if annotation is Any or annotation is object:
        return _unchanged
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _converter(arguments[0], known)
    if origin in (typing.Union, types.UnionType):
        return partial(_union, tuple(_converter(one, known) for one in arguments), str(annotation))
    if origin is Literal:
        return partial(_literal, arguments)
    if isinstance(annotation, typing.NewType):
        return _converter(annotation.__supertype__, known)
    container = origin or annotation
    if container in (list, set, frozenset, collections.abc.Sequence):
        kind: Any = list if container is collections.abc.Sequence else container
        return partial(_items, kind, _converter(arguments[0] if arguments else Any, known))
    if container is tuple:
        if not arguments or arguments[-1] is Ellipsis:
            return partial(_items, tuple, _converter(arguments[0] if arguments else Any, known))
        return partial(_fixed, tuple(_converter(one, known) for one in arguments))
    if container in (dict, collections.abc.Mapping):
        if arguments and arguments[0] not in (str, Any):
            raise ConfigError(f"{annotation} cannot be the type of a payload: keys are str")
        return partial(_entries, _converter(arguments[1] if arguments else Any, known))
    if annotation is None or annotation is _NONE:
        return partial(_exactly, _NONE)
    if annotation in (bool, int, str, bytes):
        return partial(_exactly, annotation)
    if annotation is float:
        return _float
    return _class(annotation, known)


def _class(annotation: Any, known: dict[object, Converter]) -> Converter:
    if isinstance(annotation, type) and annotation in known:
        return known[annotation]
    kind: object = annotation
    if _is_class(kind):
        if _is_model(kind, "msgspec", "Struct"):
            return partial(_msgspec, kind)
        if _is_model(kind, "pydantic", "BaseModel"):
            return partial(_pydantic, kind)
        if issubclass(kind, enum.Enum):
            return partial(_enum, kind)
        if dataclasses.is_dataclass(kind):
            fields: dict[str, Converter | None] = {}
            made: Converter = partial(_dataclass, kind, fields, _required(kind))
            known[kind] = made  # before its fields, which may be of its own type
            hints = _hints(kind)
            for field in dataclasses.fields(kind):
                try:
                    fields[field.name] = _converter(hints[field.name], known) if field.init else None
                except ConfigError as error:
                    raise ConfigError(f"{kind.__name__}.{field.name}: {error}") from None
            return made
    if annotation in _TEXTS:
        raise ConfigError(f"{annotation.__name__} cannot be the type of a payload: {_AS_TEXT}")
    raise ConfigError(
        f"{annotation!r} cannot be the type of a payload: use a dataclass, a model of msgspec or pydantic, None, bool, "
        "int, float, str, bytes, list, tuple, set, dict with str keys, an enumeration, or a union of these"
    )


def _is_class(value: object) -> TypeGuard[type[object]]:
    return isinstance(value, type)


def _hints(annotation: type[object]) -> dict[str, object]:
    try:
        return typing.get_type_hints(annotation)
    except NameError as error:
        raise ConfigError(f"the fields of {annotation.__name__} cannot be resolved: {error}") from None


def _required(annotation: type[DataclassInstance]) -> frozenset[str]:
    missing = dataclasses.MISSING
    return frozenset(
        field.name
        for field in dataclasses.fields(annotation)
        if field.init and field.default is missing and field.default_factory is missing
    )


def _is_model(annotation: type, package: str, base: str) -> bool:
    """Return whether a class is a model of a package, without importing the package."""
    module = sys.modules.get(package)
    found: Any = getattr(module, base, None)
    return isinstance(found, type) and issubclass(annotation, found)


# -- one for each kind of type -------------------------------------------------------------------------------


def _unchanged(value: object) -> object:
    return value


def _describe(value: object) -> str:
    if (is_map(value) or is_list(value)) and value:
        return type(value).__name__  # to write it all out may take longer than to convert it
    text = repr(value[:41] if isinstance(value, str | bytes) else value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 else type(value).__name__


def _exactly(kind: type, value: object) -> object:
    if type(value) is not kind:
        raise Mismatch(f"expected {'None' if kind is _NONE else kind.__name__}, got {_describe(value)}")
    return value


def _float(value: object) -> float:
    if type(value) is not float and type(value) is not int:
        raise Mismatch(f"expected float, got {_describe(value)}")
    try:
        return float(value)
    except OverflowError:
        raise Mismatch("expected float, got an int that is too large") from None


def _literal(allowed: tuple[object, ...], value: object) -> object:
    for one in allowed:
        if type(one) is type(value) and one == value:
            return one
    raise Mismatch(f"expected one of {', '.join(map(repr, allowed))}, got {_describe(value)}")


def _enum(kind: type[enum.Enum], value: object) -> enum.Enum:
    try:
        return kind(value)
    except Exception:  # noqa: BLE001 -- it may have its own way to find one
        values = [_describe(one.value).partition(" ")[2] or "..." for one in islice(kind, _MOST_NAMES)]
        shown = ", ".join([*values, "..."] if len(kind) > _MOST_NAMES else values)
        raise Mismatch(f"expected a value of {kind.__name__} ({shown}), got {_describe(value)}") from None


def _attempt(convert: Converter, value: object) -> Mismatch | tuple[object, int]:
    known = _tried.known
    assert known is not None
    place = id(convert), id(value)  # both live as long as this conversion
    if place not in known:
        ignored, _tried.ignored = _tried.ignored, 0
        try:
            known[place] = convert(value), _tried.ignored
        except Mismatch as error:
            known[place] = error
        finally:
            _tried.ignored = ignored
    return known[place]


def _union(choices: tuple[Converter, ...], name: str, value: object) -> object:
    mismatches: list[Mismatch] = []
    best: tuple[object, int] | None = None
    for convert in choices:
        outcome = _attempt(convert, value)
        if isinstance(outcome, Mismatch):
            mismatches.append(outcome)
        elif best is None or outcome[1] < best[1]:
            best = outcome
        if best is not None and best[1] == 0:
            break
    if best is not None:
        _tried.ignored += best[1]
        return best[0]
    deeper = [error for error in mismatches if error.path]
    if len(deeper) == 1:
        raise deeper[0]  # one of them fits but for a detail
    raise Mismatch(f"expected {name}, got {_describe(value)}")


def _items(kind: Callable[[list[object]], object], convert: Converter, value: object) -> object:
    if not is_list(value):
        raise Mismatch(f"expected list, got {_describe(value)}")
    made: list[object] = []
    for index, item in enumerate(value):
        try:
            made.append(convert(item))
        except Mismatch as error:
            raise error.within(f"[{index}]") from None
    try:
        return made if kind is list else kind(made)
    except TypeError as error:
        raise Mismatch(str(error)) from None  # unhashable items of a set


def _fixed(converters: tuple[Converter, ...], value: object) -> tuple[object, ...]:
    if not is_list(value) or len(value) != len(converters):
        raise Mismatch(f"expected a list of {len(converters)}, got {_describe(value)}")
    made: list[object] = []
    for index, (convert, item) in enumerate(zip(converters, value, strict=True)):
        try:
            made.append(convert(item))
        except Mismatch as error:
            raise error.within(f"[{index}]") from None
    return tuple(made)


def _entries(convert: Converter, value: object) -> dict[str, object]:
    if not is_map(value):
        raise Mismatch(f"expected dict, got {_describe(value)}")
    made: dict[str, object] = {}
    for key, item in value.items():
        try:
            made[key] = convert(item)
        except Mismatch as error:
            raise error.within(f".{key}") from None
    return made


def lacks(required: frozenset[str], declared: Collection[str], given: Mapping[str, object]) -> str:
    """Return the text about required names that are missing, with those that are not known; "" if none is missing.

    Names that are not known are ignored, for the other program may be newer.  Beside one that is missing they are
    named, for then one was probably mistyped.
    """
    missing = required - given.keys()
    if not missing:
        return ""
    unknown = list(islice((name[:_MOST_LETTERS] for name in given if name not in declared), _MOST_NAMES + 1))
    if len(unknown) > _MOST_NAMES:
        unknown[_MOST_NAMES] = "..."
    return f"{', '.join(sorted(missing))} missing" + (f"; not known: {', '.join(unknown)}" if unknown else "")


def _dataclass(
    kind: Callable[..., object], fields: Mapping[str, Converter | None], required: frozenset[str], value: object
) -> object:
    if not is_map(value):
        raise Mismatch(f"expected dict, got {_describe(value)}")
    if lacking := lacks(required, fields, value):
        raise Mismatch(lacking)
    made: dict[str, object] = {}
    for name, item in value.items():
        convert = fields.get(name)
        if convert is None:  # of a newer version; or a field that the class itself fills
            _tried.ignored += name not in fields
            continue
        try:
            made[name] = convert(item)
        except Mismatch as error:
            raise error.within(f".{name}") from None
    try:
        return kind(**made)
    except Exception as error:  # noqa: BLE001 -- __post_init__ has its own say
        plain_words = isinstance(error, ValueError | TypeError | AssertionError)
        raise Mismatch(str(error) if plain_words else f"{type(error).__name__}: {error}") from None


def _msgspec(kind: type, value: object) -> object:
    package: Any = sys.modules["msgspec"]
    try:
        return package.convert(value, type=kind)
    except Exception as error:  # noqa: BLE001 -- __post_init__ has its own say
        plain_words = isinstance(error, package.ValidationError)
        raise Mismatch(str(error) if plain_words else f"{type(error).__name__}: {error}") from None


def _pydantic(kind: Any, value: object) -> object:
    package: Any = sys.modules["pydantic"]
    try:
        return kind.model_validate(value)
    except package.ValidationError as error:
        if error.error_count() > _MOST_ERRORS:
            raise Mismatch(f"{error.error_count()} values are not what {kind.__name__} declares") from None
        wrong = (": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in error.errors())
        raise Mismatch("; ".join(wrong)) from None
    except Exception as error:  # noqa: BLE001 -- validators have their own say
        raise Mismatch(f"{type(error).__name__}: {error}") from None


# -- back ----------------------------------------------------------------------------------------------------


@interruptible
def plain(value: object) -> Any:
    """Return a value as it can travel: dataclasses and models as dicts, enumerations as values, sets as lists.

    Dates, UUIDs and decimals that a model holds become texts.

    What is none of these, nor holds any, comes back as it is.

    Raises:
        LocalProtocolError: nesting beyond what a payload may have, or a value that holds itself.
    """
    # Without recursion: 500 levels are allowed, and take more than Python's stack has.
    made: list[object] = [None]
    places: list[tuple[Any, object, object, int, bool]] = [(made, 0, value, 0, False)]
    while places:
        target, place, found, depth, dumped = places.pop()
        dumped = dumped or _is_model(found.__class__, "pydantic", "BaseModel")
        one = _one_level(found)
        inner: dict[str, Any] | list[Any]
        entries: Iterable[tuple[object, object]]
        if is_map(one):
            inner, entries = dict.fromkeys(one), one.items()
        elif _is_collection(one):
            inner, entries = [None] * len(one), enumerate(one)
        else:
            target[place] = _text(one) if dumped and not isinstance(one, bytes | str | int | float | None) else one
            continue
        target[place] = inner
        if depth >= MAX_DEPTH:
            raise LocalProtocolError(f"cannot send a value nested more than {MAX_DEPTH} levels deep")
        places.extend((inner, key, item, depth + 1, dumped) for key, item in entries)
    return made[0]


def _is_collection(value: object) -> TypeGuard[Collection[object]]:
    return isinstance(value, list | tuple | set | frozenset)


def _text(value: object) -> object:
    """Return what a model of pydantic holds as a text: dates, UUIDs, decimals and the like, as msgspec does it.

    For each by itself: pydantic's form for JSON of a whole model has no bytes.
    """
    core: Any = sys.modules["pydantic_core"]
    try:
        return core.to_jsonable_python(value)
    except core.PydanticSerializationError:
        return value  # of no type that pydantic knows: sending it raises


def _one_level(value: Any) -> object:
    """Return a value with its outermost level made plain."""
    while True:
        kind: type[object] = value.__class__
        if kind in (bytes, str, int, float, bool, _NONE, list, dict):
            return value
        if isinstance(value, enum.Enum):
            value = value.value
        elif _is_model(kind, "msgspec", "Struct"):
            try:
                return sys.modules["msgspec"].to_builtins(value, builtin_types=(bytes,))
            except (TypeError, RecursionError) as error:  # one of its fields, as in a Request that a handler returns
                raise LocalProtocolError(
                    f"cannot send a {kind.__name__} ({error}): use bytes, or a model of values that have a wire form"
                ) from None
        elif _is_model(kind, "pydantic", "BaseModel"):
            return value.model_dump()
        elif dataclasses.is_dataclass(kind):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
        else:
            return value


@interruptible
def encoded(value: object, limit: int) -> Payload:
    """Return a payload as it travels: what ``encode_payload`` takes, and dataclasses, models and enumerations.

    Raises:
        PayloadTooLarge, LocalProtocolError: as ``encode_payload``.
    """
    if type(value) is bytes and len(value) <= limit:
        return value
    try:
        return encode_payload(value, limit)
    except LocalProtocolError as error:
        simpler = plain(value)
        if simpler is value or (type(simpler) is type(value) and simpler == value):
            raise _naming_its_place(value, error) from None
    try:
        return encode_payload(simpler, limit)
    except LocalProtocolError as error:
        raise _naming_its_place(simpler, error) from None


def _naming_its_place(value: object, error: LocalProtocolError) -> LocalProtocolError:
    """Return the error for a value that cannot be sent: with the place of a date or the like, if that is the cause."""
    places: list[tuple[str, object]] = [("", value)]
    while places:
        place, found = places.pop()
        if is_map(found):
            places.extend((f"{place}.{key}", item) for key, item in reversed(found.items()))
        elif is_list(found) or is_tuple(found):
            places.extend((f"{place}[{index}]", item) for index, item in reversed(list(enumerate(found))))
        elif isinstance(found, _TEXTS):
            return LocalProtocolError(f"cannot send a {type(found).__name__} (payload{place}): {_AS_TEXT}")
    return error
