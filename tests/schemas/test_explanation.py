from __future__ import annotations

import json

from bayplan.schemas.explanation import (
    Alternative,
    Binding,
    BlockExplanation,
    DeviceExplanation,
    Explanation,
    encode_explanation,
)
from bayplan.schemas.types import Objective, Reason, Residency

DIGEST = f"sha256:{'0' * 64}"


def test_a_plan_s_explanation_as_json() -> None:
    device = DeviceExplanation(
        id="node0/gpu0",
        num_blocks=1,
        num_streamed=0,
        budget_bytes=2,
        needed_bytes=1,
        component="kv",
        component_bytes=1,
        compute_ns=5,
        transfer_ns=0,
        binding=Binding.HOST_MEMORY,
        gain_ns=None,
    )
    explanation = Explanation(
        plan_digest=DIGEST,
        objective=Objective.DECODE,
        planned_ns=5,
        again_ns=4,
        lower_bound_ns=3,
        devices=(device,),
        hosts=(),
        rates=(),
    )
    text = encode_explanation(explanation)
    assert text.endswith(b"}\n")
    assert json.loads(text) == {
        "plan_digest": DIGEST,
        "objective": "decode",
        "planned_ns": 5,
        "again_ns": 4,
        "lower_bound_ns": 3,
        "devices": [
            {
                "id": "node0/gpu0",
                "num_blocks": 1,
                "num_streamed": 0,
                "budget_bytes": 2,
                "needed_bytes": 1,
                "component": "kv",
                "component_bytes": 1,
                "compute_ns": 5,
                "transfer_ns": 0,
                "binding": "host-memory",
                "shared_with": [],
                "gain_ns": None,
            }
        ],
        "hosts": [],
        "rates": [],
    }


def test_a_block_s_explanation_as_json() -> None:
    explanation = BlockExplanation(
        plan_digest=DIGEST,
        objective=Objective.PREFILL,
        again_ns=4,
        id="layers.0",
        device="node0/cpu",
        residency=Residency.STREAM_DISK,
        format="bf16",
        num_bytes=7,
        reason=Reason.CAPACITY,
        alternatives=(Alternative(aspect="format", choice="nf4", cost_ns=None, why_not="nothing fits then"),),
    )
    tree = json.loads(encode_explanation(explanation))
    assert tree["reason"] == "capacity"
    assert tree["alternatives"] == [
        {"aspect": "format", "choice": "nf4", "cost_ns": None, "why_not": "nothing fits then"}
    ]
