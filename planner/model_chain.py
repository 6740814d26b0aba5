"""From a model in its formats to the chain that the solver places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.block_forms import block_forms
from bayplan.planner.solve.chain import Chain, chain_from_graph
from bayplan.schemas.types import Backend

if TYPE_CHECKING:
    from bayplan.planner.formats import PlannedForms
    from bayplan.planner.model.facts import ReadModel
    from bayplan.schemas.hardware import Inventory


def model_chain(read: ReadModel, forms: PlannedForms, inventory: Inventory) -> Chain:
    """Return the chain of a model that was read, each block in all the formats that it may be in.

    Args:
        read: The model.
        forms: What it is in the formats that are asked for.
        inventory: Where it is to be placed. Without an accelerator `generate()` copies no experts.
    """
    every = block_forms(forms, read.workload)
    if all(device.backend is Backend.CPU for device in inventory.devices):
        every = tuple(tuple(msgspec.structs.replace(form, copied_bytes=0) for form in own) for own in every)
    return chain_from_graph(
        forms.choices[0].graph,
        every,
        {name: form.kind for name, form in forms.formats.items()},
        read.workload,
        scratch_bytes=read.scratch_bytes,
    )
