"""From a plan to a model that runs: read it from top to bottom, it is the pipeline.

    open_plan -> check_runnable -> open_checkpoint -> preflight -> last_checks
              -> reserve -> bind -> read -> stream

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
    bound_tensors,
    check_nothing_on_meta,
    check_tied_values,
    read_resident,
    resident_bytes,
    without_values,
)
from bayplan.executor.measure import ForwardMeter, MemoryMeter
from bayplan.executor.open_files import OpenFiles
from bayplan.executor.preflight import Approved, check_runnable, last_checks, open_plan, preflight
from bayplan.executor.reader import Request, Scratch, ShardReader, make_requests
from bayplan.executor.ring import Fill, Ring
from bayplan.executor.state import LoadedState, Stream, attach, detach, state_of
from bayplan.schemas.progress import Progress, untold

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

    A call beyond what the plan reserves memory for is refused, with the option that plans for more. That
    includes what a forward hands back: the plan counts the logits of the last position, so a long input needs
    `logits_to_keep=1`, which `generate()` passes by itself, and can have no hidden states or attention
    weights of every layer. Short inputs may keep it all, and so may others where the budget leaves room. Only
    calls of the model itself are held to the plan: a part called directly, such as `model.model`, is not.

    Args:
        plan: A plan, or the path of its file.
        checkpoint: A folder, a file in it, or a Hub id `org/name[@revision]`; None: where the plan was made
            from, if that is on the Hub.
        model: To be filled instead of a new one; with the planned tree, parameters on meta. One that was
            released can be filled again.
        on: Device id of the plan to torch device, where the choice is not to be made here.
        expect_digest: The digest that was reviewed; another plan is refused.
        trust_remote_code: Run the code that comes with the checkpoint, if the plan says that it needs it.
        progress: Told how far verifying and reading are.

    Raises:
        PlanFormatError: `plan` is no valid plan.
        PlanRefused: It must not be carried out here; the kind says why.
        UsageError: `model` holds weights, or is loaded already; or as `open_checkpoint` and `preflight`.
        BayplanError: Anything else that keeps it from being carried out; see `bayplan.executor.errors`.
    """
    started_ns = time.perf_counter_ns()
    approved = approve(
        plan,
        checkpoint,
        model=model,
        on=on,
        expect_digest=expect_digest,
        trust_remote_code=trust_remote_code,
    )
    return carry_out(approved, progress, checks_ns=time.perf_counter_ns() - started_ns)


def approve(
    plan: Plan | Path | str,
    checkpoint: Path | str | None,
    *,
    model: nn.Module | None = None,
    on: Mapping[str, str] | None = None,
    expect_digest: str | None = None,
    trust_remote_code: bool = False,
) -> Approved:
    """Check everything that can be checked quickly; arguments and errors as those of `load_model`.

    Returns:
        What `carry_out` needs; the model in it is on meta.
    """
    opened = open_plan(plan, expect_digest=expect_digest)
    check_runnable(opened, trust_remote_code=trust_remote_code)
    return preflight(opened, open_checkpoint(opened, checkpoint), model=model, on=on or {})


def carry_out(approved: Approved, progress: Progress | None = None, *, checks_ns: int = 0) -> nn.Module:
    """Return the model of an approved plan, loaded. A failure leaves nothing behind, on it or elsewhere.

    Args:
        approved: From `approve`, a moment ago.
        progress: Told how far verifying and reading are.
        checks_ns: Time that the checks took; part of the measured time to load.

    Raises:
        BayplanError: As `load_model`.
    """
    started_ns = time.perf_counter_ns()
    tell = progress if progress is not None else untold
    plan, model = approved.plan, approved.model
    content_verified, notes = last_checks(approved, tell)
    memory = MemoryMeter()
    with memory.sampling(), contextlib.ExitStack() as undo:
        for backend in approved.backends.values():
            memory.watch(backend)
        forwards = ForwardMeter(approved.workload_guard(), memory)
        state = LoadedState(plan, approved.layout, memory=memory, forwards=forwards)
        state.content_verified, state.notes = content_verified, notes
        undo.callback(state.close, model)
        _fill_model(approved, state, tell, undo)
        state.forwards.install(model)
        attach(model, state)
        undo.pop_all()
    state.load_ns = checks_ns + time.perf_counter_ns() - started_ns
    return model


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


def _fill_model(
    approved: Approved, state: LoadedState, progress: Progress, undo: contextlib.ExitStack
) -> None:
    """Reserve, bind, read, and begin to stream; `state` holds whatever there is to give back by then."""
    model, layout, sources = approved.model, approved.layout, approved.sources
    (backend,) = approved.backends.values()  # more than one device is refused as not yet run
    schedule = next((entry for entry in approved.plan.schedule if entry.stream_order), None)
    slots_bytes = schedule.num_slots * schedule.slot_bytes if schedule is not None else 0
    weights = backend.allocate(resident_bytes(layout, sources))
    state.arenas.append(weights)
    staging = backend.allocate(slots_bytes + Scratch.num_bytes(casts=sources.casts))
    state.arenas.append(staging)
    scratch = Scratch.carved(staging, casts=sources.casts)
    files = OpenFiles(approved.identified.checkpoint.folder, approved.identified.stamps)
    reader = ShardReader(files, backend)
    undo.callback(reader.close)
    items = bind_resident(model, layout, sources, weights)
    read_resident(items, reader, scratch, progress)
    check_tied_values(layout, sources, reader, scratch)
    if schedule is not None:
        slots = Slots(staging, num_slots=schedule.num_slots, slot_bytes=schedule.slot_bytes)
        streamed = bind_streamed(model, layout, sources, slots, schedule.stream_order)
        requests = tuple(tuple(make_requests(block_items, scratch)) for block_items in streamed)
    check_nothing_on_meta(model)
    model.eval()
    state.bound = bound_tensors(model, layout)
    state.layout = without_values(layout, sources)
    if schedule is None:
        reader.close()
        state.arenas.remove(staging)
        staging.close()
        return
    blocks = {fqn: model.get_submodule(fqn) for fqn in schedule.stream_order}
    state.guards = StreamGuards(model, blocks)
    ring = Ring(
        schedule.stream_order,
        num_slots=schedule.num_slots,
        fill=_fill(reader, requests),
        is_running=running_test(tuple(blocks.values())),
    )
    state.start_stream(Stream(ring, slots, reader, backend), tuple(blocks.values()))


def _fill(reader: ShardReader, requests: tuple[tuple[Request, ...], ...]) -> Fill:
    def fill(block: int, slot: int, is_cancelled: Callable[[], bool]) -> int:
        return reader.read(requests[block], is_cancelled)

    return fill
