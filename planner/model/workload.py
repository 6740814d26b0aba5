"""What the memory is planned for: batch, context and their defaults.

Owns the reading of a config's limits. The rest of the planner takes the workload as given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.errors import UsageError
from bayplan.schemas.plan import Workload

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MAX_COUNT = 2**31
"""Sequences or positions that can be planned for at most: above, byte counts would leave exact integers."""

DEFAULT_CONTEXT = 1024
"""Positions planned for where the user says nothing and the model allows as many."""

# The first that a config has is its limit; every model library of the last years used one of these.
_CONTEXT_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_target_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
)
# Their tables hold as many rows, but the first `pad_token_id + 1` are not for positions.
_PADDED_POSITION_TYPES = frozenset(
    {
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)


def max_context(config: PreTrainedConfig) -> int | None:
    """Return the positions that a model of this config takes; of the decoder where there are two stacks.

    Args:
        config: Of the whole model; the text part is looked up.

    Returns:
        None where the config knows no limit, as with state-space models and relative positions.
    """
    text = config.get_text_config(decoder=True)
    if getattr(text, "relative_attention_num_buckets", None) is not None:
        # Positions only count by their distance: T5's `n_positions` is a length of its training.
        return None
    for field in _CONTEXT_FIELDS:
        value = getattr(text, field, None)
        if isinstance(value, int) and value > 0:
            if text.model_type in _PADDED_POSITION_TYPES and isinstance(text.pad_token_id, int):
                value -= text.pad_token_id + 1
            return max(value, 1)
    return None


def max_encoder_context(config: PreTrainedConfig) -> int | None:
    """Return the positions that the encoder was made for; None where no limit is known."""
    text = config.get_text_config(encoder=True)
    for field in ("max_source_positions", "max_encoder_position_embeddings", *_CONTEXT_FIELDS):
        value = getattr(text, field, None)
        if isinstance(value, int) and 0 < value <= MAX_COUNT:  # more is a way to say that there is none
            return value
    return None


def check_counts(
    *, batch: int, context: int | None, encoder_context: int | None, prefill_chunk: int | None
) -> None:
    """Check what is asked for before anything is read.

    Raises:
        UsageError: A number is less than 1.
        UsageError: A number is more than any machine could hold.
    """
    for option, value in (
        ("--batch", batch),
        ("--context", context),
        ("--encoder-context", encoder_context),
        ("--prefill-chunk", prefill_chunk),
    ):
        if value is not None and value < 1:
            raise UsageError("a count must be positive", where=option, got=str(value), needed="1 or more")
        if value is not None and value > MAX_COUNT:
            raise UsageError("a count is out of reach", where=option, needed=f"at most {MAX_COUNT}")


def make_workload(
    config: PreTrainedConfig | None,
    *,
    batch: int = 1,
    context: int | None = None,
    encoder_context: int | None = None,
    prefill_chunk: int | None = None,
    dtype: str,
) -> tuple[Workload, tuple[str, ...]]:
    """Return the workload with its defaults filled in, and warnings for what was changed.

    Args:
        config: None for a module that is no transformers model.
        batch: Sequences at once.
        context: Positions, prompt and generated together; None: 1024, or the model's maximum if that is less.
        encoder_context: Positions of the encoder; None: the model's maximum. Only for encoder-decoders.
        prefill_chunk: Positions that one forward takes at most; None: the context.
        dtype: Data type in which the model computes, in any spelling.

    Returns:
        The workload and one sentence for each value that was clamped.

    Raises:
        UsageError: A number is less than 1.
        UsageError: A number is more than any machine could hold.
        UsageError: `encoder_context` is given for a model with one stack.
        DtypeError: `dtype` is unknown.
    """
    check_counts(batch=batch, context=context, encoder_context=encoder_context, prefill_chunk=prefill_chunk)
    warnings: list[str] = []
    limit = max_context(config) if config is not None else None
    planned = _clamped("--context", context, limit, warnings) or min(
        DEFAULT_CONTEXT, limit or DEFAULT_CONTEXT
    )
    chunk = _clamped("--prefill-chunk", prefill_chunk, planned, warnings, noun="the context") or planned
    planned_encoder = None
    if config is not None and config.is_encoder_decoder:
        encoder_limit = max_encoder_context(config)
        given = _clamped("--encoder-context", encoder_context, encoder_limit, warnings)
        planned_encoder = given or encoder_limit or planned
    elif encoder_context is not None:
        raise UsageError(
            "the model has no encoder beside its decoder",
            where="--encoder-context",
            hint="leave the option out",
        )
    workload = Workload(
        batch=batch,
        context=planned,
        encoder_context=planned_encoder,
        prefill_chunk=chunk,
        kv_dtype=parse_dtype(dtype).name,
    )
    return workload, tuple(warnings)


def _clamped(
    option: str,
    value: int | None,
    limit: int | None,
    warnings: list[str],
    *,
    noun: str = "the model's maximum",
) -> int | None:
    if value is None or limit is None or value <= limit:
        return value
    warnings.append(f"{option} {value} is more than {noun}: planned for {limit}")
    return limit
