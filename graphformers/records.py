"""JSON of our files, checked against declared types where it is read.

A file of ours may be damaged, or somebody else may have made it. `read_record` reads one as the
type that it is declared to have: a TypedDict, a dataclass such as a settings class, or a list or
dict of such. Whatever else the file holds is one error, which names the file, the value and what
was expected there.

`sealed` writes an object with a checksum of itself, which `read_sealed` compares: for files that
stand outside a folder with a manifest, and for manifests.
"""

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from graphformers.errors import ArtifactError, GraphFormersError

# an object whose values are checked by whoever reads them
JsonObject = dict[str, Any]
Shape = TypeVar("Shape")

# the most characters of a name or a value in a message
SHOWN = 80
# levels of objects and lists within each other
MOST_LEVELS = 50
# the largest file: more would fill the memory
MOST_BYTES = 1 << 28
# the entry of a sealed object that holds its checksum
SEAL = "sha256"
# what to do with a folder that we cannot have written
ELSEWHERE = "do not use this folder, get it again from whom you trust"
# what to do with a file that is not what we wrote
RESTORE = "restore it, or make it again"
WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def read_record(file: Path, shape: type[Shape]) -> Shape:
    """Reads a JSON file as a type.

    Args:
        file: The file.
        shape: The declared type, as for `checked`.

    Raises:
        ArtifactError: The file is not JSON, or of another type.
        FileNotFoundError: There is no such file.
    """
    return checked(file, _parsed(file), shape)


def read_sealed(file: Path, shape: type[Shape], seal: str = SEAL) -> Shape:
    """Reads a JSON file that `sealed` made, as a type.

    Raises:
        ArtifactError: The file is not as it was written, or of another type.
        FileNotFoundError: There is no such file.
    """
    found = checked(file, _parsed(file), JsonObject)
    if found.pop(seal, None) != digest_of(found):
        words = "damaged or edited, its own checksum does not match"
        raise ArtifactError(f"{file}: {words}; {RESTORE}")
    return checked(file, found, shape)


def sealed(values: Mapping[str, object], seal: str = SEAL) -> bytes:
    """The text of a JSON file that also holds a checksum of the values."""
    found = {**values, seal: digest_of(values)}
    return json.dumps(found, indent=1, ensure_ascii=False).encode() + b"\n"


def digest_of(values: Mapping[str, object]) -> str:
    """A checksum of JSON values, whatever their order."""
    return hashlib.sha256(
        json.dumps(values, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()


def checked(place: Path | str, value: object, shape: type[Shape], name: str = "") -> Shape:
    """A JSON value as the type that it is declared to have.

    Args:
        place: The file, for the message.
        value: The value.
        shape: str, int, float, bool, None or object (anything); a Literal; a list, tuple, dict or
            union of types; a TypedDict, whose other entries are kept; or a dataclass, which is made
            of the entries and has no others.
        name: What the value is called in the message.

    Raises:
        ArtifactError: The value is of another type.
    """
    found: Shape = _checked(str(place), value, shape, name)
    return found


def _checked(place: str, value: object, shape: Any, name: str) -> Any:
    origin, parts = typing.get_origin(shape), typing.get_args(shape)
    if shape in (object, Any):
        return value
    if origin is typing.Literal:
        if value not in parts:
            _refuse(place, name, value, " or ".join(map(str, parts)))
        return value
    if origin in (types.UnionType, typing.Union):
        shape = next((part for part in parts if _fits(value, part)), shape)
        origin, parts = typing.get_origin(shape), typing.get_args(shape)
    if not _fits(value, shape):
        _refuse(place, name, value, _expected(shape))
    if isinstance(value, list) and origin is not None:
        kind = parts[0]
        found = [_checked(place, each, kind, f"{name}[{i}]") for i, each in enumerate(value)]
        return tuple(found) if origin is tuple else found
    if isinstance(value, dict) and origin in (dict, Mapping):
        return {
            key: _checked(place, each, parts[1], _inside(name, key)) for key, each in value.items()
        }
    if isinstance(value, dict):
        return _entries(place, value, shape, name)
    return value


def _entries(place: str, value: dict[str, object], shape: Any, name: str) -> Any:
    """The entries of an object whose names are declared."""
    hints, required = _declared(shape)
    is_open = typing.is_typeddict(shape)
    unknown = [] if is_open else sorted(value.keys() - hints.keys())
    if unknown:
        words = f"{_called(_inside(name, unknown[0]))} is there, expected no entry of that name"
        raise ArtifactError(f"{place}: {words}; {ELSEWHERE}")
    for key in sorted(required - value.keys()):
        words = f"{_called(_inside(name, key))} is missing, expected {_expected(hints[key])}"
        raise ArtifactError(f"{place}: {words}; {ELSEWHERE}")
    found = dict(value)
    for key in value.keys() & hints.keys():
        found[key] = _checked(place, value[key], hints[key], _inside(name, key))
    if is_open:
        return found
    try:
        return shape(**found)
    except GraphFormersError as error:
        raise ArtifactError(f"{place}: {error}; {ELSEWHERE}") from error


@functools.cache
def _declared(shape: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of the entries of an object by name, and the names that it must have."""
    hints = typing.get_type_hints(shape)
    if typing.is_typeddict(shape):
        return hints, shape.__required_keys__
    fields, missing = dataclasses.fields(shape), dataclasses.MISSING
    required = (
        field.name
        for field in fields
        if field.default is missing and field.default_factory is missing
    )
    return {field.name: hints[field.name] for field in fields}, frozenset(required)


def _fits(value: object, shape: Any) -> bool:
    """Whether a value is of a kind, whatever it contains."""
    origin = typing.get_origin(shape) or shape
    if origin in (object, Any):
        return True
    if origin in (list, tuple):
        return isinstance(value, list)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in typing.get_args(shape))
    # true and false are no numbers here
    if origin is float:
        return type(value) in (int, float)
    if origin in WORDS:
        return type(value) is origin
    return isinstance(value, dict)


def _expected(shape: Any) -> str:
    origin = typing.get_origin(shape) or shape
    if origin in (list, tuple):
        return "a list"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_expected(part) for part in typing.get_args(shape))
    return WORDS.get(origin, "an object")


def _inside(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _called(name: str) -> str:
    """The name of an entry as it is written in a message, in one line."""
    return shown(name)[1:].removesuffix("'")


def _refuse(place: str, name: str, value: object, expected: str) -> NoReturn:
    if not name:
        words = f"damaged ({shown(value)}, expected {expected})"
        raise ArtifactError(f"{place}: {words}; {RESTORE}")
    words = f"{_called(name)} is {shown(value)}, expected {expected}"
    raise ArtifactError(f"{place}: {words}; {ELSEWHERE}")


def _parsed(file: Path) -> object:
    """The JSON in a file: nested a few levels at most, its texts Unicode, its numbers finite."""
    size = file.stat().st_size
    if size > MOST_BYTES:
        words = f"{size:,} bytes, expected at most {MOST_BYTES:,}"
        raise ArtifactError(f"{file}: {words}; {ELSEWHERE}")
    try:
        found: object = json.loads(
            file.read_text(encoding="utf-8"), parse_constant=_refuse_constant
        )
        _check_plain(found)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{file}: damaged ({error}); {RESTORE}") from error
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word}, expected a finite number")


def _check_plain(value: object) -> None:
    """Raises a ValueError for values that other programs, or our own messages, could not hold."""
    level = [value]
    for _ in range(MOST_LEVELS):
        below = list[object]()
        for each in level:
            if isinstance(each, str):
                # a lone surrogate has no bytes
                each.encode()
            elif isinstance(each, float) and not math.isfinite(each):
                raise ValueError("a number beyond the range of floats")
            elif isinstance(each, int) and not -(2**63) <= each < 2**64:
                raise ValueError("a number of more than 64 bits")
            elif isinstance(each, list):
                below += each
            elif isinstance(each, dict):
                below += each.keys()
                below += each.values()
        if not below:
            return
        level = below
    raise ValueError(f"nested more than {MOST_LEVELS} levels")


def shown(value: object) -> str:
    """A value as it is written in a message, which must not grow with it."""
    words = repr(value)
    return words if len(words) <= SHOWN else f"{words[:SHOWN]}…"
