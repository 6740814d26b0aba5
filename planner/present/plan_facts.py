"""The single facts of a plan, in words: what it is for, what it predicts, and what it takes for granted.

Owns the wording of each line beside the tables. Knows nothing of terminals or markdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from bayplan.planner.present.fold import fold_ids
from bayplan.planner.present.reasons import REASON_TEXTS
from bayplan.planner.present.wording import (
    count_text,
    device_label,
    has_single_node,
    millions_text,
    printable,
    rate_text,
    share_text,
)
from bayplan.schemas.hardware import Device, FormatRates, Inventory
from bayplan.schemas.plan import Plan
from bayplan.schemas.problem import Pin
from bayplan.schemas.sizes import format_duration_ns, format_size
from bayplan.schemas.types import Reason, SolverStatus

DIGEST_CHARS = 12
"""Hex digits of a digest that people see; the whole is in the file."""

Fact = tuple[str, str]
"""A word and what there is to say under it."""

_MAX_TIES = 2
_RATES = {
    "probed": "rates of the catalogue, not measured",
    "declared": "rates of the catalogue, not measured",
    "calibrated": "rates measured by `bayplan inventory --calibrate`",
}
_STATUS = {
    SolverStatus.OPTIMAL: "search complete",
    SolverStatus.WORK_LIMIT: "search ended by its work limit",
    SolverStatus.TIME_LIMIT: "search ended by the clock",
}


def short_digest(digest: str) -> str:
    """Return `sha256:` and the first digits of a digest."""
    algorithm, _, digits = digest.partition(":")
    return f"{algorithm}:{digits[:DIGEST_CHARS]}"


def rates_source(inventory: Inventory) -> str:
    """Return where the rates of an inventory are from."""
    return _RATES.get(inventory.source, "rates of unknown origin")


def header_facts(plan: Plan) -> tuple[Fact, ...]:
    """Return what the plan is for and which plan it is."""
    model = plan.model
    source = "a local folder" if model.source is None else printable(model.source)
    if model.revision is not None:
        source += f" at {printable(model.revision[:DIGEST_CHARS])}"
    if model.checkpoint is not None:
        num_bytes = sum(shard.num_bytes for shard in model.checkpoint.shards)
        source += f", {count_text(len(model.checkpoint.shards), 'shard')} of {format_size(num_bytes)} in all"
    formats = ", ".join(
        printable(name) if name == entry.kind else f"{printable(name)} ({entry.kind})"
        for name, entry in plan.formats.items()
    )
    return (
        (
            "model",
            f"{printable(model.class_name)}, {millions_text(model.num_params)} parameters, "
            f"{count_text(len(plan.blocks), 'block')}, {formats}",
        ),
        ("source", source),
        (
            "plan",
            f"{short_digest(plan.digest)}, format {plan.format_version}, "
            f"written by {printable(plan.producer)}",
        ),
    )


def prediction_facts(plan: Plan) -> tuple[Fact, ...]:
    """Return streaming, predicted times and the bound that they are measured against."""
    return (*_streaming(plan), ("predicted", _predicted(plan)), ("bound", _bound(plan)), *_moved(plan))


def assumption_facts(plan: Plan) -> tuple[Fact, ...]:
    """Return what the prediction takes for granted: workload, demands, and where the rates are from."""
    workload = plan.workload
    encoder = "" if workload.encoder_context is None else f", encoder context {workload.encoder_context}"
    assumed = f"batch {workload.batch}, context {workload.context}{encoder}"
    if any(block.kv_bytes for block in plan.blocks):  # else it generates nothing, and runs in one go
        logits = "the last position" if workload.logits == "last" else "all positions"
        assumed += (
            f", prefill in chunks of {workload.prefill_chunk}, kv in {printable(workload.kv_dtype)}, "
            f"logits of {logits}"
        )
    return (
        ("assumes", assumed),
        ("asked for", _demands(plan)),
        *_ties(plan),
        ("rates", _rates(plan)),
        ("devices", _capacities(plan)),
    )


def reason_facts(plan: Plan) -> tuple[Fact, ...]:
    """Return the text of every reason that some block gives, in the order of the closed list."""
    used = {block.reason for block in plan.blocks}
    return tuple((reason.value, REASON_TEXTS[reason]) for reason in Reason if reason in used)


def _streaming(plan: Plan) -> Iterator[Fact]:
    single_node = has_single_node([plan])
    for entry in plan.schedule:
        if entry.stream_order:
            yield (
                "streaming",
                f"{device_label(entry.device, single_node=single_node)}: "
                f"{count_text(len(entry.stream_order), 'block')} in turn through "
                f"{count_text(entry.num_slots, 'slot')} of {format_size(entry.slot_bytes)}",
            )


def _predicted(plan: Plan) -> str:
    summary = plan.summary
    text = (
        f"load {format_duration_ns(summary.predicted_load_ns)}, "
        f"first output {format_duration_ns(summary.predicted_first_output_ns)}, "
        f"step {format_duration_ns(summary.predicted_step_ns)}"
    )
    if summary.predicted_decode_ns is not None and summary.predicted_decode_ns != summary.predicted_step_ns:
        text += f", generation step {format_duration_ns(summary.predicted_decode_ns)}"
    if summary.streamed_bytes_per_step:
        text += f", {format_size(summary.streamed_bytes_per_step)} streamed per step"
    return text


def _bound(plan: Plan) -> str:
    summary = plan.summary
    return (
        f"no {summary.bound_class} plan has a step under {format_duration_ns(summary.lower_bound_ns)}; "
        f"gap {share_text(summary.gap_ppm)}, {_STATUS[summary.solver_status]}"
    )


def _moved(plan: Plan) -> Iterator[Fact]:
    moved_bytes = plan.summary.moved_bytes
    if moved_bytes is not None:
        yield "moved", f"{format_size(moved_bytes)} against the plan before it"


def _demands(plan: Plan) -> str:
    problem = plan.problem
    single_node = has_single_node([plan])
    demands = [f"fastest {problem.objective}"]
    demands += [
        f"at most {format_size(num_bytes)} on {device_label(device, single_node=single_node)}"
        for device, num_bytes in problem.max_memory_bytes.items()
    ]
    demands += ["no streaming"] if problem.no_spill else []
    demands += _pin_texts(problem.pins, single_node)
    demands += [f"{printable(name)} undivided" for name in problem.no_split]
    return ", ".join(demands)


def _pin_texts(pins: Sequence[Pin], single_node: bool) -> list[str]:
    """Return the pins; those that differ in one number only are one: a device map has one for each layer."""
    texts = [_pin_text(pin, single_node) for pin in pins]
    patterns = [pin.pattern for pin in pins]
    if len(set(patterns)) < len(patterns):
        return [f"pin {printable(pattern)}{text}" for pattern, text in zip(patterns, texts, strict=True)]
    said = dict(zip(patterns, texts, strict=True))
    return [f"pin {printable(fold.label)}{said[fold.ids[0]]}" for fold in fold_ids(patterns, texts)]


def _pin_text(pin: Pin, single_node: bool) -> str:
    text = ""
    if pin.device is not None:
        text += f" on {device_label(pin.device, single_node=single_node)}"
    if pin.residency is not None:
        text += f" {pin.residency}"
    if pin.format is not None:
        text += f" in {printable(pin.format)}"
    return text


def _ties(plan: Plan) -> Iterator[Fact]:
    if plan.ties:
        shown = [
            f"{' = '.join(printable(fqn) for fqn in tie.fqns)} ({tie.policy})"
            for tie in plan.ties[:_MAX_TIES]
        ]
        if len(plan.ties) > _MAX_TIES:
            shown.append(f"{len(plan.ties) - _MAX_TIES} more")
        yield "tied", "; ".join(shown)


def _rates(plan: Plan) -> str:
    """Return where the rates are from and what they are."""
    inventory = plan.inventory
    used = {device.id for device in plan.devices}
    kinds = {plan.formats[block.format].kind for block in plan.blocks}
    texts = {device.id: _device_rates(device, kinds) for device in inventory.devices if device.id in used}
    disks = sorted({node.disk.read_bytes_per_second for node in inventory.nodes if node.disk is not None})
    clauses = [*_alike(plan, texts), *(f"disk {rate_text(rate, 'B/s')}" for rate in disks)]
    return "; ".join((rates_source(inventory), *clauses))


def _device_rates(device: Device, kinds: Set[str]) -> str:
    """Return the device's rates, or those that it was measured with for the kinds of format of the plan."""
    measured = [rates for rates in device.format_rates if rates.kind in kinds]
    texts = [f"{rates.kind} {_rates_text(rates)}" for rates in measured] or [_rates_text(device)]
    if device.operation_overhead_ns:
        texts.append(f"{format_duration_ns(device.operation_overhead_ns)} an operation")
    return ", ".join(texts)


def _rates_text(rates: Device | FormatRates) -> str:
    text = f"{rate_text(rates.memory_bytes_per_second, 'B/s')}, {rate_text(rates.flops_per_second, 'FLOP/s')}"
    overhead_ns = rates.block_overhead_ns
    return f"{text}, {format_duration_ns(overhead_ns)} a block" if overhead_ns else text


def _capacities(plan: Plan) -> str:
    """Return what each device is, how much it has, and what is not the plan's to use."""
    texts = {
        device.id: f"{printable(device.kind)}, {format_size(device.capacity_bytes)} less "
        f"{format_size(device.reserve_bytes)} reserve, runtime apart (at most "
        f"{format_size(device.ledger.runtime[1])})"
        for device in plan.devices
    }
    return "; ".join(_alike(plan, texts))


def _alike(plan: Plan, texts: dict[str, str]) -> list[str]:
    """Return each device's name and text, devices with equal texts in one clause: `gpu0-7 ...`."""
    single_node = has_single_node([plan])
    folds = fold_ids(list(texts), list(texts.values()))
    return [f"{device_label(fold.label, single_node=single_node)} {texts[fold.ids[0]]}" for fold in folds]
