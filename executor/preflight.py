"""Everything that can be checked before anything is allocated.

Owns the order of the checks: structure, digest, features, completeness, machine, checkpoint, tensors; last,
when the inputs of a run are known to be good too, free memory and the shards' contents. What passes is
carried out without another decision.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from torch import nn

from bayplan.executor.given_model import check_given_model
from bayplan.executor.identity import (
    IdentifiedCheckpoint,
    build_planned_model,
    check_tree,
    identify,
    verify_content,
)
from bayplan.executor.layout import Layout, make_layout
from bayplan.executor.machine import check_free_memory, match_devices
from bayplan.executor.sources import TensorSources, find_sources
from bayplan.executor.workload_guard import WorkloadGuard
from bayplan.schemas.checkpoint import LocalCheckpoint, locate_tensors
from bayplan.schemas.codec import read_plan, sealed
from bayplan.schemas.errors import BayplanError, PlanFormatError, PlanRefused, RefusalKind
from bayplan.schemas.features import Feature, not_yet_run
from bayplan.schemas.plan import PLAN_SEMANTICS, Plan
from bayplan.schemas.plan_rules import plan_problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bayplan.executor.backend import DeviceBackend
    from bayplan.schemas.progress import Progress
    from bayplan.schemas.types import DeviceId


class Approved(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that passed every check but the last, and what the checks found."""

    plan: Plan
    model: nn.Module
    """With the planned tree; parameters on meta."""
    layout: Layout
    sources: TensorSources
    identified: IdentifiedCheckpoint
    backends: dict[DeviceId, DeviceBackend]

    def workload_guard(self) -> WorkloadGuard:
        """Return what holds calls of the model to the plan."""
        room_bytes = max(
            device.ledger.activations[1] + max(0, device.budget_bytes - device.ledger.budgeted_bytes)
            for device in self.plan.devices
        )
        return WorkloadGuard(self.model, self.plan.workload, room_bytes=room_bytes)


def open_plan(plan: Plan | Path | str, *, expect_digest: str | None = None) -> Plan:
    """Return a plan that is valid and as it was written.

    Args:
        plan: A plan, or the path of its file.
        expect_digest: The digest that was reviewed; None: whichever the plan has.

    Raises:
        PlanFormatError: No valid plan; every problem is listed.
        PlanRefused: UNSUPPORTED: of another major format version.
        PlanRefused: EDITED: changed after it was written.
        PlanRefused: EDITED: not the plan that was expected.
        BayplanError: The file cannot be read.
    """
    if isinstance(plan, Plan):
        where, opened = "plan", plan
        problems = tuple(plan_problems(plan))
        if problems:
            raise PlanFormatError(where, "plan", problems)
        is_intact = sealed(plan).digest == plan.digest
    else:
        where, decoded = str(plan), read_plan(plan)
        opened, is_intact = decoded.plan, decoded.digest_matches
    if not is_intact:
        raise PlanRefused(
            RefusalKind.EDITED,
            "changed after it was written",
            where=where,
            got=f"a plan that does not have the digest {opened.digest[:19]}...",
            needed="the plan as it was made",
            hint="make the change with bayplan plan --pin or --max-memory instead",
        )
    if expect_digest not in (None, opened.digest):
        raise PlanRefused(
            RefusalKind.EDITED,
            "not the expected plan",
            where=where,
            got=opened.digest,
            needed=expect_digest or "",
            hint="review the plan again with bayplan show",
        )
    return opened


def check_runnable(plan: Plan, *, trust_remote_code: bool) -> None:
    """Check that this version runs what `plan` says.

    Raises:
        PlanRefused: UNSUPPORTED: newer semantics.
        PlanRefused: UNSUPPORTED: features that this version does not run; each is named.
        PlanRefused: UNSUPPORTED: the plan is errored, incomplete, or says that it cannot be carried out.
        PlanRefused: UNBOUND: planned from a config alone.
        BayplanError: It runs code of the checkpoint, and `trust_remote_code` is off.
    """
    unsupported = RefusalKind.UNSUPPORTED
    if plan.semantics > PLAN_SEMANTICS:
        raise PlanRefused(
            unsupported,
            "means more than this version knows",
            got=f"semantics {plan.semantics}",
            needed=f"at most {PLAN_SEMANTICS}",
            hint="use the version of bayplan that wrote it",
        )
    features = not_yet_run(plan)
    if features:
        raise PlanRefused(
            unsupported,
            "uses what this version does not run yet",
            got="; ".join(features),
            hint="" if Feature.ANY_MODULE in features else "plan again for this machine, without -i",
        )
    if plan.errored or not plan.complete:
        got = "errored" if plan.errored else "incomplete"
        raise PlanRefused(unsupported, "no whole plan", got=got, hint="plan again")
    if plan.model.checkpoint is None:
        raise PlanRefused(
            RefusalKind.UNBOUND,
            "made from a config alone",
            needed="the identity of the weights",
            hint="bayplan bind PLAN --checkpoint DIR adds it",
        )
    if not plan.applyable:
        raise PlanRefused(unsupported, "the plan says that it cannot be carried out", hint="plan again")
    if plan.model.trust_remote_code and not trust_remote_code:
        raise BayplanError(
            f"{plan.model.class_name} is defined by code that comes with the checkpoint",
            needed="permission to run that code",
            hint="read the code first; --trust-remote-code runs it",
        )


def preflight(
    plan: Plan,
    checkpoint: LocalCheckpoint,
    *,
    model: nn.Module | None,
    on: Mapping[str, str],
) -> Approved:
    """Check a runnable plan against this machine and this checkpoint.

    Args:
        plan: From `open_plan`, after `check_runnable`.
        checkpoint: The opened folder.
        model: To be filled, with the planned tree; None: built from the folder's config.
        on: Device id to torch device, where the choice is not to be made here.

    Returns:
        What loading needs. Nothing large was allocated.

    Raises:
        UsageError: As `match_devices` and `check_given_model`.
        PlanRefused: FOREIGN, STALE or UNSUPPORTED: as `match_devices`, `identify` and `check_tree`.
        PlanContradictionError: Plan and model do not match in detail.
        SafetensorsFormatError, CheckpointError: A shard's header or the index is not valid.
        TensorMissingError, TensorMismatchError: As `find_sources`.
    """
    backends = match_devices(plan, on)
    if model is not None:
        check_given_model(model)
    identified = identify(plan, checkpoint)
    built = model if model is not None else build_planned_model(plan, checkpoint.folder)
    check_tree(plan, built)
    layout = make_layout(plan, built)
    headers = {name: raw.parse() for name, raw in identified.headers.items()}
    places = locate_tensors(checkpoint, headers)
    sources = find_sources(plan, layout, places, folder=str(checkpoint.folder))
    return Approved(
        plan=plan,
        model=built,
        layout=layout,
        sources=sources,
        identified=identified,
        backends=backends,
    )


def last_checks(approved: Approved, progress: Progress) -> tuple[bool, tuple[str, ...]]:
    """Check what takes long or passes soon: the shards' contents, and that the memory is free.

    Args:
        approved: From `preflight`.
        progress: Told how far the hashing of shards is.

    Returns:
        Whether every shard's hash was in the plan and matched; what the checks found worth a word.

    Raises:
        PlanRefused: STALE: as `verify_content`.
        MemoryBudgetError: The memory is not free now.
    """
    plan = approved.plan
    check_free_memory(plan)
    is_verified = verify_content(plan, approved.identified, progress)
    notes = [] if is_verified else ["content unverified: the plan has no hash of some shards"]
    if plan.model.trace_note:
        notes.append(plan.model.trace_note)
    return is_verified, tuple(notes)
