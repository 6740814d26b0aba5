from __future__ import annotations

import json

import msgspec
import pytest
from rich.console import Console

from bayplan.planner.present.show_pareto import frontier_table, render_frontier
from bayplan.schemas.frontier import (
    Frontier,
    FrontierPoint,
    LeftOut,
    PointRequest,
    Without,
    encode_frontier,
)
from bayplan.schemas.plan import Summary
from bayplan.schemas.types import BoundClass, Objective, SolverStatus

MIB = 2**20


def summary(streamed_bytes: int, gap_ppm: int) -> Summary:
    return Summary(
        objective=Objective.DECODE,
        resident_blocks=10,
        streamed_blocks=2,
        resident_bytes=100,
        streamed_bytes_per_step=streamed_bytes,
        predicted_load_ns=1,
        predicted_first_output_ns=2,
        predicted_decode_ns=3,
        predicted_step_ns=4,
        lower_bound_ns=4,
        bound_class=BoundClass.CONTIGUOUS,
        gap_ppm=gap_ppm,
        solver_status=SolverStatus.OPTIMAL,
        reproducible=True,
    )


def point(name: str, context: int, **fields: object) -> FrontierPoint:
    own = FrontierPoint(
        request=PointRequest(format=name, context=context),
        latency_ns=12_500_000,
        quantized_ppm=0,
        four_bit_ppm=0,
        applyable=True,
        digest=f"sha256:{'1' * 64}",
        file=None,
        summary=summary(3 * MIB, 1_200),
    )
    return msgspec.structs.replace(own, **fields)


OWN = point("own", 1024)
MIXED = point(
    "auto",
    2048,
    quantized_ppm=471_000,
    four_bit_ppm=100_000,
    applyable=False,
    file="auto-2048.json",
    summary=summary(0, 0),
)
LEFT_OUT = (
    LeftOut(request=PointRequest(format="nf4", context=1024), why=Without.DOMINATED),
    LeftOut(request=PointRequest(format="own", context=2048), why=Without.INFEASIBLE),
    LeftOut(request=PointRequest(format="int8", context=2048), why=Without.DOMINATED),
)
FRONTIER = Frontier(class_name="LlamaForCausalLM", points=(OWN, MIXED), left_out=LEFT_OUT)


def picture(frontier: Frontier) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render_frontier(frontier))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_each_plan_is_a_row_and_the_rest_a_line() -> None:
    assert picture(FRONTIER) == (
        "context  format  quantized  to 4 bits  latency  streamed    gap  file\n"
        "   1024  own             -          -  12.5 ms  3.00 MiB  0.1 %  -\n"
        "   2048  auto *     47.1 %     10.0 %  12.5 ms         -  0.0 %  auto-2048.json\n"
        "\n"
        "model      LlamaForCausalLM\n"
        "plans      2 plans, none better than another in everything\n"
        "left out   2 dominated, 1 infeasible\n"
        "*          cannot be carried out by this version"
    )


def test_without_files_there_is_no_column_for_them() -> None:
    table = frontier_table(msgspec.structs.replace(FRONTIER, points=(OWN,)))
    assert table.header == ("context", "format", "quantized", "to 4 bits", "latency", "streamed", "gap")
    assert [len(row) for row in table.rows] == [7]


@pytest.mark.parametrize(
    ("applyable", "note"),
    [(True, None), (False, "note       none can be carried out by this version, or before it is bound")],
)
def test_plans_that_are_alike_are_not_marked(applyable: bool, note: str | None) -> None:
    points = tuple(msgspec.structs.replace(own, applyable=applyable) for own in (OWN, MIXED))
    text = picture(msgspec.structs.replace(FRONTIER, points=points, left_out=()))
    assert "*" not in text
    assert "left out" not in text
    assert ("note" in text) == (note is not None)
    assert note is None or note in text


def test_json_has_every_point_with_its_summary() -> None:
    tree = json.loads(encode_frontier(FRONTIER))
    assert list(tree) == ["class_name", "points", "left_out"]
    assert tree["points"][1] == {
        "request": {"format": "auto", "context": 2048},
        "latency_ns": 12_500_000,
        "quantized_ppm": 471_000,
        "four_bit_ppm": 100_000,
        "applyable": False,
        "digest": f"sha256:{'1' * 64}",
        "file": "auto-2048.json",
        "summary": json.loads(msgspec.json.encode(summary(0, 0))),
    }
    assert tree["left_out"][0] == {"request": {"format": "nf4", "context": 1024}, "why": "dominated"}
