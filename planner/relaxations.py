"""What would be enough where nothing can be placed: one change at a time, each asked again.

Owns the axes of the model and its workload, which the model is read again for. Those of the machine are
`bayplan.planner.solve.enough`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.format_choice import AUTO_FORMATS, FormatRequest, parse_request
from bayplan.planner.formats import planned_forms
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
from bayplan.schemas.problem import Pin
from bayplan.schemas.progress import Progress, untold
from bayplan.schemas.types import DeviceId, FloatFormat

if TYPE_CHECKING:
    from bayplan.planner.model.facts import ReadModel

_HALF: FloatFormat = "bf16"
"""What a model in a wider data type is tried in; fp16 has the same bytes and fewer exponents."""
_WIDE = ("fp32", "fp64")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has no answer, with all that it was made of."""

    options: PlanOptions
    read: ReadModel
    request: FormatRequest
    max_memory: dict[DeviceId, int]
    left_out: tuple[DeviceId, ...]
    """Devices that this version does not run on, whatever their memory."""
    pins: tuple[Pin, ...]
    reread: Callable[[PlanOptions], ReadModel]
    """Reads the same model with other options."""


def certified(error: NoPlacement, asked: Asked, progress: Progress | None = None) -> CertifiedInfeasible:
    """Return the error with what would be enough on every axis.

    Args:
        error: Of the solver.
        asked: The call.
        progress: Told of axes.
    """
    tell = progress if progress is not None else untold
    axes = _axes(error.problem, asked)
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
    return CertifiedInfeasible(certificate, hint=_hint(error, asked, certificate))


def _hint(error: NoPlacement, asked: Asked, certificate: Certificate) -> str:
    own = next((block for block in asked.read.graph.blocks if block.id == error.block), None)
    if own is not None and any(tensor.fqn.rpartition(".")[0] != own.id for tensor in own.tensors):
        return f"--no-split with a class inside {own.class_name} makes smaller blocks"
    if not any(one.helps for one in certificate.relaxations):
        return "no single change is enough: combine several"
    return ""


def _axes(problem: Problem, asked: Asked) -> list[Callable[[], list[Relaxation]]]:
    """Return what is to be looked at, one after the other."""
    read, workload = asked.read, asked.read.workload
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
        found = machine_relaxations(problem, asked.max_memory)
        return [one for one in found if one.subject not in asked.left_out]

    return [
        *(partial(_count, problem, asked, *one) for one in counts),
        partial(_format, problem, asked),
        machine,
    ]


def _count(problem: Problem, asked: Asked, axis: Axis, field: str, given: int) -> list[Relaxation]:
    """Return the largest count below `given` with which there is a placement."""

    def chain_at(count: int) -> Chain:
        options = msgspec.structs.replace(asked.options, **{field: count})
        return _chain(asked.reread(options), asked.request)

    def is_enough(chain: Chain) -> bool:
        return _is_feasible(problem, chain, asked)

    if given == 1:
        return [Relaxation(axis=axis, given=given, note="which is the least")]
    try:
        enough = Traced(chain_at, is_enough, given=given).most()
    except BayplanError as error:
        return [Relaxation(axis=axis, given=given, note=f"not known: {error.what}")]
    if enough is None:
        return [Relaxation(axis=axis, given=given, too_little=1)]
    return [Relaxation(axis=axis, given=given, enough=enough, too_little=enough + 1, step=1)]


def _format(problem: Problem, asked: Asked) -> list[Relaxation]:
    """Return the formats that are enough: those asked for and the one that rounds least among the others."""
    given = _given_formats(asked)
    tried = None
    for text in _more_formats(asked, given):
        try:
            request = parse_request(text, asked.options.format_config)
            read = asked.read
            if request.plain not in (None, read.dtype):
                read = asked.reread(msgspec.structs.replace(asked.options, format=text))
            is_enough = _is_feasible(problem, _chain(read, request), asked)
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


def _given_formats(asked: Asked) -> tuple[str, ...]:
    """Return the names of the formats that blocks could be in."""
    read = asked.read
    own = read.dtype if read.scheme is None else read.scheme.name
    if asked.request.is_auto and read.scheme is None:
        return own, *AUTO_FORMATS
    return asked.request.names or (own,)


def _more_formats(asked: Asked, given: tuple[str, ...]) -> Iterator[str]:
    """Yield what `--format` could say instead, what rounds least first."""
    if asked.read.scheme is not None and not asked.request.names:
        yield from AUTO_FORMATS  # a checkpoint's own format has no name that `--format` knows
        return
    names = list(given)
    if asked.read.dtype in _WIDE:
        names = [_HALF if name in FLOATS else name for name in names]
        yield ",".join(names)
    for name in AUTO_FORMATS:
        if name not in names:
            names.append(name)
            yield ",".join(names)


def _chain(read: ReadModel, request: FormatRequest) -> Chain:
    return model_chain(read, planned_forms(read, request))


def _is_feasible(problem: Problem, chain: Chain, asked: Asked) -> bool:
    """Whether `chain` has a placement where the one of `problem` has none."""
    constraints = resolve(chain, asked.pins, no_spill=problem.constraints.no_spill)
    return is_feasible(msgspec.structs.replace(problem, chain=chain, constraints=constraints).task())
