"""Carry a plan out once: load, generate or run one forward, report, release.

Owns the two ways to run a model, in groups of the planned batch, and the digest of what came out.
"""

from __future__ import annotations

import hashlib
import inspect
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import msgspec
import torch
from transformers import PreTrainedModel

from bayplan.executor.errors import ContextExceededError
from bayplan.executor.inputs import check_inputs, described, read_inputs, taken
from bayplan.executor.load import approve, carry_out, release
from bayplan.executor.prompts import Prompts
from bayplan.executor.report import report
from bayplan.executor.state import state_of
from bayplan.schemas.errors import BayplanError, UsageError
from bayplan.schemas.report import Report
from bayplan.skeleton.config_file import FOREIGN_FAULTS, one_line
from bayplan.skeleton.formats import short_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from bayplan.executor.inputs import ModelInputs
    from bayplan.executor.preflight import Approved
    from bayplan.schemas.plan import Plan, Workload
    from bayplan.schemas.progress import Progress

DEFAULT_NEW_TOKENS = 20


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run gave."""

    report: Report
    texts: tuple[str, ...] = ()
    """Per prompt, what was generated, without the prompt."""
    outputs: dict[str, torch.Tensor] = {}
    """Named tensors of one forward; empty after generating."""
    outputs_digest: str | None = None
    """Of `outputs`, see `digest_tensors`; None after generating."""


def run_plan(
    plan: Plan | Path | str,
    checkpoint: Path | str | None = None,
    *,
    prompts: Sequence[str] = (),
    inputs: Path | str | None = None,
    max_new_tokens: int = DEFAULT_NEW_TOKENS,
    expect_digest: str | None = None,
    on: Mapping[str, str] | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Load a model by its plan, run it once and let it go again.

    With prompts, a generating model continues them greedily, as many at a time as the planned batch; any
    other model runs one forward over each such group. With inputs, every model runs one forward.

    Args:
        plan: A plan, or the path of its file.
        checkpoint: A folder, a file in it, or a Hub id; None: where the plan was made from, if that is on
            the Hub.
        prompts: Texts.
        inputs: A safetensors file whose tensors are the forward's arguments, by name.
        max_new_tokens: Most tokens to generate per prompt.
        expect_digest: The digest that was reviewed; another plan is refused.
        on: Device id of the plan to torch device.
        trust_remote_code: Run the code that comes with the checkpoint, if the plan says that it needs it.
        progress: Told how far verifying and reading are.

    Raises:
        UsageError: Not exactly one of `prompts` and `inputs`; nothing to generate; a prompt without tokens.
        BayplanError: `inputs` cannot be read, or there is no tokenizer for `prompts`.
        BayplanError: The inputs are none of this model, as `check_inputs` and `taken` say.
        ContextExceededError, KeptOutputsError: More than planned; known before anything is loaded.
        BayplanError: As `load_model`, or the model fails to compute.
    """
    if bool(prompts) == (inputs is not None):
        raise UsageError("give prompts or inputs", got="both" if prompts else "neither", needed="one of them")
    if max_new_tokens < 1:
        raise UsageError("nothing to generate", got=f"{max_new_tokens} new tokens", needed="at least 1")
    started_ns = time.perf_counter_ns()
    approved = approve(
        plan, checkpoint, on=on, expect_digest=expect_digest, trust_remote_code=trust_remote_code
    )
    checks_ns = time.perf_counter_ns() - started_ns
    texts = _prompts_of(approved, trust_remote_code=trust_remote_code) if prompts else None
    groups = _checked_groups(approved, texts, prompts, inputs, max_new_tokens)
    model = carry_out(approved, progress, checks_ns=checks_ns)
    try:
        with state_of(model).memory.sampling(), torch.inference_mode():
            if texts is not None and approved.plan.model.generates:
                return _continued(model, approved.plan.workload, texts, groups, max_new_tokens)
            outputs = _joined([forward(model, group, approved.plan.workload) for group in groups])
            return RunResult(report=report(model), outputs=outputs, outputs_digest=digest_tensors(outputs))
    finally:
        release(model)


def _prompts_of(approved: Approved, *, trust_remote_code: bool) -> Prompts:
    """Return the checkpoint's tokenizer; the folder is known to be the planned model's."""
    trust = approved.plan.model.trust_remote_code and trust_remote_code
    return Prompts(approved.identified.checkpoint.folder, trust_remote_code=trust)


def _checked_groups(
    approved: Approved,
    texts: Prompts | None,
    prompts: Sequence[str],
    inputs: Path | str | None,
    max_new_tokens: int,
) -> list[ModelInputs]:
    """Return the inputs of each call, known to be what the model takes and what is planned for.

    Everything is checked before anything is loaded: the model's own hooks would find out too late.
    """
    workload, model = approved.plan.workload, approved.model
    if texts is None:
        where, groups = str(inputs), [read_inputs(Path(inputs or ""))]
    else:
        where, generates = "the prompts", approved.plan.model.generates
        grouped = texts.groups_to_generate if generates else texts.groups_to_embed
        groups = [taken(group, model) for group in grouped(prompts, workload.batch)]
    for group in groups:
        check_inputs(group, model, where=where)
    if texts is not None and approved.plan.model.generates:
        _check_lengths(workload, max(group["input_ids"].shape[1] for group in groups), max_new_tokens)
    else:
        guard = approved.workload_guard()
        for group in groups:
            guard.check((), dict(_forward_arguments(model, group, workload)))
    return groups


def _continued(
    model: nn.Module, workload: Workload, texts: Prompts, groups: list[ModelInputs], max_new_tokens: int
) -> RunResult:
    forwards = state_of(model).forwards
    token_ids: list[list[int]] = []
    for group in groups:
        with forwards.prompt_of(_num_prompt(model, group)):
            token_ids += generate(model, group, workload, max_new_tokens, pad_token_id=texts.pad_token_id)
    return RunResult(report=report(model, token_ids=token_ids), texts=texts.decode(token_ids))


class _Generating(Protocol):
    def generate(self, **options: object) -> torch.Tensor: ...


def generate(
    model: nn.Module,
    group: ModelInputs,
    workload: Workload,
    max_new_tokens: int,
    *,
    pad_token_id: int | None,
) -> list[list[int]]:
    """Return the ids that a model generates greedily after each prompt of a group, the end token included.

    Args:
        model: A transformers model that generates.
        group: `input_ids` and `attention_mask`, shape `[prompts, positions]`.
        workload: Bounds the positions of one forward.
        max_new_tokens: Most ids per prompt.
        pad_token_id: For prompts that end before others.

    Raises:
        BayplanError: The model cannot generate from this.
    """
    assert isinstance(model, PreTrainedModel), "only transformers models generate"
    num_prompt = _num_prompt(model, group)
    options: dict[str, int] = {}
    if pad_token_id is not None:
        options["pad_token_id"] = pad_token_id
    if num_prompt > workload.prefill_chunk:
        options["prefill_chunk_size"] = workload.prefill_chunk
    try:
        generated = cast("_Generating", model).generate(
            **group, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1, **options
        )
    except FOREIGN_FAULTS as error:
        raise _failure(f"{type(model).__name__}.generate", group, error) from error
    ends = model.generation_config.eos_token_id
    end_ids = set(ends if isinstance(ends, list) else [ends])
    return [_until_end(row[num_prompt:].tolist(), end_ids) for row in generated]


def forward(model: nn.Module, group: ModelInputs, workload: Workload) -> dict[str, torch.Tensor]:
    """Return the named tensors that one forward gives.

    Of a language model, only the logits of the last position where the plan reserves no more.

    Args:
        model: Any model.
        group: Its arguments by name.
        workload: As planned.

    Raises:
        BayplanError: The model cannot compute this.
    """
    try:
        output = model(**_forward_arguments(model, group, workload))
    except FOREIGN_FAULTS as error:
        raise _failure(f"{type(model).__name__}.forward", group, error) from error
    if isinstance(output, torch.Tensor):
        return {"output": output}
    items = output.items() if hasattr(output, "items") else enumerate(output)
    named: dict[str, torch.Tensor] = {}
    for name, value in items:
        members = value if isinstance(value, (tuple, list)) else [value]
        for index, member in enumerate(members):
            if isinstance(member, torch.Tensor):
                named[f"{name}.{index}" if len(members) > 1 else str(name)] = member
    return named


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return `sha256:...` of named tensors: names in order, each with dtype, shape and bytes."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {short_dtype(tensor.dtype)}{list(tensor.shape)}\n".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"sha256:{found.hexdigest()}"


def _forward_arguments(
    model: nn.Module, group: ModelInputs, workload: Workload
) -> dict[str, torch.Tensor | int]:
    takes = inspect.signature(model.forward).parameters
    options = {"logits_to_keep": 1} if workload.logits == "last" and "logits_to_keep" in takes else {}
    return {**options, **group}


def _num_prompt(model: nn.Module, group: ModelInputs) -> int:
    """Return the positions that are there before the first output; a decoder starts from one token."""
    has_encoder = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    return 1 if has_encoder else group["input_ids"].shape[1]


def _failure(what: str, group: ModelInputs, error: BaseException) -> BayplanError:
    return BayplanError(f"{what} failed", where=described(group), got=one_line(error))


def _check_lengths(workload: Workload, num_prompt: int, max_new_tokens: int) -> None:
    if workload.encoder_context is not None:
        if num_prompt > workload.encoder_context:
            raise ContextExceededError(
                "encoder positions",
                got=num_prompt,
                planned=workload.encoder_context,
                option="--encoder-context",
            )
        num_prompt = 1  # the decoder starts from one token
    if num_prompt + max_new_tokens > workload.context:
        raise ContextExceededError(
            "positions", got=num_prompt + max_new_tokens, planned=workload.context, option="--context"
        )


def _until_end(ids: list[int], end_ids: set[int | None]) -> list[int]:
    for index, token_id in enumerate(ids):
        if token_id in end_ids:
            return ids[: index + 1]
    return ids


def _joined(parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
