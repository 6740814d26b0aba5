"""What a plan may say that this version's executor does not run yet: one list, which ends empty.

The planner uses such a feature only for a declared inventory and then writes `applyable: false`; the
executor refuses the plan as *unsupported* and names the feature.
"""

from __future__ import annotations

import enum
from typing import get_args

from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Plan
from bayplan.schemas.types import Backend, FloatFormat, Residency


class Feature(enum.StrEnum):
    """Something that a plan may use and an executor may lack."""

    ACCELERATOR = "blocks on an accelerator"
    STREAM_HOST = "streaming from host memory"
    SEVERAL_DEVICES = "blocks on more than one device"
    SEVERAL_NODES = "blocks on more than one node"
    SPLIT_EXPERTS = "experts apart from their block"
    ANY_MODULE = "models of other libraries than transformers"
    CONVERSIONS = "checkpoint tensors that are more than renamed"
    QUANTIZED = "quantized formats"
    PREQUANTIZED = "checkpoints that are quantized already"


NOT_YET_RUN: frozenset[Feature] = frozenset(Feature)
"""Features that this version plans but does not run."""


def features_used(plan: Plan) -> tuple[Feature, ...]:
    """Return the features that `plan` needs of an executor, in the order of the enumeration."""
    devices = {block.device for block in plan.blocks}
    backends = {device.backend for device in plan.devices if device.id in devices}
    experts = [block.experts for block in plan.blocks if block.experts is not None]
    used = {
        Feature.ACCELERATOR: any(backend != Backend.CPU for backend in backends),
        Feature.STREAM_HOST: any(block.residency == Residency.STREAM_HOST for block in plan.blocks),
        Feature.SEVERAL_DEVICES: len(devices) > 1,
        Feature.SEVERAL_NODES: len({device.partition("/")[0] for device in devices}) > 1,
        Feature.SPLIT_EXPERTS: any(part.residency != "with-block" for part in experts),
        Feature.ANY_MODULE: plan.model.library != "transformers",
        Feature.CONVERSIONS: any(
            operation.kind != "rename" for rule in plan.rules for operation in rule.operations
        ),
        Feature.QUANTIZED: bool(quantized_formats(plan)),
        Feature.PREQUANTIZED: plan.model.quantization is not None,
    }
    return tuple(feature for feature in Feature if used[feature])


def quantized_formats(plan: Plan) -> tuple[str, ...]:
    """Return the quantized formats that something in `plan` has; others were only to choose from."""
    used = formats_used(plan)
    return tuple(
        name
        for name, entry in plan.formats.items()
        if name in used and entry.kind not in get_args(FloatFormat)
    )


def formats_used(plan: Plan) -> frozenset[str]:
    """Return the formats that blocks, experts and single tensors of `plan` have, by name."""
    experts = (block.experts for block in plan.blocks if block.experts is not None)
    return frozenset(
        (
            *(block.format for block in plan.blocks),
            *(part.format for part in experts),
            *(rule.format for rule in plan.format_rules),
        )
    )


def not_yet_run(plan: Plan) -> tuple[Feature, ...]:
    """Return the features of `plan` that this version does not run."""
    return tuple(feature for feature in features_used(plan) if feature in NOT_YET_RUN)


def may_plan(feature: Feature, inventory: Inventory) -> bool:
    """Return whether the planner itself may choose `feature` in a plan for `inventory`.

    What this version does not run is planned for declared machines only.
    """
    return inventory.source == "declared" or feature not in NOT_YET_RUN
