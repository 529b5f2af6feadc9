"""Mutated requests and images, and what the OpenAPI description promises. The long run is in benchmarks/server."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import hypothesis
import pytest
import schemathesis
from loopback import MODEL, Running, data_url, picture, question, running
from schemathesis import checks

import seewhen
from seewhen.server.limits import Limits

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "server"))
import mutations

COUNT = 200
EXPECTED = {200, 400, 404}


def test_mutated_requests(server: Running) -> None:
    seen: Counter[int] = Counter()
    url = f"{server.url}/v1/chat/completions"
    with httpx2.Client(headers={"Content-Type": "application/json"}, timeout=60) as client:
        for body in mutations.requests(MODEL, COUNT, seed=1, text="w5 w6"):
            response = client.post(url, content=body)
            seen[response.status_code] += 1
            assert response.status_code in EXPECTED, (response.text, body[:2000])
            assert response.status_code == 200 or response.json()["error"]["code"], body
        assert sum(seen.values()) == COUNT and seen[400] > COUNT / 4 and seen[200] > 0, seen
        assert client.get(f"{server.url}/readyz").status_code == 200
    assert server.client().chat.completions.create(
        model=MODEL, messages=question("w5", 1), max_tokens=1, temperature=0
    )


@pytest.fixture(scope="module")
def small(checkpoint: Path) -> Iterator[Running]:
    """A server whose longest answer is short."""
    limits = Limits(max_tokens=4, default_tokens=2, n=2, batch_wait_ms=0)
    with running(seewhen.load(checkpoint, device="cpu"), limits=limits) as started:
        yield started


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_openapi(small: Running, mode: schemathesis.GenerationMode) -> None:
    """Every operation, with data that follows the description and data that does not."""
    description = schemathesis.openapi.from_url(f"{small.url}/openapi.json")
    operations = [result.ok() for result in description.get_all_operations()]
    assert len(operations) == 9
    for operation in operations:
        if mode.is_negative and not operation.body:
            continue  # nothing that could be wrong
        cases = operation.as_strategy(generation_mode=mode)
        quiet = list(hypothesis.HealthCheck)

        @hypothesis.settings(
            max_examples=30 if operation.body else 5,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=quiet,
        )
        @hypothesis.given(case=cases)
        def holds(case: schemathesis.Case) -> None:
            # A body may follow the schema and still hold no image: 400 says so.
            case.call_and_validate(timeout=60, excluded_checks=[checks.positive_data_acceptance])

        holds()


def test_description_is_complete(small: Running) -> None:
    document = httpx2.get(f"{small.url}/openapi.json", timeout=60).json()
    request = document["components"]["schemas"]["ChatRequest"]
    assert request["additionalProperties"] is False and "seewhen" in request["properties"]
    assert "$defs" not in json.dumps(document)
    catalogue = httpx2.get(f"{small.url}/v1/methods", timeout=60).json()["data"]
    assert [method["id"] for method in catalogue] == list(seewhen.method_names())
    by_name = {method["id"]: method for method in catalogue}
    assert {name for name, method in by_name.items() if not method["usable"]} == {"vti", "ict"}
    assert by_name["vti"]["parameters"] and "directions" not in str(by_name["vti"]["parameters"])
    assert data_url(picture())[:22] == "data:image/png;base64,"
