"""The app, and functions by which commands declare arguments, options and settings.

A parameter of a command whose type is a settings class stands for all options that the fields of
the class declare; the command receives the settings object::

    @command("split")
    def split_command(*, graph: Path = GRAPH, settings: SplitSettings) -> None:
        ...

With `given`, the command receives a dictionary of the settings that the user gave::

    limits: dict[str, Any] = given(Limits)
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any

import typer
from typer.core import TyperCommand

from graphformers.settings import SettingInfo, Settings, describe, naming_options

app = typer.Typer(
    name="graphformers",
    help="Embeddings of text graphs, computed from a node's text and its neighbours' texts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class UsageError(typer.BadParameter):
    """Arguments that contradict each other or cannot be read; the exit code is 2."""

    def format_message(self) -> str:
        """The message alone, without "Invalid value"."""
        return self.message


@dataclass(frozen=True)
class Given:
    """Options of a settings class. Made by `given`."""

    settings: type[Settings]
    names: tuple[str, ...]
    default: str | None

    def entries(self) -> list[SettingInfo]:
        """The settings that become options."""
        return [
            entry
            for entry in describe(self.settings)
            if entry.option and (not self.names or entry.name in self.names)
        ]

    def parameters(self) -> list[inspect.Parameter]:
        """The options, as parameters of a function that typer reads."""
        return [_parameter(entry, self.default) for entry in self.entries()]

    def take(self, values: dict[str, Any]) -> dict[str, Any]:
        """Removes the options from a command's values, and returns the given settings."""
        found = {}
        for entry in self.entries():
            value = values.pop(entry.name)
            if value is not None:
                found[entry.name] = _parsed(entry, value)
        return found


def given(settings: type[Settings], *names: str, default: str | None = None) -> Any:
    """Declares a parameter that receives the settings of a class that the user gave.

    Args:
        settings: The class that declares the options.
        names: The settings to offer; by default all that are options.
        default: The default that the help text shows, instead of the defaults of the class.
    """
    return Given(settings, names, default)


def argument(default: Any, metavar: str, help: str) -> Any:
    """A positional argument. It is required if the default is `...`."""
    return typer.Argument(default, metavar=metavar, help=help)


def option(default: Any, usage: str, help: str) -> Any:
    """An option.

    Args:
        default: The default value. The option is required if it is `...`.
        usage: The option as in a manual: "--force", "-o, --output FOLDER", or "--nodes FILE..." if
            it may be repeated.
        help: The help text.
    """
    words = usage.replace(",", "").split()
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :])
    if metavar.endswith("..."):
        metavar, help = metavar.removesuffix("..."), f"{help} Repeatable."
    return typer.Option(default, *names, metavar=metavar or None, help=help)


def command(
    name: str, more_help: Callable[[], dict[str, list[tuple[str, str]]]] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that registers a command. Settings classes among its parameters become options.

    Args:
        name: The name of the command.
        more_help: Returns lists for the end of the help text: the title, and rows of name and
            description. It is called only when the help of this command is shown.
    """

    class Command(TyperCommand):
        def format_epilog(self, ctx: Any, formatter: Any) -> None:
            for title, rows in (more_help() if more_help else {}).items():
                with formatter.section(title):
                    formatter.write_dl(rows)

    def register(function: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, tuple[Given, Callable[..., object]]] = {}
        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(function).parameters.values():
            if isinstance(own.default, Given):
                groups[own.name] = own.default, dict
            elif inspect.isclass(own.annotation) and issubclass(own.annotation, Settings):
                groups[own.name] = given(own.annotation), own.annotation
            if own.name in groups:
                parameters += groups[own.name][0].parameters()
            else:
                parameters.append(own.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(function)
        def run(**values: Any) -> None:
            with naming_options():
                for name, (options, make) in groups.items():
                    values[name] = make(**options.take(values))
                function(**values)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        # typer before 0.29 reads types here. Options may have the name of the group they are from.
        run.__annotations__ = {own.name: own.annotation for own in parameters}
        app.command(name, cls=Command)(run)
        return function

    return register


def split_list(text: str) -> list[str]:
    """The parts of a list separated by commas, stripped; empty parts are dropped."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _parameter(entry: SettingInfo, default: str | None) -> inspect.Parameter:
    """The parameter of a setting; None stands for a setting that was not given."""
    kinds: dict[str, type] = {"bool": bool, "int": int, "float": float}
    kind = kinds.get(entry.type.split(" | ")[0], str)
    found = option(None, entry.option, entry.help)
    if entry.option.endswith("..."):
        kind = list[str]
    elif entry.type.startswith("tuple"):
        found.help += " Separated by commas."
    shown = _shown_default(entry) if default is None else default
    is_plain_flag = kind is bool and "/" not in entry.option
    facts = [f"default: {shown}"] if shown and not is_plain_flag else []
    if entry.expected:
        facts.append(entry.expected)
    if facts:
        found.help += f"  [{'; '.join(facts)}]"
    return inspect.Parameter(
        entry.name, inspect.Parameter.KEYWORD_ONLY, default=found, annotation=kind | None
    )


def _shown_default(entry: SettingInfo) -> str:
    """The default of a setting as a user would type it; empty if there is nothing to show."""
    if entry.default in (MISSING, None, (), {}):
        return ""
    if isinstance(entry.default, bool):
        on, _, off = entry.option.partition("/")
        return (on if entry.default else off).removeprefix("--")
    return str(entry.default)


def _parsed(entry: SettingInfo, value: Any) -> Any:
    """Converts an option that the user typed into the value of a setting."""
    if entry.type.startswith("dict"):
        found = [_parse_column(word) for word in value]
        for i, (role, name) in enumerate(found):
            if role in dict(found[:i]):
                several = f"{role}={dict(found[:i])[role]},{name}"
                joined = f"; --column {several} names both" if role in ("text", "links") else ""
                raise UsageError(
                    f"--column {role}={name} given, but {role!r} is named already{joined}"
                )
        return dict(found)
    if entry.type.startswith("tuple"):
        return tuple(split_list(value) if isinstance(value, str) else value)
    return value


def _parse_column(word: str) -> tuple[str, str]:
    role, equals, name = word.partition("=")
    if not equals or not name:
        raise UsageError(f"--column {word} given, expected ROLE=NAME such as text=title")
    return role, name
