"""What requests may say. The OpenAPI document is made of this; everything beyond it is answered
with 422.
"""

import math
from typing import Annotated, Literal, LiteralString

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
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


class Body(BaseModel):
    """A field that is not known is a mistake, not something to pass over."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_known_fields(cls, given: object) -> object:
        """Pydantic's own words for both do not say which fields there are."""
        fields = cls.model_fields
        if not isinstance(given, dict):
            names = ", ".join(
                name if entry.is_required() else f"{name} (optional)"
                for name, entry in fields.items()
            )
            raise _wrong("no_object", f"expected an object with the fields {names}")
        strange = next((name for name in given if name not in fields), None)
        if strange is not None and cls.model_config["extra"] == "forbid":
            raise _wrong(
                "strange_field",
                f"no field {str(strange)[:50]!r} in this object; there are: {', '.join(fields)}",
            )
        return given


def _wrong(kind: LiteralString, words: LiteralString) -> PydanticCustomError:
    """An error with these words, braces and all: without a context nothing is put in their
    place.
    """
    return PydanticCustomError(kind, words)


class EmbeddingsBody(Body):
    """OpenAI's request for embeddings, with neighbours; fields of theirs that mean nothing here are
    passed over.
    """

    model_config = ConfigDict(extra="ignore")

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=LIMITS.texts)]
    model: str | None = Field(
        None, max_length=200, description="Passed over: the server has one model."
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="Where it is given it must be the model's.")
    neighbors: Annotated[list[Ids], Field(max_length=LIMITS.texts)] | None = Field(
        None, description="For each input the ids of nodes in whose company it is read."
    )
    neighbor_texts: Annotated[list[Texts], Field(max_length=LIMITS.texts)] | None = Field(
        None, description="For each input texts in whose company it is read."
    )


class SearchBody(Body):
    """A search by one of text, id and vector."""

    text: Text | None = None
    id: Id | None = None
    vector: Annotated[list[Number], Field(max_length=8192)] | None = None
    k: int = Field(10, ge=1, le=LIMITS.k)
    neighbors: Ids = Field([], description="Ids of nodes in whose company the text is read.")
    neighbor_texts: Texts = Field([], description="Texts in whose company the text is read.")
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
    """A node. What is not said of one that is there stays: columns that are not given, or null, and
    its links.
    """

    text: Text
    columns: Annotated[dict[Name, Value], Field(max_length=LIMITS.columns)] = Field(
        {}, description="One that no node had before is made; the answer names it in new_columns."
    )
    neighbors: Annotated[list[Id], Field(max_length=LIMITS.edges)] = Field(
        [], description="Ids of nodes to link it to."
    )


class Edge(Body):
    """A link between two nodes that are there."""

    source: Id
    target: Id
    type: Annotated[str, Field(max_length=100)] | None = None


class EdgesBody(Body):
    """Links to add."""

    edges: Annotated[list[Edge], Field(min_length=1, max_length=LIMITS.edges)]


class PlacesBody(Body):
    """Nodes whose places on the map are asked for."""

    ids: Annotated[list[Id], Field(max_length=LIMITS.k)]
