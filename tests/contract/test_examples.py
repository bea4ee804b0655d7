"""openapi/examples: each example is one real call, repeated here so that it stays correct."""

import httpx
import pytest

from tests.contract.conftest import ApiFor
from tests.contract.document import operation, operations
from tests.contract.example_setup import EXAMPLES, SETUPS, example, with_real_ids
from tests.table import table

NOT_READY = "get_readiness.503"  # needs a broker that is not ready: tests/contract/test_operator_endpoints.py


def shape(value: object) -> object:
    """Keys and JSON types. Items of a list have one shape each; their number does not matter."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        shapes = [shape(item) for item in value]
        return [item for index, item in enumerate(shapes) if item not in shapes[:index]]
    return "number" if type(value) in (int, float) else type(value).__name__


def test_every_operation_has_an_example_and_every_example_an_operation() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.json")} == {*SETUPS, NOT_READY}
    assert {name.split(".")[0] for name in SETUPS} == {found.name for found in operations()}


@pytest.mark.parametrize("name", SETUPS)
def test_example_request_returns_the_documented_response(name: str, api_for: ApiFor) -> None:
    api = api_for(name)
    sent, expected = example(name)["request"], example(name)["answer"]
    real = with_real_ids(sent, SETUPS[name](api))
    response = api.http.request(sent["method"], real["path"], json=real.get("body"), headers=real.get("headers"))
    assert response.status_code == expected["status"], response.text
    assert response.text.endswith("\n"), "curl would print the shell's prompt on the last line"
    if "json" in response.headers["content-type"]:
        assert shape(response.json()) == shape(expected["body"])
    else:
        assert set(expected["body"].splitlines()[:2]) <= set(response.text.splitlines())


@table("name", SETUPS)
def test_example_has_the_method_and_path_of_its_operation(name: str) -> None:
    sent, found = example(name)["request"], operation(name.split(".")[0])
    assert sent["method"] == found.method
    path = httpx.URL(sent["path"]).path.split("/")
    assert all(step.startswith("{") or step == params for params, step in zip(path, found.path.split("/"), strict=True))
    assert ("body" in sent) == (found.request_schema is not None)
