from __future__ import annotations

import pytest
from tiny_models import workload_for
from truth_models import build_meta

from bayplan.planner.model import activity, trace
from bayplan.planner.model.activity import TraceTooLongError
from bayplan.planner.model.blocks import partition
from bayplan.planner.model.extrapolate import observe_any_length, observe_extrapolated
from bayplan.planner.model.forwards import ForwardFigures, Observation, observe
from bayplan.planner.model.inputs import Attempt
from bayplan.schemas.plan import Workload

PLAIN = Attempt(has_mask=False)
FIGURES = (
    "flops",
    "operations",
    "activation_bytes",
    "output_bytes",
    "handed_bytes",
    "least_bytes",
    "num_calls",
    "expert_flops",
    "expert_bytes",
    "expert_routes",
)
TOO_LONG = "a forward takes too many operations to be traced"


def figures(of: ForwardFigures | None) -> dict[str, object]:
    assert of is not None
    return {name: getattr(of, name) for name in FIGURES}


def assert_same(predicted: Observation, measured: Observation) -> None:
    assert figures(predicted.prefill) == figures(measured.prefill)
    assert figures(predicted.decode) == figures(measured.decode)
    assert predicted.kv_bytes == measured.kv_bytes


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["falcon_mamba", "jamba", "mamba", "rwkv", "zamba"])
def test_a_loop_over_positions(name: str, batch: int) -> None:
    """With attention too, whose work grows with the square of the positions, and with a loop per head."""
    changes = {"max_position_embeddings": 256} if name in ("jamba", "zamba") else {}
    model = build_meta(name, **changes)
    workload = workload_for(model, 100, batch=batch)
    blocks = partition(model)
    predicted = observe_extrapolated(model, blocks, workload, PLAIN)
    assert_same(predicted, observe(model, blocks, workload, PLAIN))
    assert predicted.prefill.moments != ()


def test_a_step_that_completes_the_table_of_positions() -> None:
    model = build_meta("jamba", max_position_embeddings=90)
    workload, blocks = workload_for(model, 90), partition(model)
    predicted = observe_extrapolated(model, blocks, workload, PLAIN)
    assert_same(predicted, observe(model, blocks, workload, PLAIN))


@pytest.mark.parametrize("name", ["falcon_mamba", "jamba", "mamba", "zamba"])
def test_the_work_is_that_of_one_chunk(name: str) -> None:
    """But for the few positions that a convolution sees of the chunk before."""
    model = build_meta(name, **({"max_position_embeddings": 256} if name in ("jamba", "zamba") else {}))
    workload, blocks = workload_for(model, 100, chunk=25), partition(model)
    predicted = observe_extrapolated(model, blocks, workload, PLAIN).prefill
    measured = observe(model, blocks, workload, PLAIN).prefill
    assert predicted.output_bytes == measured.output_bytes
    assert predicted.handed_bytes == measured.handed_bytes
    assert predicted.expert_flops == measured.expert_flops
    assert predicted.expert_bytes == measured.expert_bytes
    assert predicted.flops.keys() == measured.flops.keys()
    for index, flops in measured.flops.items():
        assert 0.99 * flops <= predicted.flops[index] <= flops
        assert predicted.operations[index] == pytest.approx(measured.operations[index], rel=0.15)
        assert predicted.activation_bytes[index] >= measured.activation_bytes[index]


@pytest.mark.parametrize("name", ["minimax", "qwen3_next"])
def test_a_loop_over_chunks(name: str) -> None:
    """A chunk is 64 positions in one and 8 in the other; the context ends inside one."""
    model = build_meta(name, max_position_embeddings=512)
    workload = workload_for(model, 330)
    blocks = partition(model)
    predicted = observe_extrapolated(model, blocks, workload, PLAIN)
    assert_same(predicted, observe(model, blocks, workload, PLAIN))


def test_a_long_forward_is_traced_from_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_meta("mamba")
    workload = workload_for(model, 200)
    whole = trace.trace_model(model, workload)
    monkeypatch.setattr(activity, "MAX_OPERATIONS", 2000)
    assert trace.trace_model(model, workload) == whole


def test_one_call_of_many_operations_is_enough_to_try_short_ones() -> None:
    model = build_meta("mamba")
    workload = workload_for(model, 300)
    blocks = partition(model)
    with pytest.raises(TraceTooLongError):
        observe(model, blocks, workload, PLAIN, max_call_operations=2_500)
    measured = observe(model, blocks, workload, PLAIN)
    predicted = observe_any_length(model, blocks, workload, PLAIN)
    assert_same(predicted, measured)
    assert len(predicted.prefill.moments) < len(measured.prefill.moments) // 10


def test_many_operations_that_are_no_loop_are_traced_in_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.planner.model.extrapolate._MAX_HASTY_OPERATIONS", 10)
    model = build_meta("llama")
    workload, blocks = workload_for(model, 40), partition(model)
    assert observe_any_length(model, blocks, workload, PLAIN) == observe(model, blocks, workload, PLAIN)


def test_forwards_too_long_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MAX_OPERATIONS", 100)
    model = build_meta("mamba")
    graph = trace.trace_model(model, workload_for(model, 200))
    assert (graph.traced, graph.trace_note) == (
        False,
        "a forward takes more than 100 operations; the size of its cache is not known and counted as nothing",
    )


def refusal(name: str, context: int, **changes: object) -> str:
    model = build_meta(name, **changes)
    workload: Workload = workload_for(model, context)
    with pytest.raises(TraceTooLongError) as caught:
        observe_extrapolated(model, partition(model), workload, PLAIN)
    return str(caught.value)


def test_no_curve_beyond_a_window() -> None:
    assert refusal("gemma3", 60) == f"{TOO_LONG}, and its cache has a window"
    assert refusal("recurrent_gemma", 60) == f"{TOO_LONG}, and its cache has a window"


def test_no_curve_without_a_loop_or_above_a_short_context() -> None:
    assert refusal("llama", 60) == f"{TOO_LONG}, and no loop over positions is seen"
    assert refusal("mamba", 7) == f"{TOO_LONG}, and no loop over positions is seen"
