"""The smallest budget with which one device holds and runs a whole chain, in closed form.

Every block in its first form. What several devices need together is for the solver to say.
"""

from __future__ import annotations

from bayplan.planner.solve.chain import Chain, peak_bytes
from bayplan.planner.solve.constraints import Constraints
from bayplan.schemas.types import Residency


def least_budget_bytes(chain: Chain, constraints: Constraints, *, can_stream: bool) -> int:
    """Return the smallest budget for the whole chain on one device, in bytes.

    Args:
        chain: The blocks.
        constraints: Which of them must stay.
        can_stream: Whether anything can bring weights to the device; then one slot is enough.
    """
    forms = [cost.forms[0] for cost in chain.costs]
    always = (
        sum(form.buffer_bytes + cost.kv_bytes for form, cost in zip(forms, chain.costs, strict=True))
        + chain.activation_bytes(
            max(peak_bytes(cost, form) for form, cost in zip(forms, chain.costs, strict=True))
        )
        + chain.scratch_bytes
    )
    sizes = [form.parameter_bytes for form in forms]
    if not can_stream:
        return always + sum(sizes)
    residencies = [constraints.residencies(chain, index) for index in range(len(chain))]
    fixed = sum(s for s, own in zip(sizes, residencies, strict=True) if own == (Residency.RESIDENT,))
    must = [s for s, own in zip(sizes, residencies, strict=True) if Residency.RESIDENT not in own]
    free = [
        s for s, own in zip(sizes, residencies, strict=True) if Residency.RESIDENT in own and len(own) > 1
    ]
    # Through one slot; 0 where nothing needs to stream, since then nothing has to be larger than the slot.
    return (
        always
        + fixed
        + min(
            slot + sum(size for size in free if size > slot)
            for slot in {0, *free, *must}
            if slot >= max(must, default=0)
        )
    )
