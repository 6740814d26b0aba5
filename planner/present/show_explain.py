"""Explanations on the terminal: what binds each device of a plan, or where else one of its blocks could be.

Owns layout and wording. Nothing is solved here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.text import Text

from bayplan.planner.present.plan_facts import Fact, short_digest
from bayplan.planner.present.plan_tables import COMPONENTS, Table
from bayplan.planner.present.reasons import REASON_TEXTS
from bayplan.planner.present.show import SplitTable, facts_grid
from bayplan.planner.present.wording import are_on_one_node, device_label, printable
from bayplan.schemas.explanation import (
    FASTER,
    MORE_BYTES,
    Binding,
    BlockExplanation,
    DeviceExplanation,
    Explanation,
)
from bayplan.schemas.sizes import format_duration_ns, format_size
from bayplan.schemas.types import Objective

BINDING_TEXTS: Mapping[Binding, str] = MappingProxyType(
    {
        Binding.MEMORY: "more memory there makes the plan better",
        Binding.HOST_MEMORY: "more memory of the host makes the plan better",
        Binding.PIN: "without the pins the plan is better",
        Binding.DISK: "weights take longer to come than to compute with, and the disk is the slowest part",
        Binding.LINK: "weights take longer to come than to compute with, and the link is the slowest part",
        Binding.COMPUTE: "computing takes the longest",
        Binding.NOTHING: "no block is there, and more memory would bring none",
    }
)
"""One clause for each binding, without a full stop."""

_WORDS = dict(COMPONENTS)
_TIMES = {
    Objective.LOAD: "load",
    Objective.THROUGHPUT: "time from one batch's step to the next one's",
}


def render_explanation(explanation: Explanation) -> RenderableType:
    """Return the picture of an explanation for a terminal."""
    bindings = {device.binding for device in explanation.devices}
    legend = [(one.value, BINDING_TEXTS[one]) for one in Binding if one in bindings]
    parts: list[RenderableType] = [
        facts_grid(_header(explanation)),
        Text(),
        SplitTable(device_explanations(explanation)),
        Text(),
        facts_grid(legend, style="dim"),
    ]
    others = _other_gains(explanation)
    if others:
        parts += [Text(), facts_grid(others)]
    return Group(*parts)


def render_block_explanation(explanation: BlockExplanation, *, single_node: bool) -> RenderableType:
    """Return the picture of a block's explanation for a terminal.

    Args:
        explanation: What to draw.
        single_node: Whether the plan has one node, which is not named then.
    """
    one = explanation
    facts: list[Fact] = [
        ("block", f"{printable(one.id)}, {format_size(one.num_bytes)} in {printable(one.format)}"),
        ("is", f"{one.residency.value} on {device_label(one.device, single_node=single_node)}"),
        ("because", REASON_TEXTS[one.reason]),
        ("objective", _objective(one.objective, one.again_ns)),
    ]
    rows = tuple(
        (
            other.aspect,
            device_label(other.choice, single_node=single_node)
            if other.aspect == "device"
            else printable(other.choice),
            f"not possible: {other.why_not}" if other.cost_ns is None else cost_text(other.cost_ns),
        )
        for other in one.alternatives
    )
    if not rows:
        return facts_grid([*facts, ("instead", "there is nothing else that it could be")])
    table = Table(("instead", "choice", "costs"), rows, frozenset())
    return Group(facts_grid(facts), Text(), SplitTable(table))


def cost_text(change_ns: int) -> str:
    """Return by how much something is slower or faster."""
    if not change_ns:
        return "nothing"
    return f"{format_duration_ns(abs(change_ns))} {'slower' if change_ns > 0 else 'faster'}"


def device_explanations(explanation: Explanation) -> Table:
    """Return one row for each device."""
    single_node = are_on_one_node(device.id for device in explanation.devices)
    header = (
        "device",
        "blocks",
        "streamed",
        "needs",
        "budget",
        "computes",
        "brings in",
        f"{format_size(MORE_BYTES)} more",
        "bound by",
    )
    rows = tuple(
        (
            device_label(device.id, single_node=single_node),
            str(device.num_blocks),
            str(device.num_streamed),
            format_size(device.needed_bytes),
            format_size(device.budget_bytes),
            _time_or_dash(device.compute_ns),
            _time_or_dash(device.transfer_ns),
            "not asked" if device.gain_ns is None else cost_text(-device.gain_ns),
            _binding_text(device, single_node=single_node),
        )
        for device in explanation.devices
    )
    return Table(header, rows, frozenset(range(1, len(header) - 1)))


def _binding_text(device: DeviceExplanation, *, single_node: bool) -> str:
    text = device.binding.value
    if device.binding is Binding.MEMORY and device.component:
        text += f", {_WORDS[device.component]} above all"
    if device.binding in (Binding.DISK, Binding.LINK) and device.shared_with:
        others = ", ".join(device_label(other, single_node=single_node) for other in device.shared_with)
        text += f", shared with {others}"
    return text


def _time_or_dash(duration_ns: int) -> str:
    return format_duration_ns(duration_ns) if duration_ns else "-"


def _objective(objective: Objective, value_ns: int) -> str:
    return f"{objective.value}, {_TIMES.get(objective, 'step')} {format_duration_ns(value_ns)}"


def _header(explanation: Explanation) -> tuple[Fact, ...]:
    again = explanation.again_ns
    facts = [
        ("plan", short_digest(explanation.plan_digest)),
        ("objective", _objective(explanation.objective, explanation.planned_ns)),
    ]
    if again != explanation.planned_ns:
        difference = cost_text(again - explanation.planned_ns)
        facts.append(
            (
                "solved again",
                f"{format_duration_ns(again)}, {difference}; what else is said is against that",
            )
        )
    return tuple(facts)


def _other_gains(explanation: Explanation) -> list[Fact]:
    hosts = [
        (
            f"{printable(host.id)} memory",
            f"{format_size(host.waiting_bytes)} wait, {format_size(host.budget_bytes)} budget; "
            f"{format_size(MORE_BYTES)} more: {cost_text(-host.gain_ns)}",
        )
        for host in explanation.hosts
    ]
    rates = [(rate.ways, f"{FASTER} times as fast: {cost_text(-rate.gain_ns)}") for rate in explanation.rates]
    return [*hosts, *rates]
