"""Writes the pages of docs/ that are made from the code: commands, formats, HTTP and
Python; and of benchmarks, from results/.

A test fails when a page is out of date.
"""

import json
import os
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import click
import typer.main
from make_benchmarks import benchmarks_page

import graphformers
from graphformers.cli import app
from graphformers.graph.formats import FORMATS, Format
from graphformers.graph.settings import ROLES, ImportSettings
from graphformers.model.config import ModelConfig
from graphformers.serve.description import ERRORS
from graphformers.serve.description import describe as describe_routes
from graphformers.serve.routes import ROUTES
from graphformers.serve.security import Access
from graphformers.settings import SettingInfo, Settings, describe
from graphformers.training.settings import MODEL_SETTINGS, TrainConfig


def cli_page() -> str:
    """The whole page: every command with its help text, as a terminal of 100 columns shows it."""
    os.environ["COLUMNS"] = "100"
    root = typer.main.get_command(app)
    parts = ["# Command line\n\nMade from the help texts by `make docs`.\n"]
    context = click.Context(root, info_name="graphformers", terminal_width=100)
    parts.append(f"```text\n{root.get_help(context).rstrip()}\n```\n")
    for name, command in sorted(root.commands.items()):  # type: ignore[attr-defined]
        inner = click.Context(command, info_name=name, parent=context, terminal_width=100)
        parts.append(
            f"## graphformers {name}\n\n```text\n{command.get_help(inner).rstrip()}\n```\n"
        )
    return "\n".join([*parts, settings_page()])


def settings_page() -> str:
    """The settings of training, which recipes and --set may name."""
    entries = describe(TrainConfig)
    entries += [entry for entry in describe(ModelConfig) if entry.name in MODEL_SETTINGS]
    head = [
        "## Settings of training",
        "",
        "For recipes (`name = value`) and `--set name=value`.",
        "",
    ]
    return "\n".join([*head, *settings_table(entries)]) + "\n"


def settings_table(entries: list[SettingInfo]) -> list[str]:
    """The lines of a table of settings."""
    lines = [
        f"| `{entry.name}` | {_shown(entry.default)} | {entry.expected} | {entry.help} |"
        for entry in entries
    ]
    return ["| setting | default | values | what it does |", "|---|---|---|---|", *lines]


def _shown(default: object) -> str:
    if default is MISSING:
        return "required"
    return f'"{default}"' if isinstance(default, str) else repr(default)


def formats_page() -> str:
    """The files of every format."""
    head = """# Formats

Made from the table of formats (`graphformers/graph/formats.py`) by `make docs`.

The format of files is chosen by `--format NAME`, in Python by `read_graph(…, format="NAME")`. Text
files may be compressed (.gz .xz .bz2). `--skip-bad`, `--bad-rows`, `--keep-empty` and the limits
(`--max-row` and others) apply to every format; other options to those that list them.
[howto-import.md](howto-import.md) imports tables of many kinds, step by step;
[extending.md](extending.md#an-importer) adds a format."""
    formats = [_format(name, each) for name, each in FORMATS.items()]
    return "\n\n".join([head, *formats, _names_of_columns()]) + "\n"


def _names_of_columns() -> str:
    """The names by which columns of tables are recognised."""
    rows = [f"| {role} | {', '.join(names)} |" for role, names in ROLES.items() if names]
    head = """## Names of columns

The columns of tables are recognised by these names, in upper or lower case, the first ones before
the others. `--column ROLE=NAME` names other columns.

| role | names |
|---|---|"""
    return "\n".join([head, *rows])


def _format(name: str, format: Format) -> str:
    options = ", ".join(f"`{_option(setting)}`" for setting in format.settings)
    links = "counted and left out" if format.outside else "bad rows"
    return f"""## {name}

{format.about[0].upper()}{format.about[1:]}.

```text
{format.example}
```

- Options: {options or "none of its own"}.
- Links to nodes outside the data: {links}.
- Reader: `{format.reader}`."""


def _option(name: str) -> str:
    """A setting as it is written on the command line."""
    (entry,) = (entry for entry in describe(ImportSettings) if entry.name == name)
    return entry.option


HTTP_HEAD = """# HTTP API

Made from the routes of the server by `make docs`. A running server has the same description as an
OpenAPI document at `/openapi.json`.

`graphformers serve papers.vectors` answers JSON on `http://127.0.0.1:8000`. Bodies are JSON with
the header `Content-Type: application/json`. An error is `{"error": {"message": …, "type": …}}`,
with one of these statuses:

"""
ACCESS_WORDS = {
    Access.PUBLIC: "anybody",
    Access.READ: "readers: with a token if the server has one for reading",
    Access.WRITE: "writers: with the token for writing, or from this machine if there is none",
}


def http_page() -> str:
    """A section for each route: who may call it, its parameters and its body."""
    document = json.loads(describe_routes(ROUTES))
    schemas = document["components"]["schemas"]
    parts = [HTTP_HEAD + "\n".join(f"- {status}: {text}" for status, text in ERRORS.items()) + "\n"]
    for route in (route for route in ROUTES if route.is_described):
        operation = document["paths"][route.path][route.method.lower()]
        parts.append(f"## {route.method} {route.path}\n\n{operation['summary']}.\n")
        parts.append(f"Who may call it: {ACCESS_WORDS[route.access]}.\n")
        rows = [
            _value_row(each["name"], each["schema"], each["required"], each.get("description", ""))
            for each in operation.get("parameters", [])
        ]
        parts += [_value_table("parameter", rows)] if rows else []
        if route.body is not None:
            schema = schemas[route.body.__name__]
            required = schema.get("required", [])
            rows = [
                _value_row(name, kind, name in required, "")
                for name, kind in schema["properties"].items()
            ]
            about = " ".join(schema["description"].split())
            parts.append(f"Body: {about[0].lower()}{about[1:]}\n")
            parts.append(_value_table("field", rows))
        if route.statuses:
            lines = [f"- {status}: {text}" for status, text in route.statuses.items()]
            parts.append("\n".join(["Answers:\n", *lines]) + "\n")
    return "\n".join(parts)


def _value_table(kind: str, rows: list[str]) -> str:
    head = [f"| {kind} | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def _value_row(name: str, schema: dict[str, Any], required: bool, about: str) -> str:
    default = schema.get("default")
    shown = "required" if required else "" if default is None else f"`{json.dumps(default)}`"
    about = about or schema.get("description", "")
    return f"| `{name}` | {_type(schema)} | {shown} | {about} |"


def _type(schema: dict[str, Any]) -> str:
    """What a value may be, in words."""
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    return " or ".join(dict.fromkeys(map(_one_type, kinds)))


def _one_type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"object, {schema['$ref'].rpartition('/')[2]}"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    kind = schema["type"]
    if kind == "array":
        return f"list{_most(schema, 'maxItems', '')} of {_type(schema['items'])}"
    if kind == "object":
        return f"object{_most(schema, 'maxProperties', ' names')}"
    if kind == "integer" and "minimum" in schema:
        return f"integer, {schema['minimum']:,} to {schema['maximum']:,}"
    return kind + _most(schema, "maxLength", " characters")


def _most(schema: dict[str, Any], name: str, unit: str) -> str:
    return f" (at most {schema[name]:,}{unit})" if name in schema else ""


# the sections of the page on Python, and the packages whose public names they list
SECTIONS = {
    "Graphs": ("graph",),
    "Splits": ("splits",),
    "Models": ("model",),
    "Training": ("training",),
    "Evaluation": ("evaluation",),
    "Embedding": ("embedding",),
    "Search": ("retrieval",),
    "Errors": ("errors",),
}


def python_page() -> str:
    """Directives for all public names, in whose place the site shows their docstrings."""
    homes = {name: getattr(graphformers, name).__module__ for name in graphformers.__all__}
    parts = [
        "# Python\n\nThe public names of `graphformers`, such as `from graphformers import embed`. "
        "Page made by `make docs`.\n"
    ]
    for title, packages in SECTIONS.items():
        names = sorted(name for name, home in homes.items() if home.split(".")[1] in packages)
        parts.append(f"## {title}\n")
        # classes first, as capital letters sort
        for name in names:
            parts.append(f"::: {homes.pop(name)}.{name}\n")
            found = getattr(graphformers, name)
            if isinstance(found, type) and issubclass(found, Settings):
                # The signature would show the declarations of all settings.
                options = ("show_signature: false", "members: false")
                parts[-1] += "    options:\n" + "".join(f"      {each}\n" for each in options)
                parts.append("\n".join(settings_table(describe(found))) + "\n")
    assert not homes, f"no section lists {', '.join(homes)}"
    return "\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    "benchmarks.md": benchmarks_page,
    "cli.md": cli_page,
    "formats.md": formats_page,
    "http.md": http_page,
    "python.md": python_page,
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8")
