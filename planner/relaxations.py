"""What would be enough where nothing can be placed: one change at a time, each asked again.

Owns the axes of the model and its workload, which the model is read again for. Those of the machine are
`bayplan.planner.solve.enough`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from bayplan.planner.format_choice import AUTO_FORMATS, FormatRequest, parse_request
from bayplan.planner.formats import choice_names, planned_forms
from bayplan.planner.model_chain import model_chain
from bayplan.planner.options import PlanOptions
from bayplan.planner.solve.between import Traced
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.enough import machine_relaxations
from bayplan.planner.solve.feasible import is_feasible
from bayplan.planner.solve.infeasible import NoPlacement
from bayplan.planner.solve.objectives import Problem
from bayplan.planner.stored_form import FLOATS
from bayplan.schemas.certificate import Axis, Certificate, CertifiedInfeasible, Relaxation
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.features import NOT_YET_RUN, Feature
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.problem import Pin
from bayplan.schemas.progress import Progress, untold
from bayplan.schemas.types import FloatFormat

if TYPE_CHECKING:
    from bayplan.planner.model.facts import ReadModel
    from bayplan.planner.ready import Ready

    Reread: TypeAlias = Callable[[PlanOptions], ReadModel]

_HALF: FloatFormat = "bf16"
"""What a model in a wider data type is tried in; fp16 has the same bytes and fewer exponents."""
_WIDE = ("fp32", "fp64")


def certified(
    error: NoPlacement, ready: Ready, reread: Reread, progress: Progress | None = None
) -> CertifiedInfeasible:
    """Return the error with what would be enough on every axis.

    Args:
        error: Of the solver.
        ready: What the call was made of.
        reread: Reads the same model with other options.
        progress: Told of axes.
    """
    tell = progress if progress is not None else untold
    axes = _axes(error.problem, ready, reread)
    found: list[Relaxation] = []
    for number, axis in enumerate(axes):
        tell("what would be enough", number, len(axes))
        found += axis()
    tell("what would be enough", len(axes), len(axes))
    certificate = Certificate(
        what=error.what,
        where=error.where,
        got=error.got,
        needed=error.needed,
        relaxations=tuple(found),
    )
    return CertifiedInfeasible(certificate, hint=_hint(error, ready, certificate))


def _hint(error: NoPlacement, ready: Ready, certificate: Certificate) -> str:
    own = next((block for block in ready.read.graph.blocks if block.id == error.block), None)
    if own is not None and any(tensor.fqn.rpartition(".")[0] != own.id for tensor in own.tensors):
        return f"--no-split with a class inside {own.class_name} makes smaller blocks"
    if not any(one.helps for one in certificate.relaxations):
        return "no single change is enough: combine several"
    return ""


def _axes(problem: Problem, ready: Ready, reread: Reread) -> list[Callable[[], list[Relaxation]]]:
    """Return what is to be looked at, one after the other."""
    read, workload = ready.read, ready.read.workload
    counts: list[tuple[Axis, str, int]] = []
    if read.graph.traced:
        if read.has_positions:
            counts.append((Axis.CONTEXT, "context", workload.context))
        if workload.encoder_context is not None:
            counts.append((Axis.ENCODER_CONTEXT, "encoder_context", workload.encoder_context))
        if read.graph.generates:
            counts.append((Axis.PREFILL_CHUNK, "prefill_chunk", workload.prefill_chunk))
        counts.append((Axis.BATCH, "batch", workload.batch))

    def machine() -> list[Relaxation]:
        found = machine_relaxations(problem, ready.max_memory)
        return [one for one in found if one.subject not in ready.left_out]

    return [
        *(partial(_count, problem, ready, reread, *one) for one in counts),
        partial(_format, problem, ready, reread),
        machine,
    ]


def _count(
    problem: Problem, ready: Ready, reread: Reread, axis: Axis, field: str, given: int
) -> list[Relaxation]:
    """Return the largest count below `given` with which there is a placement."""

    def chain_at(count: int) -> Chain:
        options = msgspec.structs.replace(ready.options, **{field: count})
        return _chain(reread(options), ready.request, ready.inventory)

    def is_enough(chain: Chain) -> bool:
        return _is_feasible(problem, chain, ready.pins)

    if given == 1:
        return [Relaxation(axis=axis, given=given, note="which is the least")]
    try:
        enough = Traced(chain_at, is_enough, given=given).most()
    except BayplanError as error:
        return [Relaxation(axis=axis, given=given, note=f"not known: {error.what}")]
    if enough is None:
        return [Relaxation(axis=axis, given=given, too_little=1)]
    return [Relaxation(axis=axis, given=given, enough=enough, too_little=enough + 1, step=1)]


def _format(problem: Problem, ready: Ready, reread: Reread) -> list[Relaxation]:
    """Return the formats that are enough: those asked for and the one that rounds least among the others."""
    given = choice_names(ready.read, ready.request)
    tried = None
    for text in _more_formats(ready, given):
        try:
            request = parse_request(text, ready.options.format_config)
            read = ready.read
            if request.plain not in (None, read.dtype):
                read = reread(msgspec.structs.replace(ready.options, format=text))
            is_enough = _is_feasible(problem, _chain(read, request, ready.inventory), ready.pins)
        except BayplanError:
            continue  # a format that this model cannot have, or that the user's own rules rule out
        if is_enough:
            note = ""
            if Feature.QUANTIZED in NOT_YET_RUN and not set(text.split(",")) <= set(FLOATS):
                note = "this version plans but does not run it"
            before = tried or ",".join(given)
            return [
                Relaxation(axis=Axis.FORMAT, given=",".join(given), enough=text, too_little=before, note=note)
            ]
        tried = text
    return [Relaxation(axis=Axis.FORMAT, given=",".join(given), too_little=tried)]


def _more_formats(ready: Ready, given: tuple[str, ...]) -> Iterator[str]:
    """Yield what `--format` could say instead, what rounds least first."""
    if ready.read.scheme is not None and not ready.request.names:
        yield from AUTO_FORMATS  # a checkpoint's own format has no name that `--format` knows
        return
    names = list(given)
    if ready.read.dtype in _WIDE:
        names = [_HALF if name in FLOATS else name for name in names]
        yield ",".join(names)
    for name in AUTO_FORMATS:
        if name not in names:
            names.append(name)
            yield ",".join(names)


def _chain(read: ReadModel, request: FormatRequest, inventory: Inventory) -> Chain:
    return model_chain(read, planned_forms(read, request), inventory)


def _is_feasible(problem: Problem, chain: Chain, pins: tuple[Pin, ...]) -> bool:
    """Whether `chain` has a placement where the one of `problem` has none."""
    constraints = resolve(chain, pins, no_spill=problem.constraints.no_spill)
    return is_feasible(msgspec.structs.replace(problem, chain=chain, constraints=constraints).task())
