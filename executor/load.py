"""From a plan to a model that runs: read it from top to bottom, it is the pipeline.

    open_plan -> check_runnable -> open_checkpoint -> preflight -> reserve -> bind -> read -> stream

Everything before `reserve` may refuse; nothing after it decides.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from bayplan.executor.arena import Slots
from bayplan.executor.checkpoint_source import open_checkpoint
from bayplan.executor.guards import StreamGuards
from bayplan.executor.hooks import running_test
from bayplan.executor.materialize import (
    bind_resident,
    bind_streamed,
    check_nothing_on_meta,
    check_tied_values,
    read_resident,
    resident_bytes,
    unbind,
    without_values,
)
from bayplan.executor.measure import ForwardMeter, MemoryMeter
from bayplan.executor.open_files import OpenFiles
from bayplan.executor.preflight import Approved, check_runnable, open_plan, preflight
from bayplan.executor.progress import Progress, no_progress
from bayplan.executor.reader import Request, Scratch, ShardReader, make_requests
from bayplan.executor.ring import Fill, Ring
from bayplan.executor.state import LoadedState, Stream, attach, detach, state_of
from bayplan.executor.workload_guard import WorkloadGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import nn

    from bayplan.schemas.plan import Plan


def load_model(
    plan: Plan | Path | str,
    checkpoint: Path | str | None = None,
    *,
    model: nn.Module | None = None,
    on: Mapping[str, str] | None = None,
    expect_digest: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> nn.Module:
    """Return the planned model, its weights where the plan puts them, in eval mode.

    A transformers model is an ordinary `PreTrainedModel`: `generate()` and pipelines work on it. Where blocks
    stream, a forward of your own needs `torch.inference_mode()` or `torch.no_grad()`: parameters require grad
    as those of `from_pretrained` do, and gradients through a streamed block would be wrong.

    Args:
        plan: A plan, or the path of its file.
        checkpoint: A folder, or a Hub id `org/name[@revision]`; None: where the plan was made from, if that
            is on the Hub.
        model: To be filled instead of a new one; with the planned tree, parameters on meta.
        on: Device id of the plan to torch device, where the choice is not to be made here.
        expect_digest: The digest that was reviewed; another plan is refused.
        trust_remote_code: Run the code that comes with the checkpoint, if the plan says that it needs it.
        progress: Told how far verifying and reading are.

    Raises:
        PlanFormatError: `plan` is no valid plan.
        PlanRefused: It must not be carried out here; the kind says why.
        BayplanError: Anything else that keeps it from being carried out; see `bayplan.executor.errors`.
    """
    started_ns = time.perf_counter_ns()
    tell = progress if progress is not None else no_progress
    opened = open_plan(plan, expect_digest=expect_digest)
    check_runnable(opened, trust_remote_code=trust_remote_code)
    local = open_checkpoint(opened, checkpoint)
    approved = preflight(opened, local, model=model, on=on or {}, progress=tell)
    memory = MemoryMeter()
    with memory.sampling():
        for backend in approved.backends.values():
            memory.watch(backend)
        try:
            state = _carry_out(approved, memory, tell)
        except BaseException:
            unbind(approved.model, approved.layout)
            raise
    state.load_ns = time.perf_counter_ns() - started_ns
    return approved.model


def release(model: nn.Module) -> None:
    """Give back everything that `load_model` reserved; the model cannot be called any more.

    Memory returns to the system when nothing else holds one of the model's tensors.

    Args:
        model: From `load_model`.

    Raises:
        UsageError: It is not, or it was released already.
    """
    state = state_of(model)
    state.close(model)
    detach(model)


@contextlib.contextmanager
def loaded(
    plan: Plan | Path | str,
    checkpoint: Path | str | None = None,
    *,
    model: nn.Module | None = None,
    on: Mapping[str, str] | None = None,
    expect_digest: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Iterator[nn.Module]:
    """Load a model for the time of a `with` block; arguments as those of `load_model`."""
    made = load_model(
        plan,
        checkpoint,
        model=model,
        on=on,
        expect_digest=expect_digest,
        trust_remote_code=trust_remote_code,
        progress=progress,
    )
    try:
        yield made
    finally:
        release(made)


def _carry_out(approved: Approved, memory: MemoryMeter, progress: Progress) -> LoadedState:
    """Reserve, bind and read; return the state, attached to the model."""
    plan, model, layout, sources = approved.plan, approved.model, approved.layout, approved.sources
    (backend,) = approved.backends.values()  # more than one device is refused as not yet run
    forwards = ForwardMeter(WorkloadGuard(model, plan.workload), memory)
    state = LoadedState(plan, layout, memory=memory, forwards=forwards)
    state.content_verified, state.notes = approved.content_verified, approved.notes
    schedule = next((entry for entry in plan.schedule if entry.stream_order), None)
    slots_bytes = schedule.num_slots * schedule.slot_bytes if schedule is not None else 0
    weights = backend.allocate(resident_bytes(layout, sources))
    staging = backend.allocate(slots_bytes + Scratch.num_bytes(casts=sources.casts))
    scratch = Scratch.carved(staging, casts=sources.casts)
    files = OpenFiles(approved.identified.checkpoint.folder, approved.identified.stamps)
    reader = ShardReader(files, backend)
    try:
        items = bind_resident(model, layout, sources, weights)
        read_resident(items, reader, scratch, progress)
        check_tied_values(layout, sources, reader, scratch)
        if schedule is not None:
            slots = Slots(staging, num_slots=schedule.num_slots, slot_bytes=schedule.slot_bytes)
            streamed = bind_streamed(model, layout, sources, slots, schedule.stream_order)
            requests = tuple(make_requests(block_items, scratch) for block_items in streamed)
        check_nothing_on_meta(model)
    except BaseException:
        reader.close()
        raise
    model.eval()
    state.arenas = [weights]
    if schedule is None:
        reader.close()
        staging.close()
    else:
        state.arenas.append(staging)
        blocks = {fqn: model.get_submodule(fqn) for fqn in schedule.stream_order}
        state.guards = StreamGuards(model, blocks)
        ring = Ring(
            schedule.stream_order,
            num_slots=schedule.num_slots,
            fill=_fill(reader, requests),
            is_running=running_test(tuple(blocks.values())),
        )
        state.start_stream(Stream(ring, slots, reader, backend), tuple(blocks.values()))
    state.layout = without_values(layout, sources)
    forwards.install(model)
    attach(model, state)
    return state


def _fill(reader: ShardReader, requests: tuple[tuple[Request, ...], ...]) -> Fill:
    def fill(block: int, slot: int, is_cancelled: Callable[[], bool]) -> int:
        return reader.read(requests[block], is_cancelled)

    return fill
