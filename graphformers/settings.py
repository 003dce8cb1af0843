"""Settings: frozen dataclasses whose fields carry their bounds and their description.

A setting is declared once, as a field::

    @dataclass(frozen=True)
    class SearchSettings(Settings):
        k: int = setting(10, "Results of a query.", at_least=1)

Constructing the dataclass checks types and bounds; `describe` lists the fields for help texts and
documentation. A setting with `option` is also an option of the commands that use the class, written
as in a manual: "--skip-bad", "--header/--no-header", "--neighbors NUMBER", or "--name HOST..." for
an option that may be repeated.

Messages that ask for a setting spell it by `Settings.usage`, and another argument by `usage`: as an
option if the program was started from the command line, as a keyword if it was called from Python.
"""

import dataclasses
import inspect
import math
import numbers
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeAlias

from graphformers.errors import GraphFormersError, nearest

# the value of a setting in a JSON or TOML file
SettingValue: TypeAlias = (
    "str | int | float | bool | list[SettingValue] | dict[str, SettingValue] | None"
)

# the largest seed: random draws mix 64 bits
MOST_SEED = 2**64 - 1
# more processes on one machine than any machine has use for
MOST_PROCESSES = 512

_TYPES = {
    "int": numbers.Integral,
    "float": numbers.Real,
    "str": str,
    "bool": bool,
    "None": type(None),
}


@dataclass(frozen=True)
class Bounds:
    """The valid values of a setting. None is valid wherever the type allows it."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()

    def allow(self, value: float | str | None) -> bool:
        """Whether a value of the right type lies within the bounds."""
        if value is None:
            return True
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if len(self.choices) == 2:
            return " or ".join(self.choices)
        if self.choices:
            return f"one of: {', '.join(self.choices)}"
        low = self.above if self.at_least is None else self.at_least
        high = self.below if self.at_most is None else self.at_most
        if low is None:
            return (
                ""
                if high is None
                else f"{'below' if self.at_most is None else 'at most'} {_plain(high)}"
            )
        if high is not None:
            if self.at_least is None:
                return f"a number between {_plain(low)} and {_plain(high)}"
            return f"{_plain(low)} to {'below ' if self.at_most is None else ''}{_plain(high)}"
        if self.at_least is None:
            return f"more than {_plain(low)}"
        return "0 or more" if low == 0 else f"at least {_plain(low)}"


def _plain(number: float) -> str:
    """A bound, without rounding large whole numbers."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def setting(
    default: object = MISSING,
    help: str = "",
    *,
    default_factory: Callable[[], object] | None = None,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: Iterable[str] = (),
    option: str = "",
) -> Any:
    """A field of a `Settings` dataclass.

    Args:
        default: The default value; without one the field is required.
        help: One sentence for help texts and documentation.
        default_factory: Makes the default value; needed where it is mutable.
        at_least: The smallest valid value.
        above: A bound that valid values exceed.
        at_most: The largest valid value.
        below: A bound that valid values stay below.
        choices: The valid values of a text.
        option: How the setting is written on the command line; empty if it is not an option.
    """
    bounds = Bounds(at_least, above, at_most, below, tuple(choices))
    metadata = {"help": help, "bounds": bounds, "option": option}
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """Base class: construction checks the type and the bounds of every field."""

    def __init_subclass__(cls) -> None:
        """Lists the fields in the docstring of the class, so that `help` shows them."""
        inherited: dict[str, Field[object]] = getattr(cls, "__dataclass_fields__", {})
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        lines = [
            f"    {name}: {entry.metadata.get('help', '')}"
            for name, entry in (inherited | own).items()
        ]
        description = inspect.cleandoc(cls.__doc__ or "")
        cls.__doc__ = "\n".join([description, "", "Attributes:", *lines])

    @classmethod
    def from_keywords(cls, function: str, given: Mapping[str, Any]) -> Self:
        """The settings that a function was given as keywords.

        Args:
            function: The name of the function, for messages.
            given: The keywords.

        Raises:
            GraphFormersError: There is no such setting; the message names the nearest.
        """
        known = [entry.name for entry in fields(cls)]
        for name in given:
            if name not in known:
                raise GraphFormersError(
                    f"{function} has no option {name!r}; {nearest(name, known)}"
                )
        return cls(**given)

    @classmethod
    def usage(cls, **values: object) -> str:
        """How a user writes settings: "--skip-bad" on the command line, "skip_bad=True" in Python.

        Settings that are no options of their own, such as those of training, are written as in
        Python.

        Args:
            values: Settings with example values; a placeholder is written in capitals.
        """
        known = {entry.name: str(entry.metadata.get("option", "")) for entry in fields(cls)}
        return (" " if _names_options else ", ").join(
            usage(name, value, known[name]) if known[name] else f"{name}={value!r}"
            for name, value in values.items()
        )

    def __post_init__(self) -> None:
        for entry in fields(self):
            _check_type(self, entry.name, type_name(entry.type))
        for entry in fields(self):
            bounds = entry.metadata.get("bounds")
            if bounds is not None:
                require(self, bounds.allow(getattr(self, entry.name)), entry.name, str(bounds))


@dataclass(frozen=True)
class SettingInfo:
    """One setting as documentation shows it."""

    name: str
    type: str
    # MISSING where the setting is required
    default: object
    expected: str
    help: str
    option: str


# whether messages name options of the command line, or keywords of Python
_names_options = False


@contextmanager
def naming_options() -> Iterator[None]:
    """Within the block, messages name options of the command line instead of keywords.

    This holds for all threads: commands run one at a time.
    """
    global _names_options
    before, _names_options = _names_options, True
    try:
        yield
    finally:
        _names_options = before


def usage(name: str, value: object, option: str = "") -> str:
    """How a user writes an argument: "--force" on the command line, "force=True" in Python.

    Args:
        name: The name of the argument in Python.
        value: Its value, or a placeholder in capitals.
        option: The option as in a manual, if its name is not that of the argument.

    Examples:
        >>> usage("nodes", "FILE")
        "nodes='FILE'"
        >>> with naming_options():
        ...     usage("nodes", "FILE")
        '--nodes FILE'
    """
    if isinstance(value, Path):
        value = str(value)
    if not _names_options:
        return f"{name}={list(value) if isinstance(value, tuple) else value!r}"
    words = [word.rstrip(",") for word in option.split() if word.startswith("-")]
    on, _, off = (words[-1] if words else f"--{name.replace('_', '-')}").partition("/")
    if isinstance(value, bool):
        return on if value else off or f"--no-{on.removeprefix('--')}"
    if isinstance(value, Mapping):
        return " ".join(f"{on} {_quoted(f'{key}={each}')}" for key, each in value.items())
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"{on} {_quoted(text)}"


def _quoted(word: str) -> str:
    """A word as a shell reads it; only a space or a character of the shell needs quotes."""
    return shlex.quote(word) if set(word) & set(" \t\n'\"\\$`;&|<>()*?[]!#~") or not word else word


def describe(settings: type[Settings]) -> list[SettingInfo]:
    """The fields of a settings class, in the order of their declaration."""
    found = []
    for entry in fields(settings):
        factory = entry.default_factory
        default = entry.default if factory is MISSING else factory()
        texts = (str(entry.metadata.get(name, "")) for name in ("bounds", "help", "option"))
        found.append(SettingInfo(entry.name, type_name(entry.type), default, *texts))
    return found


def require(settings: Settings, holds: bool, name: str, expected: str) -> None:
    """Raises an error that names a setting, its value and what was expected, unless `holds`."""
    if not holds:
        value = getattr(settings, name)
        given = settings.usage(**{name: value})
        raise GraphFormersError(f"{given} given, expected {expected}")


def type_name(annotation: object) -> str:
    """The name of a type as in source code: `int`, `float | None`."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def has_type(value: object, type_name: str) -> bool:
    """Whether a value has a type such as `int` or `float | None`.

    NumPy scalars count as numbers; booleans do not.
    """
    names = type_name.split(" | ")
    if isinstance(value, bool):
        return "bool" in names
    return any(isinstance(value, _TYPES[name]) for name in names if name != "bool")


def _check_type(settings: Settings, name: str, expected: str) -> None:
    value = getattr(settings, name)
    if not set(expected.split(" | ")) <= set(_TYPES):
        return
    shown = expected.replace("bool", "True or False")
    require(settings, has_type(value, expected), name, shown)
    if isinstance(value, numbers.Number) and hasattr(value, "item"):
        # NumPy scalars cannot be written as JSON
        value = value.item()
        object.__setattr__(settings, name, value)
    is_finite = not isinstance(value, float) or math.isfinite(value)
    require(settings, is_finite, name, "a finite number")
