"""show: one screen for any plan, refused ones too, and nothing in it that the plan does not say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console, RenderableType
from sample_plans import large_plan, smol_plan

from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.present.device_map import DeviceMapError, device_map
from bayplan.planner.present.markdown import plan_markdown
from bayplan.planner.present.notices import plan_notices
from bayplan.planner.present.plan_facts import prediction_facts
from bayplan.planner.present.plan_tables import block_table, device_table
from bayplan.planner.present.show import render_plan
from bayplan.planner.present.show_inventory import render_inventory
from bayplan.schemas.plan import Experts, Format, Plan
from bayplan.schemas.types import Residency, SolverStatus

GOLDEN = Path(__file__).parents[2] / "golden" / "show"
STREAMED = [number for number in range(30) if number % 3]
PLANS = {"resident": smol_plan(), "streamed": smol_plan(STREAMED), "two-accelerators": large_plan()}


def text(renderable: RenderableType, width: int = 100) -> str:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def picture(plan: Plan, *, digest_matches: bool = True, width: int = 100) -> str:
    return text(render_plan(plan, digest_matches=digest_matches, width=width), width)


@pytest.mark.parametrize("name", PLANS)
def test_picture_is_as_approved(name: str) -> None:
    assert picture(PLANS[name]) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", PLANS)
def test_markdown_is_as_approved(name: str) -> None:
    assert plan_markdown(PLANS[name], digest_matches=True) == (GOLDEN / f"{name}.md").read_text()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for plan in PLANS.values():
        assert max(map(len, picture(plan, width=width).splitlines())) <= width


@pytest.mark.parametrize("width", [40, 50, 70, 100])
def test_no_quantity_is_cut_short_or_away_from_its_name(width: int) -> None:
    for plan in PLANS.values():
        lines = picture(plan, width=width).splitlines()
        for table in (device_table(plan), block_table(plan)):
            shown = [line for line in lines if line.startswith(table.rows[0][0][:20])]
            for index in table.right_aligned:
                assert any(f" {table.rows[0][index]}" in line for line in shown), table.header[index]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_an_inventory_keeps_its_figures_at_any_width(width: int) -> None:
    machine = declare_inventory(("h100-80gb*2",), cpu="epyc-9354", host_memory="1TiB", disk="7GB/s")
    wide = text(render_inventory(machine), 200).splitlines()
    narrow = text(render_inventory(machine), width).splitlines()
    assert max(map(len, narrow)) <= width
    amounts = re.compile(r"[0-9.]+ (?:[KMGT]i?B(?:/s)?|[GT]FLOP/s|[mnu]?s)\b")
    for line in filter(None, wide[1:]):
        name = line.split()[0]
        found = amounts.findall(line)
        kept = [amount for shown in narrow if shown.startswith(name) for amount in amounts.findall(shown)]
        assert set(found) <= set(kept)


def test_one_screen() -> None:
    assert max(len(picture(plan).splitlines()) for plan in PLANS.values()) <= 40


def test_bar_is_full_to_the_share_that_is_used() -> None:
    lines = picture(smol_plan(STREAMED)).splitlines()
    bar = next(line for line in lines if line.startswith("cpu ")).split()[1]
    device = smol_plan(STREAMED).devices[0]
    ledger = device.ledger
    used = ledger.weights[1] + ledger.kv[1] + ledger.activations[1] + ledger.staging[1]
    assert len(bar) - bar.count(".") == round(len(bar) * used / device.budget_bytes)
    assert bar == "".join(sorted(bar, key="wkas.".index))


def test_control_characters_reach_no_terminal() -> None:
    plan = smol_plan()
    hostile = msgspec.structs.replace(
        plan,
        producer="\x1b[2J\u202egpj",
        blocks=tuple(
            msgspec.structs.replace(block, id=f"{block.id}\x1b]0;x\x07[bold]") for block in plan.blocks
        ),
        model=msgspec.structs.replace(plan.model, class_name="\x9b31m", source="a\rb"),
    )
    for shown in (picture(hostile), plan_markdown(hostile, digest_matches=True)):
        assert shown.isascii()
        assert not set(shown) & set("\x07\x0d\x1b\x7f")
    assert "[bold]" in picture(hostile)


def test_a_model_without_cache_says_nothing_of_chunks_and_logits() -> None:
    plan = smol_plan()
    assert "prefill in chunks of 512, kv in bf16, logits of the last position" in picture(plan)
    blocks = tuple(msgspec.structs.replace(block, kv_bytes=0) for block in plan.blocks)
    without = picture(msgspec.structs.replace(plan, blocks=blocks), digest_matches=False)
    assert "assumes    batch 1, context 512\n" in without


def test_experts_are_shown_with_their_block() -> None:
    plan = smol_plan()
    experts = Experts(count=128, per_token=8, unit_bytes=2**20, format="bf16", residency="with-block")
    blocks = tuple(msgspec.structs.replace(block, experts=experts) for block in plan.blocks)
    assert "128 x 1.00 MiB, 8 per token, bf16, with-block" in picture(
        msgspec.structs.replace(plan, blocks=blocks), width=160
    )


def notices(plan: Plan, *, digest_matches: bool = True) -> list[str]:
    content = "content unverified: no content hash for 1 of 1 shard; `--hash` adds it"
    return [line for line in plan_notices(plan, digest_matches=digest_matches) if line != content]


def test_a_sound_plan_gives_no_notice_but_what_is_unverified() -> None:
    assert plan_notices(smol_plan(), digest_matches=True) == (
        "content unverified: no content hash for 1 of 1 shard; `--hash` adds it",
    )


def test_notice_edited() -> None:
    assert notices(smol_plan(), digest_matches=False) == [
        "edited: the file does not match its digest; it will not be carried out"
    ]


def test_notice_newer_semantics() -> None:
    plan = msgspec.structs.replace(smol_plan(), semantics=7)
    assert notices(plan) == [
        "unsupported: it asks for semantics 7, this version carries out 1",
    ]


def test_notice_newer_minor() -> None:
    plan = msgspec.structs.replace(smol_plan(), format_version="1.9")
    assert notices(plan) == [
        "format 1.9 is newer than this version's 1.0: fields that it added are not shown"
    ]


def test_notice_unbound() -> None:
    plan = smol_plan()
    model = msgspec.structs.replace(plan.model, checkpoint=None)
    assert plan_notices(msgspec.structs.replace(plan, model=model, applyable=False), digest_matches=True) == (
        "unbound: planned from a config alone; `bayplan bind PLAN --checkpoint DIR` adds the identity of the "
        "weights",
    )


@pytest.mark.parametrize("is_prequantized", [True, False])
def test_an_unbound_plan_in_a_quantized_format_is_not_sent_to_bind(is_prequantized: bool) -> None:
    plan = smol_plan()
    quantization = "gptq" if is_prequantized else None
    model = msgspec.structs.replace(plan.model, checkpoint=None, quantization=quantization)
    formats = plan.formats if is_prequantized else dict.fromkeys(plan.formats, Format(kind="nf4"))
    other = msgspec.structs.replace(plan, model=model, formats=formats, applyable=False)
    assert plan_notices(other, digest_matches=True)[-1] == (
        "unbound: planned from a config alone; plan again, naming the checkpoint itself as the model"
    )


def test_notice_incomplete_and_errored() -> None:
    plan = msgspec.structs.replace(smol_plan(), complete=False, applyable=False)
    assert notices(plan) == ["incomplete: some blocks have no place; it will not be carried out"]
    assert notices(msgspec.structs.replace(plan, errored=True)) == [
        "errored: the planner could not finish it; it will not be carried out"
    ]


def test_notice_marked_by_the_planner() -> None:
    assert notices(msgspec.structs.replace(smol_plan(), applyable=False)) == [
        "not applyable: its planner marked it as not to be carried out"
    ]


def test_notice_not_traced() -> None:
    plan = smol_plan()
    model = msgspec.structs.replace(plan.model, traced=False, trace_note="forward needs \x1b images")
    assert notices(msgspec.structs.replace(plan, model=model)) == [
        'not traced: "forward needs \\u001b images"; blocks are in the order of the module tree'
    ]


def test_notice_not_reproducible() -> None:
    plan = smol_plan()
    summary = msgspec.structs.replace(plan.summary, solver_status=SolverStatus.TIME_LIMIT, reproducible=False)
    assert notices(msgspec.structs.replace(plan, summary=summary)) == [
        "not reproducible: the search was ended by the clock, another run may give another plan"
    ]


def test_what_moved_is_said_where_there_was_a_plan_before() -> None:
    plan = smol_plan()
    assert "moved" not in dict(prediction_facts(plan))
    summary = msgspec.structs.replace(plan.summary, moved_bytes=3 * 2**20)
    facts = dict(prediction_facts(msgspec.structs.replace(plan, summary=summary)))
    assert facts["moved"] == "3.00 MiB against the plan before it"


def test_notice_remote_code_and_unused_tensors() -> None:
    plan = smol_plan()
    assert plan.model.checkpoint is not None
    checkpoint = msgspec.structs.replace(plan.model.checkpoint, unused=("a", "b", "c", "d"))
    model = msgspec.structs.replace(plan.model, trust_remote_code=True, checkpoint=checkpoint)
    assert notices(msgspec.structs.replace(plan, model=model)) == [
        "trusts code that comes with the model",
        "the checkpoint holds tensors that the model does not have: a, b, c and 1 more",
    ]


def test_device_map_of_a_cpu_plan() -> None:
    assert device_map(smol_plan([0, 29])) == {
        "model.embed_tokens": "cpu",
        **{f"model.layers.{number}": "disk" if number in (0, 29) else "cpu" for number in range(30)},
        "model.norm": "cpu",
        "lm_head": "cpu",
    }


def test_device_map_of_accelerators() -> None:
    entries = device_map(large_plan())
    assert [
        entries[name] for name in ("model.embed_tokens", "model.layers.1", "model.layers.38", "lm_head")
    ] == [
        0,
        "cpu",
        1,
        1,
    ]


def test_device_map_lists_split_modules_before_their_children() -> None:
    plan = smol_plan()
    own = msgspec.structs.replace(plan.blocks[-1], id="model:own", residency=Residency.RESIDENT)
    entries = device_map(msgspec.structs.replace(plan, blocks=(*plan.blocks, own)))
    assert next(iter(entries)) == "model"


def test_device_map_of_several_nodes() -> None:
    plan = large_plan()
    other = msgspec.structs.replace(plan.devices[1], id="node1/gpu0")
    with pytest.raises(DeviceMapError) as caught:
        device_map(msgspec.structs.replace(plan, devices=(plan.devices[0], other)))
    assert str(caught.value) == (
        "no device map can express the plan: got devices on 2 nodes (node0, node1), needed one node\n"
        "hint: use --as json"
    )


def test_looking_at_a_plan_loads_nothing_heavy() -> None:
    code = (
        "import sys, bayplan.planner.present.show, bayplan.planner.present.diff_show; "
        "import bayplan.planner.present.markdown, bayplan.planner.present.diff; "
        "import bayplan.planner.present.device_map; "
        "print(sorted({'torch', 'transformers', 'networkx', 'highspy', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_text_of_any_length_is_shown_at_once() -> None:
    plan = msgspec.structs.replace(smol_plan(), producer="x" * 20_000_000)
    assert len(text(render_plan(plan, digest_matches=True, width=100))) < 20_000


def test_narrow_terminals_keep_names_and_figures_and_lose_the_bar() -> None:
    console = Console(width=80, highlight=False)
    with console.capture() as capture:
        console.print(render_plan(smol_plan(range(1, 30)), digest_matches=True, width=80))
    lines = [line.split() for line in capture.get().splitlines()]
    header = next(words for words in lines if words[:1] == ["device"])
    row = lines[lines.index(header) + 1]
    assert header[-1] == "staging"
    assert row[0] == "cpu"
    assert row[-1] == "MiB"
