"""What can go wrong for a user: every message says what was given, what was expected and what to do
next.
"""

import math
import numbers
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

_KINDS = {
    "int": numbers.Integral,
    "float": numbers.Real,
    "str": str,
    "bool": bool,
    "None": type(None),
}


class GraphFormersError(Exception):
    """Anything the user can mend. The command line prints the message alone, without a
    traceback.
    """


class InputError(GraphFormersError):
    """A file from outside is not what it should be. The message starts with the file and, where
    there is one, the line.
    """


class BadRowError(InputError):
    """Of a row: an import can leave such out. `advice` tells what else can be done with it."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class ArtifactError(GraphFormersError):
    """One of our own folders is missing, damaged, of another kind, or made from something else than
    what it is used with.
    """


class UnknownIdError(GraphFormersError, KeyError):
    """An id that no node has: a KeyError, as a dict would raise."""

    __str__ = Exception.__str__  # a KeyError would show the message as a key


class MissingExtraError(GraphFormersError):
    """A part that is installed separately is not there."""

    def __init__(self, package: str, purpose: str, extra: str | None = None) -> None:
        what = f"graphformers[{extra}]" if extra else package
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed: pip install '{what}'"
        )


class StoppedError(GraphFormersError):
    """A signal asked long work to stop; it did, and can be continued."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not known: the one that was perhaps meant, or all there are."""
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"


def kind_of(annotation: object) -> str:
    """A type as written: `int`, `float | None`."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def fits(value: object, kind: str) -> bool:
    """Whether a value is of a kind such as `int` or `float | None`; numpy's numbers are numbers,
    true and false are not.
    """
    if isinstance(value, bool):
        return "bool" in kind.split(" | ")
    return any(isinstance(value, _KINDS[name]) for name in kind.split(" | ") if name != "bool")


def require(settings: Any, holds: bool, name: str, expected: str) -> None:
    """Checks a field of a dataclass of settings."""
    if not holds:
        raise GraphFormersError(f"{name}={getattr(settings, name)!r} given, expected {expected}")


def require_types(settings: Any) -> None:
    """Checks that the fields of a dataclass hold what they say: numbers, finite ones, texts, true
    or false.

    A text where a number belongs would end in a message of Python's, or in none.
    """
    for entry in fields(settings):
        kind, value = kind_of(entry.type), getattr(settings, entry.name)
        if not set(kind.split(" | ")) <= set(_KINDS):
            continue
        if not fits(value, kind):
            raise GraphFormersError(f"{entry.name}={value!r} given, expected {kind}")
        # numpy's, which JSON does not know
        if isinstance(value, numbers.Number) and hasattr(value, "item"):
            value = value.item()
            object.__setattr__(settings, entry.name, value)
        if isinstance(value, float) and not math.isfinite(value):
            raise GraphFormersError(f"{entry.name}={value!r} given, expected a finite number")
