"""What a reader must know about a plan before trusting it: edited, unbound, not runnable here, unverified.

Owns the warnings that `show` and `diff` print beside a plan. They never stop anything: only the executor
refuses.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.planner.present.wording import count_text, printable
from bayplan.schemas.errors import RefusalKind
from bayplan.schemas.features import Feature, features_used, not_yet_run
from bayplan.schemas.plan import PLAN_FORMAT_VERSION, PLAN_SEMANTICS, Plan
from bayplan.schemas.types import SolverStatus

_EDITED = f"{RefusalKind.EDITED}: the file does not match its digest; it will not be carried out"
_BOUND_BY_PLANNING = frozenset({Feature.QUANTIZED, Feature.PREQUANTIZED})
"""With these a plan gets its weights by being made from them; `bind` refuses it."""
_MAX_UNUSED = 3


def plan_notices(plan: Plan, *, digest_matches: bool) -> tuple[str, ...]:
    """Return one sentence for each thing that a reader of `plan` should know; none for a sound one.

    Args:
        plan: As read from its file.
        digest_matches: Whether the file is as it was written.
    """
    return (
        *_refusals(plan, digest_matches),
        *_newer_fields(plan),
        *_limits_of_the_plan(plan),
        *_weights(plan),
    )


def reading_notices(plan: Plan, *, digest_matches: bool) -> tuple[str, ...]:
    """Return only what casts doubt on the reading itself: an edited file, fields unknown to this version.

    Args:
        plan: As read from its file.
        digest_matches: Whether the file is as it was written.
    """
    edited = () if digest_matches else (_EDITED,)
    return (*edited, *_newer_fields(plan))


def _refusals(plan: Plan, digest_matches: bool) -> Iterator[str]:
    """Yield why `bayplan run` would refuse the plan, whatever the machine."""
    if not digest_matches:
        yield _EDITED
    if plan.semantics > PLAN_SEMANTICS:
        yield (
            f"{RefusalKind.UNSUPPORTED}: it asks for semantics {plan.semantics}, this version carries out "
            f"{PLAN_SEMANTICS}"
        )
    missing = not_yet_run(plan)
    if missing:
        names = ", ".join(feature.value for feature in missing)
        yield f"{RefusalKind.UNSUPPORTED}: this version plans but does not run {names}"
    if plan.model.checkpoint is None:
        advice = (
            "plan again, naming the checkpoint itself as the model"
            if _BOUND_BY_PLANNING.intersection(features_used(plan))
            else "`bayplan bind PLAN --checkpoint DIR` adds the identity of the weights"
        )
        yield f"{RefusalKind.UNBOUND}: planned from a config alone; {advice}"
    if plan.errored:
        yield "errored: the planner could not finish it; it will not be carried out"
    elif not plan.complete:
        yield "incomplete: some blocks have no place; it will not be carried out"
    elif not plan.applyable and not missing and plan.model.checkpoint is not None:
        yield "not applyable: its planner marked it as not to be carried out"


def _newer_fields(plan: Plan) -> Iterator[str]:
    minor, known_minor = (
        int(version.partition(".")[2]) for version in (plan.format_version, PLAN_FORMAT_VERSION)
    )
    if minor > known_minor:
        yield (
            f"format {plan.format_version} is newer than this version's {PLAN_FORMAT_VERSION}: fields that "
            "it added are not shown"
        )


def _limits_of_the_plan(plan: Plan) -> Iterator[str]:
    if not plan.model.traced:
        note = f": {printable(plan.model.trace_note)}" if plan.model.trace_note else ""
        yield f"not traced{note}; blocks are in the order of the module tree"
    if plan.summary.solver_status == SolverStatus.TIME_LIMIT or not plan.summary.reproducible:
        yield "not reproducible: the search was ended by the clock, another run may give another plan"
    if plan.model.trust_remote_code:
        yield "trusts code that comes with the model"


def _weights(plan: Plan) -> Iterator[str]:
    checkpoint = plan.model.checkpoint
    if checkpoint is None:
        return
    unverified = sum(shard.content_sha256 is None for shard in checkpoint.shards)
    if unverified:
        yield (
            f"content unverified: no content hash for {unverified} of "
            f"{count_text(len(checkpoint.shards), 'shard')}; `--hash` adds it"
        )
    unused = checkpoint.unused
    if unused:
        shown = ", ".join(printable(name) for name in unused[:_MAX_UNUSED])
        more = f" and {len(unused) - _MAX_UNUSED} more" if len(unused) > _MAX_UNUSED else ""
        yield f"the checkpoint holds tensors that the model does not have: {shown}{more}"
