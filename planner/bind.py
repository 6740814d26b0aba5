"""Binding: giving a plan that was made from a config the identity of a checkpoint, without planning anew.

The checkpoint is read as for planning; what the plan says of the model must come out again, byte for byte.
Then identity and name rules are added and nothing else changes. What differs is listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.check import check
from bayplan.planner.format_choice import FormatRequest
from bayplan.planner.formats import mixed_rules, planned_forms
from bayplan.planner.model_chain import model_chain
from bayplan.planner.name_rules import tensor_rules
from bayplan.planner.options import PlanOptions
from bayplan.planner.replan import for_one_batch
from bayplan.planner.solve.chain import Chain, chain_from_plan, fold
from bayplan.schemas.codec import sealed
from bayplan.schemas.errors import BayplanError, PlanFormatError, PlanRefused, RefusalKind
from bayplan.schemas.features import formats_used, not_yet_run, quantized_formats
from bayplan.schemas.plan import Plan

if TYPE_CHECKING:
    from bayplan.planner.model.facts import ReadModel
    from bayplan.schemas.progress import Progress

_SHOWN = 8


def bind_plan(
    plan: Plan,
    checkpoint: str,
    *,
    hash_content: bool = False,
    variant: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Return `plan` with the identity and the name rules of `checkpoint`.

    Args:
        plan: Planned from a config, or bound to another state of the same model.
        checkpoint: Folder or Hub id.
        hash_content: Hash local shards.
        variant: Which of several checkpoints in the folder.
        trust_remote_code: Run the code that the plan names: the checkpoint's own, or its factory.
        progress: Told of hashing.

    Raises:
        BayplanError: Binding would run code that the plan names, and `trust_remote_code` is off.
        BayplanError: Something in the plan is in a quantized format.
        PlanRefused: FOREIGN: the checkpoint is of another model, or in other data types.
        PlanRefused: STALE: the same model, with another config or another graph than the planned one.
        PlanFormatError: The plan contradicts itself.
        BayplanError: The checkpoint cannot be read or holds no weights.
    """
    from bayplan.planner.model.read_model import read_model  # torch and transformers

    _check_consent(plan, trust_remote_code=trust_remote_code)
    _check_plain(plan)
    is_factory = plan.model.library == "torch"
    options = PlanOptions(
        batch=plan.workload.batch,
        context=plan.workload.context,
        encoder_context=plan.workload.encoder_context,
        prefill_chunk=plan.workload.prefill_chunk,
        class_name=plan.model.class_name if plan.model.library == "transformers" else None,
        format=None if is_factory else plan.model.dtype,
        no_split=plan.problem.no_split,
        hash_content=hash_content,
        variant=variant,
        trust_remote_code=plan.model.trust_remote_code,
        checkpoint=checkpoint if is_factory else None,
        library=None if is_factory else plan.model.library,
    )
    name = (plan.model.source or checkpoint) if is_factory else checkpoint
    read = read_model(name, options, progress)
    if read.obstacle is not None:
        raise read.obstacle.error()
    _check_same_model(plan, read, checkpoint)
    _check_same_config(plan, read, checkpoint)
    _check_same_graph(plan, read, checkpoint)
    problems = check(plan)
    if problems:
        raise PlanFormatError(checkpoint, "plan", problems, hint="plan again")
    model = msgspec.structs.replace(
        plan.model,
        source=read.model.source,
        config_digest=read.model.config_digest,
        revision=read.model.revision,
        checkpoint=read.model.checkpoint,
    )
    bound = msgspec.structs.replace(plan, model=model, rules=tensor_rules(read.sources))
    return sealed(msgspec.structs.replace(bound, applyable=bound.complete and not not_yet_run(bound)))


def _check_consent(plan: Plan, *, trust_remote_code: bool) -> None:
    """A plan is a file from somebody else: it may not run code by being bound."""
    is_factory = plan.model.library == "torch"
    if trust_remote_code or not (plan.model.trust_remote_code or is_factory):
        return
    raise BayplanError(
        "binding would run code that the plan names",
        where=plan.model.source or plan.model.class_name,
        got="a factory" if is_factory else "code that comes with the checkpoint",
        needed="permission to run that code",
        hint="read the code first; --trust-remote-code runs it",
    )


def _check_plain(plan: Plan) -> None:
    """What a quantized checkpoint takes is exact from its headers only: planning with them is as quick.

    A format that the plan could have chosen and did not is nobody's.
    """
    quantized = quantized_formats(plan)
    if quantized or plan.model.quantization is not None:
        raise BayplanError(
            "a plan in a quantized format cannot be bound",
            where=plan.model.source or plan.model.class_name,
            got=", ".join(quantized) or f"a checkpoint quantized by {plan.model.quantization}",
            needed="a plan in floating point",
            hint="plan again, naming the checkpoint itself as the model",
        )


def _check_same_model(plan: Plan, read: ReadModel, checkpoint: str) -> None:
    if read.model.checkpoint is None:
        raise BayplanError(
            "there are no weights to bind to",
            where=checkpoint,
            got="a config alone",
            needed="safetensors shards beside it",
        )
    wanted, found = plan.model, read.model
    if (wanted.class_name, wanted.tree_digest) != (found.class_name, found.tree_digest):
        raise PlanRefused(
            RefusalKind.FOREIGN,
            "the checkpoint is of another model",
            where=checkpoint,
            got=f"{found.class_name} with {found.num_params} parameters, {found.tree_digest}",
            needed=f"{wanted.class_name} with {wanted.num_params} parameters, {wanted.tree_digest}",
            hint="plan for this checkpoint instead",
        )


def _check_same_config(plan: Plan, read: ReadModel, checkpoint: str) -> None:
    """What a config says beyond shapes, such as rotary bases, decides results: it is part of the model."""
    if plan.model.config_digest is None and plan.model.library == "timm":
        return  # planned by timm's own name, and the tensors are the same
    if plan.model.config_digest != read.model.config_digest:
        raise PlanRefused(
            RefusalKind.STALE,
            "the checkpoint has another config.json than the plan was made from",
            where=checkpoint,
            got=str(read.model.config_digest),
            needed=str(plan.model.config_digest),
            hint="plan again",
        )


def _check_same_graph(plan: Plan, read: ReadModel, checkpoint: str) -> None:
    """Compare what the solver was given: equal inputs mean that the placement still holds."""
    forms = planned_forms(read, FormatRequest())
    chain = model_chain(read, forms, plan.inventory)
    # How many batches are in flight the solver has chosen; what one takes is as it was read.
    workload = msgspec.structs.replace(read.workload, batches_in_flight=plan.workload.batches_in_flight)
    format_rules = mixed_rules(forms, [0] * len(chain))
    formats = {*forms.choices[0].block_formats, *(rule.format for rule in format_rules)}
    differences = [
        f"{what}: {got} instead of {wanted}"
        for what, got, wanted in (
            ("blocks", len(chain), len(plan.blocks)),
            ("formats", sorted(formats), sorted(formats_used(plan))),
            ("workload", workload, plan.workload),
            ("attention", read.model.attn_implementation, plan.model.attn_implementation),
            ("experts implementation", read.model.experts_implementation, plan.model.experts_implementation),
            ("whether it generates", read.graph.generates, plan.model.generates),
            ("activations outside blocks", chain.base_activation_bytes, plan.problem.base_activation_bytes),
            ("edges", chain.edges, plan.problem.edges),
            ("tied weights", {group.fqns for group in read.graph.ties}, {tie.fqns for tie in plan.ties}),
        )
        if got != wanted
    ]
    for block, name, cost in zip(plan.blocks, chain.ids, chain.costs, strict=False):
        form = cost.forms[0]
        if (block.id, block.num_bytes, block.format) != (name, form.num_bytes, form.format):
            differences.append(
                f"block {name} ({form.num_bytes} bytes, {form.format}) instead of"
                f" {block.id} ({block.num_bytes} bytes, {block.format})"
            )
    if format_rules != plan.format_rules:
        differences.append("tensors kept in another data type than their block")
    if not differences and fold(chain) != fold(_as_placed(plan)):
        differences.append("work or activations of the blocks, as traced by this version of the libraries")
    if chain.scratch_bytes > plan.problem.scratch_bytes:
        differences.append(
            f"reader's scratch: {chain.scratch_bytes} bytes instead of {plan.problem.scratch_bytes}"
        )
    if differences:
        more = len(differences) - _SHOWN
        raise PlanRefused(
            RefusalKind.STALE,
            "the placement does not hold for this checkpoint",
            where=checkpoint,
            got="; ".join(differences[:_SHOWN]) + (f"; {more} more" if more > 0 else ""),
            hint="plan again",
        )


def _as_placed(plan: Plan) -> Chain:
    """Return the chain that the plan was made from, with one batch, of every block the form that it is in."""
    chain = for_one_batch(chain_from_plan(plan), plan.workload.batches_in_flight)
    costs = tuple(
        msgspec.structs.replace(cost, forms=tuple(form for form in cost.forms if form.format == block.format))
        for cost, block in zip(chain.costs, plan.blocks, strict=False)
    )
    return msgspec.structs.replace(chain, costs=costs)
