"""An inventory on one screen: devices, hosts and links with their capacities and rates.

Owns the layout for a terminal. Reads inventories only: nothing is probed here.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from bayplan.planner.present.fold import fold_ids
from bayplan.planner.present.plan_facts import rates_source
from bayplan.planner.present.plan_tables import Table
from bayplan.planner.present.show import SplitTable, facts_grid
from bayplan.planner.present.wording import printable, rate_text
from bayplan.schemas.hardware import Device, FormatRates, Inventory, Link, Node
from bayplan.schemas.sizes import format_duration_ns, format_size


def render_inventory(inventory: Inventory) -> RenderableType:
    """Return the picture of `inventory` for a terminal."""
    tables = [
        _device_table(inventory),
        _rates_table(inventory),
        _node_table(inventory),
        _link_table(inventory),
    ]
    source = [("inventory", f"{printable(inventory.source)}, {rates_source(inventory)}")]
    parts: list[RenderableType] = [facts_grid(source)]
    for table in tables:
        if table.rows:
            parts += [Text(), SplitTable(table)]
    features = {device.id: ", ".join(map(printable, device.features)) for device in inventory.devices}
    if any(features.values()):
        rows = {device: (text or "none",) for device, text in features.items()}
        parts += [Text(), facts_grid([(row[0], row[1]) for row in _folded(rows)])]
    return Group(*parts)


def _device_table(inventory: Inventory) -> Table:
    header = ("device", "kind", "memory", "reserve", "reads", "computes", "operation")
    rows = {device.id: _device_row(device) for device in inventory.devices}
    return Table(header, _folded(rows), frozenset(range(2, 7)))


def _rates_table(inventory: Inventory) -> Table:
    """Return what was measured by kind of format; devices alike in everything are one row."""
    header = ("device", "format", "reads", "reads cache", "computes", "block")
    rows: list[tuple[str, ...]] = []
    for position in range(max((len(device.format_rates) for device in inventory.devices), default=0)):
        measured = [device for device in inventory.devices if position < len(device.format_rates)]
        rows += _folded({device.id: _rates_row(device.format_rates[position]) for device in measured})
    return Table(header, tuple(rows), frozenset(range(2, 6)))


def _rates_row(rates: FormatRates) -> tuple[str, ...]:
    return (
        printable(rates.kind),
        rate_text(rates.memory_bytes_per_second, "B/s"),
        rate_text(rates.cache_bytes_per_second, "B/s"),
        rate_text(rates.flops_per_second, "FLOP/s"),
        format_duration_ns(rates.block_overhead_ns),
    )


def _device_row(device: Device) -> tuple[str, ...]:
    memory = format_size(device.capacity_bytes)
    return (
        printable(device.kind),
        f"{memory} (host's)" if device.shares_host_memory else memory,
        format_size(device.reserve_bytes),
        rate_text(device.memory_bytes_per_second, "B/s"),
        rate_text(device.flops_per_second, "FLOP/s"),
        format_duration_ns(device.operation_overhead_ns),
    )


def _node_table(inventory: Inventory) -> Table:
    rows = {node.id: _node_row(node) for node in inventory.nodes}
    return Table(("node", "host memory", "reserve", "disk reads"), _folded(rows), frozenset((1, 2, 3)))


def _node_row(node: Node) -> tuple[str, ...]:
    disk = "-" if node.disk is None else rate_text(node.disk.read_bytes_per_second, "B/s")
    return format_size(node.host_memory_bytes), format_size(node.host_reserve_bytes), disk


def _link_table(inventory: Inventory) -> Table:
    rows = {f"{link.source} - {link.target}": _link_row(link) for link in inventory.links}
    return Table(("link", "moves", "latency", "shared by"), _folded(rows), frozenset((1, 2)))


def _link_row(link: Link) -> tuple[str, ...]:
    return (
        rate_text(link.bytes_per_second, "B/s"),
        format_duration_ns(link.latency_ns),
        printable(link.group) or "-",
    )


def _folded(rows: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return one row for all that differ in one number of their name only."""
    folds = fold_ids(list(rows), list(rows.values()))
    return tuple((printable(fold.label), *rows[fold.ids[0]]) for fold in folds)
