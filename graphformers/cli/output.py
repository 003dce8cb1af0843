"""Output of commands: tables for people, JSON for programs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from graphformers.table import Table


class Result(Protocol):
    """A result that is a table."""

    def to_dict(self) -> Any:
        """The result as JSON values."""

    def as_table(self) -> "Table":
        """The result as a table."""


class Report(Protocol):
    """A result of several tables."""

    def to_dict(self) -> Any:
        """The result as JSON values."""

    def print(self) -> None:
        """Prints the result for people."""


def show_result(result: Result | Report, as_json: bool, output: Path | None = None) -> None:
    """Prints a result.

    Args:
        result: The result of a command.
        as_json: Whether to print JSON instead of tables.
        output: The folder that the command wrote, if the result does not name it.
    """
    if as_json:
        found = result.to_dict()
        found = found if output is None else {"output": str(output)} | found
        # Columns of nodes may contain values without a JSON form, such as bytes.
        print(json.dumps(found, ensure_ascii=False, default=str))
        return
    if not hasattr(result, "as_table"):
        result.print()
        return
    table = result.as_table()
    if output is not None:
        print(f"{output}: {table}")
    elif table.header:
        # On a terminal the header is bold.
        table.print()
    else:
        print(table)
