"""Exceptions. Every message says what was given, what was expected and what to do next."""

from collections.abc import Iterable


class GraphFormersError(Exception):
    """An error that the user can fix. The command line prints the message without a traceback.

    Examples:
        >>> try:
        ...     TextGraph.load("nowhere.graph")
        ... except GraphFormersError as error:
        ...     print(error)
        nowhere.graph: no such folder...
    """


class InputError(GraphFormersError):
    """An input file is invalid. The message starts with the file and, if known, the line."""


class BadRowError(InputError):
    """A row of an input file is invalid.

    Args:
        message: What is wrong, with file and line.
        advice: What else can be done with the row, such as skipping it.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class ArtifactError(GraphFormersError):
    """A folder of graphformers is missing, damaged, of another kind, or does not belong to the
    others.
    """


class UnknownIdError(GraphFormersError, KeyError):
    """An id that no node has. A KeyError, too, as a dict would raise."""

    # A KeyError would show the message in quotes.
    __str__ = Exception.__str__


class MissingExtraError(GraphFormersError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, purpose: str, extra: str | None = None) -> None:
        what = f"graphformers[{extra}]" if extra else package
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed: pip install '{what}'"
        )


class StoppedError(GraphFormersError):
    """A signal stopped long work, which can be continued."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the most similar known name, or all of them."""
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
