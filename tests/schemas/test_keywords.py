from pathlib import Path

import pytest
from sample_plans import smol_plan

from bayplan.planner.estimate.options import EstimateOptions
from bayplan.planner.options import PlanOptions
from bayplan.schemas.errors import UsageError
from bayplan.schemas.keywords import from_keywords
from bayplan.schemas.types import Objective


def test_values_as_a_caller_writes_them() -> None:
    inventory = smol_plan().inventory
    given = {
        "inventory": inventory,
        "max_memory": ["cpu=1GiB"],
        "objective": "decode",
        "checkpoint": Path("weights"),
        "context": None,
    }
    found = from_keywords(PlanOptions, given)
    assert found == PlanOptions(
        inventory=inventory,
        max_memory=("cpu=1GiB",),
        objective=Objective.DECODE,
        checkpoint="weights",
    )


def test_a_keyword_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="'maxmemory'"):
        from_keywords(PlanOptions, {"maxmemory": ("cpu=1GiB",)})


@pytest.mark.parametrize("name", ["max_memory", "pins", "no_split"])
def test_text_where_several_are_expected(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_keywords(PlanOptions, {name: "a"})
    assert str(caught.value) == f"{name}: text where several are expected: got 'a', needed a tuple"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batch": 2.5}, "batch: a value of another type: got 2.5, needed int"),
        ({"batch": True}, "batch: a value of another type: got True, needed int"),
        ({"lora": 16}, "lora: a value of another type: got 16, needed str | None"),
        ({"dtypes": ("bf16", 8)}, "dtypes: a value of another type: got ('bf16', 8), needed tuple[str, ...]"),
        (
            {"fits": "server.json"},
            "fits: a value of another type: got 'server.json', "
            "needed bayplan.schemas.hardware.Inventory | None\n"
            "hint: bayplan.schemas.codec.read_inventory(path) reads one",
        ),
    ],
)
def test_a_value_of_another_type(given: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_keywords(EstimateOptions, given)
    assert str(caught.value) == text
