"""Schemas of JSON bodies and of the parameters in addresses.

The OpenAPI document is made of them. A request that does not fit is answered with 422.
"""

import math
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from graphformers.serve.settings import Limits

LIMITS = Limits()


def _not_blank(expected: str) -> AfterValidator:
    def check(given: str) -> str:
        if not given.strip():
            raise ValueError(f"nothing but blanks given, expected {expected}")
        return given

    return AfterValidator(check)


def _within_64_bits(value: object) -> object:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number beyond 64 bits given")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number that is not finite given")
    return value


Text = Annotated[str, Field(min_length=1, max_length=LIMITS.text_letters), _not_blank("some words")]
Id = Annotated[
    str, Field(min_length=1, max_length=LIMITS.id_letters), _not_blank("the id of a node")
]
Ids = Annotated[list[Id], Field(max_length=LIMITS.neighbors)]
Texts = Annotated[list[Text], Field(max_length=LIMITS.neighbors)]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e30, le=1e30)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Value = Annotated[
    bool | int | float | Annotated[str, Field(max_length=LIMITS.text_letters)] | None,
    AfterValidator(_within_64_bits),
]
Filter = Annotated[str, Field(max_length=500)]


def _wrong(words: str) -> PydanticCustomError:
    """An error with these words. Without a context, pydantic does not interpret braces in them."""
    return PydanticCustomError("wrong", words)


def _check_names(given: Iterable[object], schema: type[BaseModel], kind: str, place: str) -> None:
    """Pydantic's own message for an unknown name does not list the valid ones."""
    known = schema.model_fields
    strange = next((name for name in given if name not in known), None)
    if strange is not None:
        there = f"there are: {', '.join(known)}" if known else "there are none here"
        raise _wrong(f"no {kind} {str(strange)[:50]!r} in this {place}; {there}")


class Query(BaseModel):
    """Parameters of an address. An unknown one is an error: ?kk=2 would go unnoticed."""

    model_config = ConfigDict(extra="forbid")
    # Parameters that may be repeated.
    lists: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _has_known_names(cls, given: dict[str, object]) -> dict[str, object]:
        if cls.model_config["extra"] == "forbid":
            _check_names(given, cls, "parameter", "address")
        return given


class AnyQuery(Query):
    """Addresses of the page and of monitoring may have any parameters, which are ignored."""

    model_config = ConfigDict(extra="ignore")


class NodeQuery(Query):
    """Which of a node's neighbours to show."""

    limit: int = Field(50, ge=0, le=1000, description="How many neighbours to show.")
    start: int = Field(0, ge=0, le=2**40, description="How many neighbours to skip.")


class EgoQuery(Query):
    """How many neighbours to show."""

    limit: int = Field(24, ge=1, le=200, description="How many neighbours to show.")


def _count(given: object) -> object:
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 10:
        given = int(given)
    if not isinstance(given, int) or not 1 <= given <= LIMITS.k:
        raise _wrong(f"{str(given)[:20]!r} given, expected a number from 1 to {LIMITS.k:,}")
    return given


class NearestQuery(Query):
    """A search by id."""

    lists = frozenset({"where"})

    k: Annotated[int, BeforeValidator(_count)] = Field(
        10, ge=1, le=LIMITS.k, description="How many nodes to find."
    )
    where: list[Filter] = Field(
        [],
        max_length=LIMITS.filters,
        description=(
            "As in year>=1995, venue~neur (contains) or 'year in 1995,1996'; all must hold."
        ),
    )


class EdgeQuery(Query):
    """Links of two nodes."""

    source: Id = Field(description="The id of one node.")
    target: Id = Field(description="The id of the other node.")
    type: str | None = Field(
        None, description="Only links of this type; an empty type means those without one."
    )


class Body(BaseModel):
    """A JSON body. An unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_known_fields(cls, given: object) -> object:
        if not isinstance(given, dict):
            names = ", ".join(
                name if entry.is_required() else f"{name} (optional)"
                for name, entry in cls.model_fields.items()
            )
            raise _wrong(f"expected an object with the fields {names}")
        if cls.model_config["extra"] == "forbid":
            _check_names(given, cls, "field", "object")
        return given


class EmbeddingsBody(Body):
    """A request for embeddings in the format of OpenAI's API, with neighbours. Fields of that API
    which mean nothing here are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=LIMITS.texts)] = Field(
        description="A text, or several."
    )
    model: str | None = Field(
        None, max_length=200, description="Ignored: the server has one model."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Numbers, or little-endian float32 as base64."
    )
    dimensions: int | None = Field(
        None, description="If given, it must be the size of the model's vectors."
    )
    neighbors: Annotated[list[Ids], Field(max_length=LIMITS.texts)] | None = Field(
        None, description="For each input, ids of nodes to encode as its neighbours."
    )
    neighbor_texts: Annotated[list[Texts], Field(max_length=LIMITS.texts)] | None = Field(
        None, description="For each input, texts to encode as its neighbours."
    )


class SearchBody(Body):
    """A search by one of text, id and vector."""

    text: Text | None = Field(None, description="Search by words: the text is encoded.")
    id: Id | None = Field(None, description="Search by a node.")
    vector: Annotated[list[Number], Field(max_length=8192)] | None = Field(
        None, description="Search by a vector, such as one of /v1/embeddings."
    )
    k: int = Field(10, ge=1, le=LIMITS.k, description="How many nodes to find.")
    neighbors: Ids = Field([], description="Ids of nodes to encode as the text's neighbours.")
    neighbor_texts: Texts = Field([], description="Texts to encode as the text's neighbours.")
    where: list[Filter] = Field(
        [],
        max_length=LIMITS.filters,
        description="Filters such as year>=1995, venue~neur, year in 1995,1996; all must hold.",
    )
    columns: list[Name] = Field(
        [], max_length=LIMITS.columns, description="Columns of each match to show."
    )
    links: bool = Field(
        False, description="With id: likely new links, by the model and by common neighbours."
    )
    show_neighbors: int = Field(
        0, ge=0, le=20, description="How many neighbours of each match to show."
    )


class NodeBody(Body):
    """A node. Of a node that exists, links are kept, and columns that are not given or null."""

    text: Text
    columns: Annotated[dict[Name, Value], Field(max_length=LIMITS.columns)] = Field(
        {},
        description=(
            "A column that no node had before is added; the answer names it in new_columns."
        ),
    )
    neighbors: Annotated[list[Id], Field(max_length=LIMITS.edges)] = Field(
        [], description="Ids of nodes to link it to."
    )


class Edge(Body):
    """A link between two nodes that exist."""

    source: Id
    target: Id
    type: Annotated[str, Field(max_length=100)] | None = None


class EdgesBody(Body):
    """Links to add."""

    edges: Annotated[list[Edge], Field(min_length=1, max_length=LIMITS.edges)]


class PlacesBody(Body):
    """Nodes whose coordinates on the map are requested."""

    ids: Annotated[list[Id], Field(max_length=LIMITS.k)]
