"""openapi/examples: one real call per operation, made again here, so that no example can rot."""

import httpx
import pytest

from tests.contract.arrangements import ARRANGED, EXAMPLES, example, with_real_names
from tests.contract.conftest import Served
from tests.contract.document import operation, operations

NOT_READY = "get_readiness.503"  # needs a broker that is not well: tests/contract/test_operations.py


def shape(value: object) -> object:
    """Keys and JSON types. Items of a list have one shape each; how many there are does not matter."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        shapes = [shape(item) for item in value]
        return [item for index, item in enumerate(shapes) if item not in shapes[:index]]
    return "number" if type(value) in (int, float) else type(value).__name__


def test_every_operation_has_an_example_and_every_example_an_operation() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.json")} == {*ARRANGED, NOT_READY}
    assert {name.split(".")[0] for name in ARRANGED} == {found.name for found in operations()}


@pytest.mark.parametrize("name", ARRANGED)
def test_an_example_is_answered_as_it_says(name: str, serving: Served) -> None:
    api = serving(name)
    sent, answer = example(name)["request"], example(name)["answer"]
    real = with_real_names(sent, ARRANGED[name](api))
    response = api.http.request(sent["method"], real["path"], json=real.get("body"), headers=real.get("headers"))
    assert response.status_code == answer["status"], response.text
    if "json" in response.headers["content-type"]:
        assert shape(response.json()) == shape(answer["body"])
    else:
        assert set(answer["body"].splitlines()[:2]) <= set(response.text.splitlines())


@pytest.mark.parametrize("name", ARRANGED)
def test_an_example_is_of_its_operation(name: str) -> None:
    sent, found = example(name)["request"], operation(name.split(".")[0])
    assert sent["method"] == found.method
    path = httpx.URL(sent["path"]).path.split("/")
    assert all(step.startswith("{") or step == params for params, step in zip(path, found.path.split("/"), strict=True))
    assert ("body" in sent) == (found.takes is not None)
