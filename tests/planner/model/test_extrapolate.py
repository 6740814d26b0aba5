from __future__ import annotations

import pytest
from tiny_models import build, workload_for

from bayplan.planner.model import activity, trace
from bayplan.planner.model.activity import TraceTooLongError
from bayplan.planner.model.blocks import partition
from bayplan.planner.model.extrapolate import observe_extrapolated
from bayplan.planner.model.forwards import ForwardFigures, observe
from bayplan.planner.model.inputs import Attempt

PLAIN = Attempt(has_mask=False)
FIGURES = ("flops", "activation_bytes", "output_bytes", "handed_bytes", "outside_bytes", "num_calls")


def figures(of: ForwardFigures | None) -> dict[str, object]:
    assert of is not None
    return {name: getattr(of, name) for name in FIGURES}


@pytest.mark.parametrize("batch", [1, 2])
def test_a_loop_over_positions_is_a_straight_line(batch: int) -> None:
    model = build("mamba")
    workload = workload_for(model, 200, batch=batch)
    blocks = partition(model)
    measured = observe(model, blocks, workload, PLAIN)
    predicted = observe_extrapolated(model, blocks, workload, PLAIN)
    assert figures(predicted.prefill) == figures(measured.prefill)
    assert figures(predicted.decode) == figures(measured.decode)
    assert predicted.kv_bytes == measured.kv_bytes


def test_attention_is_bounded_from_below_only_in_its_products() -> None:
    """Products of all with all grow with the square: memory, which decides what fits, does not."""
    model = build("llama", max_position_embeddings=256)
    workload = workload_for(model, 200)
    blocks = partition(model)
    measured = observe(model, blocks, workload, PLAIN)
    predicted = observe_extrapolated(model, blocks, workload, PLAIN)
    assert predicted.kv_bytes == measured.kv_bytes
    assert predicted.prefill.activation_bytes == measured.prefill.activation_bytes
    assert predicted.prefill.outside_bytes == measured.prefill.outside_bytes


def test_a_long_forward_is_traced_from_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("mamba")
    workload = workload_for(model, 200)
    whole = trace.trace_model(model, workload)
    monkeypatch.setattr(activity, "MAX_OPERATIONS", 2500)
    assert trace.trace_model(model, workload) == whole


def test_forwards_too_long_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MAX_OPERATIONS", 100)
    model = build("mamba")
    graph = trace.trace_model(model, workload_for(model, 200))
    assert (graph.traced, graph.trace_note) == (
        False,
        "a forward takes more than 100 operations; the size of its cache is not known and counted as nothing",
    )


@pytest.mark.parametrize(("name", "context"), [("mamba", 64), ("gemma3", 100)])
def test_no_line_for_short_contexts_and_windows(name: str, context: int) -> None:
    model = build(name, **({"max_position_embeddings": 128} if name == "gemma3" else {}))
    with pytest.raises(TraceTooLongError) as caught:
        observe_extrapolated(model, partition(model), workload_for(model, context), PLAIN)
    assert str(caught.value) == "a forward takes too many operations to be traced"
