"""The OpenAPI document, made of the routes and their schemas."""

import msgspec
from pydantic.json_schema import models_json_schema

from graphformers.serve.routes import AnyRoute
from graphformers.serve.security import Access
from graphformers.version import __version__

JSON: dict[str, object] = {"application/json": {}}
ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The id of a node; special characters, also slashes, are written as %XX.",
}
ERRORS = {
    400: "What was sent is not HTTP.",
    401: "A token is needed, or another one.",
    403: "This server takes no changes, or not from there.",
    404: "There is no such node or link.",
    405: "Another method: the header Allow lists those of the address.",
    408: "The body did not arrive in time.",
    413: "Too large a body.",
    415: "Not declared as JSON.",
    421: "Another host name than 127.0.0.1, localhost and those of --name.",
    422: "Something in the request is not valid; the message says what.",
    429: "Too many requests.",
    431: "Too long or too many headers.",
    503: "Busy, or not ready yet: try again.",
    504: "It took too long.",
}


def describe(routes: list[AnyRoute]) -> bytes:
    """The OpenAPI document of some routes, as JSON."""
    routes = [route for route in routes if route.is_described]
    bodies = {route.body for route in routes if route.body is not None}
    _, schemas = models_json_schema(
        [(body, "validation") for body in sorted(bodies, key=lambda body: body.__name__)],
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    token = {"type": "http", "scheme": "bearer"}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "graphformers",
            "version": __version__,
            "description": (
                "Embeddings of a graph of texts: search, encoding, and changes that are searchable "
                "at once."
            ),
        },
        "paths": paths,
        "components": {"schemas": schemas["$defs"], "securitySchemes": {"token": token}},
    }
    return msgspec.json.encode(document)


def _operation(route: AnyRoute) -> dict[str, object]:
    """What the document says of a route."""
    summary = (route.endpoint.__doc__ or "").partition("\n")[0]
    statuses = route.statuses or {200: "The answer."}
    operation: dict[str, object] = {
        "summary": summary,
        "operationId": route.endpoint.__name__,
        "responses": {
            str(status): {"description": text, "content": JSON}
            for status, text in {**statuses, **ERRORS}.items()
        },
    }
    schema = route.query.model_json_schema()
    parameters = [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", []),
            "schema": kind,
        }
        for name, kind in schema.get("properties", {}).items()
    ]
    parameters = [ID, *parameters] if "{id}" in route.path else parameters
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"schema": {"$ref": f"#/components/schemas/{route.body.__name__}"}}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    if route.access is not Access.PUBLIC:
        # Without tokens, a server on 127.0.0.1 needs none.
        operation["security"] = [{}, {"token": []}]
    return operation
