"""Whatever the app's own description allows, and much that it forbids, is tried: nothing may be a
5xx.
"""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from graphformers.serve.description import describe
from graphformers.serve.routes import ROUTES
from tests.serve.conftest import Running

# the description needs no vectors, so it can be made before any test runs
schema = schemathesis.openapi.from_dict(json.loads(describe(ROUTES)))


@schema.parametrize()
@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_no_request_is_a_server_error(case: schemathesis.Case, shared: Running) -> None:
    answer = case.call(base_url=shared.address)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"]


def test_every_endpoint_is_described() -> None:
    described = {
        (method, path) for path, methods in schema.raw_schema["paths"].items() for method in methods
    }
    reading = (
        "get /nodes/{id}, get /nodes/{id}/similar, get /nodes/{id}/links, "
        "post /search, post /v1/embeddings"
    )
    writing = "put /nodes/{id}, post /edges, delete /edges, delete /nodes/{id}"
    running = "get /health, get /ready, get /info, get /metrics"
    expected = {tuple(words.split()) for words in f"{reading}, {writing}, {running}".split(", ")}
    assert expected <= described


def test_what_is_answered_to_a_node_is_described() -> None:
    answers = schema.raw_schema["paths"]["/nodes/{id}"]["put"]["responses"]
    assert all(
        "id, is_new, new_links and new_columns" in answers[status]["description"]
        for status in ("200", "201")
    )


@pytest.fixture(autouse=True)
def _alive(shared: Running):  # type: ignore[no-untyped-def]
    yield
    assert shared.process.poll() is None, "the server is still there"
