"""From a model in its formats to the chain that the solver places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayplan.planner.block_forms import block_forms
from bayplan.planner.solve.chain import Chain, chain_from_graph

if TYPE_CHECKING:
    from bayplan.planner.formats import PlannedForms
    from bayplan.planner.model.facts import ReadModel


def model_chain(read: ReadModel, forms: PlannedForms) -> Chain:
    """Return the chain of a model that was read, each block in all the formats that it may be in."""
    return chain_from_graph(
        forms.choices[0].graph,
        block_forms(forms, read.workload),
        {name: form.kind for name, form in forms.formats.items()},
        read.workload,
        scratch_bytes=read.scratch_bytes,
    )
