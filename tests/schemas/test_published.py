from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from maximal_plan import INVENTORY, REPORT, maximal_plan

from bayplan.schemas.codec import encode_inventory, encode_plan, encode_report
from bayplan.schemas.errors import UsageError
from bayplan.schemas.published import SCHEMAS, schema_bytes

ROOT = Path(__file__).parents[2]
SAMPLES = {
    "plan": encode_plan(maximal_plan()),
    "inventory": encode_inventory(INVENTORY),
    "report": encode_report(REPORT),
}


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads(schema_bytes(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_committed_schema_is_that_of_the_struct(name: str) -> None:
    committed = (ROOT / "schemas" / f"{name}.schema.json").read_bytes()
    assert committed == schema_bytes(name), f"python -m bayplan schema {name} > schemas/{name}.schema.json"


def test_every_committed_schema_is_published() -> None:
    committed = {path.name for path in (ROOT / "schemas").glob("*.json")}
    assert committed == {f"{name}.schema.json" for name in SCHEMAS}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_that_uses_everything_is_valid(name: str) -> None:
    validator(name).validate(json.loads(SAMPLES[name]))


@pytest.mark.parametrize(
    "plan", sorted((ROOT / "tests" / "golden").rglob("plan_*.json")), ids=lambda path: path.stem
)
def test_golden_plans_are_valid(plan: Path) -> None:
    validator("plan").validate(json.loads(plan.read_bytes()))


@pytest.mark.parametrize(
    ("field", "value"),
    [("digest", "sha256:0"), ("semantics", -1), ("semantics", 1.5), ("complete", 1), ("blocks", {})],
)
def test_the_schema_refuses_what_the_codec_refuses(field: str, value: object) -> None:
    tree = json.loads(SAMPLES["plan"])
    tree[field] = value
    assert [list(error.absolute_path) for error in validator("plan").iter_errors(tree)] == [[field]]


def test_unknown_schema() -> None:
    with pytest.raises(UsageError) as caught:
        schema_bytes("graph")
    assert str(caught.value) == 'unknown schema: got "graph", needed one of plan, inventory, report'
