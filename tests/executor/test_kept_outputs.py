from __future__ import annotations

from typing import Any

import pytest
import torch
from meta_models import on_meta

from bayplan.executor.errors import KeptOutputsError
from bayplan.executor.kept_outputs import KeptOutputs
from bayplan.schemas.plan import Workload

KIB = 1024
WORKLOAD = Workload(batch=2, context=64, encoder_context=None, prefill_chunk=64, kv_dtype="fp32")
LABELS = torch.zeros(2, 16, dtype=torch.int64)


def kept_bytes(
    name: str, inputs: dict[str, Any], *, num_cached: int = 0, num_encoder: int = 0, **changes: Any
) -> dict[str, int]:
    """Return what two sequences of 16 positions keep, by asking with no room at all."""
    workload = Workload(**{field: getattr(WORKLOAD, field) for field in WORKLOAD.__struct_fields__} | changes)
    kept = KeptOutputs(on_meta(name), workload, room_bytes=-1)
    try:
        kept.check(inputs, batch=2, num_new=16, num_cached=num_cached, num_encoder=num_encoder)
    except KeptOutputsError as error:
        return error.kept_bytes
    raise AssertionError("less than no room is never enough")


ALL_LOGITS = 2 * 16 * 96 * 4
HIDDEN_STATES = (3 + 1) * 2 * 16 * 32 * 4


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("llama", {}, {"logits": ALL_LOGITS}),
        ("llama", {"logits_to_keep": 0}, {"logits": ALL_LOGITS}),
        ("llama", {"logits_to_keep": 99}, {"logits": ALL_LOGITS}),
        ("llama", {"logits_to_keep": 1}, {}),
        ("llama", {"logits_to_keep": 4}, {"logits": ALL_LOGITS // 4}),
        ("llama", {"logits_to_keep": torch.arange(8)}, {"logits": ALL_LOGITS // 2}),
        ("llama", {"logits_to_keep": 1, "output_hidden_states": True}, {"hidden states": HIDDEN_STATES}),
        ("gpt2", {"logits_to_keep": 1, "output_hidden_states": True}, {"hidden states": HIDDEN_STATES}),
        (
            "llama",
            {"logits_to_keep": 1, "output_attentions": True},
            {"attention weights": 3 * 2 * 4 * 16 * 16 * 4},
        ),
        ("llama", {"logits_to_keep": 1, "labels": LABELS}, {"the loss": 2 * ALL_LOGITS}),
        # Their forwards cannot keep less, so the plan counts it.
        ("t5", {}, {}),
        ("bert", {}, {}),
        ("vit", {}, {}),
    ],
)
def test_bytes_that_a_forward_keeps(name: str, inputs: dict[str, Any], expected: dict[str, int]) -> None:
    assert kept_bytes(name, inputs) == expected


def test_cached_and_encoded_positions_are_attended_to() -> None:
    one = {"logits_to_keep": 1, "output_attentions": True}
    assert kept_bytes("llama", one, num_cached=10)["attention weights"] == 3 * 2 * 4 * 16 * 26 * 4
    found = kept_bytes("bart", one, num_encoder=20)["attention weights"]
    assert found == 2 * 2 * 4 * (16 * 36 + 20 * 20) * 4
    found = kept_bytes("bart", {"output_hidden_states": True}, num_encoder=20)["hidden states"]
    assert found == 2 * (2 + 1) * (16 + 20) * 32 * 4


def test_plan_for_all_logits_counts_them() -> None:
    assert kept_bytes("llama", {}, logits="all") == {}


def test_config_may_ask_for_more() -> None:
    model = on_meta("llama", output_hidden_states=True)
    kept = KeptOutputs(model, WORKLOAD, room_bytes=HIDDEN_STATES - 1)
    sizes = {"batch": 2, "num_new": 16, "num_cached": 0, "num_encoder": 0}
    with pytest.raises(KeptOutputsError):
        kept.check({"logits_to_keep": 1}, **sizes)
    kept.check({"logits_to_keep": 1, "output_hidden_states": False}, **sizes)


def test_only_more_than_planned_is_refused() -> None:
    inputs = {"output_hidden_states": True, "labels": LABELS}
    sizes = {"batch": 2, "num_new": 16, "num_cached": 0, "num_encoder": 0}
    total = 3 * ALL_LOGITS + HIDDEN_STATES
    KeptOutputs(on_meta("llama"), WORKLOAD, room_bytes=total).check(inputs, **sizes)
    with pytest.raises(KeptOutputsError) as raised:
        KeptOutputs(on_meta("llama"), WORKLOAD, room_bytes=total - 1).check(inputs, **sizes)
    assert str(raised.value) == (
        "the outputs of this forward take more memory than the budget leaves for activations: "
        "got 12.00 KiB of logits, 24.00 KiB of the loss, 16.00 KiB of hidden states, "
        "needed at most 52.00 KiB\n"
        "hint: pass logits_to_keep=1 and leave out labels and leave out output_hidden_states"
    )
    assert raised.value.room_bytes == total - 1
