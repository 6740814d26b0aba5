"""What of a model the solver sees depends on the machine in one thing: whether steps copy experts."""

from __future__ import annotations

import msgspec
import pytest
from form_graphs import block, graph, linear, read_model
from placement_problems import make_device, make_inventory

from bayplan.planner.format_choice import parse_request
from bayplan.planner.formats import planned_forms
from bayplan.planner.model_chain import model_chain


@pytest.mark.parametrize(
    ("devices", "copied_bytes"),
    [(("cpu0",), 0), (("cpu0", "cpu1"), 0), (("gpu0",), 700), (("gpu0", "cpu1"), 700)],
)
def test_experts_are_copied_where_the_machine_has_an_accelerator(
    devices: tuple[str, ...], copied_bytes: int
) -> None:
    """Even those that the CPU beside it computes: the first parameter's device decides for all."""
    plain = block("h.0", linear("h.0.weight", 8, 8))
    read = read_model(graph(msgspec.structs.replace(plain, copied_bytes=700)))
    inventory = make_inventory([make_device(name) for name in devices])
    chain = model_chain(read, planned_forms(read, parse_request("bf16,nf4")), inventory)
    assert [form.copied_bytes for form in chain.costs[0].forms] == [copied_bytes] * 2
