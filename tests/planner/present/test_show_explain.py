from __future__ import annotations

import msgspec
import pytest
from rich.console import Console, RenderableType

from bayplan.planner.present.show_explain import (
    BINDING_TEXTS,
    cost_text,
    render_block_explanation,
    render_explanation,
)
from bayplan.schemas.explanation import (
    Alternative,
    Binding,
    BlockExplanation,
    DeviceExplanation,
    Explanation,
    HostExplanation,
    RateExplanation,
)
from bayplan.schemas.types import Objective, Reason, Residency

GIB = 2**30
MS = 1_000_000


def drawn(picture: RenderableType, width: int = 110) -> str:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(picture)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


GPU0 = DeviceExplanation(
    id="node0/gpu0",
    num_blocks=16,
    num_streamed=4,
    budget_bytes=22 * GIB,
    needed_bytes=21 * GIB,
    component="load_transient",
    component_bytes=20 * GIB,
    compute_ns=30 * MS,
    transfer_ns=290 * MS,
    binding=Binding.MEMORY,
    gain_ns=69 * MS,
)
EXPLANATION = Explanation(
    plan_digest=f"sha256:{'ab' * 32}",
    objective=Objective.DECODE,
    planned_ns=400 * MS,
    again_ns=400 * MS,
    lower_bound_ns=399 * MS,
    devices=(
        GPU0,
        msgspec.structs.replace(
            GPU0, id="node0/gpu1", binding=Binding.DISK, gain_ns=0, shared_with=("node0/gpu0",)
        ),
        DeviceExplanation(
            id="node0/cpu",
            num_blocks=0,
            num_streamed=0,
            budget_bytes=0,
            needed_bytes=0,
            component="",
            component_bytes=0,
            compute_ns=0,
            transfer_ns=0,
            binding=Binding.NOTHING,
            gain_ns=None,
        ),
    ),
    hosts=(HostExplanation(id="node0", budget_bytes=64 * GIB, waiting_bytes=9 * GIB, gain_ns=-2 * MS),),
    rates=(RateExplanation(ways="links", gain_ns=200 * MS), RateExplanation(ways="disks", gain_ns=0)),
)

PICTURE = """\
plan       sha256:abababababab
objective  decode, step 400.0 ms

device  blocks  streamed      needs     budget  computes  brings in   1.00 GiB more  bound by
gpu0        16         4  21.00 GiB  22.00 GiB   30.0 ms   290.0 ms  69.0 ms faster  memory, loading above all
gpu1        16         4  21.00 GiB  22.00 GiB   30.0 ms   290.0 ms         nothing  disk, shared with gpu0
cpu          0         0        0 B        0 B         -          -       not asked  nothing

memory     more memory there makes the plan better
disk       weights take longer to come than to compute with, and the disk is the slowest part
nothing    no block is there, and more memory would bring none

node0 memory  9.00 GiB wait, 64.00 GiB budget; 1.00 GiB more: 2.0 ms slower
links         2 times as fast: 200.0 ms faster
disks         2 times as fast: nothing"""


def test_all_of_an_explanation() -> None:
    assert drawn(render_explanation(EXPLANATION)) == PICTURE


def test_a_plan_that_is_not_the_best_known_says_so() -> None:
    other = msgspec.structs.replace(EXPLANATION, again_ns=390 * MS, hosts=(), rates=())
    lines = drawn(render_explanation(other)).splitlines()
    assert lines[:3] == [
        "plan          sha256:abababababab",
        "objective     decode, step 400.0 ms",
        "solved again  390.0 ms, 10.0 ms faster; what else is said is against that",
    ]
    assert "node0 memory" not in "".join(lines)


@pytest.mark.parametrize(
    ("objective", "text"),
    [
        (Objective.LOAD, "load, load 400.0 ms"),
        (Objective.THROUGHPUT, "throughput, time from one batch's step to the next one's 400.0 ms"),
        (Objective.PREFILL, "prefill, step 400.0 ms"),
    ],
)
def test_what_is_made_small(objective: Objective, text: str) -> None:
    other = msgspec.structs.replace(EXPLANATION, objective=objective)
    assert f"objective  {text}" in drawn(render_explanation(other))


def test_several_nodes_are_named() -> None:
    devices = (GPU0, msgspec.structs.replace(GPU0, id="node1/gpu0"))
    picture = drawn(render_explanation(msgspec.structs.replace(EXPLANATION, devices=devices)))
    assert "node0/gpu0" in picture
    assert "node1/gpu0" in picture


BLOCK = BlockExplanation(
    plan_digest=f"sha256:{'ab' * 32}",
    objective=Objective.DECODE,
    again_ns=400 * MS,
    id="model.layers.3",
    device="node0/gpu0",
    residency=Residency.STREAM_HOST,
    format="bf16",
    num_bytes=3 * GIB,
    reason=Reason.CAPACITY,
    alternatives=(
        Alternative(aspect="residency", choice="resident", cost_ns=0),
        Alternative(aspect="device", choice="node0/gpu1", cost_ns=6 * MS),
        Alternative(aspect="format", choice="nf4", cost_ns=-MS),
        Alternative(aspect="residency", choice="stream-disk", cost_ns=None, why_not="nothing fits then"),
    ),
)


def test_all_of_a_block_s_explanation() -> None:
    assert drawn(render_block_explanation(BLOCK, single_node=True)) == (
        "block      model.layers.3, 3.00 GiB in bf16\n"
        "is         stream-host on gpu0\n"
        "because    not every block fits; to stream this one is part of the fastest placement\n"
        "objective  decode, step 400.0 ms\n"
        "\n"
        "instead    choice       costs\n"
        "residency  resident     nothing\n"
        "device     gpu1         6.0 ms slower\n"
        "format     nf4          1.0 ms faster\n"
        "residency  stream-disk  not possible: nothing fits then"
    )
    assert "stream-host on node0/gpu0" in drawn(render_block_explanation(BLOCK, single_node=False))


def test_a_block_that_could_be_nothing_else() -> None:
    alone = msgspec.structs.replace(BLOCK, alternatives=())
    assert drawn(render_block_explanation(alone, single_node=True)).splitlines()[-1] == (
        "instead    there is nothing else that it could be"
    )


def test_names_from_files_do_not_reach_the_terminal() -> None:
    hostile = msgspec.structs.replace(BLOCK, id="a\x1b[2J", format="\x07")
    picture = drawn(render_block_explanation(hostile, single_node=True))
    assert "\x1b" not in picture
    assert "\x07" not in picture


@pytest.mark.parametrize("width", [60, 80])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    for picture in (render_explanation(EXPLANATION), render_block_explanation(BLOCK, single_node=True)):
        assert max(map(len, drawn(picture, width).splitlines())) <= width


def test_every_binding_has_a_text() -> None:
    assert set(BINDING_TEXTS) == set(Binding)


@pytest.mark.parametrize(
    ("change", "text"), [(0, "nothing"), (MS, "1.0 ms slower"), (-2 * MS, "2.0 ms faster")]
)
def test_a_change_in_words(change: int, text: str) -> None:
    assert cost_text(change) == text
