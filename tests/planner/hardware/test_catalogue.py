import re

import pytest

from bayplan.planner.hardware.catalogue import (
    CPU_FEATURES,
    AcceleratorEntry,
    CpuEntry,
    DiskEntry,
    Figure,
    LinkEntry,
    find_accelerator,
    find_cpu,
    match_accelerator,
    match_cpu,
    uncatalogued,
)
from bayplan.planner.hardware.catalogue_accelerators import ACCELERATORS
from bayplan.planner.hardware.catalogue_cpus import CPUS, GENERIC_CPU, GENERIC_CPU_BANDWIDTH_LIMIT
from bayplan.planner.hardware.catalogue_links import DEFAULT_DISK, LINKS, NETWORK
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.schemas.errors import UsageError

PROMISED = (
    "h200",
    "h100-80gb",
    "a100-80gb",
    "a100-40gb",
    "l40s",
    "l4",
    "t4",
    "rtx-4090",
    "rtx-5090",
    "rtx-3090",
    "mi300x",
    "m4-max-128gb",
)


def _figures(entry: AcceleratorEntry | CpuEntry) -> list[Figure]:
    values = (getattr(entry, field) for field in entry.__struct_fields__)
    return [value for value in values if isinstance(value, Figure)]


@pytest.mark.parametrize("name", PROMISED)
def test_promised_accelerators_are_there(name: str) -> None:
    assert ACCELERATORS[name].name == name


@pytest.mark.parametrize("entry", [*ACCELERATORS.values(), *CPUS.values()], ids=lambda entry: entry.name)
def test_every_figure_is_positive_and_has_a_dated_source(entry: AcceleratorEntry | CpuEntry) -> None:
    figures = _figures(entry)
    sharers = entry.host_link_sharers if isinstance(entry, AcceleratorEntry) else None
    assert len(figures) == (4 if isinstance(entry, AcceleratorEntry) else 3) + (sharers is not None)
    for figure in figures:
        assert figure.value > 0
        assert re.search(r"\b20[12][0-9]\b|arXiv 2605", figure.source), figure.source


@pytest.mark.parametrize(
    "entry", [*LINKS.values(), NETWORK, DEFAULT_DISK], ids=lambda entry: entry.source[:20]
)
def test_every_link_and_the_disk_has_a_source(entry: LinkEntry | DiskEntry) -> None:
    assert re.search(r"\d.*\(.*\)|\d{4}-\d{2}", entry.source)


@pytest.mark.parametrize("entry", ACCELERATORS.values(), ids=lambda entry: entry.name)
def test_accelerators_name_links_that_exist(entry: AcceleratorEntry) -> None:
    assert entry.host_link in LINKS
    assert entry.peer_link is None or entry.peer_link in LINKS


@pytest.mark.parametrize("entry", ACCELERATORS.values(), ids=lambda entry: entry.name)
def test_memory_is_less_than_what_the_name_promises(entry: AcceleratorEntry) -> None:
    named = re.search(r"-(\d+)gb$", entry.name)
    if named is not None:
        assert int(named[1]) * 2**30 * 0.7 < entry.memory.value < int(named[1]) * 2**30
    assert entry.memory.value < 192 * 2**30


@pytest.mark.parametrize("entry", CPUS.values(), ids=lambda entry: entry.name)
def test_cpu_features_are_sorted_and_known(entry: CpuEntry) -> None:
    assert list(entry.features) == sorted(entry.features)
    assert set(entry.features) <= CPU_FEATURES


def test_cpu_figures_follow_from_channels_and_cores() -> None:
    entry = CPUS["epyc-9354"]
    assert entry.bandwidth.value == 460_800_000_000
    assert entry.flops.value == 3_328_000_000_000
    assert entry.bandwidth.source == "AMD EPYC 9004 data sheet, 2022: 12 channels, 4800 MT/s"


def test_unknown_accelerator_lists_near_names_and_all() -> None:
    with pytest.raises(UsageError) as caught:
        find_accelerator("H100", ACCELERATORS, where="--device")
    names = ", ".join(sorted(ACCELERATORS))
    assert str(caught.value) == (
        f"--device: no such accelerator in the catalogue: got 'H100', needed one of {names}\n"
        "hint: did you mean h100-80gb or h100-pcie-80gb?"
    )


def test_unknown_accelerator_near_nothing() -> None:
    with pytest.raises(UsageError) as caught:
        find_accelerator("quux", ACCELERATORS, where="--device")
    assert caught.value.hint == "declare the nearest accelerator that is listed"


def test_misspelt_accelerator_is_recognised() -> None:
    with pytest.raises(UsageError) as caught:
        find_accelerator("rtx4090", ACCELERATORS, where="--device")
    assert caught.value.hint.startswith("did you mean rtx-4090")


def test_unknown_cpu_lists_near_names_and_all() -> None:
    with pytest.raises(UsageError) as caught:
        find_cpu("xeon-848", CPUS, where="--cpu")
    assert str(caught.value) == (
        f"--cpu: no such CPU in the catalogue: got 'xeon-848', needed one of {', '.join(sorted(CPUS))}\n"
        "hint: did you mean xeon-8480?"
    )


@pytest.mark.parametrize(
    ("model_name", "kind"),
    [
        ("AMD EPYC 9354 32-Core Processor", "epyc-9354"),
        ("AMD EPYC 9354P 32-Core Processor", "epyc-9354"),
        ("Intel(R) Xeon(R) Platinum 8480+", "xeon-8480"),
        ("Intel(R) Xeon(R) Platinum 8480C", "xeon-8480"),
        ("INTEL(R) XEON(R) PLATINUM 8592+", None),
        ("Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz", None),
        ("AMD Ryzen 9 7950X 16-Core Processor", "ryzen-9-7950x"),
        ("AMD Ryzen 9 7950X3D 16-Core Processor", None),
        ("AMD EPYC", None),
        ("generic", None),
        ("", None),
    ],
)
def test_cpu_is_matched_by_model_name(model_name: str, kind: str | None) -> None:
    entry = match_cpu(model_name, CPUS.values())
    assert (entry.name if entry else None) == kind


@pytest.mark.parametrize(
    ("device_name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Tesla T4", "t4"),
        ("NVIDIA L40", None),
    ],
)
def test_accelerator_is_matched_by_the_whole_name(device_name: str, kind: str | None) -> None:
    entry = match_accelerator(device_name, ACCELERATORS.values())
    assert (entry.name if entry else None) == kind


def test_device_names_are_unique() -> None:
    names = [entry.device_name for entry in ACCELERATORS.values()]
    assert len(set(names)) == len(names)


def test_uncatalogued_names_devices_of_unknown_kind() -> None:
    inventory = declare_inventory(("l4*2",), cpu="epyc-9354", host_memory="64GiB")
    assert uncatalogued(inventory, [*ACCELERATORS, *CPUS]) == ()
    assert uncatalogued(inventory, CPUS) == ("node0/gpu0", "node0/gpu1")


def test_generic_cpu_is_rated_below_its_limit() -> None:
    assert GENERIC_CPU.bandwidth.value < GENERIC_CPU_BANDWIDTH_LIMIT.value
