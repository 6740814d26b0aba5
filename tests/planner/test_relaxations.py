"""What `plan` says would be enough, held against planning again with just that."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from placement_problems import make_device, make_inventory, make_link
from tiny_checkpoints import tiny_bert, tiny_llama

from bayplan.planner import api
from bayplan.planner.api import make_plan
from bayplan.planner.model import cached
from bayplan.planner.options import PlanOptions
from bayplan.schemas.certificate import Axis, CertifiedInfeasible, Relaxation, Value
from bayplan.schemas.errors import BayplanError, Infeasible

KIB = 1024
GPU = "node0/gpu0"
INVENTORY = make_inventory([make_device("gpu0")], [make_link(GPU)])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four layers of 37 KiB in fp32, whose cache takes 512 B a position."""
    return str(tiny_llama(tmp_path_factory.mktemp("models") / "llama"))


@pytest.fixture(scope="module")
def packable(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve layers in bf16."""
    folder = tmp_path_factory.mktemp("models") / "packable"
    return str(tiny_llama(folder, dtype=torch.bfloat16, layers=12))


def certificate(model: str, options: PlanOptions) -> dict[tuple[Axis, str], Relaxation]:
    with pytest.raises(CertifiedInfeasible) as caught:
        make_plan(model, options)
    found = caught.value.certificate.relaxations
    return {(one.axis, one.subject): one for one in found}


def can_plan(model: str, options: PlanOptions) -> bool:
    """Whether there is a plan; without looking for what would be enough if not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "certified", lambda error, *_asked: error)
        try:
            make_plan(model, options)
        except Infeasible:
            return False
    return True


def with_option(options: PlanOptions, one: Relaxation, value: Value) -> PlanOptions:
    """The call with one option as a relaxation says."""
    match one.axis:
        case Axis.DEVICE_MEMORY:
            return msgspec.structs.replace(options, max_memory=(f"{one.subject}={value}",))
        case Axis.STREAMING:
            return msgspec.structs.replace(options, no_spill=False)
        case Axis.FORMAT:
            return msgspec.structs.replace(options, format=str(value))
        case Axis.CONTEXT | Axis.ENCODER_CONTEXT | Axis.BATCH | Axis.PREFILL_CHUNK:
            return msgspec.structs.replace(options, **{one.axis.value.replace("-", "_"): value})
        case _:
            pytest.fail(f"no option: {one.axis}")


def options_of(budget: int, **fields: object) -> PlanOptions:
    options = PlanOptions(inventory=INVENTORY, max_memory=(f"gpu0={budget}",), context=128, batch=4)
    return msgspec.structs.replace(options, **fields)


COUNTS = {Axis.CONTEXT, Axis.BATCH, Axis.PREFILL_CHUNK}


@pytest.mark.parametrize(
    ("budget_kib", "no_spill", "helping"),
    [
        (2_200, True, {*COUNTS, Axis.STREAMING, Axis.DEVICE_MEMORY}),
        (1_500, True, {*COUNTS, Axis.DEVICE_MEMORY}),
        (1_340, False, {Axis.CONTEXT, Axis.BATCH, Axis.DEVICE_MEMORY}),
    ],
)
def test_every_relaxation_is_one_and_a_step_less_is_none(
    llama: str, budget_kib: int, no_spill: bool, helping: set[Axis]
) -> None:
    options = options_of(budget_kib * KIB, no_spill=no_spill)
    found = certificate(llama, options)
    assert {one.axis for one in found.values() if one.helps} == helping
    assert set(found) == {
        *((axis, "") for axis in (*COUNTS, Axis.FORMAT)),
        *([(Axis.STREAMING, "")] if no_spill else []),
        (Axis.DEVICE_MEMORY, GPU),
        (Axis.HOST_MEMORY, "node0"),
    }
    for one in found.values():
        if one.axis is Axis.HOST_MEMORY:
            assert not one.helps
            continue
        assert one.helps is can_plan(llama, with_option(options, one, one.enough or one.too_little))
        if one.too_little is not None:
            assert not can_plan(llama, with_option(options, one, one.too_little))
        if one.axis in COUNTS and isinstance(one.enough, int):
            assert one.too_little == one.enough + 1


@pytest.mark.parametrize(
    ("budget_kib", "enough", "too_little"),
    [
        (1_210, "bf16,int8", "bf16"),
        (1_150, "bf16,int8,nf4", "bf16,int8"),
        (1_100, None, "bf16,int8,nf4"),
    ],
)
def test_the_formats_that_round_least(
    packable: str, budget_kib: int, enough: str | None, too_little: str
) -> None:
    options = options_of(budget_kib * KIB, no_spill=True, context=16, batch=1)
    found = certificate(packable, options)[Axis.FORMAT, ""]
    note = "this version plans but does not run it" if enough else ""
    assert found == Relaxation(
        axis=Axis.FORMAT, given="bf16", enough=enough, too_little=too_little, note=note
    )
    assert not can_plan(packable, with_option(options, found, too_little))
    assert can_plan(packable, with_option(options, found, enough)) if enough else True


def test_a_wide_model_is_tried_in_half_first(llama: str) -> None:
    """Known from a config alone, so that either way there is room for tensors to be cast."""
    config = str(Path(llama) / "config.json")
    options = options_of(9_340 * KIB, no_spill=True, context=1, batch=1)
    found = certificate(config, options)[Axis.FORMAT, ""]
    assert (found.given, found.enough, found.too_little) == ("fp32", "bf16", "fp32")
    assert can_plan(config, with_option(options, found, found.enough))


def test_formats_that_were_asked_for_stay(packable: str) -> None:
    options = options_of(1_150 * KIB, no_spill=True, context=16, batch=1, format="int8,bf16")
    found = certificate(packable, options)[Axis.FORMAT, ""]
    assert (found.given, found.enough) == ("int8,bf16", "int8,bf16,nf4")
    everything = msgspec.structs.replace(options, format="auto", max_memory=(f"gpu0={KIB}",))
    last = certificate(packable, everything)[Axis.FORMAT, ""]
    assert last == Relaxation(axis=Axis.FORMAT, given="bf16,int8,nf4")


def test_a_count_of_one_is_the_least(llama: str) -> None:
    found = certificate(llama, options_of(1_100 * KIB, context=1, batch=1, no_spill=True))
    for axis in COUNTS:
        assert found[axis, ""] == Relaxation(axis=axis, given=1, note="which is the least")


def test_what_cannot_be_read_again_is_said(llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = cached.cached_read_model

    def failing(model: str, options: PlanOptions, progress: object = None) -> object:
        if options.batch == 1:
            raise BayplanError("the network is gone")
        return read(model, options)

    monkeypatch.setattr(cached, "cached_read_model", failing)
    found = certificate(llama, options_of(1_500 * KIB, no_spill=True))
    assert found[Axis.BATCH, ""] == Relaxation(
        axis=Axis.BATCH, given=4, note="not known: the network is gone"
    )


def test_a_model_that_does_not_generate_has_no_chunks(tmp_path: Path) -> None:
    bert = str(tiny_bert(tmp_path / "bert"))
    found = certificate(bert, options_of(64 * KIB, no_spill=True))
    assert (Axis.CONTEXT, "") in found
    assert (Axis.PREFILL_CHUNK, "") not in found


def test_progress_is_told_by_axes(llama: str) -> None:
    told: list[tuple[str, int, int]] = []
    with pytest.raises(CertifiedInfeasible):
        make_plan(llama, options_of(KIB), lambda *progress: told.append(progress))
    stage = "what would be enough"
    assert [(done, total) for name, done, total in told if name == stage] == [(n, 5) for n in range(6)]


def test_a_large_block_with_parts_can_be_divided(llama: str) -> None:
    undivided = options_of(1_140 * KIB, no_split=("LlamaModel",), context=1, batch=1)
    with pytest.raises(CertifiedInfeasible) as caught:
        make_plan(llama, undivided)
    assert caught.value.where == "model"
    assert caught.value.hint == "--no-split with a class inside LlamaModel makes smaller blocks"


def test_all_of_the_message(llama: str) -> None:
    with pytest.raises(CertifiedInfeasible) as caught:
        make_plan(llama, options_of(64 * KIB, batch=1, context=4))
    (needed,) = [one.enough for one in caught.value.certificate.relaxations if one.axis is Axis.DEVICE_MEMORY]
    assert str(caught.value) == (
        "node0/gpu0: no device holds the activations and the cache of one block: "
        "got 64.00 KiB on node0/gpu0, "
        "needed 1.04 MiB for model.layers.1 alone: 36.25 KiB of weights in fp32, 1.01 MiB besides\n"
        "  any one of these is enough, and one step less is not:\n"
        f"    --max-memory node0/gpu0={needed} (1.04 MiB) instead of 64.00 KiB\n"
        "  not enough by itself:\n"
        "    --context 1 instead of 4\n"
        "    --prefill-chunk 1 instead of 4\n"
        "    --batch: 1, which is the least\n"
        "    --format bf16,int8,nf4 instead of fp32\n"
        "    more host memory on node0 instead of 1.00 PiB"
    )
